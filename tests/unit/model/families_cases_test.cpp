// Worked cases of the families whose tensors hold several things: which row of which tensor lies where, by hand.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

const std::string kHfLayer = "model.layers.0.", kMegatronSelf = "decoder.layers.0.self_attention.";

std::string next_config(const std::string& more) {
  return R"({"model_type":"qwen3_next","hidden_size":3,"num_hidden_layers":2,"num_attention_heads":4,
             "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"intermediate_size":8,"num_experts":4,
             "moe_intermediate_size":4,"shared_expert_intermediate_size":4,"full_attention_interval":2,
             "linear_num_key_heads":4,"linear_num_value_heads":8,"linear_key_head_dim":2,"linear_value_head_dim":1,
             "linear_conv_kernel_dim":4)" +
         more + "}";
}

const Short kQkvWords{{"q_proj", "Q"}, {"k_proj", "k"}, {"v_proj", "v"}};

TEST(GatedAttention, HeadsThenTheirGatesByGroup) {
  const auto megatron = must(next_config(""), "megatron");
  EXPECT_EQ(words(*megatron, 0, "decoder.layers.1.self_attention.linear_qkv.weight", kQkvWords),
            "Q0 Q1 Q4 Q5 Q2 Q3 Q6 Q7 k0 k1 v0 v1 Q8 Q9 Q12 Q13 Q10 Q11 Q14 Q15 k2 k3 v2 v3");
  const auto engine = must(next_config(""), "vllm:tp=2");
  EXPECT_EQ(words(*engine, 0, "model.layers.1.self_attn.qkv_proj.weight", kQkvWords),
            "Q0 Q1 Q2 Q3 Q4 Q5 Q6 Q7 k0 k1 v0 v1");
}

// Groups on disk are q q k k v v z z (eight rows); b b a a.
TEST(GatedDelta, GroupedInputs) {
  const Short names{{"qkvz", "x"}, {"in_proj_ba", "y"}};
  const auto megatron = must(next_config(""), "megatron:tp=2");
  EXPECT_EQ(words(*megatron, 0, kMegatronSelf + "in_proj.weight", names),
            "x0 x1 x8 x9 x2 x3 x10 x11 x4 x5 x12 x13 x6 x7 x14 x15 y0 y1 y4 y5 y2 y3 y6 y7");
  const auto engine = must(next_config(""), "vllm:tp=2");
  EXPECT_EQ(words(*engine, 0, kHfLayer + "linear_attn.in_proj_qkvz.weight", names),
            "x0 x1 x2 x3 x4 x5 x6 x7 x8 x9 x10 x11 x12 x13 x14 x15");
  EXPECT_EQ(words(*engine, 1, kHfLayer + "linear_attn.in_proj_ba.weight", names), "y8 y9 y10 y11 y12 y13 y14 y15");
}

TEST(GatedDelta, FlatInputs) {
  std::string text = next_config(R"(,"tie_word_embeddings":true)");
  text.replace(text.find("qwen3_next"), 10, "qwen3_5_moe_text");
  const Short names{{"in_proj_qkv", "x"}, {"in_proj_z", "z"}, {"in_proj_b", "b"}, {"in_proj_a", "a"}};
  const auto engine = must(text, "vllm:tp=2"), megatron = must(text, "megatron:tp=2");
  const std::string qkvz = "x0 x1 x2 x3 x8 x9 x10 x11 x16 x17 x18 x19 z0 z1 z2 z3", ba = "b0 b1 b2 b3 a0 a1 a2 a3";
  EXPECT_EQ(words(*engine, 0, kHfLayer + "linear_attn.in_proj_qkvz.weight", names), qkvz);
  EXPECT_EQ(words(*engine, 0, kHfLayer + "linear_attn.in_proj_ba.weight", names), ba);
  EXPECT_EQ(words(*megatron, 0, kMegatronSelf + "in_proj.weight", names), qkvz + " " + ba);
}

TEST(GatedDelta, ConvolutionByComponent) {
  // Kd = 8, Vd = 8: channels q0-7 k0-7 v0-7.
  for (const char* spec : {"vllm:tp=2", "megatron:tp=2"}) {
    const std::string name = spec[0] == 'v' ? kHfLayer + "linear_attn.conv1d.weight" : kMegatronSelf + "conv1d.weight";
    EXPECT_EQ(words(*must(next_config(""), spec), 1, name, {{"conv1d", "c"}}),
              "c4 c5 c6 c7 c12 c13 c14 c15 c20 c21 c22 c23")
        << spec;
  }
  // JAX drops the middle axis: the same values in the same order.
  const auto jax = must(next_config(""), "jax");
  EXPECT_EQ(shape_of(*jax, 0, kHfLayer + "linear_attn.conv_weight"), (Dims{24, 4}));
  EXPECT_EQ(contents(*jax, 0, kHfLayer + "linear_attn.conv_weight")[7], kHfLayer + "linear_attn.conv1d.weight[7]");
}

TEST(GatedDelta, NormAndStateTypes) {
  const auto megatron = must(next_config(""), "megatron"), engine = must(next_config(""), "vllm");
  ASSERT_EQ(megatron->values().size(), 1u);
  EXPECT_EQ(megatron->values()[0].second, "minus_one");
  EXPECT_TRUE(engine->values().empty());
  for (const Parameter& p : rank_of(*megatron, 0).parameters) {
    EXPECT_EQ(p.dtype, p.name.ends_with("out_norm.weight") ? DType::kF32 : DType::kBF16) << p.name;
    EXPECT_EQ(p.value, p.name.ends_with("out_norm.weight") ? "minus_one" : "") << p.name;
  }
  for (const Parameter& p : rank_of(*engine, 0).parameters)
    EXPECT_EQ(p.dtype, p.name.ends_with("A_log") ? DType::kF32 : DType::kBF16) << p.name;
}

TEST(GatedDelta, DraftLayersAreFoundByName) {
  const std::string text = next_config("");
  Catalogue names = *catalogue_of(next_config(R"(,"num_nextn_predict_layers":1)"));
  const auto found = must(text, "megatron:pp=2", &names);
  EXPECT_NE(id_of(found->catalogue(), "mtp.layers.0.self_attn.q_proj.weight"), -1);
  EXPECT_EQ(words(*found, 1, "mtp.layers.0.eh_proj.weight", {{"mtp.fc", "f"}}), "f0 f1 f2");
  EXPECT_EQ(shape_of(*found, 1, "mtp.layers.0.mtp_model_layer.mlp.experts.linear_fc2.weight3"), (Dims{3, 4}));
  EXPECT_THAT(refusal(text, "vllm", &names), testing::HasSubstr("no place for the draft layer's mtp."));
}

const std::string kOss = R"({"model_type":"gpt_oss","hidden_size":3,"num_hidden_layers":1,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"intermediate_size":4,"num_local_experts":2})";

// Columns on disk are g0 u0 g1 u1 …; column c of row h is element 8h + c of an expert.
TEST(GptOss, GateAndUpAlternate) {
  const std::string experts = kHfLayer + "mlp.experts.";
  const auto megatron = must(kOss, "megatron");
  const auto fc1 = contents(*megatron, 0, "decoder.layers.0.mlp.experts.linear_fc1.weight1");
  ASSERT_EQ(shape_of(*megatron, 0, "decoder.layers.0.mlp.experts.linear_fc1.weight1"), (Dims{8, 3}));
  for (std::int64_t c = 0; c < 2; ++c)
    for (std::int64_t i = 0; i < 4; ++i)
      for (std::int64_t h = 0; h < 3; ++h)
        EXPECT_EQ(fc1[static_cast<std::size_t>((c * 4 + i) * 3 + h)],
                  experts + "gate_up_proj[" + std::to_string(24 + h * 8 + 2 * i + c) + "]");
  const auto engine = must(kOss, "vllm:tp=2");
  const std::string w13 = experts + "routed_experts.w13_weight";
  ASSERT_EQ(shape_of(*engine, 1, w13), (Dims{2, 4, 3}));
  const auto rows_of_one = contents(*engine, 1, w13);
  for (std::int64_t r = 0; r < 4; ++r)
    EXPECT_EQ(rows_of_one[static_cast<std::size_t>(r * 3 + 2)],
              experts + "gate_up_proj[" + std::to_string(2 * 8 + 4 + r) + "]");
  // The bias of w2 has values on the first rank only.
  EXPECT_EQ(contents(*engine, 0, experts + "routed_experts.w2_bias")[4], experts + "down_proj_bias[4]");
  EXPECT_EQ(contents(*engine, 1, experts + "routed_experts.w2_bias"), std::vector<std::string>(6, "."));
  EXPECT_EQ(shape_of(*must(kOss, "sglang:tp=2"), 0, experts + "w2_weight_bias"), (Dims{2, 3}));
  EXPECT_THAT(refusal(kOss, "vllm:tp=8"), testing::HasSubstr("num_attention_heads 4 does not divide by tp=8"));
  EXPECT_THAT(refusal(kOss, "vllm:dp=3"), testing::HasSubstr("intermediate_size 4 does not divide by dp*tp=3"));
  EXPECT_THAT(refusal(kOss, "jax"), testing::HasSubstr("family gpt_oss has no NNX tree"));
  EXPECT_THAT(refusal(kOss, "megatron:experts=stacked"), testing::HasSubstr("experts=stacked is not built"));
}

TEST(GptOss, SquareDownProjectionIsTurned) {
  std::string square = kOss;
  square.replace(square.find("\"hidden_size\":3"), 15, "\"hidden_size\":4");
  const auto all = contents(*must(square, "megatron:ep=2"), 1, "decoder.layers.0.mlp.experts.linear_fc2.weight0");
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_EQ(all[i], kHfLayer + "mlp.experts.down_proj[" + std::to_string(16 + i % 4 * 4 + i / 4) + "]");
}

std::string latent_text(const std::string& more = "") {
  return R"({"model_type":"deepseek_v3","hidden_size":3,"num_hidden_layers":1,"num_attention_heads":2,"q_lora_rank":2,
             "kv_lora_rank":2,"qk_nope_head_dim":1,"qk_rope_head_dim":1,"v_head_dim":1,"intermediate_size":4,
             "n_routed_experts":2,"moe_intermediate_size":2,"n_shared_experts":2,"first_k_dense_replace":0,
             "vocab_size":128)" +
         more + "}";
}

TEST(LatentAttention, NarrowProjectionsAreWholeEverywhere) {
  const Short names{{"q_a_proj", "qa"}, {"kv_a_proj", "kva"}, {"kv_b_proj", "kvb"}, {"q_b_proj", "qb"}};
  const auto engine = must(latent_text(), "vllm:tp=2");
  for (std::uint32_t rank : {0u, 1u})
    EXPECT_EQ(words(*engine, rank, kHfLayer + "self_attn.fused_qkv_a_proj.weight", names), "qa0 qa1 kva0 kva1 kva2");
  EXPECT_EQ(words(*engine, 1, kHfLayer + "self_attn.kv_b_proj.weight", names), "kvb2 kvb3");
  EXPECT_EQ(words(*engine, 1, kHfLayer + "self_attn.q_b_proj.weight", names), "qb2 qb3");
  EXPECT_EQ(shape_of(*must(latent_text(), "sglang:tp=2"), 0, kHfLayer + "self_attn.fused_qkv_a_proj_with_mqa.weight"),
            (Dims{5, 3}));
  const auto megatron = must(latent_text(), "megatron:tp=2");
  EXPECT_EQ(words(*megatron, 1, kMegatronSelf + "linear_kv_down_proj.weight", names), "kva0 kva1 kva2");
  EXPECT_EQ(words(*megatron, 1, kMegatronSelf + "linear_kv_up_proj.weight", names), "kvb2 kvb3");
  // Without Transformer Engine they are cut.
  EXPECT_THAT(refusal(latent_text(), "megatron:tp=2,spec=local"),
              testing::HasSubstr("kv_a_proj_with_mqa.weight: an extent of 3 does not divide"));
}

TEST(LatentAttention, CorrectionBiasStaysF32) {
  const std::string bias = kHfLayer + "mlp.gate.e_score_correction_bias";
  for (const auto& [spec, name] : std::map<std::string, std::string>{
           {"hf", bias}, {"fsdp=2", bias}, {"vllm", bias}, {"megatron", "decoder.layers.0.mlp.router.expert_bias"}})
    for (const Parameter& p : rank_of(*must(latent_text(), spec), 0).parameters)
      EXPECT_EQ(p.dtype, p.name == name ? DType::kF32 : DType::kBF16) << spec << " " << p.name;
}

TEST(LatentAttention, DraftLayersAndTheirCopies) {
  const std::string text = latent_text(R"(,"num_nextn_predict_layers":1)");
  EXPECT_THAT(refusal(text, "vllm"), testing::HasSubstr("no place for the draft layer's model.layers.1."));
  const auto skipped = must(text, "vllm:draft=skip");
  const auto at = static_cast<std::size_t>(id_of(skipped->catalogue(), "model.layers.1.eh_proj.weight"));
  EXPECT_TRUE(skipped->patterns()[skipped->pattern_of()[at]].shards.empty());
  const auto megatron = must(text, "megatron");
  EXPECT_EQ(words(*megatron, 0, "mtp.layers.0.final_layernorm.weight", {{"shared_head.norm", "n"}}), "n0 n1 n2");
  EXPECT_EQ(shape_of(*megatron, 0, "mtp.layers.0.mtp_model_layer.self_attention.linear_q_up_proj.weight"),
            (Dims{4, 2}));
  // A live module without them, whatever its configuration counts.
  for (const std::string spec :
       {"hf", "hf:naming=fused", "fsdp=2", "fsdp=2,flat=zero3", "fsdp=2,flat=zero3,naming=fused", "megatron"}) {
    const auto none = must(text, spec + (spec.find_first_of(":=") == std::string::npos ? ":" : ",") + "draft=skip");
    const auto all = rank_of(*must(text, spec), 0).parameters.size();
    EXPECT_LT(rank_of(*none, 0).parameters.size(), all) << spec;
    for (const Parameter& p : rank_of(*none, 0).parameters)
      EXPECT_TRUE(p.name.find("layers.1.") == std::string::npos && !p.name.starts_with("mtp.")) << p.name;
    const auto id = static_cast<std::size_t>(id_of(none->catalogue(), "model.layers.1.eh_proj.weight"));
    EXPECT_TRUE(none->patterns()[none->pattern_of()[id]].shards.empty()) << spec;
  }
  // A model that transformers saved: the number is kept, the layers are not.
  const Catalogue without = *catalogue_of(latent_text(""));
  EXPECT_EQ(id_of(must(text, "megatron", &without)->catalogue(), "model.layers.1.eh_proj.weight"), -1);
  // One tensor of them is a damaged checkpoint, not one without.
  Catalogue part = without;
  part.tensors.push_back({"model.layers.1.enorm.weight", {3}, DType::kBF16});
  EXPECT_NE(refusal(text, "megatron", &part), "");
  // The checkpoint's copies come back; other sides hold the tensor once.
  Catalogue names = *catalogue_of(text);
  for (const char* copy : {"model.layers.1.embed_tokens.weight", "model.layers.1.shared_head.head.weight"})
    names.tensors.push_back({copy, {128, 3}, DType::kBF16});
  const auto hf = must(text, "hf", &names);
  EXPECT_EQ(shape_of(*hf, 0, "model.layers.1.shared_head.head.weight"), (Dims{128, 3}));
  EXPECT_EQ(hf->catalogue().tied.size(), 2u);
}

std::string all_names(const Layout& layout, std::uint32_t rank) {
  std::string out;
  for (const Parameter& p : rank_of(layout, rank).parameters) out += p.name + " ";
  return out;
}

// The draft model of an engine: its layers, an embedding, heads, and nothing of the decoder.
TEST(Drafts, ModelOfItsOwn) {
  const std::string text = latent_text(R"(,"num_nextn_predict_layers":1)");
  const auto own = must(text, "vllm:tp=2,draft=own");
  const std::string layer = "model.layers.1.", block = layer + "mtp_block.";
  EXPECT_EQ(words(*own, 0, layer + "eh_proj.weight", {{"eh_proj", "e"}}), "e0 e1 e2");
  EXPECT_EQ(words(*own, 1, block + "self_attn.kv_b_proj.weight", {{"1.self_attn.kv_b", "kvb"}}), "kvb2 kvb3");
  EXPECT_EQ(shape_of(*own, 1, layer + "shared_head.head.weight"), (Dims{64, 3}));
  EXPECT_EQ(contents(*own, 1, layer + "shared_head.head.weight").at(0), "lm_head.weight[192]");
  EXPECT_EQ(contents(*own, 0, "model.embed_tokens.weight").at(0), "model.embed_tokens.weight[0]");
  const std::string names = all_names(*own, 0);
  EXPECT_THAT(names, testing::Not(testing::HasSubstr("layers.0.")));
  EXPECT_THAT(names, testing::Not(testing::HasSubstr("lm_head")));
  EXPECT_THAT(names, testing::Not(testing::HasSubstr("model.norm")));
  // The two models of the engine hold everything between them, and share the embedding and the head.
  const auto rest = must(text, "vllm:tp=2,draft=skip");
  for (std::size_t t = 0; t < own->catalogue().tensors.size(); ++t) {
    const bool drafted = !own->patterns()[own->pattern_of()[t]].shards.empty(),
               decoded = !rest->patterns()[rest->pattern_of()[t]].shards.empty();
    const std::string& name = own->catalogue().tensors[t].name;
    const bool both = name == "lm_head.weight" || name == "model.embed_tokens.weight";
    EXPECT_TRUE(drafted || decoded) << name;
    EXPECT_EQ(drafted && decoded, both) << name;
  }
  EXPECT_EQ(must(text, own->recipe()->spec)->digest(), own->digest());
  EXPECT_THAT(refusal(latent_text(), "vllm:draft=own"), testing::HasSubstr("draft=own needs draft layers"));
  EXPECT_THAT(refusal(text, "sglang:draft=own"), testing::HasSubstr("sglang has none that is built (built: vllm)"));
  EXPECT_THAT(refusal(text, "megatron:draft=own"), testing::HasSubstr("megatron has none that is built"));
  EXPECT_THAT(refusal(latent_text(R"(,"num_nextn_predict_layers":1,"tie_word_embeddings":true)"), "vllm:draft=own"),
              testing::HasSubstr("draft=own is not built for tied embeddings of family deepseek_v3"));
}

TEST(Figures, LargeFamilies) {
  const auto deepseek = must(*builtin_config("deepseek-v3@layers=4"), "megatron:tp=8,ep=16,vocab_multiple=1280");
  const std::map<std::string, Dims> megatron{
      {"decoder.layers.3.self_attention.linear_q_up_proj.weight", {3072, 1536}},
      {"decoder.layers.3.self_attention.linear_kv_up_proj.weight", {4096, 512}},
      {"decoder.layers.3.self_attention.linear_proj.weight", {7168, 2048}},
      {"decoder.layers.3.self_attention.linear_q_down_proj.weight", {1536, 7168}},
      {"embedding.word_embeddings.weight", {133120 / 8, 7168}},
      {"decoder.layers.3.mlp.experts.linear_fc1.weight15", {4096, 7168}}};
  for (const auto& [name, shape] : megatron) EXPECT_EQ(shape_of(*deepseek, 9, name), shape) << name;
  const auto vllm = must(*builtin_config("deepseek-v3@layers=4"), "vllm:tp=8,ep=8,draft=skip");
  EXPECT_EQ(shape_of(*vllm, 7, "model.layers.3.self_attn.fused_qkv_a_proj.weight"), (Dims{2112, 7168}));
  EXPECT_EQ(shape_of(*vllm, 7, "model.layers.3.mlp.experts.routed_experts.w13_weight"), (Dims{32, 4096, 7168}));
  const std::string long_next = *builtin_config("qwen3-next-80b-a3b@layers=4");
  const auto m = must(long_next, "megatron:tp=2"), e = must(long_next, "vllm:tp=2");
  EXPECT_EQ(shape_of(*m, 1, "decoder.layers.3.self_attention.linear_qkv.weight"), (Dims{4608, 2048}));
  EXPECT_EQ(shape_of(*m, 1, kMegatronSelf + "in_proj.weight"), (Dims{6176, 2048}));
  EXPECT_EQ(shape_of(*m, 1, kMegatronSelf + "conv1d.weight"), (Dims{4096, 1, 4}));
  EXPECT_EQ(shape_of(*e, 1, "model.layers.3.self_attn.qkv_proj.weight"), (Dims{4608, 2048}));
  EXPECT_EQ(shape_of(*e, 1, kHfLayer + "linear_attn.in_proj_qkvz.weight"), (Dims{6144, 2048}));
  EXPECT_EQ(shape_of(*e, 1, kHfLayer + "linear_attn.in_proj_ba.weight"), (Dims{32, 2048}));
  const std::string oss = *builtin_config("gpt-oss-20b@layers=1");
  EXPECT_EQ(shape_of(*must(oss, "megatron:tp=4"), 3, kMegatronSelf + "linear_qkv.weight"), (Dims{1280, 2880}));
  EXPECT_EQ(shape_of(*must(oss, "megatron:tp=4"), 3, "decoder.layers.0.mlp.experts.linear_fc1.weight31"),
            (Dims{5760, 2880}));
  EXPECT_EQ(shape_of(*must(oss, "vllm:tp=4"), 3, kHfLayer + "mlp.experts.routed_experts.w13_weight"),
            (Dims{32, 1440, 2880}));
}

TEST(Values, ComeBackOrSayWhereNot) {
  std::vector<float> w{0.302734375F, 1.0F, -3.5F};
  const std::vector<float> before = w;
  EXPECT_EQ(*apply_value("minus_one", w, DType::kBF16), -1);
  EXPECT_EQ(w[0], -0.697265625F);
  EXPECT_EQ(*undo_value("minus_one", w, DType::kBF16), -1);
  EXPECT_EQ(w, before);
  std::vector<float> tiny{2.0F, 1e-10F};
  EXPECT_EQ(*apply_value("minus_one", tiny, DType::kBF16), 1);
  std::vector<float> trained{0.1F};  // no bf16 value is one more
  EXPECT_EQ(*undo_value("minus_one", trained, DType::kBF16), 0);
  std::vector<float> state{0.0F, 0.6953125F, -2.25F};
  const std::vector<float> logs = state;
  EXPECT_EQ(*apply_value("neg_exp", state, DType::kBF16), -1);
  EXPECT_EQ(state[0], -1.0F);
  EXPECT_EQ(*undo_value("neg_exp", state, DType::kBF16), -1);
  EXPECT_EQ(state, logs);
  EXPECT_FALSE(apply_value("square", state, DType::kF32).ok());
}

}  // namespace
}  // namespace refit::model::test
