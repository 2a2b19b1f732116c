// DeepSeek-V3 and Kimi-K2: latent attention (q and kv through narrow projections that every rank holds whole), shared
// experts, a correction bias, dense layers first, draft layers numbered on from the last.
#include "model/families/family.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_DECODER "decoder.layers.{layer}."
#define REFIT_SELF REFIT_DECODER "self_attention."

namespace refit::model {
namespace {

constexpr std::string_view kLatentLayers = "*|mtp", kLatentMoe = "moe|mtp";

// Narrow projections: one parameter of an engine, two of Megatron, which cuts them only without Transformer Engine.
std::vector<Row> latent_rows() {
  using namespace op;
  const Program together{load(0), load(1), concat(0, 2)}, cut_when_local{load(0), cut(0, CutRule::kEven, "tp(local)")};
  const Member q{REFIT_LAYER "self_attn.q_a_proj.weight", "ql,H"},
      kv{REFIT_LAYER "self_attn.kv_a_proj_with_mqa.weight", "kl+dr,H"};
  return {{.where = kLatentLayers,
           .when = "ql",
           .members = {q, kv},
           .engine = REFIT_LAYER "self_attn.fused_qkv_a_proj.weight",
           .sglang = REFIT_LAYER "self_attn.fused_qkv_a_proj_with_mqa.weight",
           .megatron = REFIT_SELF "linear_q_down_proj.weight|" REFIT_SELF "linear_kv_down_proj.weight",
           .own = {{Names::kEngine, Per::kRow, together}, {Names::kMegatron, Per::kTensor, cut_when_local}},
           .in_blocks = true},
          {.where = kLatentLayers,
           .when = "!ql",
           .members = {kv},
           .megatron = REFIT_SELF "linear_kv_down_proj.weight",
           .own = {{Names::kMegatron, Per::kRow, cut_when_local}},
           .in_blocks = true}};
}

std::vector<Row> attention_rows() {
  Row q_norm = rows::norm(kLatentLayers, REFIT_LAYER "self_attn.q_a_layernorm.weight",
                          REFIT_SELF "linear_q_up_proj.layer_norm_weight", REFIT_SELF "q_layernorm.weight", "ql");
  q_norm.when = "ql";
  const auto heads = [](std::string_view when, Member member, std::string_view megatron) {
    return Row{.kind = Kind::kColumn,
               .where = kLatentLayers,
               .when = when,
               .members = {member},
               .megatron = megatron,
               .in_blocks = true};
  };
  return {
      q_norm,
      rows::norm(kLatentLayers, REFIT_LAYER "self_attn.kv_a_layernorm.weight",
                 REFIT_SELF "linear_kv_up_proj.layer_norm_weight", REFIT_SELF "kv_layernorm.weight", "kl"),
      heads("ql", {REFIT_LAYER "self_attn.q_b_proj.weight", "Hq*dn+Hq*dr,ql"}, REFIT_SELF "linear_q_up_proj.weight"),
      heads("!ql", {REFIT_LAYER "self_attn.q_proj.weight", "Hq*dn+Hq*dr,H"}, REFIT_SELF "linear_q_proj.weight"),
      heads("", {REFIT_LAYER "self_attn.kv_b_proj.weight", "Hq*dn+Hq*dv,kl"}, REFIT_SELF "linear_kv_up_proj.weight"),
      {.kind = Kind::kRowParallel,
       .where = kLatentLayers,
       .members = {{REFIT_LAYER "self_attn.o_proj.weight", "H,Hq*dv"}},
       .megatron = REFIT_SELF "linear_proj.weight",
       .in_blocks = true}};
}

Family latent_table(std::string_view name) {
  using namespace rows;
  return {.name = name,
          .architecture = "DeepseekV3ForCausalLM",
          .sizes = {{"hidden_size", "H"},
                    {"num_hidden_layers", "L"},
                    {"num_attention_heads", "Hq"},
                    {"q_lora_rank", "ql", "0", 0},
                    {"kv_lora_rank", "kl"},
                    {"qk_nope_head_dim", "dn"},
                    {"qk_rope_head_dim", "dr"},
                    {"v_head_dim", "dv"},
                    {"intermediate_size", "I"},
                    {"n_routed_experts", "E"},
                    {"moe_intermediate_size", "Im"},
                    {"n_shared_experts", "ns", "1"},
                    {"", "Is", "ns*Im"},
                    {"vocab_size", "V"},
                    {"num_nextn_predict_layers", "mtp", "0", 0}},
          .flags = {{"tie_word_embeddings", "tied"}},
          .traits = {{.name = "moe", .how = LayerTrait::How::kFrom, .key = "first_k_dense_replace"}},
          .rows = with_block_scales(joined(
              {{embedding(), final_norm(), head(),
                norm(kLatentLayers, REFIT_LAYER "input_layernorm.weight", REFIT_DECODER "input_layernorm.weight")},
               latent_rows(),
               attention_rows(),
               {post_attention_norm(kDenseLayer), gate_up(kDenseLayer), down(kDenseLayer),
                post_attention_norm(kLatentMoe), router(kLatentMoe), correction_bias(kLatentMoe)},
               shared_experts(kLatentMoe),
               {expert_gate_up(kLatentMoe), expert_down(kLatentMoe)},
               draft_rows()})),
          .ties = {{kEmbedding, REFIT_LAYER "embed_tokens.weight"},
                   {kHead, REFIT_LAYER "shared_head.head.weight", "!tied"},
                   {kEmbedding, REFIT_LAYER "shared_head.head.weight", "tied"}},
          .draft = "mtp",
          .quantised = {{.method = "fp8", .blocks = true}}};
}

}  // namespace

const Family& deepseek_v3() {
  static const Family family = latent_table("deepseek_v3");
  return family;
}

const Family& kimi_k2() {
  static const Family family = latent_table("kimi_k2");
  return family;
}

}  // namespace refit::model
