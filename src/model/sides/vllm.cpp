// vllm (0.25 and later): fused qkv and gate_up, K and V heads shared by neighbours when there are more ranks than
// heads, vocabulary padded to 64. Attention and dense layers are cut over tp only; experts over dp*tp, or whole per
// rank with EP.
#include "model/sides/side.h"

namespace refit::model {
namespace {

constexpr std::string_view kVocabularyMultiple = "64";

std::vector<SideRule> vllm_rules(const Spec& spec) {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp"), columns = cut(1, CutRule::kEven, "tp");
  const Op kv_heads = cut(0, CutRule::kShare, "tp", "Hkv");
  const Op wide_rows = cut(0, CutRule::kEven, "dp*tp"), wide_columns = cut(1, CutRule::kEven, "dp*tp");
  const Op own_experts = cut(0, CutRule::kLinear, "dp*tp");
  std::vector<SideRule> rules{
      {Kind::kVocabulary, Per::kRow, {load(0), pad(0, kVocabularyMultiple), rows}},
      {Kind::kReplicated, Per::kRow, {load(0)}},
      {Kind::kQkv, Per::kRow, {load(0), rows, load(1), kv_heads, load(2), kv_heads, concat(0, 3)}},
      {Kind::kRowParallel, Per::kRow, {load(0), columns}},
      {Kind::kGateUp, Per::kRow, {load(0), rows, load(1), rows, concat(0, 2)}}};
  if (spec.number("ep") > 1) {
    rules.push_back({Kind::kExpertGateUp, Per::kStack, {load(0), load(1), concat(0, 2), stack(), own_experts}});
    rules.push_back({Kind::kExpertDown, Per::kStack, {load(0), stack(), own_experts}});
  } else {
    rules.push_back(
        {Kind::kExpertGateUp, Per::kStack, {load(0), wide_rows, load(1), wide_rows, concat(0, 2), stack()}});
    rules.push_back({Kind::kExpertDown, Per::kStack, {load(0), wide_columns, stack()}});
  }
  return rules;
}

Status vllm_check(const Spec& spec, const ModelConfig& config) {
  const std::int64_t tp = spec.number("tp"), ep = spec.number("ep"), width = tp * spec.number("dp");
  const std::int64_t kv = config.size("Hkv");
  REFIT_TRY(must_divide("vllm", "num_attention_heads", config.size("Hq"), "tp", tp));
  if (tp >= kv ? tp % kv != 0 : kv % tp != 0)
    return Error(Code::kInvalid, "vllm: num_key_value_heads " + std::to_string(kv) + " and tp=" + std::to_string(tp) +
                                     ": neither divides the other");
  if (config.has_dense()) REFIT_TRY(must_divide("vllm", "intermediate_size", config.size("I"), "tp", tp));
  REFIT_TRY(must_divide("vllm", "vocab_size padded to 64,", ceil_div(config.size("V"), 64) * 64, "tp", tp));
  if (ep != 1 && ep != width)
    return Error(Code::kInvalid, "vllm: ep=" + std::to_string(ep) + " must be 1 or dp*tp = " + std::to_string(width));
  if (ep > 1 && !config.has_moe())
    return Error(Code::kInvalid, "vllm: ep=" + std::to_string(ep) + " needs experts, and this model has none");
  if (ep == 1 && config.has_moe())
    REFIT_TRY(must_divide("vllm", "moe_intermediate_size", config.size("Im"), "dp*tp", width));
  return {};
}

}  // namespace

const Side& vllm_side() {
  static const Side side{.name = "vllm",
                         .engine = true,
                         .keys = {{"tp", 1}, {"ep", 1}, {"dp", 1}},
                         .axes =
                             [](const Spec& spec) {
                               return std::vector<Mesh::Axis>{{"dp", spec.number("dp")}, {"tp", spec.number("tp")}};
                             },
                         .rules = vllm_rules,
                         .check = vllm_check};
  return side;
}

}  // namespace refit::model
