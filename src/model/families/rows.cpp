// Rows that the Llama-like families share: the same names, shapes and placements.
#include "model/families/family.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_DECODER "decoder.layers.{layer}."

namespace refit::model::rows {

std::vector<ConfigKey> dense_sizes() {
  return {{"hidden_size", "H", ""},          {"num_hidden_layers", "L", ""},
          {"num_attention_heads", "Hq", ""}, {"num_key_value_heads", "Hkv", "Hq"},
          {"head_dim", "hd", "H/Hq"},        {"vocab_size", "V", ""},
          {"intermediate_size", "I", ""}};
}

Row embedding() {
  return {.kind = Kind::kVocabulary, .members = {{kEmbedding, "V,H"}}, .megatron = "embedding.word_embeddings.weight"};
}
Row final_norm() { return {.members = {{"model.norm.weight", "H"}}, .megatron = "decoder.final_layernorm.weight"}; }
Row head() {
  return {.kind = Kind::kVocabulary, .when = "!tied", .members = {{kHead, "V,H"}}, .megatron = "output_layer.weight"};
}

Row input_norm() {
  return {.where = Where::kEveryLayer,
          .members = {{REFIT_LAYER "input_layernorm.weight", "H"}},
          .megatron = REFIT_DECODER "self_attention.linear_qkv.layer_norm_weight"};
}

Row qkv(std::string_view when, bool bias) {
  if (bias)
    return {.kind = Kind::kQkv,
            .where = Where::kEveryLayer,
            .when = when,
            .members = {{REFIT_LAYER "self_attn.q_proj.bias", "Hq*hd"},
                        {REFIT_LAYER "self_attn.k_proj.bias", "Hkv*hd"},
                        {REFIT_LAYER "self_attn.v_proj.bias", "Hkv*hd"}},
            .engine = REFIT_LAYER "self_attn.qkv_proj.bias",
            .megatron = REFIT_DECODER "self_attention.linear_qkv.bias"};
  return {.kind = Kind::kQkv,
          .where = Where::kEveryLayer,
          .when = when,
          .members = {{REFIT_LAYER "self_attn.q_proj.weight", "Hq*hd,H"},
                      {REFIT_LAYER "self_attn.k_proj.weight", "Hkv*hd,H"},
                      {REFIT_LAYER "self_attn.v_proj.weight", "Hkv*hd,H"}},
          .engine = REFIT_LAYER "self_attn.qkv_proj.weight",
          .megatron = REFIT_DECODER "self_attention.linear_qkv.weight"};
}

Row output_projection() {
  return {.kind = Kind::kRowParallel,
          .where = Where::kEveryLayer,
          .members = {{REFIT_LAYER "self_attn.o_proj.weight", "H,Hq*hd"}},
          .megatron = REFIT_DECODER "self_attention.linear_proj.weight"};
}

Row output_bias(std::string_view when) {
  return {.where = Where::kEveryLayer,
          .when = when,
          .members = {{REFIT_LAYER "self_attn.o_proj.bias", "H"}},
          .megatron = REFIT_DECODER "self_attention.linear_proj.bias"};
}

Row head_norm(std::string_view which) {
  const bool q = which == "q";
  return {.where = Where::kEveryLayer,
          .members = {{q ? REFIT_LAYER "self_attn.q_norm.weight" : REFIT_LAYER "self_attn.k_norm.weight", "hd"}},
          .megatron = q ? REFIT_DECODER "self_attention.q_layernorm.weight"
                        : REFIT_DECODER "self_attention.k_layernorm.weight"};
}

Row post_attention_norm(Where where) {
  return {.where = where,
          .members = {{REFIT_LAYER "post_attention_layernorm.weight", "H"}},
          .megatron = where == Where::kMoeLayer ? REFIT_DECODER "pre_mlp_layernorm.weight"
                                                : REFIT_DECODER "mlp.linear_fc1.layer_norm_weight"};
}

Row gate_up(Where where) {
  return {.kind = Kind::kGateUp,
          .where = where,
          .members = {{REFIT_LAYER "mlp.gate_proj.weight", "I,H"}, {REFIT_LAYER "mlp.up_proj.weight", "I,H"}},
          .engine = REFIT_LAYER "mlp.gate_up_proj.weight",
          .megatron = REFIT_DECODER "mlp.linear_fc1.weight"};
}

Row down(Where where) {
  return {.kind = Kind::kRowParallel,
          .where = where,
          .members = {{REFIT_LAYER "mlp.down_proj.weight", "H,I"}},
          .megatron = REFIT_DECODER "mlp.linear_fc2.weight"};
}

}  // namespace refit::model::rows
