#include "model/families/gated_delta.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_DECODER "decoder.layers.{layer}."
#define REFIT_DELTA REFIT_LAYER "linear_attn."
#define REFIT_SELF REFIT_DECODER "self_attention."

namespace refit::model::gated_delta {
namespace {
using namespace op;

const Op kRows = cut(0, CutRule::kEven, "tp"), kColumns = cut(1, CutRule::kEven, "tp");

// Its q, k and v channels are cut apart.
Program conv_cut() {
  const auto part = [](int k) { return component(0, k, "Hk*hk,Hk*hk,Hv*hv"); };
  return {load(0), part(0), kRows, load(0), part(1), kRows, load(0), part(2), kRows, concat(0, 3)};
}

Row per_head(std::string_view name, std::string_view megatron, Program engine) {
  return {.where = kLinear,
          .members = {{name, "Hv"}},
          .megatron = megatron,
          .own = {{Names::kEngine, Per::kRow, std::move(engine)}, {Names::kMegatron, Per::kRow, {load(0), kRows}}}};
}

}  // namespace

std::vector<ConfigKey> sizes() {
  return {{"hidden_size", "H"},
          {"num_hidden_layers", "L"},
          {"num_attention_heads", "Hq"},
          {"num_key_value_heads", "Hkv", "Hq"},
          {"head_dim", "hd", "H/Hq"},
          {"vocab_size", "V"},
          {"linear_num_key_heads", "Hk"},
          {"linear_num_value_heads", "Hv"},
          {"linear_key_head_dim", "hk"},
          {"linear_value_head_dim", "hv"},
          {"linear_conv_kernel_dim", "K"},
          {"", "r", "Hv/Hk"},
          {"num_nextn_predict_layers", "mtp", "0", 0}};
}

LayerTrait linear_trait() {
  return {.name = "linear",
          .how = LayerTrait::How::kTypes,
          .key = "layer_types",
          .value = "linear_attention",
          .step = "full_attention_interval",
          .period = 4,
          .last = false};
}

// SGLang keeps them directly in the layer.
std::vector<Row> attention() {
  const auto in_sglang = [](Row row, std::string_view name) {
    row.sglang = name;
    return row;
  };
  return {rows::input_norm(kFull),
          {.kind = Kind::kGatedQkv,
           .where = kFull,
           .members = {{REFIT_LAYER "self_attn.q_proj.weight", "2*Hq*hd,H"},
                       {REFIT_LAYER "self_attn.k_proj.weight", "Hkv*hd,H"},
                       {REFIT_LAYER "self_attn.v_proj.weight", "Hkv*hd,H"}},
           .engine = REFIT_LAYER "self_attn.qkv_proj.weight",
           .sglang = REFIT_LAYER "qkv_proj.weight",
           .megatron = REFIT_SELF "linear_qkv.weight"},
          in_sglang(rows::output_projection(kFull), REFIT_LAYER "o_proj.weight"),
          in_sglang(rows::head_norm("q", kFull), REFIT_LAYER "q_norm.weight"),
          in_sglang(rows::head_norm("k", kFull), REFIT_LAYER "k_norm.weight")};
}

// The convolution kernel is [channels, 1, K]; JAX leaves out its middle axis. Megatron's norm here counts from 1.
std::vector<Row> delta_net() {
  const auto jax = [](Program program) { return Own{Names::kJax, Per::kTensor, std::move(program)}; };
  return {
      rows::norm(kLinear, REFIT_LAYER "input_layernorm.weight", REFIT_SELF "in_proj.layer_norm_weight",
                 REFIT_DECODER "input_layernorm.weight"),
      {.where = kLinear,
       .members = {{REFIT_DELTA "conv1d.weight", "2*Hk*hk+Hv*hv,1,K"}},
       .megatron = REFIT_SELF "conv1d.weight",
       .jax = REFIT_DELTA "conv_weight",
       .own = {{Names::kEngine, Per::kRow, conv_cut()},
               {Names::kMegatron, Per::kRow, conv_cut()},
               jax({load(0), squeeze(1)})}},
      per_head(REFIT_DELTA "A_log", REFIT_SELF "A_log", {load(0), kRows, cast("f32")}),
      per_head(REFIT_DELTA "dt_bias", REFIT_SELF "dt_bias", {load(0), kRows}),
      {.where = kLinear,
       .members = {{REFIT_DELTA "norm.weight", "hv"}},
       .megatron = REFIT_SELF "out_norm.weight",
       .jax = REFIT_DELTA "norm.weight",
       .own = {{Names::kMegatron, Per::kRow, {load(0), value("minus_one")}}}},
      {.where = kLinear,
       .members = {{REFIT_DELTA "out_proj.weight", "H,Hv*hv"}},
       .megatron = REFIT_SELF "out_proj.weight",
       .own = {{Names::kEngine, Per::kRow, {load(0), kColumns}}, {Names::kMegatron, Per::kRow, {load(0), kColumns}}}}};
}

std::vector<Row> shared_expert(std::string_view where) {
  return {{.kind = Kind::kGateUp,
           .where = where,
           .members = {{REFIT_LAYER "mlp.shared_expert.gate_proj.weight", "Is,H"},
                       {REFIT_LAYER "mlp.shared_expert.up_proj.weight", "Is,H"}},
           .engine = REFIT_LAYER "mlp.shared_expert.gate_up_proj.weight",
           .megatron = REFIT_DECODER "mlp.shared_experts.linear_fc1.weight",
           .jax = REFIT_LAYER "mlp.shared_experts.mlp.gate_proj.kernel|" REFIT_LAYER
                              "mlp.shared_experts.mlp.up_proj.kernel"},
          {.kind = Kind::kMlpDown,
           .where = where,
           .members = {{REFIT_LAYER "mlp.shared_expert.down_proj.weight", "H,Is"}},
           .megatron = REFIT_DECODER "mlp.shared_experts.linear_fc2.weight",
           .jax = REFIT_LAYER "mlp.shared_experts.mlp.down_proj.kernel"},
          {.where = where,
           .members = {{REFIT_LAYER "mlp.shared_expert_gate.weight", "1,H"}},
           .megatron = REFIT_DECODER "mlp.shared_experts.gate_weight",
           .jax = REFIT_LAYER "mlp.shared_experts.shared_expert_gate.kernel"}};
}

// One set for all draft layers.
std::vector<Row> drafts() {
  const auto norm = [](std::string_view name, std::string_view megatron) {
    return Row{.where = "mtp0", .members = {{name, "H"}}, .megatron = megatron};
  };
  return {norm("mtp.pre_fc_norm_embedding.weight", "mtp.layers.{mtp}.enorm.weight"),
          norm("mtp.pre_fc_norm_hidden.weight", "mtp.layers.{mtp}.hnorm.weight"),
          norm("mtp.norm.weight", "mtp.layers.{mtp}.final_layernorm.weight"),
          {.kind = Kind::kColumn,
           .where = "mtp0",
           .members = {{"mtp.fc.weight", "H,2*H"}},
           .megatron = "mtp.layers.{mtp}.eh_proj.weight"}};
}

}  // namespace refit::model::gated_delta
