// Qwen2 and Qwen2.5: Llama with biases on q, k and v, always.
#include "model/families/family.h"

namespace refit::model {

const Family& qwen2() {
  using namespace rows;
  static const Family family{
      .name = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .sizes = dense_sizes(),
      .flags = {{"tie_word_embeddings", "tied"}},
      .rows = {embedding(), final_norm(), head(), input_norm(), qkv("", false), qkv("", true), output_projection(),
               post_attention_norm(kEveryLayer), gate_up(kEveryLayer), down(kEveryLayer)},
      .jax = true};
  return family;
}

}  // namespace refit::model
