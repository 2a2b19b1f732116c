// What rules make beyond rule_layout(): recipes read back, siblings of a layout, model configurations by name.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/layout.h"

namespace refit::model {

// Reads the object under key "recipe" of a layout file, i.e. what serialise() of a rule layout wrote there.
// Errors: kInvalid for unknown or missing keys; kMismatch when other rules (or another configuration) made it.
Result<std::shared_ptr<const Layout>> read_recipe(const std::string& recipe_json);

// The same model and checkpoint facts (naming, dtypes, keys) under another SPEC: the way from an engine's layout back
// to `hf`. Errors: kUnsupported when `made` did not come from rules; else as rule_layout().
Result<std::shared_ptr<const Layout>> sibling_layout(const Layout& made, std::string_view spec);

// A layout file that says both: the recipe, and explicit holdings of ranks that lie otherwise than the rules put them
// (other buffers, offsets and files, the same tensors and boxes). read_layout() compares the two and returns the
// recipe's layout.
Result<std::string> describe_files(const Layout& made, const std::vector<RankLayout>& ranks);

// The text of config.json of a well-known model, `NAME` or `NAME@layers=N`. Errors: kInvalid listing the names.
Result<std::string> builtin_config(std::string_view name);
std::vector<std::string> builtin_names();

// The tensors of a checkpoint of this configuration, sorted by name. `naming` is "per-expert" or "fused"; the two
// differ for mixtures of experts only, and per-expert names are the logical ones.
Result<Catalogue> catalogue_of(std::string_view config_json, std::string_view naming = "per-expert");

// Valid UTF-8 JSON in which no object has two equal keys. Errors: kInvalid naming the key or byte.
Status check_json(std::string_view text);

}  // namespace refit::model
