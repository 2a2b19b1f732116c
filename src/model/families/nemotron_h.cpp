// Nemotron-H: one mixer a layer, by a pattern: Mamba-2, attention, an MLP or experts, none of them gated.
#include "model/families/family.h"

#define REFIT_NEMOTRON_LAYER "backbone.layers.{layer}."
#define REFIT_NEMOTRON_MIXER REFIT_NEMOTRON_LAYER "mixer."
#define REFIT_NEMOTRON_ENGINE "model.layers.{layer}."
#define REFIT_NEMOTRON_VLLM REFIT_NEMOTRON_ENGINE "mixer."
#define REFIT_NEMOTRON_DECODER "decoder.layers.{layer}."

namespace refit::model {
namespace nemotron_rows {
namespace {
using namespace op;

constexpr std::string_view kMamba = "mamba", kAttention = "attention", kMlp = "mlp";
const Op kRows = cut(0, CutRule::kEven, "tp"), kColumns = cut(1, CutRule::kEven, "tp");
// Heads of state groups; the only group of all is on every rank.
const Op kGroups = cut(0, CutRule::kShare, "tp", "G");

// Parts of an axis, each cut for itself: Megatron needs a group for each rank, an engine repeats a lone one.
Program parts(std::string_view sizes, const std::vector<Op>& cuts) {
  Program out;
  for (int k = 0; k < static_cast<int>(cuts.size()); ++k)
    out.insert(out.end(), {load(0), component(0, k, sizes), cuts[static_cast<std::size_t>(k)]});
  out.push_back(concat(0, static_cast<int>(cuts.size())));
  return out;
}

Row mamba_row(Member member, std::string_view vllm, std::string_view megatron, Program engine, Program trainer,
              std::string_view when = "") {
  return {.where = kMamba,
          .when = when,
          .members = {member},
          .engine = vllm,
          .megatron = megatron,
          .own = {{Names::kEngine, Per::kRow, std::move(engine)}, {Names::kMegatron, Per::kRow, std::move(trainer)}}};
}

std::vector<Row> mamba() {
  // z, x, B, C, dt; the convolution is over x, B and C.
  constexpr std::string_view kInner = "nh*ph,nh*ph,G*N,G*N,nh", kConv = "nh*ph,G*N,G*N";
  const Program in = parts(kInner, {kRows, kRows, kGroups, kGroups, kRows}),
                in_even = parts(kInner, {kRows, kRows, kRows, kRows, kRows}),
                conv = parts(kConv, {kRows, kGroups, kGroups}), conv_even = parts(kConv, {kRows, kRows, kRows}),
                heads{load(0), kRows}, f32{load(0), kRows, cast("f32")}, columns{load(0), kColumns};
  return {mamba_row({REFIT_NEMOTRON_MIXER "in_proj.weight", "2*nh*ph+2*G*N+nh,H"}, REFIT_NEMOTRON_VLLM "in_proj.weight",
                    REFIT_NEMOTRON_DECODER "mixer.in_proj.weight", in, in_even),
          mamba_row({REFIT_NEMOTRON_MIXER "conv1d.weight", "nh*ph+2*G*N,1,K"}, REFIT_NEMOTRON_VLLM "conv1d.weight",
                    REFIT_NEMOTRON_DECODER "mixer.conv1d_weight", conv, conv_even),
          mamba_row({REFIT_NEMOTRON_MIXER "conv1d.bias", "nh*ph+2*G*N"}, REFIT_NEMOTRON_VLLM "conv1d.bias",
                    REFIT_NEMOTRON_DECODER "mixer.conv1d_bias", conv, conv_even, "conv_bias"),
          mamba_row({REFIT_NEMOTRON_MIXER "A_log", "nh"}, REFIT_NEMOTRON_VLLM "A", REFIT_NEMOTRON_DECODER "mixer.A_log",
                    {load(0), kRows, value("neg_exp")}, f32),
          mamba_row({REFIT_NEMOTRON_MIXER "D", "nh"}, REFIT_NEMOTRON_VLLM "D", REFIT_NEMOTRON_DECODER "mixer.D", heads,
                    f32),
          mamba_row({REFIT_NEMOTRON_MIXER "dt_bias", "nh"}, REFIT_NEMOTRON_VLLM "dt_bias",
                    REFIT_NEMOTRON_DECODER "mixer.dt_bias", heads, heads),
          mamba_row({REFIT_NEMOTRON_MIXER "norm.weight", "nh*ph"}, REFIT_NEMOTRON_VLLM "norm.weight",
                    REFIT_NEMOTRON_DECODER "mixer.norm.weight", heads, heads),
          mamba_row({REFIT_NEMOTRON_MIXER "out_proj.weight", "H,nh*ph"}, REFIT_NEMOTRON_VLLM "out_proj.weight",
                    REFIT_NEMOTRON_DECODER "mixer.out_proj.weight", columns, columns)};
}

// One norm a layer, which Megatron keeps with what it feeds.
Row layer_norm(std::string_view where, std::string_view megatron, std::string_view local) {
  Row row = rows::norm(where, REFIT_NEMOTRON_LAYER "norm.weight", megatron, local);
  row.engine = REFIT_NEMOTRON_ENGINE "norm.weight";
  return row;
}

Row named(Kind kind, std::string_view where, std::vector<Member> members, std::string_view vllm,
          std::string_view megatron) {
  return {.kind = kind, .where = where, .members = std::move(members), .engine = vllm, .megatron = megatron};
}

std::vector<Row> attention_and_mlp() {
  return {named(Kind::kQkv, kAttention,
                {{REFIT_NEMOTRON_MIXER "q_proj.weight", "Hq*hd,H"},
                 {REFIT_NEMOTRON_MIXER "k_proj.weight", "Hkv*hd,H"},
                 {REFIT_NEMOTRON_MIXER "v_proj.weight", "Hkv*hd,H"}},
                REFIT_NEMOTRON_VLLM "qkv_proj.weight", REFIT_NEMOTRON_DECODER "self_attention.linear_qkv.weight"),
          named(Kind::kRowParallel, kAttention, {{REFIT_NEMOTRON_MIXER "o_proj.weight", "H,Hq*hd"}},
                REFIT_NEMOTRON_VLLM "o_proj.weight", REFIT_NEMOTRON_DECODER "self_attention.linear_proj.weight"),
          named(Kind::kUp, kMlp, {{REFIT_NEMOTRON_MIXER "up_proj.weight", "I,H"}}, REFIT_NEMOTRON_VLLM "up_proj.weight",
                REFIT_NEMOTRON_DECODER "mlp.linear_fc1.weight"),
          named(Kind::kMlpDown, kMlp, {{REFIT_NEMOTRON_MIXER "down_proj.weight", "H,I"}},
                REFIT_NEMOTRON_VLLM "down_proj.weight", REFIT_NEMOTRON_DECODER "mlp.linear_fc2.weight")};
}

// Experts may work on a narrower input that all share.
std::vector<Row> experts() {
  Row bias = rows::correction_bias(kMoeLayer);
  bias.members = {{REFIT_NEMOTRON_MIXER "gate.e_score_correction_bias", "E", "f32"}};
  bias.engine = REFIT_NEMOTRON_VLLM "gate.e_score_correction_bias";
  Row shared_up = named(Kind::kUp, kMoeLayer, {{REFIT_NEMOTRON_MIXER "shared_experts.up_proj.weight", "Is,H"}},
                        REFIT_NEMOTRON_VLLM "shared_experts.up_proj.weight",
                        REFIT_NEMOTRON_DECODER "mlp.shared_experts.linear_fc1.weight"),
      shared_down = named(Kind::kMlpDown, kMoeLayer, {{REFIT_NEMOTRON_MIXER "shared_experts.down_proj.weight", "H,Is"}},
                          REFIT_NEMOTRON_VLLM "shared_experts.down_proj.weight",
                          REFIT_NEMOTRON_DECODER "mlp.shared_experts.linear_fc2.weight");
  shared_up.when = shared_down.when = "Is";
  Row router = named(Kind::kReplicated, kMoeLayer, {{REFIT_NEMOTRON_MIXER "gate.weight", "E,H"}},
                     REFIT_NEMOTRON_VLLM "gate.weight", REFIT_NEMOTRON_DECODER "mlp.router.weight");
  // vLLM keeps it in f32 whatever the model is.
  router.own = {{Names::kEngine, Per::kRow, {load(0), cast("f32")}}};
  std::vector<Row> out{router, bias, shared_up, shared_down};
  for (const bool narrow : {false, true}) {
    Row up = named(Kind::kExpertUp, kMoeLayer, {{REFIT_NEMOTRON_MIXER "experts.{expert}.up_proj.weight", "Im,Hx"}},
                   REFIT_NEMOTRON_VLLM "experts.routed_experts.w13_weight",
                   REFIT_NEMOTRON_DECODER "mlp.experts.linear_fc1.weight{expert}"),
        down =
            named(Kind::kExpertDown, kMoeLayer, {{REFIT_NEMOTRON_MIXER "experts.{expert}.down_proj.weight", "Hx,Im"}},
                  REFIT_NEMOTRON_VLLM "experts.routed_experts.w2_weight",
                  REFIT_NEMOTRON_DECODER "mlp.experts.linear_fc2.weight{expert}");
    up.fused = REFIT_NEMOTRON_MIXER "experts.up_proj";
    down.fused = REFIT_NEMOTRON_MIXER "experts.down_proj";
    for (Row* row : {&up, &down}) {
      row->when = narrow ? "latent" : "!latent";
      row->let = {{"Hx", narrow ? "latent" : "H"}};
      out.push_back(std::move(*row));
    }
  }
  for (const bool first : {true, false}) {
    Row row =
        first
            ? named(Kind::kReplicated, kMoeLayer, {{REFIT_NEMOTRON_MIXER "fc1_latent_proj.weight", "latent,H"}},
                    REFIT_NEMOTRON_VLLM "fc1_latent_proj.weight", REFIT_NEMOTRON_DECODER "mlp.fc1_latent_proj.weight")
            : named(Kind::kReplicated, kMoeLayer, {{REFIT_NEMOTRON_MIXER "fc2_latent_proj.weight", "H,latent"}},
                    REFIT_NEMOTRON_VLLM "fc2_latent_proj.weight", REFIT_NEMOTRON_DECODER "mlp.fc2_latent_proj.weight");
    row.when = "latent";
    out.push_back(std::move(row));
  }
  return out;
}

std::vector<Row> ends() {
  Row embedding = rows::embedding(), norm = rows::final_norm();
  embedding.members = {{"backbone.embeddings.weight", "V,H"}};
  embedding.engine = kEmbedding;
  embedding.sglang = kUnknownName;
  norm.members = {{"backbone.norm_f.weight", "H"}};
  norm.engine = "model.norm_f.weight";
  norm.megatron = "decoder.final_norm.weight";
  return {embedding, norm, rows::head()};
}

LayerTrait pattern(std::string_view name, std::string_view letter, std::string_view names) {
  return {.name = name,
          .how = LayerTrait::How::kPattern,
          .key = "hybrid_override_pattern",
          .value = letter,
          .list = "layers_block_type",
          .names = names};
}

}  // namespace
}  // namespace nemotron_rows

const Family& nemotron_h() {
  using namespace nemotron_rows;
  static const Family family{
      .name = "nemotron_h",
      .architecture = "NemotronHForCausalLM",
      .sizes = {{"hidden_size", "H"},
                {"num_hidden_layers", "L"},
                {"num_attention_heads", "Hq"},
                {"num_key_value_heads", "Hkv", "Hq"},
                {"head_dim", "hd", "128"},
                {"vocab_size", "V"},
                {"intermediate_size", "I"},
                {"mamba_num_heads", "nh"},
                {"mamba_head_dim", "ph"},
                {"ssm_state_size", "N"},
                {"n_groups", "G"},
                {"conv_kernel", "K", "4"},
                {"n_routed_experts", "E", "0", 0},
                {"moe_intermediate_size", "Im", "0", 0},
                {"moe_shared_expert_intermediate_size", "one_shared", "0", 0},
                {"n_shared_experts", "ns", "1", 0},
                {"", "Is", "ns*one_shared"},
                {"moe_latent_size", "latent", "0", 0},
                {"num_nextn_predict_layers", "drafts", "0", 0, {}, false}},
      .flags = {{"tie_word_embeddings", "tied"},
                {"use_conv_bias", "conv_bias", true},
                {"use_bias", "use_bias", false, false},
                {"mlp_bias", "mlp_bias", false, false}},
      .traits = {pattern(kMamba, "M", "mamba|linear_attention"), pattern(kAttention, "*", "attention|full_attention"),
                 pattern(kMlp, "-", "mlp"), pattern(kMoeLayer, "E", "moe")},
      .rows =
          rows::joined({ends(),
                        {layer_norm(kMamba, REFIT_NEMOTRON_DECODER "mixer.in_proj.layer_norm_weight",
                                    REFIT_NEMOTRON_DECODER "norm.weight"),
                         layer_norm(kAttention, REFIT_NEMOTRON_DECODER "self_attention.linear_qkv.layer_norm_weight",
                                    REFIT_NEMOTRON_DECODER "input_layernorm.weight"),
                         layer_norm(kMlp, REFIT_NEMOTRON_DECODER "mlp.linear_fc1.layer_norm_weight",
                                    REFIT_NEMOTRON_DECODER "pre_mlp_layernorm.weight"),
                         layer_norm(kMoeLayer, REFIT_NEMOTRON_DECODER "pre_mlp_layernorm.weight", "")},
                        mamba(),
                        attention_and_mlp(),
                        experts()}),
      .embedding = "backbone.embeddings.weight",
      .modules =
          "backbone lm_head embeddings layers norm_f dt_bias A_log D conv1d in_proj norm mixer out_proj experts "
          "gate shared_experts"};
  return family;
}

}  // namespace refit::model
