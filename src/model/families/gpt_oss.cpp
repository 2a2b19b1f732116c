// gpt-oss: attention with biases and sinks; experts stacked on disk, gate and up alternating: in bf16 input-major, in
// MXFP4 output-major, as blocks of 32 four-bit codes with a scale each.
#include "model/families/family.h"

#define REFIT_LAYER "model.layers.{layer}."
#define REFIT_EXPERTS REFIT_LAYER "mlp.experts."
#define REFIT_VLLM REFIT_EXPERTS "routed_experts."
#define REFIT_DECODER "decoder.layers.{layer}."
#define REFIT_GROUPED REFIT_DECODER "mlp.experts."

namespace refit::model {
namespace {

// Megatron: one expert's gates, then its ups, each cut by width; a matrix is turned output-major.
Program gate_then_up(int axis, bool matrix) {
  using namespace op;
  Program out;
  for (int k = 0; k < 2; ++k) {
    out.insert(out.end(), {load(0), component(axis, k, "1,1", "Im"), pick(), cut(axis - 1, CutRule::kEven, "moe_tp")});
    if (matrix) out.push_back(permute("1,0"));
  }
  out.push_back(concat(0, 2));
  return out;
}

Row oss_stacked(std::string_view name, std::string_view shape, std::string_view vllm, std::string_view sglang,
                std::string_view megatron, Program engine, Program grouped) {
  return {
      .kind = Kind::kStacked,
      .where = kMoeLayer,
      .members = {{name, shape}},
      .engine = vllm,
      .sglang = sglang,
      .megatron = megatron,
      .own = {{Names::kEngine, Per::kRow, std::move(engine)}, {Names::kMegatron, Per::kExpert, std::move(grouped)}}};
}

// SGLang keeps the biases of unquantised experts in f32.
Row wide_in_sglang(Row row) {
  Program program = row.own[0].program;
  program.push_back(op::cast("f32"));
  row.own.push_back({Names::kSglang, Per::kRow, std::move(program)});
  return row;
}

// Engines keep gate and up alternating. The bias of w2 is added once, so only the first of a width's ranks has values.
std::vector<Row> oss_experts() {
  using namespace op;
  const Op own = cut(0, CutRule::kLinear, "ep");
  const auto width = [](int axis) { return cut(axis, CutRule::kEven, "moe_tp"); };
  return {oss_stacked(REFIT_EXPERTS "gate_up_proj", "E,H,2*Im", REFIT_VLLM "w13_weight", REFIT_EXPERTS "w13_weight",
                      REFIT_GROUPED "linear_fc1.weight{expert}", {load(0), width(2), own, permute("0,2,1")},
                      gate_then_up(2, true)),
          wide_in_sglang(oss_stacked(REFIT_EXPERTS "gate_up_proj_bias", "E,2*Im", REFIT_VLLM "w13_bias",
                                     REFIT_EXPERTS "w13_weight_bias", REFIT_GROUPED "linear_fc1.bias{expert}",
                                     {load(0), width(1), own}, gate_then_up(1, false))),
          oss_stacked(REFIT_EXPERTS "down_proj", "E,Im,H", REFIT_VLLM "w2_weight", REFIT_EXPERTS "w2_weight",
                      REFIT_GROUPED "linear_fc2.weight{expert}", {load(0), width(1), own, permute("0,2,1")},
                      {load(0), pick(), width(0), permute("1,0")}),
          wide_in_sglang(oss_stacked(REFIT_EXPERTS "down_proj_bias", "E,H", REFIT_VLLM "w2_bias",
                                     REFIT_EXPERTS "w2_weight_bias", REFIT_GROUPED "linear_fc2.bias{expert}",
                                     {load(0), own, only("moe_tp")}, {load(0), pick()}))};
}

// Whole blocks of the expert width go to each rank, as many to all but the last; what it lacks is fill. Codes lie two
// to a byte, 16 bytes a block.
std::vector<Row> oss_blocks() {
  using namespace op;
  const Op own = cut(0, CutRule::kLinear, "ep");
  // `alike`: of an axis, what is one block's.
  const auto width = [&](int axis, std::string_view alike) {
    return Program{load(0), pad(axis, alike, "moe_tp"), cut(axis, CutRule::kEven, "moe_tp"), own};
  };
  const auto joined = [](Program program) {
    program.push_back(merge(2));
    return program;
  };
  const auto row = [](std::string_view name, std::string_view shape, std::string_view dtype, std::string_view vllm,
                      std::string_view sglang, Program engine) {
    Row out = oss_stacked(name, shape, vllm, sglang, kUnknownName, std::move(engine), {});
    out.members[0].dtype = dtype;
    return out;
  };
  return {row(REFIT_EXPERTS "gate_up_proj_blocks", "E,2*Im,H/32,16", "u8", REFIT_VLLM "w13_weight",
              REFIT_EXPERTS "w13_weight", joined(width(1, "64"))),
          row(REFIT_EXPERTS "gate_up_proj_scales", "E,2*Im,H/32", "u8", REFIT_VLLM "w13_weight_scale",
              REFIT_EXPERTS "w13_weight_scale", width(1, "64")),
          row(REFIT_EXPERTS "gate_up_proj_bias", "E,2*Im", "", REFIT_VLLM "w13_bias", REFIT_EXPERTS "w13_weight_bias",
              width(1, "64")),
          row(REFIT_EXPERTS "down_proj_blocks", "E,H,Im/32,16", "u8", REFIT_VLLM "w2_weight", REFIT_EXPERTS "w2_weight",
              joined(width(2, "1"))),
          row(REFIT_EXPERTS "down_proj_scales", "E,H,Im/32", "u8", REFIT_VLLM "w2_weight_scale",
              REFIT_EXPERTS "w2_weight_scale", width(2, "1")),
          row(REFIT_EXPERTS "down_proj_bias", "E,H", "", REFIT_VLLM "w2_bias", REFIT_EXPERTS "w2_weight_bias",
              {load(0), own, only("moe_tp")})};
}

std::vector<Row> oss_when(std::string_view when, std::vector<Row> rows) {
  for (Row& row : rows) row.when = when;
  return rows;
}

std::vector<Row> oss_attention() {
  const auto renamed = [](Row row, std::string_view vllm, std::string_view sglang) {
    row.engine = vllm;
    row.sglang = sglang;
    return row;
  };
  Row sinks{.kind = Kind::kColumn,
            .where = kEveryLayer,
            .members = {{REFIT_LAYER "self_attn.sinks", "Hq"}},
            .megatron = REFIT_DECODER "self_attention.core_attention.softmax_offset"};
  return {renamed(rows::qkv("", false), REFIT_LAYER "attn.qkv_proj.weight", REFIT_LAYER "self_attn.qkv_proj.weight"),
          renamed(rows::qkv("", true), REFIT_LAYER "attn.qkv_proj.bias", REFIT_LAYER "self_attn.qkv_proj.bias"),
          renamed(rows::output_projection(), REFIT_LAYER "attn.o_proj.weight", REFIT_LAYER "self_attn.o_proj.weight"),
          renamed(rows::output_bias(""), REFIT_LAYER "attn.o_proj.bias", REFIT_LAYER "self_attn.o_proj.bias"),
          renamed(sinks, REFIT_LAYER "attn.sinks", REFIT_LAYER "self_attn.sinks")};
}

Row oss_embedding() {
  Row row = rows::embedding();
  row.engine = "model.embedding.weight";
  row.sglang = kEmbedding;
  return row;
}

std::vector<Row> oss_router() {
  const auto of = [](std::string_view name, std::string_view shape, std::string_view megatron) {
    return Row{.where = kMoeLayer, .members = {{name, shape}}, .megatron = megatron};
  };
  return {of(REFIT_LAYER "mlp.router.weight", "E,H", REFIT_DECODER "mlp.router.weight"),
          of(REFIT_LAYER "mlp.router.bias", "E", REFIT_DECODER "mlp.router.bias")};
}

}  // namespace

const Family& gpt_oss() {
  static const Family family{
      .name = "gpt_oss",
      .architecture = "GptOssForCausalLM",
      .sizes = {{"hidden_size", "H"},
                {"num_hidden_layers", "L"},
                {"num_attention_heads", "Hq"},
                {"num_key_value_heads", "Hkv", "Hq"},
                {"head_dim", "hd", "H/Hq"},
                {"vocab_size", "V"},
                {"num_local_experts", "E"},
                {"intermediate_size", "Im"}},
      .flags = {{"tie_word_embeddings", "tied"}},
      .traits = {{.name = "moe", .how = LayerTrait::How::kFrom}},
      .rows = rows::joined({{oss_embedding(), rows::final_norm(), rows::head(), rows::input_norm()},
                            oss_attention(),
                            {rows::post_attention_norm(kMoeLayer)},
                            oss_router(),
                            oss_when("!mxfp4", oss_experts()),
                            oss_when("mxfp4", oss_blocks())}),
      .quantised = {{.method = "mxfp4"}},
      .modules =
          "sinks q_proj k_proj v_proj o_proj router experts gate_up_proj gate_up_proj_bias down_proj "
          "down_proj_bias"};
  return family;
}

}  // namespace refit::model
