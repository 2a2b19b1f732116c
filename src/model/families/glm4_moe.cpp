// GLM-4.5: grouped-query attention with biases, routers and draft layers as DeepSeek-V3 has them.
#include "model/families/family.h"

#define REFIT_LAYER "model.layers.{layer}."

namespace refit::model {
namespace {

// Engines keep this router in f32 whatever the model is.
Row wide_router(std::string_view where) {
  Row row = rows::router(where);
  row.own.push_back({Names::kEngine, Per::kRow, {op::load(0), op::cast("f32")}});
  return row;
}

}  // namespace

const Family& glm4_moe() {
  using namespace rows;
  constexpr std::string_view kAll = "*|mtp", kMoe = "moe|mtp";
  static const Family family{
      .name = "glm4_moe",
      .architecture = "Glm4MoeForCausalLM",
      .sizes = {{"hidden_size", "H"},
                {"num_hidden_layers", "L"},
                {"num_attention_heads", "Hq"},
                {"num_key_value_heads", "Hkv", "Hq"},
                {"head_dim", "hd", "H/Hq"},
                {"intermediate_size", "I"},
                {"n_routed_experts", "E"},
                {"moe_intermediate_size", "Im"},
                {"n_shared_experts", "ns", "1"},
                {"", "Is", "ns*Im"},
                {"vocab_size", "V"},
                {"num_nextn_predict_layers", "mtp", "0", 0}},
      .flags = {{"tie_word_embeddings", "tied"}, {"attention_bias", "attention_bias"}, {"use_qk_norm", "use_qk_norm"}},
      .traits = {{.name = "moe", .how = LayerTrait::How::kFrom, .key = "first_k_dense_replace"}},
      .rows = joined({{embedding(), final_norm(), head(), input_norm(kAll), qkv("", false, kAll),
                       qkv("attention_bias", true, kAll), output_projection(kAll), head_norm("q", kAll, "use_qk_norm"),
                       head_norm("k", kAll, "use_qk_norm"), post_attention_norm(kDenseLayer), gate_up(kDenseLayer),
                       down(kDenseLayer), post_attention_norm(kMoe), wide_router(kMoe), correction_bias(kMoe)},
                      shared_experts(kMoe),
                      {expert_gate_up(kMoe), expert_down(kMoe)},
                      draft_rows()}),
      .ties = {{kEmbedding, REFIT_LAYER "embed_tokens.weight"},
               {kHead, REFIT_LAYER "shared_head.head.weight", "!tied"},
               {kEmbedding, REFIT_LAYER "shared_head.head.weight", "tied"}},
      .draft = "mtp"};
  return family;
}

}  // namespace refit::model
