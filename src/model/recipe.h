// Inside model: from the JSON of a recipe back to the layout that its rules made.
#pragma once
#include <memory>
#include <string_view>

#include "model/layout.h"

namespace refit::model {

// `json` is the whole document, an object with the key "recipe". Errors: kInvalid naming the key.
Result<std::shared_ptr<const Layout>> read_recipe(std::string_view json);

}  // namespace refit::model
