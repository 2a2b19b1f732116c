// Worked cases of the pipeline, of experts and of the JAX tree: names, stages and rows, written out by hand.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

const std::string kFirstLayer = "model.layers.0.";

std::vector<std::string> names_with(const Layout& layout, std::uint32_t rank, const std::string& part) {
  std::vector<std::string> out;
  for (const Parameter& p : rank_of(layout, rank).parameters)
    if (p.name.find(part) != std::string::npos) out.push_back(p.name);
  return out;
}

// First logical tensor whose bytes lie in a parameter.
std::string source_of(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  const auto all = contents(layout, rank, parameter);
  return all.empty() ? "none" : all[0].substr(0, all[0].find('['));
}

TEST(Pipeline, StagesAndChunks) {
  struct Case {
    std::int64_t layers;
    std::string spec;
    // (rank, its parameter's prefix) -> global layer
    std::map<std::pair<std::uint32_t, std::string>, std::int64_t> first;
  };
  const Case cases[] = {
      {8,
       "megatron:pp=2,vpp=2",
       {{{0, "chunk0.decoder.layers.0."}, 0},
        {{1, "chunk0.decoder.layers.0."}, 2},
        {{0, "chunk1.decoder.layers.0."}, 4},
        {{1, "chunk1.decoder.layers.0."}, 6},
        {{1, "chunk1.decoder.layers.1."}, 7}}},
      {7,
       "megatron:pp=3,first=1",
       {{{0, "decoder.layers.0."}, 0}, {{1, "decoder.layers.0."}, 1}, {{2, "decoder.layers.0."}, 4}}},
      {7,
       "megatron:pp=3,first=1,last=1",
       {{{0, "decoder.layers.0."}, 0}, {{1, "decoder.layers.0."}, 1}, {{2, "decoder.layers.0."}, 6}}},
      {8,
       "megatron:tp=2,pp=4",
       {{{1, "decoder.layers.1."}, 1}, {{2, "decoder.layers.0."}, 2}, {{7, "decoder.layers.1."}, 7}}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.spec);
    const auto layout = must(config({.layers = c.layers}), c.spec);
    for (const auto& [place, layer] : c.first)
      EXPECT_EQ(source_of(*layout, place.first, place.second + "mlp.linear_fc2.weight"),
                "model.layers." + std::to_string(layer) + ".mlp.down_proj.weight");
  }
  const auto chunks = must(config({.layers = 8}), "megatron:pp=2,vpp=2");
  EXPECT_EQ(names_with(*chunks, 0, "embedding"), std::vector<std::string>{"chunk0.embedding.word_embeddings.weight"});
  EXPECT_EQ(names_with(*chunks, 1, "embedding"), std::vector<std::string>{});
  EXPECT_EQ(names_with(*chunks, 1, "final_layernorm"),
            std::vector<std::string>{"chunk1.decoder.final_layernorm.weight"});
  EXPECT_EQ(names_with(*chunks, 0, "output_layer"), std::vector<std::string>{});
}

TEST(Pipeline, TiedCopies) {
  const auto two = must(config({.layers = 2, .heads = 4, .kv_heads = 4, .tied = true}), "megatron:tp=2,pp=2");
  EXPECT_EQ(names_with(*two, 1, "word_embeddings").size(), 1u);
  EXPECT_EQ(names_with(*two, 1, "output_layer").size(), 0u);
  for (std::uint32_t rank : {2u, 3u}) {
    EXPECT_EQ(names_with(*two, rank, "word_embeddings").size(), 0u);
    EXPECT_EQ(source_of(*two, rank, "output_layer.weight"), "model.embed_tokens.weight");
    EXPECT_EQ(contents(*two, rank, "output_layer.weight"),
              contents(*two, rank - 2, "embedding.word_embeddings.weight"));
  }
  const auto one = must(config({.layers = 2, .heads = 4, .kv_heads = 4, .tied = true}), "megatron:tp=2");
  EXPECT_EQ(names_with(*one, 0, "output_layer").size(), 0u);
  // Not tied: a tensor of its own on the last stage.
  EXPECT_EQ(source_of(*must(config({.layers = 2}), "megatron:pp=2"), 1, "output_layer.weight"), "lm_head.weight");
}

const Sizes kFourExperts{.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 4, .expert_width = 8};
const std::string kGroupedExperts = "decoder.layers.0.mlp.experts.";

TEST(MegatronExperts, LocalNumbersAreGlobalExperts) {
  const auto layout = must(config(kFourExperts), "megatron:ep=2");
  ASSERT_EQ(layout->world(), 2);
  EXPECT_EQ(source_of(*layout, 1, kGroupedExperts + "linear_fc2.weight0"),
            kFirstLayer + "mlp.experts.2.down_proj.weight");
  EXPECT_EQ(source_of(*layout, 0, kGroupedExperts + "linear_fc2.weight1"),
            kFirstLayer + "mlp.experts.1.down_proj.weight");
  EXPECT_EQ(names_with(*layout, 1, "experts.linear_fc2"),
            (std::vector<std::string>{kGroupedExperts + "linear_fc2.weight0", kGroupedExperts + "linear_fc2.weight1"}));
}

TEST(MegatronExperts, HaveAGridOfTheirOwn) {
  // tp fastest; ep counts through tp and dp; the least dp that makes room for the experts.
  EXPECT_EQ(must(config(kFourExperts), "megatron:tp=2,ep=4")->world(), 4);
  EXPECT_EQ(must(config(kFourExperts), "megatron:ep=4")->world(), 4);
  EXPECT_EQ(must(config(kFourExperts), "megatron:tp=2,ep=2,etp=2")->world(), 4);
  EXPECT_EQ(must(config(kFourExperts), "megatron:tp=2,pp=1,ep=1")->world(), 2);
  EXPECT_EQ(must(config(kFourExperts), "megatron:tp=2,ep=2,dp=3")->world(), 6);
  const auto layout = must(config(kFourExperts), "megatron:tp=2,ep=2,etp=2");
  // Rank 3: expert rank 1, its second half of the width; attention rank 1 of 2.
  EXPECT_EQ(rows(*layout, 3, kGroupedExperts + "linear_fc1.weight0"), "g4 g5 g6 g7 u4 u5 u6 u7");
  EXPECT_EQ(source_of(*layout, 3, kGroupedExperts + "linear_fc1.weight0"),
            kFirstLayer + "mlp.experts.2.gate_proj.weight");
  EXPECT_EQ(rows(*layout, 3, "decoder.layers.0.self_attention.linear_qkv.weight"), "q4 q5 q6 q7 k2 k3 v2 v3");
  // Odd counts: six ranks as 2·3 and as 3·2.
  const auto odd = must(config({.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 6, .expert_width = 8}),
                        "megatron:tp=2,ep=3,dp=3");
  for (std::uint32_t r = 0; r < 6; ++r)
    EXPECT_EQ(source_of(*odd, r, kGroupedExperts + "linear_fc2.weight1"),
              kFirstLayer + "mlp.experts." + std::to_string(r % 3 * 2 + 1) + ".down_proj.weight");
}

TEST(MegatronExperts, ThreeForms) {
  const auto local = must(config(kFourExperts), "megatron:ep=2,spec=local");
  EXPECT_EQ(source_of(*local, 1, kGroupedExperts + "local_experts.0.linear_fc1.weight"),
            kFirstLayer + "mlp.experts.2.gate_proj.weight");
  const auto stacked = must(config(kFourExperts), "megatron:ep=2,experts=stacked");
  EXPECT_EQ(shape_of(*stacked, 1, kGroupedExperts + "linear_fc1.weight"), (Dims{2, 16, 8}));
  EXPECT_EQ(source_of(*stacked, 1, kGroupedExperts + "linear_fc1.weight"),
            kFirstLayer + "mlp.experts.2.gate_proj.weight");
}

TEST(Megatron, LocalSpecNames) {
  const auto te = must(config(kFourExperts), "megatron"), local = must(config(kFourExperts), "megatron:spec=local");
  EXPECT_EQ(names_with(*te, 0, "norm").size(), names_with(*local, 0, "norm").size());
  for (const char* name : {"decoder.layers.0.input_layernorm.weight", "decoder.layers.0.pre_mlp_layernorm.weight"})
    EXPECT_EQ(names_with(*local, 0, name).size(), 1u) << name;
  EXPECT_EQ(names_with(*te, 0, "self_attention.linear_qkv.layer_norm_weight").size(), 1u);
  const auto dense = must(config({}), "megatron");
  EXPECT_EQ(source_of(*dense, 0, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"),
            kFirstLayer + "post_attention_layernorm.weight");
}

TEST(EngineExperts, RoundRobin) {
  const Sizes ten{.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 10, .expert_width = 4};
  const auto layout = must(config(ten), "vllm:tp=4,ep=4,placement=round_robin");
  const std::string w2 = kFirstLayer + "mlp.experts.routed_experts.w2_weight";
  const std::vector<std::vector<int>> placed{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}};
  for (std::uint32_t r = 0; r < 4; ++r) {
    const auto all = contents(*layout, r, w2);
    ASSERT_EQ(all.size(), placed[r].size() * 8 * 4);
    for (std::size_t slot = 0; slot < placed[r].size(); ++slot)
      EXPECT_EQ(all[slot * 8 * 4],
                kFirstLayer + "mlp.experts." + std::to_string(placed[r][slot]) + ".down_proj.weight[0]");
  }
}

TEST(SGLang, ExpertsByGroupAndWidth) {
  const auto layout = must(config(kFourExperts), "sglang:tp=4,ep=2");
  const std::string w13 = kFirstLayer + "mlp.experts.w13_weight";
  EXPECT_EQ(shape_of(*layout, 3, w13), (Dims{2, 8, 8}));
  EXPECT_EQ(rows(*layout, 3, w13), "g4 g5 g6 g7 u4 u5 u6 u7 g4 g5 g6 g7 u4 u5 u6 u7");
  EXPECT_EQ(source_of(*layout, 3, w13), kFirstLayer + "mlp.experts.2.gate_proj.weight");
  EXPECT_EQ(source_of(*layout, 1, w13), kFirstLayer + "mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(rows(*layout, 1, kFirstLayer + "self_attn.qkv_proj.weight"), "q2 q3 k0 k1 v0 v1");
}

TEST(SGLang, DataParallelAttention) {
  const auto layout = must(config({.heads = 4, .kv_heads = 2, .width = 8}), "sglang:tp=2,dp=2");
  EXPECT_EQ(rows(*layout, 3, kFirstLayer + "self_attn.qkv_proj.weight"), "q4 q5 q6 q7 k2 k3 v2 v3");
  EXPECT_EQ(rows(*layout, 3, kFirstLayer + "mlp.gate_up_proj.weight"), "g6 g7 u6 u7");
}

// Kernels are transposed even when they are square; embeddings and experts keep their bytes.
TEST(Jax, SquareKernelsAreTransposed) {
  const auto layout =
      must(config({.type = "qwen3", .hidden = 8, .heads = 4, .kv_heads = 4, .width = 8, .vocabulary = 8}), "jax");
  for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"}) {
    const auto all = contents(*layout, 0, kFirstLayer + name + ".kernel");
    for (std::size_t i = 0; i < 64; ++i)
      EXPECT_EQ(all[i], kFirstLayer + name + ".weight[" + std::to_string(i % 8 * 8 + i / 8) + "]");
  }
  const auto same = contents(*layout, 0, "model.embed_tokens.embedding");
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(same[i], "model.embed_tokens.weight[" + std::to_string(i) + "]");
  EXPECT_EQ(contents(*layout, 0, "lm_head.kernel")[1], "lm_head.weight[8]");
  EXPECT_EQ(names_with(*layout, 0, "norm").size(), 5u);
  EXPECT_EQ(shape_of(*layout, 0, kFirstLayer + "self_attn.q_norm.scale"), Dims{2});
}

TEST(Jax, CutsFollowTheKernel) {
  const auto layout = must(config({.type = "qwen2", .hidden = 6, .heads = 4, .kv_heads = 2, .width = 10}), "jax:tp=2");
  EXPECT_EQ(shape_of(*layout, 1, kFirstLayer + "mlp.up_proj.kernel"), (Dims{6, 5}));
  EXPECT_EQ(contents(*layout, 1, kFirstLayer + "mlp.up_proj.kernel")[0], kFirstLayer + "mlp.up_proj.weight[30]");
  EXPECT_EQ(shape_of(*layout, 1, kFirstLayer + "mlp.down_proj.kernel"), (Dims{5, 6}));
  EXPECT_EQ(contents(*layout, 1, kFirstLayer + "mlp.down_proj.kernel")[0], kFirstLayer + "mlp.down_proj.weight[5]");
  EXPECT_EQ(shape_of(*layout, 1, kFirstLayer + "self_attn.k_proj.bias"), Dims{2});
  EXPECT_EQ(shape_of(*layout, 1, "model.embed_tokens.embedding"), (Dims{130, 6}));
}

TEST(Jax, ExpertCubeKeepsItsBytes) {
  const auto layout = must(
      config({.type = "qwen3_moe", .hidden = 2, .heads = 4, .kv_heads = 2, .experts = 2, .expert_width = 2}), "jax");
  for (const auto& [leaf, member] :
       std::map<std::string, std::string>{{"w1_EFD", "gate_proj"}, {"w3_EFD", "up_proj"}, {"w2_EDF", "down_proj"}}) {
    const auto all = contents(*layout, 0, kFirstLayer + "mlp.experts." + leaf);
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_EQ(all[i], kFirstLayer + "mlp.experts." + std::to_string(i / 4) + "." + member + ".weight[" +
                            std::to_string(i % 4) + "]");
  }
  EXPECT_EQ(contents(*layout, 0, kFirstLayer + "mlp.router.gate.kernel")[1], kFirstLayer + "mlp.gate.weight[2]");
  const auto cut = must(config(kFourExperts), "jax:ep=2,tp=2");
  EXPECT_EQ(shape_of(*cut, 3, kFirstLayer + "mlp.experts.w1_EFD"), (Dims{2, 4, 8}));
  EXPECT_EQ(rows(*cut, 3, kFirstLayer + "mlp.experts.w3_EFD"), "u4 u5 u6 u7 u4 u5 u6 u7");
  EXPECT_EQ(source_of(*cut, 2, kFirstLayer + "mlp.experts.w2_EDF"), kFirstLayer + "mlp.experts.2.down_proj.weight");
}

}  // namespace
}  // namespace refit::model::test
