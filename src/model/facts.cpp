// What a checkpoint's own list of tensors adds to its configuration.
#include <algorithm>
#include <set>

#include "model/model_layout.h"
#include "model/outside_names.h"
#include "model/recipe.h"

namespace refit::model {
namespace {

// Some old checkpoints saved this buffer; every framework computes it anew.
bool derived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

// The tensors that a checkpoint of this configuration has, experts stacked or not.
Result<std::vector<LogicalTensor>> tensors_of(const ModelConfig& config, bool fused) {
  std::vector<LogicalTensor> out;
  for (const Row& row : config.family->rows) {
    if (!config.active(row)) continue;
    REFIT_ASSIGN(const std::vector<Dims> shapes, config.shapes(row));
    for (std::int64_t layer : config.layers(row)) {
      if (fused && !row.fused.empty()) {
        Dims shape = shapes[0];
        for (std::size_t m = 1; m < shapes.size(); ++m) shape[0] += shapes[m][0];
        shape.insert(shape.begin(), config.experts(row));
        out.push_back({config.name(row.fused, layer, 0), shape, config.dtype});
        continue;
      }
      for (std::int64_t e = 0; e < config.experts(row); ++e)
        for (std::size_t m = 0; m < row.members.size(); ++m)
          out.push_back({config.name(row.members[m].name, layer, e), shapes[m], config.dtype_of(row.members[m])});
    }
  }
  return out;
}

bool has_fused_experts(const ModelConfig& config, const Catalogue& names) {
  std::set<std::string> stacked;
  for (const Row& row : config.family->rows)
    if (!row.fused.empty())
      for (std::int64_t layer : config.layers(row)) stacked.insert(config.name(row.fused, layer, 0));
  return std::any_of(names.tensors.begin(), names.tensors.end(),
                     [&](const LogicalTensor& t) { return stacked.contains(t.name); });
}

std::string dims_text(const Dims& dims) {
  std::string out = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

// Towers and projectors of models that also see or hear, beside the language part.
constexpr std::string_view kOtherParts[] = {"visual.",       "vision_tower.", "multi_modal_projector.",
                                            "vision_model.", "embed_vision.", "audio_tower.",
                                            "embed_audio."};

bool is_other_part(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  return std::ranges::any_of(kOtherParts, [&](std::string_view part) { return name.starts_with(part); });
}

// The checkpoint's tensors under the names of the text model alone: `model.language_model.` as `model.`, and without
// other parts where they may be passed over.
Result<Catalogue> language_part(const ModelConfig& config, const Catalogue& outside, bool skip_vision,
                                CheckpointFacts& facts) {
  Catalogue out;
  std::vector<std::string> other;
  for (const LogicalTensor& t : outside.tensors) {
    LogicalTensor own = t;
    if (!config.family->whole.empty() && is_other_part(own.name)) {
      other.push_back(own.name);
      continue;
    }
    if (!config.family->whole.empty() && own.name.starts_with(kLanguagePart)) {
      facts.prefix = kLanguagePart;
      own.name = "model." + own.name.substr(kLanguagePart.size());
    }
    out.tensors.push_back(std::move(own));
  }
  std::set<std::string_view> seen;
  for (const LogicalTensor& t : out.tensors)
    if (!seen.insert(t.name).second)
      return Error(Code::kMismatch,
                   "the checkpoint has " + t.name + " twice: once behind " + std::string(kLanguagePart))
          .at_tensor(t.name);
  if (!other.empty() && !skip_vision)
    return Error(Code::kUnsupported, "family " + std::string(config.family->name) +
                                         " is built for the language part; vision=skip in the SPEC passes over " +
                                         names_text(other))
        .at_tensor(other[0]);
  facts.skipped = std::move(other);
  return out;
}

}  // namespace

Result<Catalogue> catalogue_of(std::string_view config_json, std::string_view naming) {
  if (naming != "per-expert" && naming != "fused")
    return Error(Code::kInvalid, "naming '" + std::string(naming) + "' is neither per-expert nor fused");
  REFIT_ASSIGN(const ModelConfig config, read_config(config_json));
  Catalogue out;
  REFIT_ASSIGN(out.tensors, tensors_of(config, naming == "fused"));
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  out.tied = config.ties();
  return out;
}

Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& outside, bool skip_vision) {
  CheckpointFacts facts;
  REFIT_ASSIGN(const Catalogue names, language_part(config, outside, skip_vision, facts));
  facts.fused = has_fused_experts(config, names);
  REFIT_ASSIGN(const auto wanted, tensors_of(config, facts.fused));
  std::map<std::string_view, const LogicalTensor*> given;
  for (const LogicalTensor& t : names.tensors)
    if (!derived(t.name)) given.emplace(t.name, &t);
  std::vector<std::string> missing;
  for (const LogicalTensor& want : wanted) {
    const auto found = given.find(want.name);
    if (found == given.end()) {
      missing.push_back(want.name);
      continue;
    }
    if (found->second->shape != want.shape)
      return Error(Code::kMismatch, "the checkpoint has " + want.name + " as " + dims_text(found->second->shape) +
                                        ", config.json says " + dims_text(want.shape))
          .at_tensor(want.name);
    if (found->second->dtype != want.dtype) facts.dtypes[want.name] = found->second->dtype;
    given.erase(found);
  }
  for (const auto& [primary, copy] : config.ties()) {
    const auto found = given.find(copy);
    if (found == given.end()) continue;
    const auto first =
        std::find_if(names.tensors.begin(), names.tensors.end(),
                     [&, want = std::string_view(primary)](const LogicalTensor& t) { return t.name == want; });
    if (first != names.tensors.end() && (first->shape != found->second->shape || first->dtype != found->second->dtype))
      return Error(Code::kMismatch, copy + " is tied to " + primary + " but has another shape or dtype")
          .at_tensor(copy);
    facts.copies.insert(copy);
    given.erase(found);
  }
  if (!missing.empty() || !given.empty()) {
    std::vector<std::string> unknown;
    for (const auto& [name, tensor] : given) unknown.emplace_back(name);
    std::string text;
    if (!missing.empty()) text = "the checkpoint lacks " + names_text(missing) + ", which config.json asks for";
    if (!unknown.empty())
      text += (text.empty() ? "" : "; ") + ("no rule of family " + std::string(config.family->name)) + " describes " +
              names_text(unknown);
    return Error(Code::kMismatch, text).at_tensor(missing.empty() ? unknown[0] : missing[0]);
  }
  if (!facts.fused) return facts;
  // Stacked dtypes speak for each expert's tensors.
  std::map<std::string, DType> spread;
  for (const auto& [name, dtype] : facts.dtypes) spread.emplace(name, dtype);
  for (const Row& row : config.family->rows)
    if (!row.fused.empty())
      for (std::int64_t layer : config.layers(row)) {
        const auto found = facts.dtypes.find(config.name(row.fused, layer, 0));
        if (found == facts.dtypes.end()) continue;
        spread.erase(found->first);
        for (std::int64_t e = 0; e < config.experts(row); ++e)
          for (const Member& m : row.members) spread.emplace(config.name(m.name, layer, e), found->second);
      }
  facts.dtypes = std::move(spread);
  return facts;
}

}  // namespace refit::model
