// megatron, dense models, Transformer Engine names: q, k and v interleaved per KV group and then cut evenly (through
// heads where tp passes the KV heads), gate and up cut each, vocabulary padded to vocab_multiple*tp.
#include "model/sides/side.h"

namespace refit::model {
namespace {

std::vector<SideRule> megatron_rules(const Spec&) {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp"), columns = cut(1, CutRule::kEven, "tp");
  return {{Kind::kVocabulary, Per::kRow, {load(0), pad(0, "vocab_multiple*tp"), rows}},
          {Kind::kReplicated, Per::kRow, {load(0)}},
          {Kind::kQkv,
           Per::kRow,
           {load(0), view(0, "Hkv,qpg*hd"), load(1), view(0, "Hkv,hd"), load(2), view(0, "Hkv,hd"), interleave(0, 3),
            rows}},
          {Kind::kRowParallel, Per::kRow, {load(0), columns}},
          {Kind::kGateUp, Per::kRow, {load(0), rows, load(1), rows, concat(0, 2)}}};
}

Status megatron_check(const Spec& spec, const ModelConfig& config) {
  for (std::string_view key : {"pp", "vpp", "cp", "ep", "etp"})
    if (spec.number(key) != 1)
      return Error(Code::kUnsupported, "megatron: " + std::string(key) + "=" + std::to_string(spec.number(key)) +
                                           " is not built; dense models with tp, dp and vocab_multiple are");
  if (config.has_moe())
    return Error(Code::kUnsupported,
                 "megatron: experts (" + std::string(config.family->name) + ") are not built; dense models are");
  const std::int64_t tp = spec.number("tp"), kv = config.size("Hkv");
  REFIT_TRY(must_divide("megatron", "num_attention_heads", config.size("Hq"), "tp", tp));
  if (tp > kv ? tp % kv != 0 : kv % tp != 0)
    return Error(Code::kInvalid, "megatron: num_key_value_heads " + std::to_string(kv) +
                                     " and tp=" + std::to_string(tp) + ": neither divides the other");
  const auto qkv_rows = checked_mul(config.size("Hq") + 2 * kv, config.size("hd"));
  if (!qkv_rows) return Error(Code::kInvalid, "megatron: the rows of linear_qkv pass 2^63");
  REFIT_TRY(must_divide(
      "megatron", "linear_qkv rows (num_attention_heads + 2*num_key_value_heads) * head_dim =", *qkv_rows, "tp", tp));
  return must_divide("megatron", "intermediate_size", config.size("I"), "tp", tp);
}

}  // namespace

const Side& megatron_side() {
  static const Side side{
      .name = "megatron",
      .names = Names::kMegatron,
      .keys = {{"tp", 1}, {"dp", 1}, {"vocab_multiple", 128}, {"pp", 1}, {"vpp", 1}, {"cp", 1}, {"ep", 1}, {"etp", 1}},
      .axes =
          [](const Spec& spec) {
            return std::vector<Mesh::Axis>{{"dp", spec.number("dp")}, {"tp", spec.number("tp")}};
          },
      .rules = megatron_rules,
      .check = megatron_check};
  return side;
}

}  // namespace refit::model
