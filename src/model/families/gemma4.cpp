// Gemma 4 (text): sliding and full layers with head sizes and KV heads of their own; full layers may use their keys as
// values; the last layers may borrow keys and values of earlier ones, and have twice the MLP width then; each layer may
// read a small embedding of its own; experts beside the dense MLP.
#include "model/families/family.h"

#define REFIT_GEMMA4_LAYER "model.layers.{layer}."
#define REFIT_GEMMA4_SELF REFIT_GEMMA4_LAYER "self_attn."
#define REFIT_GEMMA4_DECODER "decoder.layers.{layer}."

namespace refit::model {
namespace gemma4_rows {
namespace {
using namespace op;

using Lets = std::vector<std::pair<std::string_view, std::string_view>>;

// What the sizes of heads are called in full layers.
const Lets kFullHeads{{"hd", "ghd"}, {"Hkv", "gkv"}, {"qpg", "gqpg"}}, kFullSize{{"hd", "ghd"}};

const Op kRows = cut(0, CutRule::kEven, "tp"), kHeads = cut(0, CutRule::kShare, "tp", "Hkv");
const Member kQuery{REFIT_GEMMA4_SELF "q_proj.weight", "Hq*hd,H"}, kKey{REFIT_GEMMA4_SELF "k_proj.weight", "Hkv*hd,H"},
    kValue{REFIT_GEMMA4_SELF "v_proj.weight", "Hkv*hd,H"};

Row qkv_row(std::string_view where, std::string_view when, std::vector<Member> members, Lets let) {
  return {.kind = Kind::kQkv,
          .where = where,
          .when = when,
          .members = std::move(members),
          .engine = REFIT_GEMMA4_SELF "qkv_proj.weight",
          .megatron = REFIT_GEMMA4_DECODER "self_attention.linear_qkv.weight",
          .let = std::move(let)};
}

// Keys stand in the places of the values too.
Row keys_as_values() {
  Row row = qkv_row("full&!shared", "k_eq_v", {kQuery, kKey}, kFullHeads);
  const Program megatron{load(0), view(0, "Hkv,qpg*hd"), load(1),          view(0, "Hkv,hd"),
                         load(1), view(0, "Hkv,hd"),     interleave(0, 3), kRows};
  row.own = {{Names::kEngine, Per::kRow, {load(0), kRows, load(1), kHeads, load(1), kHeads, concat(0, 3)}},
             {Names::kMegatron, Per::kRow, megatron}};
  return row;
}

// Nothing is ever loaded into their keys and values, which SGLang allocates all the same and vLLM does not.
Row borrowed(std::string_view where, std::string_view when, Lets let) {
  Row row = qkv_row(where, when, {kQuery}, std::move(let));
  const Op none = hole("Hkv*hd,H");
  row.sglang = row.engine;
  row.engine = REFIT_GEMMA4_SELF "q_proj.weight";
  row.megatron = kUnknownName;
  row.own = {{Names::kEngine, Per::kRow, {load(0), kRows}},
             {Names::kSglang, Per::kRow, {load(0), kRows, none, kHeads, none, kHeads, concat(0, 3)}}};
  return row;
}

std::vector<Row> qkv_rows() {
  return {qkv_row("!full&!shared", "", {kQuery, kKey, kValue}, {}),
          qkv_row("full&!shared", "!k_eq_v", {kQuery, kKey, kValue}, kFullSize),
          keys_as_values(),
          borrowed("!full&shared", "", {}),
          borrowed("full&shared", "!k_eq_v", kFullSize),
          borrowed("full&shared", "k_eq_v", kFullHeads)};
}

std::vector<Row> by_head_size() {
  std::vector<Row> out;
  for (const bool full : {false, true}) {
    const Lets size = full ? kFullSize : Lets{};
    Row q = rows::head_norm("q", full ? "full&!shared" : "!full&!shared");
    Row k = rows::head_norm("k", full ? "full&!shared" : "!full&!shared");
    Row lone = rows::head_norm("q", full ? "full&shared" : "!full&shared");
    lone.megatron = kUnknownName;
    lone.sglang = REFIT_GEMMA4_SELF "q_norm.weight|" REFIT_GEMMA4_SELF "k_norm.weight";
    lone.own = {{Names::kSglang, Per::kRow, {load(0)}}, {Names::kSglang, Per::kRow, {hole("hd")}}};
    Row out_projection = rows::output_projection(full ? "full" : "!full");
    for (Row* row : {&q, &k, &lone, &out_projection}) {
      row->let = size;
      out.push_back(std::move(*row));
    }
  }
  return out;
}

std::vector<Row> norms() {
  const auto of = [](std::string_view when, std::string_view name, std::string_view megatron) {
    Row row = rows::norm(kEveryLayer, name, megatron);
    row.when = when;
    return row;
  };
  return {of("", REFIT_GEMMA4_LAYER "input_layernorm.weight", REFIT_GEMMA4_DECODER "input_layernorm.weight"),
          of("", REFIT_GEMMA4_LAYER "post_attention_layernorm.weight",
             REFIT_GEMMA4_DECODER "post_self_attn_layernorm.weight"),
          of("!moe_block", REFIT_GEMMA4_LAYER "pre_feedforward_layernorm.weight",
             REFIT_GEMMA4_DECODER "pre_mlp_layernorm.weight"),
          of("!moe_block", REFIT_GEMMA4_LAYER "post_feedforward_layernorm.weight",
             REFIT_GEMMA4_DECODER "post_mlp_layernorm.weight"),
          of("moe_block", REFIT_GEMMA4_LAYER "pre_feedforward_layernorm.weight",
             REFIT_GEMMA4_DECODER "pre_shared_expert_layernorm.weight"),
          of("moe_block", REFIT_GEMMA4_LAYER "post_feedforward_layernorm.weight",
             REFIT_GEMMA4_DECODER "post_ffn_layernorm.weight"),
          of("moe_block", REFIT_GEMMA4_LAYER "pre_feedforward_layernorm_2.weight",
             REFIT_GEMMA4_DECODER "pre_mlp_layernorm.weight"),
          of("moe_block", REFIT_GEMMA4_LAYER "post_feedforward_layernorm_1.weight",
             REFIT_GEMMA4_DECODER "mlp.post_shared_expert_layernorm.weight"),
          of("moe_block", REFIT_GEMMA4_LAYER "post_feedforward_layernorm_2.weight",
             REFIT_GEMMA4_DECODER "mlp.post_moe_layernorm.weight"),
          // Multiplies the layer's output: a buffer, but learned.
          {.where = kEveryLayer,
           .members = {{REFIT_GEMMA4_LAYER "layer_scalar", "1"}},
           .megatron = REFIT_GEMMA4_DECODER "layer_scalar",
           .own = {{Names::kFused, Per::kTensor, {load(0)}}},
           .buffer = true}};
}

// The dense MLP: Megatron calls it the shared expert where there are others.
std::vector<Row> mlp() {
  std::vector<Row> out;
  const auto add = [&](std::string_view where, std::string_view when, bool moe, bool wide) {
    Row up = rows::gate_up(where), down = rows::down(where);
    if (moe) {
      up.megatron = REFIT_GEMMA4_DECODER "mlp.shared_experts.linear_fc1.weight";
      down.megatron = REFIT_GEMMA4_DECODER "mlp.shared_experts.linear_fc2.weight";
    }
    for (Row* row : {&up, &down}) {
      row->when = when;
      if (wide) row->let = {{"I", "2*I"}};
      out.push_back(std::move(*row));
    }
  };
  add(kEveryLayer, "!double&!moe_block", false, false);
  add(kEveryLayer, "!double&moe_block", true, false);
  add("!shared", "double&!moe_block", false, false);
  add("!shared", "double&moe_block", true, false);
  add("shared", "double&!moe_block", false, true);
  add("shared", "double&moe_block", true, true);
  return out;
}

// Without a rule of tensor parallelism a trainer's module keeps them whole and only FSDP cuts them.
Own whole_but_for_fsdp() { return {Names::kFused, Per::kTensor, {load(0), cut(0, CutRule::kChunk, "fsdp")}}; }

std::vector<Row> per_layer() {
  const auto turned = [](int axis) {
    return Own{Names::kJax, Per::kTensor, {load(0), cut(axis, CutRule::kEven, "tp"), permute("1,0")}};
  };
  return {{.kind = Kind::kVocabulary,
           .when = "P",
           .members = {{"model.embed_tokens_per_layer.weight", "Vpl,L*P"}},
           .megatron = kUnknownName,
           .jax = "model.per_layer.embed_tokens_per_layer.embedding",
           .own = {{Names::kJax, Per::kTensor, {load(0)}}, whole_but_for_fsdp()}},
          {.kind = Kind::kColumn,
           .when = "P",
           .members = {{"model.per_layer_model_projection.weight", "L*P,H"}},
           .megatron = kUnknownName,
           .jax = "model.per_layer.per_layer_model_projection.kernel",
           .own = {{Names::kSglang, Per::kRow, {load(0)}}, whole_but_for_fsdp()}},
          {.when = "P",
           .members = {{"model.per_layer_projection_norm.weight", "P"}},
           .megatron = kUnknownName,
           .jax = "model.per_layer.per_layer_projection_norm.weight"},
          {.where = kEveryLayer,
           .when = "P",
           .members = {{REFIT_GEMMA4_LAYER "per_layer_input_gate.weight", "P,H"}},
           .megatron = kUnknownName,
           .own = {turned(0)}},
          {.where = kEveryLayer,
           .when = "P",
           .members = {{REFIT_GEMMA4_LAYER "per_layer_projection.weight", "H,P"}},
           .megatron = kUnknownName,
           .own = {turned(1)}},
          {.where = kEveryLayer,
           .when = "P",
           .members = {{REFIT_GEMMA4_LAYER "post_per_layer_input_norm.weight", "H"}},
           .megatron = kUnknownName}};
}

// Stacked on disk and in every module; gate above up in each expert.
std::vector<Row> experts() {
  const Op own = cut(0, CutRule::kLinear, "ep");
  const auto width = [](int axis) { return cut(axis, CutRule::kEven, "moe_tp"); };
  const auto part = [](int k) { return component(1, k, "Im,Im"); };
  const auto jax_whole = Own{Names::kJax, Per::kTensor, {load(0)}};
  const Program fc1{load(0), part(0), pick(), width(0), load(0), part(1), pick(), width(0), concat(0, 2)};
  return {{.where = kMoeLayer,
           .members = {{REFIT_GEMMA4_LAYER "router.proj.weight", "E,H"}},
           .megatron = REFIT_GEMMA4_DECODER "mlp.router.weight",
           .own = {{Names::kJax, Per::kTensor, {load(0), cut(0, CutRule::kEven, "tp"), permute("1,0")}}}},
          {.where = kMoeLayer,
           .members = {{REFIT_GEMMA4_LAYER "router.scale", "H"}},
           .megatron = REFIT_GEMMA4_DECODER "mlp.router.scale"},
          {.where = kMoeLayer,
           .members = {{REFIT_GEMMA4_LAYER "router.per_expert_scale", "E"}},
           .sglang = REFIT_GEMMA4_LAYER "moe.per_expert_scale",
           .megatron = REFIT_GEMMA4_DECODER "mlp.router.per_expert_scale"},
          {.kind = Kind::kStacked,
           .where = kMoeLayer,
           .members = {{REFIT_GEMMA4_LAYER "experts.gate_up_proj", "E,2*Im,H"}},
           .engine = REFIT_GEMMA4_LAYER "experts.routed_experts.w13_weight",
           .sglang = REFIT_GEMMA4_LAYER "moe.experts.w13_weight",
           .megatron = REFIT_GEMMA4_DECODER "mlp.experts.linear_fc1.weight{expert}",
           .own = {{Names::kEngine,
                    Per::kRow,
                    {load(0), part(0), width(1), own, load(0), part(1), width(1), own, concat(1, 2)}},
                   {Names::kMegatron, Per::kExpert, fc1},
                   jax_whole}},
          {.kind = Kind::kStacked,
           .where = kMoeLayer,
           .members = {{REFIT_GEMMA4_LAYER "experts.down_proj", "E,H,Im"}},
           .engine = REFIT_GEMMA4_LAYER "experts.routed_experts.w2_weight",
           .sglang = REFIT_GEMMA4_LAYER "moe.experts.w2_weight",
           .megatron = REFIT_GEMMA4_DECODER "mlp.experts.linear_fc2.weight{expert}",
           .own = {{Names::kEngine, Per::kRow, {load(0), width(2), own}},
                   {Names::kMegatron, Per::kExpert, {load(0), pick(), width(1)}},
                   jax_whole}}};
}

}  // namespace
}  // namespace gemma4_rows

const Family& gemma4() {
  using namespace gemma4_rows;
  static const Family family{
      .name = "gemma4_text",
      .architecture = "Gemma4ForCausalLM",
      .sizes = {{"hidden_size", "H"},
                {"num_hidden_layers", "L"},
                {"num_attention_heads", "Hq"},
                {"num_key_value_heads", "Hkv", "Hq"},
                {"head_dim", "hd", "256"},
                {"global_head_dim", "ghd", "512"},
                {"num_global_key_value_heads", "gkv", "Hkv"},
                {"", "gqpg", "Hq/gkv"},
                {"vocab_size", "V"},
                {"intermediate_size", "I"},
                {"hidden_size_per_layer_input", "P", "256", 0},
                {"vocab_size_per_layer_input", "Vpl", "262144"},
                {"num_experts", "E", "0", 0},
                {"moe_intermediate_size", "Im", "0", 0}},
      .flags = {{"tie_word_embeddings", "tied", true},
                {"attention_k_eq_v", "k_eq_v"},
                {"use_double_wide_mlp", "double"},
                {"enable_moe_block", "moe_block"},
                {"attention_bias", "attention_bias", false, false}},
      .traits = {{.name = "full",
                  .how = LayerTrait::How::kTypes,
                  .key = "layer_types",
                  .value = "full_attention",
                  .period = 6,
                  .ends = true},
                 {.name = "shared", .how = LayerTrait::How::kTail, .key = "num_kv_shared_layers"},
                 {.name = "moe", .how = LayerTrait::How::kFrom, .when = "moe_block"}},
      .rows = rows::joined({{rows::embedding(), rows::final_norm(), rows::head()},
                            qkv_rows(),
                            by_head_size(),
                            norms(),
                            mlp(),
                            per_layer(),
                            experts()}),
      .aliases = {"gemma4"},
      .jax = true,
      .jax_norm = ".weight",
      .nested = "text_config",
      .whole = "Gemma4ForConditionalGeneration",
      .layer_keys = {.key = "per_layer_config",
                     .trait = "full",
                     .renamed = {{"head_dim", "global_head_dim"},
                                 {"num_key_value_heads", "num_global_key_value_heads"}}},
      .modules =
          "embed_tokens layers norm embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm "
          "self_attn mlp input_layernorm post_attention_layernorm pre_feedforward_layernorm "
          "post_feedforward_layernorm per_layer_input_gate per_layer_projection post_per_layer_input_norm "
          "router experts post_feedforward_layernorm_1 post_feedforward_layernorm_2 "
          "pre_feedforward_layernorm_2 layer_scalar q_proj q_norm k_norm k_proj v_proj o_proj "
          "scale per_expert_scale proj"};
  return family;
}

}  // namespace refit::model
