#include "model/sides/engine.h"

#include <algorithm>

namespace refit::model {
namespace {
constexpr std::string_view kVocabularyMultiple = "64";

// Draft models are loaded apart from the model that they draft for.
Status check_drafts(std::string_view label, const Spec& spec, const ModelConfig& config) {
  if (spec.draft_model() && config.draft_layers() == 0)
    return Error(Code::kInvalid, std::string(label) + ": draft=own needs draft layers, and " +
                                     std::string(config.family->name) + " with this configuration has none");
  if (spec.draft_model() && config.flag("tied") && !config.family->ties.empty())
    return Error(Code::kUnsupported, std::string(label) + ": draft=own is not built for tied embeddings of family " +
                                         std::string(config.family->name));
  if (config.draft_layers() == 0 || spec.given("draft")) return {};
  for (const Row& row : config.family->rows)
    if (config.active(row))
      for (std::int64_t layer : config.layers(row))
        if (layer >= config.size("L")) {
          const std::string name = config.name(row.members[0].name, layer, 0);
          return Error(Code::kUnsupported,
                       std::string(label) + ": the model has no place for the draft layer's " + name +
                           "; draft=skip leaves all draft layers out, and draft=own is a layout of them alone")
              .at_tensor(name);
        }
  return {};
}

Status check_shared(std::string_view label, const Spec& spec, const ModelConfig& config) {
  if (!spec.given("shared")) return {};
  const bool has = std::ranges::any_of(
      config.family->rows, [&](const Row& r) { return r.shared && config.active(r) && !config.layers(r).empty(); });
  if (!has)
    return Error(Code::kUnsupported, std::string(label) + ": shared=fused is not built for family " +
                                         std::string(config.family->name) + " with this configuration");
  if (config.size("Is") != config.size("Im"))
    return Error(Code::kUnsupported, std::string(label) +
                                         ": shared=fused needs one shared expert as wide as the routed "
                                         "ones: its width is " +
                                         std::to_string(config.size("Is")) + ", " + config.key("Im") + " is " +
                                         std::to_string(config.size("Im")));
  return {};
}

}  // namespace

std::vector<SideRule> engine_rules(std::string_view mlp, CutRule placement) {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp"), columns = cut(1, CutRule::kEven, "tp");
  const Op kv_heads = cut(0, CutRule::kShare, "tp", "Hkv");
  const Op mlp_rows = cut(0, CutRule::kEven, mlp), mlp_columns = cut(1, CutRule::kEven, mlp);
  const Op expert_rows = cut(0, CutRule::kEven, "moe_tp"), expert_columns = cut(1, CutRule::kEven, "moe_tp");
  const Op own_experts = cut(0, placement, "ep");
  const Program qkv{load(0), rows, load(1), kv_heads, load(2), kv_heads, concat(0, 3)};
  return {{Kind::kVocabulary, Per::kRow, {load(0), pad(0, kVocabularyMultiple), rows}},
          {Kind::kReplicated, Per::kRow, {load(0)}},
          {Kind::kQkv, Per::kRow, qkv},
          {Kind::kGatedQkv, Per::kRow, qkv},
          {Kind::kColumn, Per::kRow, {load(0), rows}},
          {Kind::kRowParallel, Per::kRow, {load(0), columns}},
          {Kind::kGateUp, Per::kRow, {load(0), mlp_rows, load(1), mlp_rows, concat(0, 2)}},
          {Kind::kUp, Per::kRow, {load(0), mlp_rows}},
          {Kind::kMlpDown, Per::kRow, {load(0), mlp_columns}},
          {Kind::kExpertGateUp,
           Per::kStack,
           {load(0), expert_rows, load(1), expert_rows, concat(0, 2), stack(), own_experts}},
          {Kind::kExpertUp, Per::kStack, {load(0), expert_rows, stack(), own_experts}},
          {Kind::kExpertDown, Per::kStack, {load(0), expert_columns, stack(), own_experts}}};
}

Status engine_check(std::string_view label, const Spec& spec, const ModelConfig& config, std::string_view mlp,
                    std::int64_t width) {
  const std::int64_t tp = spec.number("tp"), ep = spec.number("ep");
  REFIT_TRY(must_divide(label, config, "Hq", "tp", tp));
  if (config.has("Hkv")) {
    const std::int64_t kv = config.size("Hkv");
    if (tp >= kv ? tp % kv != 0 : kv % tp != 0)
      return Error(Code::kInvalid, std::string(label) + ": num_key_value_heads " + std::to_string(kv) +
                                       " and tp=" + std::to_string(tp) + ": neither divides the other")
          .at_tensor(config.tensor_with("Hkv"));
  }
  if (config.has("G")) {
    REFIT_TRY(must_divide(label, config, "nh", "tp", tp));
    if (config.size("G") > 1) REFIT_TRY(must_divide(label, config, "G", "tp", tp));
  }
  if (config.has("Hk")) REFIT_TRY(must_divide(label, config, "Hk", "tp", tp));
  if (config.has("I") && config.has_dense()) REFIT_TRY(must_divide(label, config, "I", mlp, mlp == "tp" ? tp : width));
  if (Status even = must_divide(label, "vocab_size padded to 64,", ceil_div(config.size("V"), 64) * 64, "tp", tp);
      !even.ok())
    return std::move(even).error().at_tensor(std::string(config.family->embedding));
  if (ep > 1 && !config.has_moe())
    return Error(Code::kInvalid,
                 std::string(label) + ": ep=" + std::to_string(ep) + " needs experts, and this model has none");
  REFIT_TRY(check_shared(label, spec, config));
  return check_drafts(label, spec, config);
}

}  // namespace refit::model
