// Qwen3 dense: a norm on each q and k head, biases only where the configuration asks for them.
#include "model/families/family.h"

namespace refit::model {

const Family& qwen3() {
  using namespace rows;
  static const Family family{
      .name = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .sizes = dense_sizes(),
      .flags = {{"tie_word_embeddings", "tied"}, {"attention_bias", "attention_bias"}},
      .rows = with_block_scales({embedding(), final_norm(), head(), input_norm(), qkv("", false),
                                 qkv("attention_bias", true), output_projection(), output_bias("attention_bias"),
                                 head_norm("q"), head_norm("k"), post_attention_norm(kEveryLayer), gate_up(kEveryLayer),
                                 down(kEveryLayer)}),
      .jax = true,
      .quantised = {{.method = "fp8", .blocks = true}}};
  return family;
}

}  // namespace refit::model
