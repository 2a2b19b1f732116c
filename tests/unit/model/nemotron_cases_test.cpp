// Nemotron-H by hand: Mamba's parts and groups, values that engines keep transformed, layers by their pattern.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// di = 4 (two heads of 2), N = 2; rows of in_proj: z0-3 x0-3 B C dt0-1.
std::string nemotron_text(std::int64_t groups, const std::string& pattern = "M*-E", const std::string& more = "") {
  return R"({"model_type":"nemotron_h","hidden_size":3,"num_hidden_layers":4,"num_attention_heads":4,
             "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"intermediate_size":4,"mamba_num_heads":2,
             "mamba_head_dim":2,"ssm_state_size":2,"conv_kernel":4,"n_routed_experts":4,"moe_intermediate_size":2,
             "moe_shared_expert_intermediate_size":6,"n_groups":)" +
         std::to_string(groups) + R"(,"hybrid_override_pattern":")" + pattern + "\"" + more + "}";
}
const Short kIn{{"in_proj", "i"}, {"conv1d", "c"}};

TEST(NemotronH, MambaPartsAreCutApart) {
  // G = 2: rows z0-3 x4-7 B8-11 C12-15 dt16-17.
  for (const char* spec : {"vllm:tp=2", "megatron:tp=2"}) {
    const auto layout = must(nemotron_text(2), spec);
    const std::string mixer = spec[0] == 'v' ? "model.layers.0.mixer." : "decoder.layers.0.mixer.";
    EXPECT_EQ(words(*layout, 1, mixer + "in_proj.weight", kIn), "i2 i3 i6 i7 i10 i11 i14 i15 i17") << spec;
    EXPECT_EQ(words(*layout, 1, mixer + (spec[0] == 'v' ? "conv1d.bias" : "conv1d_bias"), kIn), "c2 c3 c6 c7 c10 c11");
    EXPECT_EQ(shape_of(*layout, 1, mixer + (spec[0] == 'v' ? "conv1d.weight" : "conv1d_weight")), (Dims{6, 1, 4}));
    EXPECT_EQ(shape_of(*layout, 1, mixer + "norm.weight"), (Dims{2}));
    EXPECT_EQ(shape_of(*layout, 1, mixer + "out_proj.weight"), (Dims{3, 2}));
  }
}

TEST(NemotronH, TheOnlyGroupIsOnEveryRank) {
  // G = 1: rows z0-3 x4-7 B8-9 C10-11 dt12-13.
  const auto engine = must(nemotron_text(1), "vllm:tp=2");
  EXPECT_EQ(words(*engine, 1, "model.layers.0.mixer.in_proj.weight", kIn), "i2 i3 i6 i7 i8 i9 i10 i11 i13");
  EXPECT_EQ(words(*engine, 0, "model.layers.0.mixer.conv1d.bias", kIn), "c0 c1 c4 c5 c6 c7");
  EXPECT_THAT(refusal(nemotron_text(1), "megatron:tp=2"), testing::HasSubstr("n_groups 1 does not divide by tp=2"));
  EXPECT_THAT(refusal(nemotron_text(3), "vllm:tp=2"), testing::HasSubstr("n_groups 3 does not divide by tp=2"));
  EXPECT_THAT(refusal(nemotron_text(4), "vllm:tp=4"), testing::HasSubstr("mamba_num_heads 2 does not divide by tp=4"));
}

TEST(NemotronH, StateMatricesAreTransformedAndWide) {
  const auto engine = must(nemotron_text(2), "vllm");
  ASSERT_EQ(engine->values().size(), 1u);
  EXPECT_EQ(engine->values()[0].second, "neg_exp");
  for (const Parameter& p : rank_of(*engine, 0).parameters) {
    const bool wide = p.name.ends_with("mixer.A") || p.name.ends_with("e_score_correction_bias") ||
                      p.name.ends_with("mixer.gate.weight");  // vLLM's router too
    EXPECT_EQ(p.dtype, wide ? DType::kF32 : DType::kBF16) << p.name;
    EXPECT_EQ(p.value, p.name.ends_with("mixer.A") ? "neg_exp" : "") << p.name;
  }
  for (const Parameter& p : rank_of(*must(nemotron_text(2), "megatron"), 0).parameters)
    EXPECT_EQ(p.dtype, p.name.ends_with("A_log") || p.name.ends_with("mixer.D") || p.name.ends_with("expert_bias")
                           ? DType::kF32
                           : DType::kBF16)
        << p.name;
}

TEST(NemotronH, StateMatricesByValue) {
  std::vector<float> logs{0.0F, 0.693147182F};
  ASSERT_TRUE(apply_value("neg_exp", logs, DType::kF32).ok());
  EXPECT_EQ(logs[0], -1.0F);
  EXPECT_FLOAT_EQ(logs[1], -2.0F);
}

TEST(NemotronH, LayersByTheirPattern) {
  const auto engine = must(nemotron_text(2), "vllm:tp=2"), megatron = must(nemotron_text(2), "megatron:pp=2");
  EXPECT_EQ(
      words(*engine, 1, "model.layers.1.mixer.qkv_proj.weight", {{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}}),
      "q4 q5 q6 q7 k2 k3 v2 v3");
  EXPECT_EQ(words(*engine, 1, "model.layers.2.mixer.up_proj.weight", {{"up_proj", "u"}}), "u2 u3");
  EXPECT_EQ(shape_of(*engine, 1, "model.layers.3.mixer.experts.routed_experts.w13_weight"), (Dims{4, 1, 3}));
  EXPECT_EQ(shape_of(*engine, 1, "model.layers.3.mixer.shared_experts.up_proj.weight"), (Dims{3, 3}));
  const std::map<std::string, std::string> norms{{"decoder.layers.0.mixer.in_proj.layer_norm_weight", "0"},
                                                 {"decoder.layers.1.self_attention.linear_qkv.layer_norm_weight", "1"}};
  for (const auto& [name, layer] : norms)
    EXPECT_EQ(contents(*megatron, 0, name)[2], "backbone.layers." + layer + ".norm.weight[2]");
  EXPECT_EQ(contents(*megatron, 1, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight")[0],
            "backbone.layers.2.norm.weight[0]");
  EXPECT_EQ(contents(*megatron, 1, "decoder.final_norm.weight")[0], "backbone.norm_f.weight[0]");
  EXPECT_EQ(shape_of(*must(nemotron_text(2), "megatron:ep=2"), 1, "decoder.layers.3.mlp.experts.linear_fc1.weight1"),
            (Dims{2, 3}));
  // The newer list, which also counts the layers.
  std::string listed = nemotron_text(2, "M*-E", R"(,"layers_block_type":["mamba","full_attention","mlp","moe"])");
  for (const char* key : {R"(,"hybrid_override_pattern":"M*-E")", R"("num_hidden_layers":4,)"})
    listed.erase(listed.find(key), std::string(key).size());
  EXPECT_EQ(must(listed, "vllm")->catalogue().tensors, engine->catalogue().tensors);
  EXPECT_THAT(refusal(nemotron_text(2, "M*-X"), "hf"), testing::HasSubstr("layer 3 is of a kind"));
}

TEST(NemotronH, NarrowExpertsAndWhatIsNotBuilt) {
  const std::string narrow = nemotron_text(2, "M*-E", R"(,"moe_latent_size":2)");
  const auto engine = must(narrow, "vllm");
  EXPECT_EQ(shape_of(*engine, 0, "model.layers.3.mixer.experts.routed_experts.w2_weight"), (Dims{4, 2, 2}));
  EXPECT_EQ(shape_of(*engine, 0, "model.layers.3.mixer.fc1_latent_proj.weight"), (Dims{2, 3}));
  const auto tied = must(nemotron_text(2, "M*-E", R"(,"tie_word_embeddings":true)"), "megatron:pp=2");
  EXPECT_EQ(tied->catalogue().tied[0].first, "backbone.embeddings.weight");
  EXPECT_EQ(contents(*tied, 1, "output_layer.weight")[4], "backbone.embeddings.weight[4]");
  EXPECT_THAT(refusal(nemotron_text(2, "M*-E", R"(,"use_bias":true)"), "hf"), testing::HasSubstr("use_bias is true"));
  EXPECT_THAT(refusal(nemotron_text(2, "M*-E", R"(,"num_nextn_predict_layers":1)"), "hf"),
              testing::HasSubstr("num_nextn_predict_layers is 1"));
  EXPECT_THAT(refusal(nemotron_text(2), "sglang"),
              testing::HasSubstr("sglang: no rule for backbone.embeddings.weight"));
  EXPECT_THAT(refusal(nemotron_text(2), "jax"), testing::HasSubstr("has no NNX tree"));
}

}  // namespace
}  // namespace refit::model::test
