// Qwen3.5 (text), dense and with experts: gated delta nets whose input projections are flat on disk.
#include "model/families/gated_delta.h"

#define REFIT_LINEAR "model.layers.{layer}.linear_attn."

namespace refit::model {
namespace {

// Engines hold q, k, v, z in one parameter and b, a in another; Megatron all six in one.
Row flat_inputs() {
  using namespace op;
  const Op rows = cut(0, CutRule::kEven, "tp");
  Program qkvz;
  for (int k = 0; k < 3; ++k) qkvz.insert(qkvz.end(), {load(0), component(0, k, "Hk*hk,Hk*hk,Hv*hv"), rows});
  qkvz.insert(qkvz.end(), {load(1), rows});
  Program all = qkvz;
  all.insert(all.end(), {load(2), rows, load(3), rows, concat(0, 6)});
  qkvz.push_back(concat(0, 4));
  return {.where = gated_delta::kLinear,
          .members = {{REFIT_LINEAR "in_proj_qkv.weight", "2*Hk*hk+Hv*hv,H"},
                      {REFIT_LINEAR "in_proj_z.weight", "Hv*hv,H"},
                      {REFIT_LINEAR "in_proj_b.weight", "Hv,H"},
                      {REFIT_LINEAR "in_proj_a.weight", "Hv,H"}},
          .engine = REFIT_LINEAR "in_proj_qkvz.weight|" REFIT_LINEAR "in_proj_ba.weight",
          .megatron = "decoder.layers.{layer}.self_attention.in_proj.weight",
          .own = {{Names::kEngine, Per::kRow, qkvz},
                  {Names::kEngine, Per::kRow, {load(2), rows, load(3), rows, concat(0, 2)}},
                  {Names::kMegatron, Per::kRow, all}}};
}

Family delta_table(std::string_view name, std::string_view alias, std::string_view architecture, bool moe) {
  using namespace rows;
  std::vector<ConfigKey> sizes = gated_delta::sizes();
  if (moe)
    sizes.insert(sizes.end(),
                 {{"num_experts", "E"}, {"moe_intermediate_size", "Im"}, {"shared_expert_intermediate_size", "Is"}});
  else
    sizes.push_back({"intermediate_size", "I"});
  constexpr std::string_view kAll = gated_delta::kAll;
  std::vector<Row> mlp{post_attention_norm(kAll), gate_up(kAll), down(kAll)};
  if (moe)
    mlp = joined({{post_attention_norm("moe|mtp"), router(kAll), expert_gate_up(kAll), expert_down(kAll)},
                  gated_delta::shared_expert(kAll)});
  Family out{.name = name,
             .architecture = architecture,
             .sizes = sizes,
             .flags = {{"tie_word_embeddings", "tied"}},
             .traits = {gated_delta::linear_trait()},
             .rows = joined({{embedding(), final_norm(), head()},
                             gated_delta::attention(),
                             {flat_inputs()},
                             gated_delta::delta_net(),
                             std::move(mlp),
                             gated_delta::drafts()}),
             .draft = "mtp",
             .draft_prefix = "mtp.layers.{mtp}.",
             .aliases = {alias},
             .nested = "text_config",
             .whole = moe ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration",
             .modules =
                 "linear_attn self_attn mlp input_layernorm post_attention_layernorm gate experts "
                 "shared_expert shared_expert_gate dt_bias A_log conv1d norm out_proj in_proj_qkv in_proj_z "
                 "in_proj_b in_proj_a"};
  // Every layer has experts.
  if (moe) out.traits.push_back({.name = "moe", .how = LayerTrait::How::kFrom});
  return out;
}

}  // namespace

const Family& qwen3_5() {
  static const Family family = delta_table("qwen3_5_text", "qwen3_5", "Qwen3_5ForCausalLM", false);
  return family;
}

const Family& qwen3_5_moe() {
  using namespace rows;
  static const Family family = delta_table("qwen3_5_moe_text", "qwen3_5_moe", "Qwen3_5MoeForCausalLM", true);
  return family;
}

}  // namespace refit::model
