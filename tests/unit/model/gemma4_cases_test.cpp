// Gemma 4 by hand: which row lies where, what has no source, and what is refused.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// Layer 0 slides, layers 1 and 2 are full; `more` adds keys.
std::string gemma4_text(const std::string& more = "") {
  return R"({"model_type":"gemma4_text","hidden_size":3,"num_hidden_layers":3,"num_attention_heads":2,
             "num_key_value_heads":2,"num_global_key_value_heads":1,"head_dim":1,"global_head_dim":2,"vocab_size":128,
             "intermediate_size":4,"hidden_size_per_layer_input":0,"attention_k_eq_v":true,
             "layer_types":["sliding_attention","full_attention","full_attention"])" +
         more + "}";
}
const Short kHeads{{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}};

TEST(Gemma4, KeysStandForValuesInFullLayers) {
  const auto engine = must(gemma4_text(), "vllm"), two = must(gemma4_text(), "vllm:tp=2");
  EXPECT_EQ(words(*engine, 0, "model.layers.0.self_attn.qkv_proj.weight", kHeads), "q0 q1 k0 k1 v0 v1");
  EXPECT_EQ(words(*engine, 0, "model.layers.1.self_attn.qkv_proj.weight", kHeads), "q0 q1 q2 q3 k0 k1 k0 k1");
  EXPECT_EQ(words(*two, 1, "model.layers.1.self_attn.qkv_proj.weight", kHeads), "q2 q3 k0 k1 k0 k1");
  EXPECT_EQ(id_of(engine->catalogue(), "model.layers.1.self_attn.v_proj.weight"), -1);
  const auto megatron = must(gemma4_text(), "megatron");
  EXPECT_EQ(words(*megatron, 0, "decoder.layers.1.self_attention.linear_qkv.weight", kHeads),
            "q0 q1 q2 q3 k0 k1 k0 k1");
  EXPECT_EQ(words(*megatron, 0, "decoder.layers.0.self_attention.linear_qkv.weight", kHeads), "q0 k0 v0 q1 k1 v1");
  // Without the flag full layers have values, and as many KV heads as the others.
  const std::string apart = gemma4_text(R"(,"tie_word_embeddings":false)");
  std::string values = apart;
  values.replace(values.find("_v\":true"), 8, "_v\":false");
  EXPECT_EQ(words(*must(values, "vllm"), 0, "model.layers.1.self_attn.qkv_proj.weight", kHeads),
            "q0 q1 q2 q3 k0 k1 k2 k3 v0 v1 v2 v3");
  EXPECT_NE(id_of(must(apart, "hf")->catalogue(), "lm_head.weight"), -1);
  EXPECT_EQ(id_of(must(gemma4_text(), "hf")->catalogue(), "lm_head.weight"), -1);
}

TEST(Gemma4, BorrowedKeysHaveNoSource) {
  const std::string text = gemma4_text(R"(,"num_kv_shared_layers":1,"use_double_wide_mlp":true)");
  // SGLang allocates their places all the same, vLLM does not.
  const auto sglang = must(text, "sglang"), vllm = must(text, "vllm");
  EXPECT_EQ(words(*sglang, 0, "model.layers.2.self_attn.qkv_proj.weight", kHeads), "q0 q1 q2 q3 - - - -");
  EXPECT_EQ(contents(*sglang, 0, "model.layers.2.self_attn.k_norm.weight"), std::vector<std::string>(2, "."));
  EXPECT_EQ(words(*vllm, 0, "model.layers.2.self_attn.q_proj.weight", kHeads), "q0 q1 q2 q3");
  for (const Parameter& p : rank_of(*vllm, 0).parameters)
    EXPECT_TRUE(!p.name.starts_with("model.layers.2.self_attn.k") && !p.name.ends_with("2.self_attn.qkv_proj.weight")) << p.name;
  for (const auto& engine : {sglang, vllm})
    EXPECT_EQ(contents(*engine, 0, "model.layers.2.self_attn.q_norm.weight")[1],
              "model.layers.2.self_attn.q_norm.weight[1]");
  // The MLP is twice as wide there, and only there.
  const auto two = must(text, "vllm:tp=2");
  EXPECT_EQ(shape_of(*two, 0, "model.layers.1.mlp.gate_up_proj.weight"), (Dims{4, 3}));
  EXPECT_EQ(rows(*two, 1, "model.layers.2.mlp.gate_up_proj.weight"), "g4 g5 g6 g7 u4 u5 u6 u7");
  for (const char* tensor : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
    EXPECT_EQ(id_of(two->catalogue(), std::string("model.layers.2.self_attn.") + tensor), -1);
  EXPECT_THAT(refusal(text, "megatron"), testing::HasSubstr("megatron: no rule for model.layers.2.self_attn.q"));
  EXPECT_THAT(refusal(gemma4_text(R"(,"num_kv_shared_layers":3)"), "hf"),
              testing::HasSubstr("num_kv_shared_layers is 3, must be less than num_hidden_layers 3"));
}

TEST(Gemma4, TheScalarOfALayerIsATensor) {
  for (const auto& [spec, name] : std::map<std::string, std::string>{{"hf", "model.layers.1.layer_scalar"},
                                                                     {"jax", "model.layers.1.layer_scalar"},
                                                                     {"vllm", "model.layers.1.layer_scalar"},
                                                                     {"megatron", "decoder.layers.1.layer_scalar"}})
    EXPECT_EQ(contents(*must(gemma4_text(), spec), 0, name),
              std::vector<std::string>{"model.layers.1.layer_scalar[0]"});
}

TEST(Gemma4, PerLayerInputs) {
  std::string text = gemma4_text(R"(,"vocab_size_per_layer_input":65)");
  text.replace(text.find("layer_input\":0"), 14, "layer_input\":2");
  const std::string table = "model.embed_tokens_per_layer.weight";
  const auto engine = must(text, "vllm:tp=2");
  // Columns are layer by layer; rows of its own vocabulary, padded to 64 and cut.
  ASSERT_EQ(shape_of(*engine, 1, table), (Dims{64, 6}));
  EXPECT_EQ(contents(*engine, 1, table)[2], table + "[" + std::to_string(64 * 6 + 2 * 1 + 0) + "]");
  EXPECT_EQ(contents(*engine, 1, table)[6], ".");
  EXPECT_EQ(words(*engine, 1, "model.per_layer_model_projection.weight", {{"projection", "p"}}), "p3 p4 p5");
  EXPECT_EQ(shape_of(*must(text, "sglang:tp=2"), 1, "model.per_layer_model_projection.weight"), (Dims{6, 3}));
  EXPECT_EQ(shape_of(*engine, 1, "model.layers.0.per_layer_input_gate.weight"), (Dims{2, 3}));
  const auto jax = must(text, "jax:tp=2");
  EXPECT_EQ(shape_of(*jax, 1, "model.per_layer.embed_tokens_per_layer.embedding"), (Dims{65, 6}));
  EXPECT_EQ(shape_of(*jax, 1, "model.per_layer.per_layer_model_projection.kernel"), (Dims{3, 3}));
  EXPECT_EQ(shape_of(*jax, 1, "model.layers.0.per_layer_input_gate.kernel"), (Dims{3, 1}));
  EXPECT_EQ(contents(*jax, 1, "model.layers.0.per_layer_projection.kernel")[0],
            "model.layers.0.per_layer_projection.weight[1]");
  EXPECT_THAT(refusal(text, "megatron"), testing::HasSubstr("no rule for model.embed_tokens_per_layer.weight"));
}

TEST(Gemma4, ExpertsBesideTheDenseMlp) {
  const std::string text =
      gemma4_text(R"(,"enable_moe_block":true,"num_experts":4,"moe_intermediate_size":2,"top_k_experts":1)");
  const std::string layer = "model.layers.0.", stack = layer + "experts.gate_up_proj";
  const auto engine = must(text, "vllm:tp=2"), whole = must(text, "vllm:tp=2,ep=2");
  const std::string w13 = layer + "experts.routed_experts.w13_weight";
  ASSERT_EQ(shape_of(*engine, 1, w13), (Dims{4, 2, 3}));
  // Expert 1: gate row 1, then up row 1 (row 3 of the stack's four).
  EXPECT_EQ(contents(*engine, 1, w13)[6], stack + "[" + std::to_string(12 + 3) + "]");
  EXPECT_EQ(contents(*engine, 1, w13)[9], stack + "[" + std::to_string(12 + 9) + "]");
  ASSERT_EQ(shape_of(*whole, 1, w13), (Dims{2, 4, 3}));
  EXPECT_EQ(contents(*whole, 1, w13)[0], stack + "[" + std::to_string(2 * 12) + "]");
  EXPECT_EQ(shape_of(*must(text, "sglang"), 0, layer + "moe.per_expert_scale"), (Dims{4}));
  const auto megatron = must(text, "megatron:ep=2,etp=2");
  const auto fc1 = contents(*megatron, 3, "decoder.layers.0.mlp.experts.linear_fc1.weight0");
  EXPECT_EQ(fc1[0], stack + "[" + std::to_string(2 * 12 + 3) + "]");
  EXPECT_EQ(fc1[3], stack + "[" + std::to_string(2 * 12 + 9) + "]");
  EXPECT_EQ(rows(*megatron, 0, "decoder.layers.0.mlp.shared_experts.linear_fc1.weight"), "g0 g1 g2 g3 u0 u1 u2 u3");
  EXPECT_EQ(shape_of(*must(text, "jax:tp=2"), 1, layer + "experts.gate_up_proj"), (Dims{4, 4, 3}));
  EXPECT_EQ(shape_of(*must(text, "jax:tp=2"), 1, layer + "router.proj.kernel"), (Dims{3, 2}));
  EXPECT_THAT(refusal(gemma4_text(R"(,"enable_moe_block":true,"num_experts":4)"), "hf"),
              testing::HasSubstr("moe_intermediate_size is missing"));
  EXPECT_THAT(refusal(text, "vllm:tp=2,ep=2,placement=round_robin"), testing::HasSubstr("stack the experts"));
}

// transformers writes the keys of full layers under their numbers.
TEST(Gemma4, KeysOfSomeLayers) {
  std::string text = gemma4_text(R"(,"per_layer_config":{"1":{"head_dim":2,"num_key_value_heads":1},
                                                          "2":{"head_dim":2,"num_key_value_heads":1}})");
  for (const char* key : {"\"global_head_dim\":2,", "\"num_global_key_value_heads\":1,"})
    text.erase(text.find(key), std::string(key).size());
  const auto layout = must(text, "vllm");
  EXPECT_EQ(words(*layout, 0, "model.layers.2.self_attn.qkv_proj.weight", kHeads), "q0 q1 q2 q3 k0 k1 k0 k1");
  const auto again = read_layout(layout->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ((*again)->digest(), layout->digest());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find(from), from.size(), to);
    return refusal(other, "hf");
  };
  EXPECT_THAT(changed(R"("2":{"head_dim":2)", R"("2":{"head_dim":4)"), testing::HasSubstr("head_dim is 4 in layer 2"));
  EXPECT_THAT(changed(R"("2":{)", R"("0":{)"), testing::HasSubstr("layer 0 is none that has keys of its own"));
  EXPECT_THAT(changed(R"("1":{"head_dim":2,)", R"("1":{"rope":2,)"), testing::HasSubstr("key 'rope' of layer 1"));
}

}  // namespace
}  // namespace refit::model::test
