// Inside model: from the JSON of a recipe back to the layout that its rules made.
#pragma once
#include <memory>
#include <string>

#include "model/layout.h"

namespace refit::model {

// Reads the object under the key "recipe" of a layout file. Errors: kInvalid naming the key.
Result<std::shared_ptr<const Layout>> read_recipe(const std::string& recipe_json);

}  // namespace refit::model
