// Trees of other JAX trainers, tensor by tensor, from their public loaders: whole arrays, heads as axes of their own.
//   tunix      google-tunix: Llama 3, Qwen2, Qwen3 (dense)
//   maxtext    MaxText's unscanned layers: Llama 3 (queries divided by √hd, the halves of each head's rows woven into
//              pairs), Qwen3, Gemma 3 (norms + 1, embedding times √H); names with '.' where MaxText's converter has '-'
//   maxtext_scanned   the same with one array for all layers, which are its axis 1, or 0 (scan_axis=)
#include "model/sides/side.h"

#define REFIT_LAYER "model.layers.{layer}."

namespace refit::model {
namespace {
using namespace op;

// [heads·hd, H] as (H, heads, hd).
Program heads_out(std::string_view heads) { return {load(0), unfold(0, heads), permute("2,0,1")}; }
Program heads_in() { return {load(0), unfold(1, "Hq,hd"), permute("1,2,0")}; }
Program turned() { return {load(0), permute("1,0")}; }

std::vector<Preset> tunix() {
  std::vector<Preset> out{
      {kEmbedding, "embedder.input_embedding", {load(0)}},
      {kHead, "lm_head.w", turned()},
      {"model.norm.weight", "final_norm.w", {load(0)}},
      {REFIT_LAYER "self_attn.q_proj.weight", "layers.{layer}.attn.q_proj.w", heads_out("Hq,hd")},
      {REFIT_LAYER "self_attn.k_proj.weight", "layers.{layer}.attn.k_proj.w", heads_out("Hkv,hd")},
      {REFIT_LAYER "self_attn.v_proj.weight", "layers.{layer}.attn.v_proj.w", heads_out("Hkv,hd")},
      {REFIT_LAYER "self_attn.o_proj.weight", "layers.{layer}.attn.o_proj.w", heads_in()},
      {REFIT_LAYER "self_attn.q_norm.weight", "layers.{layer}.attn.q_norm.w", {load(0)}},
      {REFIT_LAYER "self_attn.k_norm.weight", "layers.{layer}.attn.k_norm.w", {load(0)}},
      {REFIT_LAYER "self_attn.q_proj.bias", "layers.{layer}.attn.q_bias", {load(0)}},
      {REFIT_LAYER "self_attn.k_proj.bias", "layers.{layer}.attn.k_bias", {load(0)}},
      {REFIT_LAYER "self_attn.v_proj.bias", "layers.{layer}.attn.v_bias", {load(0)}},
      {REFIT_LAYER "mlp.gate_proj.weight", "layers.{layer}.mlp.gate_proj.kernel", turned()},
      {REFIT_LAYER "mlp.up_proj.weight", "layers.{layer}.mlp.up_proj.kernel", turned()},
      {REFIT_LAYER "mlp.down_proj.weight", "layers.{layer}.mlp.down_proj.kernel", turned()},
      {REFIT_LAYER "input_layernorm.weight", "layers.{layer}.input_layernorm.w", {load(0)}},
      {REFIT_LAYER "post_attention_layernorm.weight", "layers.{layer}.post_attention_layernorm.w", {load(0)}}};
  return out;
}

// Rows of a head are its first half and its second half; MaxText's rotation takes neighbours as pairs.
Program woven(std::string_view radices) { return {load(0), unfold(0, radices), permute("3,0,2,1"), merge(2)}; }

struct MaxTextName {
  std::string_view tensor, own;
  Program program;
};

std::vector<MaxTextName> maxtext_layer(const Family& family) {
  const bool rope = &family == &llama(), gemma = &family == &gemma3();
  const auto norm = [&]() -> Program { return gemma ? Program{load(0), value("plus_one")} : Program{load(0)}; };
  Program query = rope ? woven("Hq,2,hd/2") : heads_out("Hq,hd");
  if (rope) query.push_back(value("over_sqrt:hd"));
  std::vector<MaxTextName> out{
      {REFIT_LAYER "self_attn.q_proj.weight", "self_attention.query.kernel", query},
      {REFIT_LAYER "self_attn.k_proj.weight", "self_attention.key.kernel",
       rope ? woven("Hkv,2,hd/2") : heads_out("Hkv,hd")},
      {REFIT_LAYER "self_attn.v_proj.weight", "self_attention.value.kernel", heads_out("Hkv,hd")},
      {REFIT_LAYER "self_attn.o_proj.weight", "self_attention.out.kernel", heads_in()},
      {REFIT_LAYER "self_attn.q_norm.weight", "self_attention.query_norm.scale", norm()},
      {REFIT_LAYER "self_attn.k_norm.weight", "self_attention.key_norm.scale", norm()},
      {REFIT_LAYER "mlp.gate_proj.weight", "mlp.wi_0.kernel", turned()},
      {REFIT_LAYER "mlp.up_proj.weight", "mlp.wi_1.kernel", turned()},
      {REFIT_LAYER "mlp.down_proj.weight", "mlp.wo.kernel", turned()},
      {REFIT_LAYER "input_layernorm.weight",
       gemma ? "pre_self_attention_norm.scale" : "pre_self_attention_layer_norm.scale", norm()},
      {REFIT_LAYER "post_attention_layernorm.weight",
       gemma ? "post_self_attention_norm.scale" : "post_self_attention_layer_norm.scale", norm()}};
  if (gemma) {
    out.push_back({REFIT_LAYER "pre_feedforward_layernorm.weight", "pre_ffw_norm.scale", norm()});
    out.push_back({REFIT_LAYER "post_feedforward_layernorm.weight", "post_ffw_norm.scale", norm()});
  }
  return out;
}

// The layers' axis goes before the first one of each layer's array, or behind it.
Program scanned(const Program& one, std::size_t axes, bool behind) {
  Program out = one;
  const Op last = out.back();
  const bool transformed = last.code == OpCode::kValue;
  if (transformed) out.pop_back();
  out.push_back(stack());
  if (behind) out.push_back(permute(axes == 1 ? "1,0" : axes == 2 ? "1,0,2" : "1,0,2,3"));
  if (transformed) out.push_back(last);
  return out;
}

std::size_t axes_of(const Program& program) {
  for (const Op& op : program)
    if (op.code == OpCode::kPermute) return op.term == "1,0" ? 2 : 3;
  return 1;
}

enum class Scan : std::uint8_t { kNone, kFirst, kSecond };

std::vector<Preset> maxtext(const Family& family, Scan scan) {
  const bool gemma = &family == &gemma3();
  Program embedding{load(0), pad(0, "vocab_multiple")}, norm{load(0)};
  const Program head{load(0), pad(0, "vocab_multiple"), permute("1,0")};
  if (gemma) embedding.push_back(value("times_sqrt:H")), norm.push_back(value("plus_one"));
  std::vector<Preset> out{{kEmbedding, "params.token_embedder.embedding", embedding},
                          {kHead, "params.decoder.logits_dense.kernel", head},
                          {"model.norm.weight", "params.decoder.decoder_norm.scale", norm}};
  for (const MaxTextName& m : maxtext_layer(family)) {
    const std::string name =
        (scan == Scan::kNone ? "params.decoder.layers_{layer}." : "params.decoder.layers.") + std::string(m.own);
    const Program whole =
        scan == Scan::kNone ? m.program : scanned(m.program, axes_of(m.program), scan == Scan::kSecond);
    out.push_back({m.tensor, kept(name), whole, scan != Scan::kNone});
  }
  return out;
}

}  // namespace

// Families that the public loaders of these trainers have, and that the tables above were written from.
Status check_preset(const Spec& spec, const ModelConfig& config) {
  if (!spec.given("preset")) return {};
  const std::string& preset = spec.texts.find("preset")->second;
  const Family* family = config.family;
  const bool known = preset == "tunix" ? family == &llama() || family == &qwen2() || family == &qwen3()
                                       : family == &llama() || family == &qwen3() || family == &gemma3();
  if (!known)
    return Error(Code::kUnsupported, "jax: preset=" + preset + " is not built for family " + std::string(family->name));
  for (const char* key : {"tp", "ep"})
    if (spec.number(key) > 1)
      return Error(Code::kUnsupported, "jax: preset=" + preset + " describes whole arrays; " + key + "=" +
                                           std::to_string(spec.number(key)) +
                                           " is not built (shardings of live arrays are explicit layouts)");
  if (preset != "tunix" && family == &llama() && config.size("hd") % 2 != 0)
    return Error(Code::kInvalid, "jax: preset=" + preset + " pairs the rows of a head; head_dim " +
                                     std::to_string(config.size("hd")) + " is odd");
  return {};
}

const std::vector<Preset>* jax_presets(const Spec& spec, const ModelConfig& config) {
  if (!spec.given("preset")) return nullptr;
  const std::string& preset = spec.texts.find("preset")->second;
  static const std::vector<Preset> kTunix = tunix();
  if (preset == "tunix") return &kTunix;
  static const auto kMaxText = [] {
    std::vector<std::vector<Preset>> out;
    for (const Family* family : {&llama(), &qwen3(), &gemma3()})
      for (Scan scan : {Scan::kNone, Scan::kFirst, Scan::kSecond}) out.push_back(maxtext(*family, scan));
    return out;
  }();
  const std::size_t family = config.family == &llama() ? 0 : config.family == &qwen3() ? 1 : 2;
  const bool first = spec.given("scan_axis") && spec.texts.find("scan_axis")->second == "0";
  return &kMaxText[3 * family + (preset == "maxtext" ? 0 : first ? 1 : 2)];
}

}  // namespace refit::model
