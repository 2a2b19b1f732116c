// Qwen3-MoE: Qwen3 whose layers hold experts, except those that mlp_only_layers or decoder_sparse_step make dense.
#include "model/families/family.h"

namespace refit::model {

const Family& qwen3_moe() {
  using namespace rows;
  static const auto sizes = [] {
    std::vector<ConfigKey> keys = dense_sizes();
    keys.push_back({"num_experts", "E", "", 1, "num_local_experts"});
    keys.push_back({"moe_intermediate_size", "Im", ""});
    return keys;
  }();
  static const Family family{
      .name = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .sizes = sizes,
      .flags = {{"tie_word_embeddings", "tied"}, {"attention_bias", "attention_bias"}},
      .traits = {{.name = "moe", .how = LayerTrait::How::kSparse}},
      .rows = with_block_scales({embedding(), final_norm(), head(), input_norm(), qkv("", false),
                                 qkv("attention_bias", true), output_projection(), output_bias("attention_bias"),
                                 head_norm("q"), head_norm("k"), post_attention_norm(kDenseLayer), gate_up(kDenseLayer),
                                 down(kDenseLayer), post_attention_norm(kMoeLayer), router(), expert_gate_up(),
                                 expert_down()}),
      .jax = true,
      .quantised = {{.method = "fp8", .blocks = true}}};
  return family;
}

}  // namespace refit::model
