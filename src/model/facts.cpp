// What a checkpoint's own list of tensors adds to its configuration.
#include <algorithm>
#include <set>

#include "model/recipe.h"
#include "model/rule_layout.h"

namespace refit::model {
namespace {

constexpr std::size_t kShown = 5;

// Some old checkpoints saved this buffer; every framework computes it anew.
bool derived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

// The tensors that a checkpoint of this configuration has, experts stacked or not.
std::vector<LogicalTensor> tensors_of(const ModelConfig& config, const std::vector<std::vector<Dims>>& shapes,
                                      bool fused) {
  std::vector<LogicalTensor> out;
  for (std::size_t r = 0; r < config.family->rows.size(); ++r) {
    const Row& row = config.family->rows[r];
    if (!config.active(row)) continue;
    const bool expert_row = row.kind == Kind::kExpertGateUp || row.kind == Kind::kExpertDown;
    const std::int64_t experts = expert_row ? config.size("E") : 1;
    for (std::int64_t layer : config.layers(row)) {
      if (expert_row && fused) {
        Dims shape = shapes[r][0];
        for (std::size_t m = 1; m < shapes[r].size(); ++m) shape[0] += shapes[r][m][0];
        shape.insert(shape.begin(), experts);
        out.push_back({instantiate(row.fused, layer, 0), shape, config.dtype});
        continue;
      }
      for (std::int64_t e = 0; e < experts; ++e)
        for (std::size_t m = 0; m < row.members.size(); ++m)
          out.push_back({instantiate(row.members[m].name, layer, e), shapes[r][m], config.dtype});
    }
  }
  return out;
}

Result<std::vector<std::vector<Dims>>> shapes_of(const ModelConfig& config) {
  std::vector<std::vector<Dims>> out;
  for (const Row& row : config.family->rows) {
    out.emplace_back();
    for (const Member& m : row.members) {
      REFIT_ASSIGN(out.back().emplace_back(), evaluate_terms(m.shape, config.symbols));
    }
  }
  return out;
}

std::string some(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) out += (i ? ", " : "") + names[i];
  return names.size() > kShown ? out + " and " + std::to_string(names.size() - kShown) + " more" : out;
}

bool has_fused_experts(const ModelConfig& config, const Catalogue& names) {
  std::set<std::string> stacked;
  for (const Row& row : config.family->rows)
    if (!row.fused.empty())
      for (std::int64_t layer : config.layers(row)) stacked.insert(instantiate(row.fused, layer, 0));
  return std::any_of(names.tensors.begin(), names.tensors.end(),
                     [&](const LogicalTensor& t) { return stacked.contains(t.name); });
}

std::string dims_text(const Dims& dims) {
  std::string out = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

}  // namespace

Result<Catalogue> catalogue_of(std::string_view config_json, std::string_view naming) {
  if (naming != "per-expert" && naming != "fused")
    return Error(Code::kInvalid, "naming '" + std::string(naming) + "' is neither per-expert nor fused");
  REFIT_ASSIGN(const ModelConfig config, read_config(config_json));
  REFIT_ASSIGN(const auto shapes, shapes_of(config));
  Catalogue out;
  out.tensors = tensors_of(config, shapes, naming == "fused");
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  if (config.flag("tied")) out.tied.emplace_back(kEmbedding, kHead);
  return out;
}

Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& names) {
  CheckpointFacts facts;
  facts.fused = has_fused_experts(config, names);
  REFIT_ASSIGN(const auto shapes, shapes_of(config));
  std::map<std::string_view, const LogicalTensor*> given;
  for (const LogicalTensor& t : names.tensors)
    if (!derived(t.name)) given.emplace(t.name, &t);
  std::vector<std::string> missing;
  for (const LogicalTensor& want : tensors_of(config, shapes, facts.fused)) {
    const auto found = given.find(want.name);
    if (found == given.end()) {
      missing.push_back(want.name);
      continue;
    }
    if (found->second->shape != want.shape)
      return Error(Code::kMismatch, "the checkpoint has " + want.name + " as " + dims_text(found->second->shape) +
                                        ", config.json says " + dims_text(want.shape))
          .at_tensor(want.name);
    if (found->second->dtype != config.dtype) facts.dtypes[want.name] = found->second->dtype;
    given.erase(found);
  }
  if (!missing.empty())
    return Error(Code::kMismatch, "the checkpoint lacks " + some(missing) + ", which config.json asks for")
        .at_tensor(missing[0]);
  if (const auto head = given.find(kHead); head != given.end() && config.flag("tied")) {
    const Dims want{config.size("V"), config.size("H")};
    const auto embedding = facts.dtypes.find(std::string(kEmbedding));
    if (head->second->shape != want ||
        head->second->dtype != (embedding == facts.dtypes.end() ? config.dtype : embedding->second))
      return Error(Code::kMismatch,
                   "lm_head.weight is tied to model.embed_tokens.weight but has another shape or dtype")
          .at_tensor(std::string(kHead));
    facts.tied_copy = true;
    given.erase(head);
  }
  if (!given.empty()) {
    std::vector<std::string> unknown;
    for (const auto& [name, tensor] : given) unknown.emplace_back(name);
    return Error(Code::kMismatch,
                 "no rule of family " + std::string(config.family->name) + " describes " + some(unknown))
        .at_tensor(unknown[0]);
  }
  if (!facts.fused) return facts;
  // Stacked dtypes speak for each expert's tensors.
  std::map<std::string, DType> spread;
  for (const auto& [name, dtype] : facts.dtypes) spread.emplace(name, dtype);
  for (const Row& row : config.family->rows)
    if (!row.fused.empty())
      for (std::int64_t layer : config.layers(row)) {
        const auto found = facts.dtypes.find(instantiate(row.fused, layer, 0));
        if (found == facts.dtypes.end()) continue;
        spread.erase(found->first);
        for (std::int64_t e = 0; e < config.size("E"); ++e)
          for (const Member& m : row.members) spread.emplace(instantiate(m.name, layer, e), found->second);
      }
  facts.dtypes = std::move(spread);
  return facts;
}

}  // namespace refit::model
