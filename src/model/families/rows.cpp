// Rows that the Llama-like families share: the same names, shapes and placements.
#include "model/families/family.h"
#include "model/rules/symbols.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_DECODER "decoder.layers.{layer}."

namespace refit::model::rows {
namespace {

// "a.weight|b.weight" as the names of their scales.
std::string_view names_of_scales(std::string_view names, std::string_view suffix) {
  std::string out;
  if (names.empty() || names == kUnknownName) return names;
  for (std::string_view name : split(names, '|')) out += (out.empty() ? "" : "|") + std::string(name) + std::string(suffix);
  return kept(std::move(out));
}

}  // namespace

Row codes_of(Row row) {
  row.megatron = row.megatron_local = row.jax = kUnknownName;
  for (Member& m : row.members) m.dtype = "f8_e4m3";
  return row;
}

Row scales_of(const Row& row, const BlockFormat& format) {
  Row out = codes_of(row);
  for (Member& m : out.members) {
    const auto axes = split(m.shape, ',');
    m.name = names_of_scales(m.name, format.suffix);
    m.dtype = to_string(format.scale);
    if (format.rows > 0 && format.cols > 0) {
      m.of = m.shape;
      m.shape = kept(std::string(axes[0]) + ":bn," + std::string(axes[1]) + ":bk");
    } else {
      m.shape = format.rows > 0 ? kept(std::string(axes[0]) + ",1") : std::string_view("1");
    }
  }
  for (std::string_view* name : {&out.engine, &out.sglang, &out.fused}) *name = names_of_scales(*name, format.suffix);
  return out;
}

std::vector<Row> with_block_scales(std::vector<Row> rows) {
  std::vector<Row> out;
  for (Row& row : rows) {
    if (!row.in_blocks) {
      out.push_back(std::move(row));
      continue;
    }
    Row codes = codes_of(row), scales = scales_of(row, *block_format("fp8_block"));
    const auto when = [&](const char* flag) {
      return kept(std::string(row.when) + (row.when.empty() ? "" : "&") + flag);
    };
    codes.when = scales.when = when("fp8");
    row.when = when("!fp8");
    for (Row* each : {&row, &codes, &scales}) out.push_back(std::move(*each));
  }
  return out;
}

std::vector<ConfigKey> dense_sizes() {
  return {{"hidden_size", "H", ""},          {"num_hidden_layers", "L", ""},
          {"num_attention_heads", "Hq", ""}, {"num_key_value_heads", "Hkv", "Hq"},
          {"head_dim", "hd", "H/Hq"},        {"vocab_size", "V", ""},
          {"intermediate_size", "I", ""}};
}

Row embedding() {
  return {.kind = Kind::kVocabulary,
          .members = {{kEmbedding, "V,H"}},
          .megatron = "embedding.word_embeddings.weight",
          .jax = "model.embed_tokens.embedding",
          // An embedding is a lookup, not a matrix: its bytes stay, on every rank.
          .own = {{Names::kJax, Per::kTensor, {op::load(0)}}},
          .first_stage = true};
}
Row final_norm() {
  return {
      .members = {{"model.norm.weight", "H"}}, .megatron = "decoder.final_layernorm.weight", .closes_decoder = true};
}
Row head() {
  return {.kind = Kind::kVocabulary, .when = "!tied", .members = {{kHead, "V,H"}}, .megatron = "output_layer.weight"};
}

Row input_norm(std::string_view where) {
  return {.where = where,
          .members = {{REFIT_LAYER "input_layernorm.weight", "H"}},
          .megatron = REFIT_DECODER "self_attention.linear_qkv.layer_norm_weight",
          .megatron_local = REFIT_DECODER "input_layernorm.weight"};
}

Row qkv(std::string_view when, bool bias, std::string_view where) {
  if (bias)
    return {.kind = Kind::kQkv,
            .where = where,
            .when = when,
            .members = {{REFIT_LAYER "self_attn.q_proj.bias", "Hq*hd"},
                        {REFIT_LAYER "self_attn.k_proj.bias", "Hkv*hd"},
                        {REFIT_LAYER "self_attn.v_proj.bias", "Hkv*hd"}},
            .engine = REFIT_LAYER "self_attn.qkv_proj.bias",
            .megatron = REFIT_DECODER "self_attention.linear_qkv.bias"};
  return {.kind = Kind::kQkv,
          .where = where,
          .when = when,
          .members = {{REFIT_LAYER "self_attn.q_proj.weight", "Hq*hd,H"},
                      {REFIT_LAYER "self_attn.k_proj.weight", "Hkv*hd,H"},
                      {REFIT_LAYER "self_attn.v_proj.weight", "Hkv*hd,H"}},
          .engine = REFIT_LAYER "self_attn.qkv_proj.weight",
          .megatron = REFIT_DECODER "self_attention.linear_qkv.weight",
          .in_blocks = true};
}

Row output_projection(std::string_view where) {
  return {.kind = Kind::kRowParallel,
          .where = where,
          .members = {{REFIT_LAYER "self_attn.o_proj.weight", "H,Hq*hd"}},
          .megatron = REFIT_DECODER "self_attention.linear_proj.weight",
          .in_blocks = true};
}

Row output_bias(std::string_view when) {
  return {.where = kEveryLayer,
          .when = when,
          .members = {{REFIT_LAYER "self_attn.o_proj.bias", "H"}},
          .megatron = REFIT_DECODER "self_attention.linear_proj.bias"};
}

Row head_norm(std::string_view which, std::string_view where, std::string_view when) {
  const bool q = which == "q";
  return {.where = where,
          .when = when,
          .members = {{q ? REFIT_LAYER "self_attn.q_norm.weight" : REFIT_LAYER "self_attn.k_norm.weight", "hd"}},
          .megatron = q ? REFIT_DECODER "self_attention.q_layernorm.weight"
                        : REFIT_DECODER "self_attention.k_layernorm.weight"};
}

Row post_attention_norm(std::string_view where) {
  return {.where = where,
          .members = {{REFIT_LAYER "post_attention_layernorm.weight", "H"}},
          .megatron = where.starts_with(kMoeLayer) ? REFIT_DECODER "pre_mlp_layernorm.weight"
                                                   : REFIT_DECODER "mlp.linear_fc1.layer_norm_weight",
          .megatron_local = REFIT_DECODER "pre_mlp_layernorm.weight"};
}

Row gate_up(std::string_view where) {
  return {.kind = Kind::kGateUp,
          .where = where,
          .members = {{REFIT_LAYER "mlp.gate_proj.weight", "I,H"}, {REFIT_LAYER "mlp.up_proj.weight", "I,H"}},
          .engine = REFIT_LAYER "mlp.gate_up_proj.weight",
          .megatron = REFIT_DECODER "mlp.linear_fc1.weight",
          .in_blocks = true};
}

Row down(std::string_view where) {
  return {.kind = Kind::kMlpDown,
          .where = where,
          .members = {{REFIT_LAYER "mlp.down_proj.weight", "H,I"}},
          .megatron = REFIT_DECODER "mlp.linear_fc2.weight",
          .in_blocks = true};
}

Row router(std::string_view where) {
  return {.where = where,
          .members = {{REFIT_LAYER "mlp.gate.weight", "E,H"}},
          .megatron = REFIT_DECODER "mlp.router.weight",
          .jax = REFIT_LAYER "mlp.router.gate.kernel"};
}

// JAX keeps w1, w3 and w2 in torch's order, apart.
Row expert_gate_up(std::string_view where) {
  return {.kind = Kind::kExpertGateUp,
          .where = where,
          .members = {{REFIT_LAYER "mlp.experts.{expert}.gate_proj.weight", "Im,H"},
                      {REFIT_LAYER "mlp.experts.{expert}.up_proj.weight", "Im,H"}},
          .engine = REFIT_LAYER "mlp.experts.routed_experts.w13_weight",
          .sglang = REFIT_LAYER "mlp.experts.w13_weight",
          .megatron = REFIT_DECODER "mlp.experts.linear_fc1.weight{expert}",
          .jax = REFIT_LAYER "mlp.experts.w1_EFD|" REFIT_LAYER "mlp.experts.w3_EFD",
          .fused = REFIT_LAYER "mlp.experts.gate_up_proj",
          .in_blocks = true};
}

Row expert_down(std::string_view where) {
  return {.kind = Kind::kExpertDown,
          .where = where,
          .members = {{REFIT_LAYER "mlp.experts.{expert}.down_proj.weight", "H,Im"}},
          .engine = REFIT_LAYER "mlp.experts.routed_experts.w2_weight",
          .sglang = REFIT_LAYER "mlp.experts.w2_weight",
          .megatron = REFIT_DECODER "mlp.experts.linear_fc2.weight{expert}",
          .jax = REFIT_LAYER "mlp.experts.w2_EDF",
          .fused = REFIT_LAYER "mlp.experts.down_proj",
          .in_blocks = true};
}

// Routed with it, so it stays f32 whatever the model is.
Row correction_bias(std::string_view where) {
  const Program f32{op::load(0), op::cast("f32")};
  return {.where = where,
          .members = {{REFIT_LAYER "mlp.gate.e_score_correction_bias", "E", "f32"}},
          .megatron = REFIT_DECODER "mlp.router.expert_bias",
          .own = {{Names::kFused, Per::kTensor, {op::load(0)}},
                  {Names::kEngine, Per::kRow, f32},
                  {Names::kMegatron, Per::kRow, f32}},
          .buffer = true};
}

std::vector<Row> shared_experts(std::string_view where) {
  return {{.kind = Kind::kGateUp,
           .where = where,
           .members = {{REFIT_LAYER "mlp.shared_experts.gate_proj.weight", "Is,H"},
                       {REFIT_LAYER "mlp.shared_experts.up_proj.weight", "Is,H"}},
           .engine = REFIT_LAYER "mlp.shared_experts.gate_up_proj.weight",
           .megatron = REFIT_DECODER "mlp.shared_experts.linear_fc1.weight",
           .in_blocks = true,
           .shared = true},
          {.kind = Kind::kMlpDown,
           .where = where,
           .members = {{REFIT_LAYER "mlp.shared_experts.down_proj.weight", "H,Is"}},
           .megatron = REFIT_DECODER "mlp.shared_experts.linear_fc2.weight",
           .in_blocks = true,
           .shared = true}};
}

std::vector<Row> draft_rows() {
  const auto of = [](std::string_view name, std::string_view megatron) {
    return Row{.where = "mtp", .members = {{name, "H"}}, .megatron = megatron};
  };
  return {of(REFIT_LAYER "enorm.weight", "mtp.layers.{mtp}.enorm.weight"),
          of(REFIT_LAYER "hnorm.weight", "mtp.layers.{mtp}.hnorm.weight"),
          of(REFIT_LAYER "shared_head.norm.weight", "mtp.layers.{mtp}.final_layernorm.weight"),
          {.kind = Kind::kColumn,
           .where = "mtp",
           .members = {{REFIT_LAYER "eh_proj.weight", "H,2*H"}},
           .megatron = "mtp.layers.{mtp}.eh_proj.weight",
           .own = {{Names::kEngine, Per::kRow, {op::load(0)}}}}};
}

Row norm(std::string_view where, std::string_view name, std::string_view megatron, std::string_view local,
         std::string_view shape) {
  return {.where = where, .members = {{name, shape}}, .megatron = megatron, .megatron_local = local};
}

std::vector<Row> joined(std::vector<std::vector<Row>> parts) {
  std::vector<Row> out;
  for (std::vector<Row>& part : parts)
    out.insert(out.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
  return out;
}

}  // namespace refit::model::rows
