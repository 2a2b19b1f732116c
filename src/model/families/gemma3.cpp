// Gemma 3 (text): a norm on either side of attention and of the MLP; tied unless config.json says otherwise.
#include "model/families/family.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_DECODER "decoder.layers.{layer}."

namespace refit::model {
namespace {

// SGLang keeps it whole on every rank, without padding.
Row scaled_embedding() {
  Row row = rows::embedding();
  row.own.push_back({Names::kSglang, Per::kRow, {op::load(0)}});
  return row;
}

}  // namespace

const Family& gemma3() {
  using namespace rows;
  static const Family family{
      .name = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .sizes = dense_sizes(),
      .flags = {{"tie_word_embeddings", "tied", true}, {"attention_bias", "attention_bias"}},
      .rows = {scaled_embedding(), final_norm(), head(), input_norm(), qkv("", false), qkv("attention_bias", true),
               output_projection(), output_bias("attention_bias"), head_norm("q"), head_norm("k"),
               norm(kEveryLayer, REFIT_LAYER "post_attention_layernorm.weight",
                    REFIT_DECODER "self_attention.linear_proj.post_layernorm.weight"),
               norm(kEveryLayer, REFIT_LAYER "pre_feedforward_layernorm.weight",
                    REFIT_DECODER "mlp.linear_fc1.layer_norm_weight", REFIT_DECODER "pre_mlp_layernorm.weight"),
               norm(kEveryLayer, REFIT_LAYER "post_feedforward_layernorm.weight",
                    REFIT_DECODER "mlp.linear_fc2.post_layernorm.weight"),
               gate_up(kEveryLayer), down(kEveryLayer)},
      .aliases = {"gemma3"},
      .jax = true,
      .nested = "text_config",
      .whole = "Gemma3ForConditionalGeneration"};
  return family;
}

}  // namespace refit::model
