#include "model/model_layout.h"

#include "model/flat_layout.h"
#include "model/outside_names.h"
#include "model/recipe.h"
#include "model/rule_layout.h"

namespace refit::model {

std::string ModelLayout::host(Rank rank) const {
  const auto prefix = spec_.texts.find("hosts");
  const std::string name = prefix != spec_.texts.end() ? prefix->second : side_->engine ? "tgt" : "src";
  return name + "-" + std::to_string(rank.value / static_cast<std::uint64_t>(spec_.number("gpus_per_host")));
}

void ModelLayout::seal(Hash128 rules) {
  recipe_ = {std::string(config_.family->name), canonical_spec(spec_), hash128(config_.canonical), rules};
  Hasher all;
  all.add_text("rule layout")
      .add_text(recipe_.spec)
      .add_text(recipe_.config_digest.hex())
      .add_text(recipe_.rules_digest.hex());
  for (const std::string& name : facts_.copies) all.add_text(name);
  all.add_u64(facts_.copies.size());
  for (const auto& [name, dtype] : facts_.dtypes) all.add_text(name).add_text(to_string(dtype));
  if (!facts_.prefix.empty()) all.add_text(facts_.prefix);
  digest_ = all.finish();
}

Result<std::shared_ptr<const ModelLayout>> make_layout(ModelConfig config, Spec spec, CheckpointFacts facts) {
  if (spec.given("flat")) {
    REFIT_ASSIGN(auto flat, FlatLayout::make(std::move(config), std::move(spec), std::move(facts)));
    return std::shared_ptr<const ModelLayout>(std::move(flat));
  }
  REFIT_ASSIGN(auto made, RuleLayout::make(std::move(config), std::move(spec), std::move(facts)));
  return std::shared_ptr<const ModelLayout>(std::move(made));
}

Result<std::shared_ptr<const Layout>> rule_layout(std::string_view config_json, std::string_view spec_text,
                                                  const Catalogue* names) {
  Catalogue plain;
  if (names) {
    REFIT_ASSIGN(plain, plain_names(*names));
  }
  REFIT_ASSIGN(ModelConfig config, read_config(config_json, names ? &plain : nullptr));
  REFIT_ASSIGN(Spec spec, parse_spec(spec_text));
  CheckpointFacts facts;
  if (config.multimodal && !spec.given("vision"))
    return Error(Code::kUnsupported, "config.json: architectures names " + std::string(config.family->whole) +
                                         ", of which only the language part is built: say vision=skip in the SPEC");
  if (names) {
    REFIT_ASSIGN(facts, read_facts(config, plain, spec.given("vision")));
  }
  REFIT_ASSIGN(auto made, make_layout(std::move(config), std::move(spec), std::move(facts)));
  return std::shared_ptr<const Layout>(std::move(made));
}

Result<std::shared_ptr<const Layout>> sibling_layout(const Layout& made, std::string_view spec_text) {
  const auto* model = dynamic_cast<const ModelLayout*>(&made);
  if (!model)
    return Error(Code::kUnsupported,
                 "SPEC '" + std::string(spec_text) + "' needs a layout made by rules; this one has explicit holdings");
  REFIT_ASSIGN(Spec spec, parse_spec(spec_text));
  REFIT_ASSIGN(auto out, make_layout(model->config(), std::move(spec), model->facts()));
  return std::shared_ptr<const Layout>(std::move(out));
}

}  // namespace refit::model
