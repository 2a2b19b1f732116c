// Qwen3-MoE: Qwen3 whose layers hold experts, except those that mlp_only_layers or decoder_sparse_step make dense.
#include "model/families/family.h"

namespace refit::model {

const Family& qwen3_moe() {
  using namespace rows;
  static const auto sizes = [] {
    std::vector<ConfigKey> keys = dense_sizes();
    keys.push_back({"num_experts", "E", ""});
    keys.push_back({"moe_intermediate_size", "Im", ""});
    return keys;
  }();
  static const Family family{
      .name = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .experts = true,
      .sizes = sizes,
      .flags = {{"tie_word_embeddings", "tied"}, {"attention_bias", "attention_bias"}},
      .rows = {embedding(),
               final_norm(),
               head(),
               input_norm(),
               qkv("", false),
               qkv("attention_bias", true),
               output_projection(),
               output_bias("attention_bias"),
               head_norm("q"),
               head_norm("k"),
               post_attention_norm(Where::kDenseLayer),
               gate_up(Where::kDenseLayer),
               down(Where::kDenseLayer),
               post_attention_norm(Where::kMoeLayer),
               {.where = Where::kMoeLayer,
                .members = {{"model.layers.{layer}.mlp.gate.weight", "E,H"}},
                .megatron = "decoder.layers.{layer}.mlp.router.weight"},
               {.kind = Kind::kExpertGateUp,
                .where = Where::kMoeLayer,
                .members = {{"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", "Im,H"},
                            {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "Im,H"}},
                .engine = "model.layers.{layer}.mlp.experts.routed_experts.w13_weight",
                .fused = "model.layers.{layer}.mlp.experts.gate_up_proj"},
               {.kind = Kind::kExpertDown,
                .where = Where::kMoeLayer,
                .members = {{"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", "H,Im"}},
                .engine = "model.layers.{layer}.mlp.experts.routed_experts.w2_weight",
                .fused = "model.layers.{layer}.mlp.experts.down_proj"}}};
  return family;
}

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all{&llama(), &qwen2(), &qwen3(), &qwen3_moe()};
  return all;
}

}  // namespace refit::model
