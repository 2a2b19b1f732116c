// The recipe form of a layout: what travels instead of holdings.
#include "model/recipe.h"

#include <nlohmann/json.hpp>

#include "model/model_layout.h"

namespace refit::model {
namespace {
using nlohmann::json;

Error bad(const std::string& what) { return Error(Code::kInvalid, "recipe: " + what); }

Status check_keys(const json& recipe) {
  static constexpr std::string_view kKeys[] = {"family", "spec",   "config", "config_digest", "rules_digest",
                                               "naming", "copies", "dtypes", "values",        "prefix"};
  for (const auto& [key, value] : recipe.items())
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) return bad("unknown key '" + key + "'");
  for (std::string_view key : {"family", "spec", "config_digest", "rules_digest", "naming"})
    if (!recipe.contains(key) || !recipe[std::string(key)].is_string())
      return bad("key '" + std::string(key) + "' must be a string");
  if (!recipe.contains("config") || !recipe["config"].is_object()) return bad("key 'config' must be an object");
  if (!recipe.contains("copies") || !recipe["copies"].is_array()) return bad("key 'copies' must be a list");
  if (!recipe.contains("values") || !recipe["values"].is_object()) return bad("key 'values' must be an object");
  if (!recipe.contains("dtypes") || !recipe["dtypes"].is_object()) return bad("key 'dtypes' must be an object");
  return {};
}

Result<CheckpointFacts> facts_of(const json& recipe) {
  CheckpointFacts facts;
  const std::string naming = recipe["naming"];
  if (naming != "fused" && naming != "per-expert")
    return bad("naming '" + naming + "' is neither per-expert nor fused");
  facts.fused = naming == "fused";
  if (recipe.contains("prefix")) {
    if (recipe["prefix"] != std::string(kLanguagePart))
      return bad("prefix may be '" + std::string(kLanguagePart) + "' only");
    facts.prefix = kLanguagePart;
  }
  for (const json& name : recipe["copies"]) {
    if (!name.is_string()) return bad("key 'copies' must be a list of names");
    facts.copies.insert(name.get<std::string>());
  }
  for (const auto& [name, value] : recipe["dtypes"].items()) {
    const auto dtype = value.is_string() ? dtype_from_string(value.get_ref<const std::string&>()) : std::nullopt;
    if (!dtype) return bad("dtype of '" + name + "' is not one of the dtypes of layout files");
    facts.dtypes.emplace(name, *dtype);
  }
  return facts;
}

// Tensors that this side stores as results of a value transform, by its name.
json values_json(const Layout& layout) {
  json out = json::object();
  for (const auto& [tensor, value] : layout.values()) out[layout.catalogue().tensors[tensor.value].name] = value;
  return out;
}

}  // namespace

std::string ModelLayout::serialise() const {
  json dtypes = json::object();
  for (const auto& [name, dtype] : facts_.dtypes) dtypes[name] = to_string(dtype);
  json recipe{{"family", recipe_.family},
              {"spec", recipe_.spec},
              {"config", json::parse(config_.canonical)},
              {"config_digest", recipe_.config_digest.hex()},
              {"rules_digest", recipe_.rules_digest.hex()},
              {"naming", facts_.fused ? "fused" : "per-expert"},
              {"copies", facts_.copies},
              {"dtypes", dtypes},
              {"values", values_json(*this)}};
  if (!facts_.prefix.empty()) recipe["prefix"] = facts_.prefix;
  return json{{"recipe", recipe}}.dump(1);
}

Result<std::shared_ptr<const Layout>> read_recipe(const std::string& recipe_json) {
  if (Status valid = check_json(recipe_json); !valid.ok()) return bad(valid.error().message);
  const json recipe = json::parse(recipe_json, nullptr, false);
  if (!recipe.is_object()) return bad("is not a JSON object");
  REFIT_TRY(check_keys(recipe));
  REFIT_ASSIGN(ModelConfig config, read_config(recipe["config"].dump()));
  if (config.family->name != recipe["family"].get_ref<const std::string&>())
    return bad("family '" + recipe["family"].get<std::string>() + "' is not the configuration's, " +
               std::string(config.family->name));
  REFIT_ASSIGN(CheckpointFacts facts, facts_of(recipe));
  REFIT_ASSIGN(Spec spec, parse_spec(recipe["spec"].get_ref<const std::string&>()));
  REFIT_ASSIGN(auto made, make_layout(std::move(config), std::move(spec), std::move(facts)));
  if (made->recipe()->config_digest.hex() != recipe["config_digest"].get_ref<const std::string&>())
    return Error(Code::kMismatch, "recipe: its configuration has digest " + made->recipe()->config_digest.hex() +
                                      ", not " + recipe["config_digest"].get<std::string>());
  if (made->recipe()->rules_digest.hex() != recipe["rules_digest"].get_ref<const std::string&>())
    return Error(Code::kMismatch, "recipe: it was made by other rules (" + recipe["rules_digest"].get<std::string>() +
                                      ", this build has " + made->recipe()->rules_digest.hex() +
                                      "); write the layout again with this build");
  if (recipe["values"] != values_json(*made)) return bad("key 'values' names other transforms than the rules do");
  for (const std::string& copy : made->facts().copies) {
    const auto ties = made->config().ties();
    if (std::none_of(ties.begin(), ties.end(), [&](const auto& tie) { return tie.second == copy; }))
      return bad("copies names '" + copy + "', which the model does not tie");
  }
  for (const auto& [name, dtype] : made->facts().dtypes) {
    const auto& tensors = made->catalogue().tensors;
    const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                     [](const LogicalTensor& t, const std::string& n) { return t.name < n; });
    if (at == tensors.end() || at->name != name) return bad("dtypes names '" + name + "', which the model lacks");
  }
  return std::shared_ptr<const Layout>(std::move(made));
}

}  // namespace refit::model
