// Qwen3-Next: gated delta nets whose input projections are grouped by key head on disk.
#include "model/families/gated_delta.h"

#define REFIT_LINEAR "model.layers.{layer}.linear_attn."

namespace refit::model {
namespace {

// Engines cut whole groups; Megatron takes the groups apart: q, k, v, z, b, a, each by heads.
Row grouped_inputs() {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp");
  Program apart;
  const auto add = [&](int member, int k, std::string_view sizes) {
    apart.insert(apart.end(), {load(member), component(0, k, sizes, "Hk"), rows});
  };
  for (int k = 0; k < 4; ++k) add(0, k, "hk,hk,r*hv,r*hv");
  for (int k = 0; k < 2; ++k) add(1, k, "r,r");
  apart.push_back(concat(0, 6));
  return {.where = gated_delta::kLinear,
          .members = {{REFIT_LINEAR "in_proj_qkvz.weight", "2*Hk*hk+2*Hv*hv,H"},
                      {REFIT_LINEAR "in_proj_ba.weight", "2*Hv,H"}},
          .megatron = "decoder.layers.{layer}.self_attention.in_proj.weight",
          .own = {{Names::kEngine, Per::kTensor, {load(0), rows}}, {Names::kMegatron, Per::kRow, apart}}};
}

}  // namespace

const Family& qwen3_next() {
  using namespace rows;
  static const auto sizes = [] {
    std::vector<ConfigKey> keys = gated_delta::sizes();
    keys.insert(keys.end(), {{"intermediate_size", "I"},
                             {"num_experts", "E"},
                             {"moe_intermediate_size", "Im"},
                             {"shared_expert_intermediate_size", "Is"}});
    return keys;
  }();
  constexpr std::string_view kMoe = "moe|mtp";
  static const Family family{
      .name = "qwen3_next",
      .architecture = "Qwen3NextForCausalLM",
      .sizes = sizes,
      .flags = {{"tie_word_embeddings", "tied"}},
      .traits = {{.name = "moe", .how = LayerTrait::How::kSparse}, gated_delta::linear_trait()},
      .rows = joined({{embedding(), final_norm(), head()},
                      gated_delta::attention(),
                      {grouped_inputs()},
                      gated_delta::delta_net(),
                      {post_attention_norm(kDenseLayer), gate_up(kDenseLayer), down(kDenseLayer),
                       post_attention_norm(kMoe), router(kMoe), expert_gate_up(kMoe), expert_down(kMoe)},
                      gated_delta::shared_expert(kMoe),
                      gated_delta::drafts()}),
      .draft = "mtp",
      .draft_prefix = "mtp.layers.{mtp}.",
      .jax = true,
      .jax_cut = false,
      .modules =
          "linear_attn self_attn mlp input_layernorm post_attention_layernorm gate experts shared_expert "
          "shared_expert_gate dt_bias A_log conv1d in_proj_qkvz in_proj_ba norm out_proj"};
  return family;
}

}  // namespace refit::model
