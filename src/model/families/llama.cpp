// Llama 3 and its kin (also small tied ones such as SmolLM2).
#include "model/families/family.h"

namespace refit::model {

const Family& llama() {
  using namespace rows;
  static const Family family{
      .name = "llama",
      .architecture = "LlamaForCausalLM",
      .sizes = dense_sizes(),
      .flags = {{"tie_word_embeddings", "tied"}, {"attention_bias", "attention_bias"}, {"mlp_bias", "mlp_bias"}},
      .rows = {embedding(),
               final_norm(),
               head(),
               input_norm(),
               qkv("", false),
               qkv("attention_bias", true),
               output_projection(),
               output_bias("attention_bias"),
               post_attention_norm(kEveryLayer),
               gate_up(kEveryLayer),
               down(kEveryLayer),
               {.kind = Kind::kGateUp,
                .where = kEveryLayer,
                .when = "mlp_bias",
                .members = {{"model.layers.{layer}.mlp.gate_proj.bias", "I"},
                            {"model.layers.{layer}.mlp.up_proj.bias", "I"}},
                .engine = "model.layers.{layer}.mlp.gate_up_proj.bias",
                .megatron = "decoder.layers.{layer}.mlp.linear_fc1.bias"},
               {.where = kEveryLayer,
                .when = "mlp_bias",
                .members = {{"model.layers.{layer}.mlp.down_proj.bias", "H"}},
                .megatron = "decoder.layers.{layer}.mlp.linear_fc2.bias"}},
      .jax = true};
  return family;
}

}  // namespace refit::model
