#include "model/recipe.h"

namespace refit::model {
__attribute__((weak)) Result<std::shared_ptr<const Layout>> read_recipe(const std::string&) {
  return Error(Code::kUnsupported, "this build has no layout rules");
}
}  // namespace refit::model
