// Worked cases: which row of which tensor lies where, written out by hand.
#include <set>

#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

const std::string kLayer = "model.layers.0.", kMegatron = "decoder.layers.0.";
const std::string kQkv = kMegatron + "self_attention.linear_qkv.weight",
                  kEngineQkv = kLayer + "self_attn.qkv_proj.weight";

struct RowsCase {
  Sizes sizes;
  std::string spec, parameter;
  std::vector<std::string> by_rank;
};
void PrintTo(const RowsCase& c, std::ostream* out) { *out << c.spec << " " << c.parameter; }

class Rows : public testing::TestWithParam<RowsCase> {};
TEST_P(Rows, LieWhereTheTableSays) {
  const RowsCase& c = GetParam();
  const auto layout = must(config(c.sizes), c.spec);
  ASSERT_TRUE(layout);
  ASSERT_EQ(static_cast<std::size_t>(layout->world()), c.by_rank.size());
  for (std::uint32_t r = 0; r < c.by_rank.size(); ++r)
    EXPECT_EQ(rows(*layout, r, c.parameter), c.by_rank[r]) << "rank " << r;
}

const Sizes kSmall{.heads = 4, .kv_heads = 2}, kWide{.heads = 8, .kv_heads = 2},
    kBias{.type = "qwen2", .heads = 4, .kv_heads = 2};

INSTANTIATE_TEST_SUITE_P(
    Cases, Rows,
    testing::Values(
        // Megatron interleaves q, k and v per KV group.
        RowsCase{kSmall, "megatron:tp=1", kQkv, {"q0 q1 q2 q3 k0 k1 v0 v1 q4 q5 q6 q7 k2 k3 v2 v3"}},
        RowsCase{kSmall, "megatron:tp=2", kQkv, {"q0 q1 q2 q3 k0 k1 v0 v1", "q4 q5 q6 q7 k2 k3 v2 v3"}},
        // More ranks than KV heads: cuts inside groups, then inside heads.
        RowsCase{kWide,
                 "megatron:tp=4",
                 kQkv,
                 {"q0 q1 q2 q3 q4 q5", "q6 q7 k0 k1 v0 v1", "q8 q9 q10 q11 q12 q13", "q14 q15 k2 k3 v2 v3"}},
        RowsCase{
            kWide,
            "megatron:tp=8",
            kQkv,
            {"q0 q1 q2", "q3 q4 q5", "q6 q7 k0", "k1 v0 v1", "q8 q9 q10", "q11 q12 q13", "q14 q15 k2", "k3 v2 v3"}},
        // The engine repeats K and V heads on neighbours instead.
        RowsCase{kWide,
                 "vllm:tp=4",
                 kEngineQkv,
                 {"q0 q1 q2 q3 k0 k1 v0 v1", "q4 q5 q6 q7 k0 k1 v0 v1", "q8 q9 q10 q11 k2 k3 v2 v3",
                  "q12 q13 q14 q15 k2 k3 v2 v3"}},
        RowsCase{kWide,
                 "vllm:tp=8",
                 kEngineQkv,
                 {"q0 q1 k0 k1 v0 v1", "q2 q3 k0 k1 v0 v1", "q4 q5 k0 k1 v0 v1", "q6 q7 k0 k1 v0 v1",
                  "q8 q9 k2 k3 v2 v3", "q10 q11 k2 k3 v2 v3", "q12 q13 k2 k3 v2 v3", "q14 q15 k2 k3 v2 v3"}},
        RowsCase{kSmall, "vllm:tp=1", kEngineQkv, {"q0 q1 q2 q3 q4 q5 q6 q7 k0 k1 k2 k3 v0 v1 v2 v3"}},
        RowsCase{kSmall,
                 "vllm:tp=2,dp=2",
                 kEngineQkv,
                 {"q0 q1 q2 q3 k0 k1 v0 v1", "q4 q5 q6 q7 k2 k3 v2 v3", "q0 q1 q2 q3 k0 k1 v0 v1",
                  "q4 q5 q6 q7 k2 k3 v2 v3"}},
        // Gate and up are halves of each rank, not of the whole.
        RowsCase{{.width = 4}, "megatron:tp=2", kMegatron + "mlp.linear_fc1.weight", {"g0 g1 u0 u1", "g2 g3 u2 u3"}},
        RowsCase{{.heads = 4, .kv_heads = 4, .width = 4},
                 "vllm:tp=4",
                 kLayer + "mlp.gate_up_proj.weight",
                 {"g0 u0", "g1 u1", "g2 u2", "g3 u3"}},
        // FSDP2 chunks are ceil-sized; the last may be short or empty.
        RowsCase{{.width = 10}, "fsdp=4", kLayer + "mlp.gate_proj.weight", {"g0 g1 g2", "g3 g4 g5", "g6 g7 g8", "g9"}},
        RowsCase{{.width = 5}, "fsdp=4", kLayer + "mlp.gate_proj.weight", {"g0 g1", "g2 g3", "g4", ""}},
        // TP first, FSDP inside, whichever axis is written first.
        RowsCase{{.width = 8}, "fsdp=2,tp=2", kLayer + "mlp.gate_proj.weight", {"g0 g1", "g4 g5", "g2 g3", "g6 g7"}},
        RowsCase{{.width = 8}, "tp=2,fsdp=2", kLayer + "mlp.gate_proj.weight", {"g0 g1", "g2 g3", "g4 g5", "g6 g7"}},
        RowsCase{{.heads = 3, .kv_heads = 1}, "tp=2", kLayer + "self_attn.q_proj.weight", {"q0 q1 q2", "q3 q4 q5"}},
        RowsCase{
            {.width = 4}, "fsdp=2,replicas=2", kLayer + "mlp.up_proj.weight", {"u0 u1", "u2 u3", "u0 u1", "u2 u3"}}));

TEST(Cases, BiasesFollowTheirWeights) {
  const auto megatron = must(config(kBias), "megatron:tp=2");
  const auto names = contents(*megatron, 1, kMegatron + "self_attention.linear_qkv.bias");
  EXPECT_EQ(names[0], kLayer + "self_attn.q_proj.bias[4]");
  EXPECT_EQ(names[4], kLayer + "self_attn.k_proj.bias[2]");
  const auto engine = must(config(kBias), "vllm:tp=4");
  EXPECT_EQ(contents(*engine, 3, kLayer + "self_attn.qkv_proj.bias")[2], kLayer + "self_attn.k_proj.bias[2]");
}

TEST(Cases, RowParallelMatricesAreCutByColumn) {
  const auto layout = must(config(kWide), "megatron:tp=8");
  const auto all = contents(*layout, 3, kMegatron + "self_attention.linear_proj.weight");
  ASSERT_EQ(all.size(), 16u);
  EXPECT_EQ(all[0], kLayer + "self_attn.o_proj.weight[6]");
  EXPECT_EQ(all[1], kLayer + "self_attn.o_proj.weight[7]");
  EXPECT_EQ(all[2], kLayer + "self_attn.o_proj.weight[22]");
}

std::string real_rows(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  const std::string all = rows(layout, rank, parameter);
  std::size_t real = 0, pad = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    real += all[i] == 'w';
    pad += all[i] == '-';
  }
  return std::to_string(real) + "+" + std::to_string(pad);
}

TEST(Cases, VocabularyPads) {
  struct Case {
    std::int64_t vocabulary;
    std::string spec, parameter;
    std::vector<std::string> real_and_pad;
  };
  const std::string engine = "model.embed_tokens.weight", megatron = "embedding.word_embeddings.weight";
  const Case cases[] = {{130, "vllm:tp=4", engine, {"48+0", "48+0", "34+14", "0+48"}},
                        {130, "megatron:tp=1,vocab_multiple=64", megatron, {"130+62"}},
                        {130, "megatron:tp=2,vocab_multiple=64", megatron, {"128+0", "2+126"}},
                        {130, "megatron:tp=4,vocab_multiple=64", megatron, {"64+0", "64+0", "2+62", "0+64"}},
                        {131, "vllm:tp=2", engine, {"96+0", "35+61"}},
                        {128, "vllm:tp=2", engine, {"64+0", "64+0"}},
                        {128, "megatron:tp=2,vocab_multiple=64", megatron, {"64+0", "64+0"}}};
  for (const Case& c : cases) {
    const auto layout = must(config({.heads = 4, .kv_heads = 4, .vocabulary = c.vocabulary}), c.spec);
    for (std::uint32_t r = 0; r < c.real_and_pad.size(); ++r)
      EXPECT_EQ(real_rows(*layout, r, c.parameter), c.real_and_pad[r]) << c.spec << " rank " << r;
  }
}

// Experts (and their gate rows) that a rank holds, as "e:lo-hi".
std::string experts_of(const Layout& layout, std::uint32_t rank, const std::string& which) {
  std::string out;
  for (const Holding& h : rank_of(layout, rank).holdings) {
    const std::string& name = layout.catalogue().tensors[h.tensor.value].name;
    const std::size_t at = name.find("experts.");
    if (at == std::string::npos || name.find(which) == std::string::npos) continue;
    const std::size_t axis = which == "down_proj" ? 1 : 0;
    out += (out.empty() ? "" : " ") + name.substr(at + 8, name.find('.', at + 8) - at - 8) + ":" +
           std::to_string(h.box[axis].lo) + "-" + std::to_string(h.box[axis].hi);
  }
  return out;
}

TEST(Cases, ExpertsByWidthOrWhole) {
  const Sizes four{.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 4, .expert_width = 8};
  const auto off = must(config(four), "vllm:tp=2,dp=2");
  EXPECT_EQ(experts_of(*off, 2, "gate_proj"), "0:4-6 1:4-6 2:4-6 3:4-6");
  EXPECT_EQ(experts_of(*off, 2, "up_proj"), "0:4-6 1:4-6 2:4-6 3:4-6");
  EXPECT_EQ(experts_of(*off, 2, "down_proj"), "0:4-6 1:4-6 2:4-6 3:4-6");
  EXPECT_EQ(shape_of(*off, 2, kLayer + "mlp.experts.routed_experts.w13_weight"), (Dims{4, 4, 8}));
  const auto on = must(config(four), "vllm:tp=2,dp=2,ep=4");
  EXPECT_EQ(experts_of(*on, 2, "gate_proj"), "2:0-8");
  EXPECT_EQ(experts_of(*on, 2, "down_proj"), "2:0-8");
  // Ten experts on four ranks: the remainder goes to the first.
  const Sizes ten{.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 10, .expert_width = 4};
  const auto linear = must(config(ten), "vllm:tp=4,ep=4");
  const std::vector<std::string> placed{"0:0-4 1:0-4 2:0-4", "3:0-4 4:0-4 5:0-4", "6:0-4 7:0-4", "8:0-4 9:0-4"};
  for (std::uint32_t r = 0; r < 4; ++r) EXPECT_EQ(experts_of(*linear, r, "gate_proj"), placed[r]);
  const auto w13 = contents(*linear, 3, kLayer + "mlp.experts.routed_experts.w13_weight");
  EXPECT_EQ(w13[8 * 8], kLayer + "mlp.experts.9.gate_proj.weight[0]");  // slot 1
  EXPECT_EQ(w13[8 * 8 + 4 * 8], kLayer + "mlp.experts.9.up_proj.weight[0]");
}

TEST(Cases, StackedExpertsAreTheSameBytes) {
  const Sizes moe{.type = "qwen3_moe", .hidden = 4, .heads = 4, .kv_heads = 2, .experts = 5, .expert_width = 3};
  const auto hf = must(config(moe), "hf:naming=fused");
  const auto all = contents(*hf, 0, kLayer + "mlp.experts.gate_up_proj");
  EXPECT_EQ(shape_of(*hf, 0, kLayer + "mlp.experts.gate_up_proj"), (Dims{5, 6, 4}));
  EXPECT_EQ(all[24], kLayer + "mlp.experts.1.gate_proj.weight[0]");
  EXPECT_EQ(all[24 + 12 + 5], kLayer + "mlp.experts.1.up_proj.weight[5]");
  const auto fsdp = must(config(moe), "fsdp=2,naming=fused");
  EXPECT_EQ(experts_of(*fsdp, 0, "up_proj"), "0:0-3 1:0-3 2:0-3");
  EXPECT_EQ(experts_of(*fsdp, 1, "up_proj"), "3:0-3 4:0-3");
  EXPECT_EQ(shape_of(*fsdp, 1, kLayer + "mlp.experts.down_proj"), (Dims{2, 4, 3}));
  const auto per_expert = must(config(moe), "fsdp=2,tp=1");
  EXPECT_EQ(experts_of(*per_expert, 1, "up_proj"), "0:2-3 1:2-3 2:2-3 3:2-3 4:2-3");
}

TEST(Cases, DenseLayersBetweenExperts) {
  const auto layout = must(config({.type = "qwen3_moe",
                                   .layers = 4,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .experts = 4,
                                   .expert_width = 8,
                                   .more = R"(,"decoder_sparse_step":2,"mlp_only_layers":[3])"}),
                           "vllm:tp=2");
  std::set<std::string> names;
  for (const Parameter& p : rank_of(*layout, 0).parameters) names.insert(p.name);
  for (const char* dense : {"0", "2", "3"})
    EXPECT_TRUE(names.contains(std::string("model.layers.") + dense + ".mlp.gate_up_proj.weight")) << dense;
  EXPECT_TRUE(names.contains("model.layers.1.mlp.experts.routed_experts.w13_weight"));
  EXPECT_FALSE(names.contains("model.layers.3.mlp.gate.weight"));
}

TEST(Cases, TiedHeadsAreAbsent) {
  const std::string tied = config({.heads = 4, .kv_heads = 4, .tied = true});
  for (const char* spec : {"hf", "fsdp=2", "vllm:tp=2", "megatron:tp=2"}) {
    const auto layout = must(tied, spec);
    EXPECT_EQ(id_of(layout->catalogue(), "lm_head.weight"), -1) << spec;
    ASSERT_EQ(layout->catalogue().tied.size(), 1u) << spec;
    for (const Parameter& p : rank_of(*layout, 0).parameters)
      EXPECT_TRUE(p.name != "lm_head.weight" && p.name != "output_layer.weight") << spec;
  }
  // A checkpoint that has the copy gets it back.
  auto names = catalogue_of(tied);
  names->tensors.push_back({"lm_head.weight", {130, 8}, DType::kBF16});
  const auto hf = must(tied, "hf", &*names);
  std::size_t storages = 0;
  for (const Holding& h : rank_of(*hf, 0).holdings)
    storages += hf->catalogue().tensors[h.tensor.value].name == "model.embed_tokens.weight";
  EXPECT_EQ(storages, 2u);
  EXPECT_EQ(rank_of(*must(tied, "vllm:tp=1", &*names), 0).parameters.size(),
            rank_of(*hf, 0).parameters.size() - 1 - 3);  // qkv and gate_up fuse
}

struct Refused {
  std::string config_json, spec, message;
};
void PrintTo(const Refused& c, std::ostream* out) { *out << c.spec << " " << c.config_json; }
class Refusals : public testing::TestWithParam<Refused> {};
TEST_P(Refusals, NameTheKeys) {
  EXPECT_THAT(refusal(GetParam().config_json, GetParam().spec), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Engine, Refusals,
    testing::Values(
        Refused{config(kWide), "vllm:tp=3", "num_attention_heads 8 does not divide by tp=3"},
        Refused{config({.heads = 12, .kv_heads = 4, .width = 12, .vocabulary = 192}), "vllm:tp=6",
                "num_key_value_heads 4 and tp=6"},
        Refused{config({.heads = 4, .kv_heads = 4, .width = 6}), "vllm:tp=4",
                "intermediate_size 6 does not divide by tp=4"},
        Refused{config({.heads = 5, .kv_heads = 5, .width = 5}), "vllm:tp=5", "192 does not divide by tp=5"},
        Refused{config({.type = "qwen3_moe", .experts = 4, .expert_width = 6}), "vllm:tp=2,dp=2",
                "moe_intermediate_size 6 does not divide by dp*tp=4"},
        Refused{config({.type = "qwen3_moe", .experts = 4, .expert_width = 6}), "vllm:tp=2,dp=2,ep=2",
                "ep=2 must be 1 or dp*tp = 4"},
        Refused{config(kSmall), "vllm:tp=2,ep=2", "this model has none"},
        Refused{config({.heads = 4, .kv_heads = 4, .width = 6}), "megatron:tp=4",
                "intermediate_size 6 does not divide by tp=4"},
        Refused{config({.width = 4}), "megatron:tp=3", "num_attention_heads 4 does not divide by tp=3"},
        Refused{config({.layers = 3}), "megatron:pp=2", "3 layers do not divide by 2 stages"},
        Refused{config({.layers = 3}), "megatron:pp=3,first=2,last=2", "more layers than there are"},
        Refused{config({.layers = 4}), "megatron:pp=2,vpp=4", "a stage's 2 layers do not divide by vpp"},
        Refused{config({.layers = 4}), "megatron:first=1", "need pp of at least 2"},
        Refused{config({.layers = 4}), "megatron:pp=2,first=1,last=1", "leave 2 layers without a stage"},
        Refused{config(kSmall), "megatron:ep=2", "need experts, and llama"},
        Refused{config(kSmall), "megatron:experts=stacked", "need experts, and llama"},
        Refused{config({.type = "qwen3_moe", .experts = 10, .expert_width = 6}), "megatron:ep=4",
                "num_experts 10 does not divide by ep=4"},
        Refused{config({.type = "qwen3_moe", .experts = 4, .expert_width = 6}), "megatron:ep=2,etp=4",
                "moe_intermediate_size 6 does not divide by etp=4"},
        Refused{config({.type = "qwen3_moe", .experts = 4, .expert_width = 6}), "megatron:ep=4,dp=2",
                "tp*cp*dp = 2 is no multiple of etp*ep = 4 (dp=2; the least that fits is 4)"},
        Refused{config({.type = "qwen3_moe", .experts = 10, .expert_width = 8}), "sglang:tp=4,ep=4",
                "num_experts 10 does not divide by ep=4"},
        Refused{config({.type = "qwen3_moe", .experts = 6, .expert_width = 8}), "sglang:tp=4,ep=3",
                "dp*tp = 4 does not divide by ep=3"},
        Refused{config({.type = "qwen3_moe", .experts = 6, .expert_width = 8}), "jax:ep=4",
                "num_experts 6 does not divide by ep=4"},
        Refused{config({.width = 6}), "jax:tp=4", "intermediate_size 6 does not divide by tp=4"},
        Refused{config({.vocabulary = 131}), "jax:tp=2", "lm_head.weight: an extent of 131 does not divide by tp=2"}));

TEST(Figures, RealModels) {
  const auto qwen = builtin_config("qwen3-30b-a3b@layers=2");
  ASSERT_TRUE(qwen.ok());
  const auto engine = must(*qwen, "vllm:tp=8");
  EXPECT_EQ(shape_of(*engine, 7, "model.layers.1.self_attn.qkv_proj.weight"), (Dims{768, 2048}));
  EXPECT_EQ(shape_of(*engine, 7, "model.embed_tokens.weight"), (Dims{18992, 2048}));
  EXPECT_EQ(shape_of(*engine, 7, "model.layers.1.mlp.experts.routed_experts.w13_weight"), (Dims{128, 192, 2048}));
  EXPECT_EQ(shape_of(*engine, 7, "model.layers.1.mlp.experts.routed_experts.w2_weight"), (Dims{128, 2048, 96}));
  EXPECT_EQ(shape_of(*engine, 0, "model.layers.0.mlp.gate.weight"), (Dims{128, 2048}));
  const RankLayout seven = rank_of(*engine, 7);
  const auto k_proj = static_cast<std::uint32_t>(id_of(engine->catalogue(), "model.layers.0.self_attn.k_proj.weight"));
  const auto held = std::find_if(seven.holdings.begin(), seven.holdings.end(),
                                 [&](const Holding& h) { return h.tensor.value == k_proj; });
  ASSERT_NE(held, seven.holdings.end());
  EXPECT_EQ(held->box[0], (Interval{3 * 128, 4 * 128}));
  // The dense twin of that attention, as Megatron holds it.
  const auto megatron = must(config({.type = "qwen3",
                                     .hidden = 2048,
                                     .layers = 1,
                                     .heads = 32,
                                     .kv_heads = 4,
                                     .head_dim = 128,
                                     .width = 768,
                                     .vocabulary = 151936}),
                             "megatron:tp=4");
  EXPECT_EQ(shape_of(*megatron, 3, "decoder.layers.0.self_attention.linear_qkv.weight"), (Dims{1280, 2048}));
  EXPECT_EQ(shape_of(*megatron, 3, "decoder.layers.0.self_attention.linear_proj.weight"), (Dims{2048, 1024}));
  EXPECT_EQ(shape_of(*megatron, 3, "embedding.word_embeddings.weight"), (Dims{38016, 2048}));
}

}  // namespace
}  // namespace refit::model::test
