// Trees of other JAX trainers by formula, fused shared experts, several draft layers.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// Names and shapes that differ wherever a mistake could hide: 4 query heads of 6, 2 KV heads.
Sizes preset_sizes(const std::string& type) {
  return {
      .type = type, .hidden = 5, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 6, .width = 7, .vocabulary = 9};
}

// Logical element that the tree has at (h, n, d) of a [heads·hd, H] matrix.
std::string element(const std::string& tensor, std::int64_t row, std::int64_t column, std::int64_t columns) {
  return tensor + "[" + std::to_string(row * columns + column) + "]";
}

TEST(Presets, TunixKeepsHeadsAsAnAxis) {
  const auto layout = must(config(preset_sizes("qwen2")), "jax:preset=tunix");
  ASSERT_TRUE(layout);
  EXPECT_EQ(shape_of(*layout, 0, "layers.2.attn.q_proj.w"), (Dims{5, 4, 6}));
  EXPECT_EQ(shape_of(*layout, 0, "layers.2.attn.k_proj.w"), (Dims{5, 2, 6}));
  EXPECT_EQ(shape_of(*layout, 0, "layers.2.attn.o_proj.w"), (Dims{4, 6, 5}));
  EXPECT_EQ(shape_of(*layout, 0, "lm_head.w"), (Dims{5, 9}));
  EXPECT_EQ(shape_of(*layout, 0, "embedder.input_embedding"), (Dims{9, 5}));
  EXPECT_EQ(shape_of(*layout, 0, "layers.0.attn.q_bias"), (Dims{24}));
  const auto q = contents(*layout, 0, "layers.2.attn.q_proj.w"), o = contents(*layout, 0, "layers.2.attn.o_proj.w");
  for (std::int64_t h = 0; h < 5; ++h)
    for (std::int64_t n = 0; n < 4; ++n)
      for (std::int64_t d = 0; d < 6; ++d) {
        EXPECT_EQ(q[static_cast<std::size_t>((h * 4 + n) * 6 + d)],
                  element("model.layers.2.self_attn.q_proj.weight", n * 6 + d, h, 5));
        EXPECT_EQ(o[static_cast<std::size_t>((n * 6 + d) * 5 + h)],
                  element("model.layers.2.self_attn.o_proj.weight", h, n * 6 + d, 24));
      }
  EXPECT_THAT(refusal(config(preset_sizes("qwen3")), "jax:preset=tunix,tp=2"),
              testing::HasSubstr("describes whole arrays; tp=2 is not built"));
}

TEST(Presets, MaxTextWeavesAndScales) {
  const auto layout = must(config(preset_sizes("llama")), "jax:preset=maxtext");
  ASSERT_TRUE(layout);
  const std::string p = "params.decoder.layers_1.";
  const auto k = contents(*layout, 0, p + "self_attention.key.kernel"),
             v = contents(*layout, 0, p + "self_attention.value.kernel");
  ASSERT_EQ(shape_of(*layout, 0, p + "self_attention.key.kernel"), (Dims{5, 2, 6}));
  for (std::int64_t h = 0; h < 5; ++h)
    for (std::int64_t n = 0; n < 2; ++n)
      for (std::int64_t d = 0; d < 6; ++d) {
        const auto at = static_cast<std::size_t>((h * 2 + n) * 6 + d);
        // Neighbours are element d/2 of the first half and of the second.
        EXPECT_EQ(k[at], element("model.layers.1.self_attn.k_proj.weight", n * 6 + d % 2 * 3 + d / 2, h, 5));
        EXPECT_EQ(v[at], element("model.layers.1.self_attn.v_proj.weight", n * 6 + d, h, 5));
      }
  for (const Parameter& x : rank_of(*layout, 0).parameters) {
    const bool query = x.name.ends_with("query.kernel");
    EXPECT_EQ(x.value, query ? "over_sqrt:6" : "") << x.name;
    EXPECT_EQ(x.dtype, query ? DType::kF32 : DType::kBF16) << x.name;
  }
  ASSERT_EQ(layout->values().size(), 3u);
  EXPECT_EQ(layout->values()[0].second, "over_sqrt:6");
  // Qwen3 does neither.
  EXPECT_TRUE(must(config(preset_sizes("qwen3")), "jax:preset=maxtext")->values().empty());
  EXPECT_EQ(shape_of(*must(config(preset_sizes("llama")), "jax:preset=maxtext,vocab_multiple=8"), 0,
                     "params.token_embedder.embedding"),
            (Dims{16, 5}));
  EXPECT_EQ(shape_of(*must(config(preset_sizes("llama")), "jax:preset=maxtext,vocab_multiple=8"), 0,
                     "params.decoder.logits_dense.kernel"),
            (Dims{5, 16}));
}

TEST(Presets, MaxTextScansLayers) {
  const std::string kernel = "params.decoder.layers.mlp.wi_1.kernel", norm = "params.decoder.layers.pre_ffw_norm.scale",
                    query = "params.decoder.layers.self_attention.query.kernel";
  const auto second = must(config(preset_sizes("gemma3_text")), "jax:preset=maxtext_scanned"),
             first = must(config(preset_sizes("gemma3_text")), "jax:preset=maxtext_scanned,scan_axis=0");
  ASSERT_TRUE(second && first);
  EXPECT_EQ(shape_of(*second, 0, kernel), (Dims{5, 3, 7}));
  EXPECT_EQ(shape_of(*first, 0, kernel), (Dims{3, 5, 7}));
  EXPECT_EQ(shape_of(*second, 0, query), (Dims{5, 3, 4, 6}));
  EXPECT_EQ(shape_of(*second, 0, norm), (Dims{5, 3}));
  const auto a = contents(*second, 0, kernel), b = contents(*first, 0, kernel);
  for (std::int64_t h = 0; h < 5; ++h)
    for (std::int64_t l = 0; l < 3; ++l)
      for (std::int64_t i = 0; i < 7; ++i) {
        const std::string want = element("model.layers." + std::to_string(l) + ".mlp.up_proj.weight", i, h, 5);
        EXPECT_EQ(a[static_cast<std::size_t>((h * 3 + l) * 7 + i)], want);
        EXPECT_EQ(b[static_cast<std::size_t>((l * 5 + h) * 7 + i)], want);
      }
  for (const Parameter& x : rank_of(*second, 0).parameters)
    EXPECT_EQ(x.value, x.name.ends_with(".scale")      ? "plus_one"
                       : x.name.ends_with("embedding") ? "times_sqrt:5"
                                                       : "")
        << x.name;
  EXPECT_THAT(refusal(config(preset_sizes("llama")), "jax:preset=maxtext,scan_axis=1"),
              testing::HasSubstr("scan_axis= is for preset=maxtext_scanned"));
  EXPECT_THAT(refusal(config(preset_sizes("llama")), "jax:vocab_multiple=8"),
              testing::HasSubstr("vocab_multiple= is for preset=maxtext"));
  const auto again = read_layout(second->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ((*again)->digest(), second->digest());
}

TEST(Presets, ValuesComeBack) {
  for (const char* name : {"plus_one", "over_sqrt:6", "times_sqrt:5"}) {
    std::vector<float> w{0.302734375F, -2.5F, 1.0F, 0.0F};
    const std::vector<float> before = w;
    EXPECT_EQ(*apply_value(name, w, DType::kBF16), -1) << name;
    EXPECT_NE(w[1], before[1]);
    EXPECT_EQ(*undo_value(name, w, DType::kBF16), -1) << name;
    EXPECT_EQ(w, before) << name;
  }
  std::vector<float> w{1.0F};
  EXPECT_FALSE(apply_value("over_sqrt:0", w, DType::kBF16).ok());
  EXPECT_FALSE(apply_value("over_sqrt:x", w, DType::kBF16).ok());
}

std::string shared_text(std::int64_t shared, const std::string& more = "") {
  return R"({"model_type":"glm4_moe","hidden_size":3,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":2,"intermediate_size":4,"n_routed_experts":4,"moe_intermediate_size":4,
      "first_k_dense_replace":1,"vocab_size":128,"n_shared_experts":)" +
         std::to_string(shared) + more + "}";
}

TEST(SharedExperts, StandBehindTheRoutedOnes) {
  const std::string e = "model.layers.1.mlp.experts.";
  const auto width = must(shared_text(1), "vllm:tp=2,shared=fused");
  ASSERT_EQ(shape_of(*width, 1, e + "routed_experts.w13_weight"), (Dims{5, 4, 3}));
  const auto all = contents(*width, 1, e + "routed_experts.w13_weight");
  EXPECT_EQ(all[4 * 12], "model.layers.1.mlp.shared_experts.gate_proj.weight[6]");
  EXPECT_EQ(all[4 * 12 + 6], "model.layers.1.mlp.shared_experts.up_proj.weight[6]");
  EXPECT_EQ(all[3 * 12], e + "3.gate_proj.weight[6]");
  EXPECT_EQ(contents(*width, 1, e + "routed_experts.w2_weight")[4 * 6],
            "model.layers.1.mlp.shared_experts.down_proj.weight[2]");
  // Whole experts: its own on every rank, after those of the rank.
  const auto whole = must(shared_text(1), "sglang:tp=2,ep=2,shared=fused");
  for (std::uint32_t r : {0u, 1u}) {
    ASSERT_EQ(shape_of(*whole, r, e + "w13_weight"), (Dims{3, 8, 3}));
    const auto w13 = contents(*whole, r, e + "w13_weight");
    EXPECT_EQ(w13[0], e + std::to_string(2 * r) + ".gate_proj.weight[0]");
    EXPECT_EQ(w13[2 * 24], "model.layers.1.mlp.shared_experts.gate_proj.weight[0]");
  }
  for (const Parameter& p : rank_of(*whole, 0).parameters)
    EXPECT_EQ(p.name.find("shared_experts"), std::string::npos) << p.name;
  EXPECT_NE(whole->digest(), must(shared_text(1), "sglang:tp=2,ep=2")->digest());
  EXPECT_THAT(refusal(shared_text(2), "vllm:shared=fused"),
              testing::HasSubstr("its width is 8, moe_intermediate_size is 4"));
}

TEST(Drafts, SeveralOfOnePairOfNorms) {
  const std::string text = R"({"model_type":"qwen3_next","hidden_size":3,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"intermediate_size":8,"num_experts":4,
      "moe_intermediate_size":4,"shared_expert_intermediate_size":4,"full_attention_interval":2,
      "linear_num_key_heads":4,"linear_num_value_heads":8,"linear_key_head_dim":2,"linear_value_head_dim":1,
      "linear_conv_kernel_dim":4,"num_nextn_predict_layers":2})";
  const auto hf = must(text, "hf");
  ASSERT_TRUE(hf);
  for (const char* name : {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight",
                           "mtp.layers.1.self_attn.q_proj.weight"})
    EXPECT_NE(id_of(hf->catalogue(), name), -1) << name;
  EXPECT_EQ(refusal(text, "fsdp=3"), "accepted");
  EXPECT_EQ(refusal(text, "vllm:tp=2,draft=skip"), "accepted");
  EXPECT_EQ(refusal(text, "megatron:draft=skip"), "accepted");
  EXPECT_THAT(refusal(text, "megatron"),
              testing::HasSubstr("has one mtp.pre_fc_norm_embedding.weight for all of its 2 draft layers"));
}

}  // namespace
}  // namespace refit::model::test
