// Recipes travel and come back equal; digests say what changed; a checkpoint's own facts are kept.
#include <nlohmann/json.hpp>

#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {
using nlohmann::json;

const Sizes kMoe{.type = "qwen3_moe", .layers = 2, .heads = 4, .kv_heads = 2, .experts = 4, .expert_width = 8};

std::string inner(const Layout& layout) { return json::parse(layout.serialise())["recipe"].dump(); }

TEST(Recipe, ComesBackEqual) {
  for (const char* spec :
       {"hf", "hf:naming=fused", "fsdp=2,tp=2", "vllm:tp=2,dp=2,ep=4,replicas=2", "fsdp=3,naming=fused,hosts=x"}) {
    const auto made = must(config(kMoe), spec);
    const auto back = read_recipe(inner(*made));
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    EXPECT_EQ((*back)->digest(), made->digest()) << spec;
    EXPECT_EQ((*back)->serialise(), made->serialise());
    const auto last = static_cast<std::uint32_t>(made->world() - 1);
    EXPECT_EQ(rank_of(**back, last).holdings, rank_of(*made, last).holdings);
  }
}

TEST(Recipe, DigestIgnoresTextAndSeesMeaning) {
  const auto a = must(
      R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":8,"vocab_size":9})",
      "vllm:tp=2,dp=2");
  const auto b = must(
      R"({ "vocab_size": 9, "intermediate_size": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 2,
                          "num_hidden_layers": 1, "hidden_size": 8, "tie_word_embeddings": false, "model_type": "llama", "x": 1 })",
      "vllm:dp=2,tp=2");
  EXPECT_EQ(a->digest(), b->digest());
  EXPECT_NE(a->digest(), must(config({}), "vllm:tp=2,dp=2")->digest());
  EXPECT_NE(must(config({}), "fsdp=2,tp=2")->digest(), must(config({}), "tp=2,fsdp=2")->digest());
  EXPECT_NE(must(config({}), "hf")->digest(), must(config({}), "fsdp=1")->digest());
}

// The tables' digest is part of plan ids: a change is a change of meaning, so it must be deliberate.
TEST(Recipe, RuleTablesAreTheSameEverywhere) {
  std::map<std::string, std::string> found;
  for (const char* spec : {"hf", "fsdp=2", "vllm:tp=2", "megatron:tp=2"})
    found[spec] = must(config({.type = "qwen2"}), spec)->recipe()->rules_digest.hex();
  EXPECT_EQ(found["fsdp=2"],
            must(config({.type = "qwen2", .hidden = 16}), "fsdp=4,tp=2")->recipe()->rules_digest.hex());
  const std::map<std::string, std::string> expected{{"hf", "600f1e937e57d202d42a549f17dcc082"},
                                                    {"fsdp=2", "daddd8e24210260f9392098ff87bc107"},
                                                    {"vllm:tp=2", "fd70285b8c21c5e873fc7d08e5c6f1e4"},
                                                    {"megatron:tp=2", "e7c12f4f28ba63d53fce549fc31d5a10"}};
  EXPECT_EQ(found, expected);
}

TEST(Recipe, RefusesWhatItDidNotWrite) {
  const auto made = must(config(kMoe), "vllm:tp=2");
  const json good = json::parse(inner(*made));
  const auto refused = [](const json& recipe) {
    const auto back = read_recipe(recipe.dump());
    return back.ok() ? "accepted" : back.error().to_string();
  };
  EXPECT_EQ(refused(good), "accepted");
  for (const auto& [key, value] : good.items()) {
    json less = good;
    less.erase(key);
    EXPECT_THAT(refused(less), testing::HasSubstr("recipe")) << key;
    json other = good;
    other[key] = 7;
    EXPECT_NE(refused(other), "accepted") << key;
  }
  json changed = good;
  changed["more"] = 1;
  EXPECT_THAT(refused(changed), testing::HasSubstr("unknown key 'more'"));
  changed = good;
  changed["rules_digest"] = std::string(32, '0');
  EXPECT_THAT(refused(changed), testing::HasSubstr("mismatch: recipe: it was made by other rules"));
  changed = good;
  changed["config"]["hidden_size"] = 16;
  EXPECT_THAT(refused(changed), testing::HasSubstr("mismatch: recipe: its configuration has digest"));
  changed = good;
  changed["dtypes"]["model.layers.9.input_layernorm.weight"] = "f32";
  EXPECT_THAT(refused(changed), testing::HasSubstr("which the model lacks"));
  EXPECT_THAT(read_recipe(R"({"family":"llama","family":"llama"})").error().to_string(),
              testing::HasSubstr("key 'family' appears twice"));
  EXPECT_FALSE(read_recipe("{").ok());
}

TEST(Facts, CheckpointNamesAreCompared) {
  const std::string text = config(kMoe);
  const Catalogue names = *catalogue_of(text);
  EXPECT_EQ(refusal(text, "hf", &names), "accepted");
  Catalogue less = names;
  less.tensors.erase(less.tensors.begin() + 3);
  EXPECT_THAT(refusal(text, "hf", &less), testing::HasSubstr("the checkpoint lacks " + names.tensors[3].name));
  Catalogue more = names;
  more.tensors.push_back({"model.vision.weight", {2}, DType::kBF16});
  EXPECT_THAT(refusal(text, "hf", &more),
              testing::HasSubstr("no rule of family qwen3_moe describes model.vision.weight"));
  more.tensors.back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  EXPECT_EQ(refusal(text, "hf", &more), "accepted");
  Catalogue other = names;
  other.tensors[0].shape[0] += 1;
  EXPECT_THAT(refusal(text, "hf", &other), testing::HasSubstr("config.json says"));
}

TEST(Facts, NamingAndDtypesSurviveTheEngine) {
  const std::string text = config(kMoe);
  Catalogue fused = *catalogue_of(text, "fused");
  for (LogicalTensor& t : fused.tensors)
    if (t.name == "model.norm.weight" || t.name == "model.layers.1.mlp.experts.down_proj") t.dtype = DType::kF32;
  const auto engine = must(text, "vllm:tp=2", &fused);
  const auto& tensors = engine->catalogue().tensors;
  EXPECT_EQ(
      tensors[static_cast<std::size_t>(id_of(engine->catalogue(), "model.layers.1.mlp.experts.3.down_proj.weight"))]
          .dtype,
      DType::kF32);
  EXPECT_EQ(
      tensors[static_cast<std::size_t>(id_of(engine->catalogue(), "model.layers.0.mlp.experts.3.down_proj.weight"))]
          .dtype,
      DType::kBF16);
  const auto back = read_recipe(inner(*engine));
  ASSERT_TRUE(back.ok());
  const auto hf = sibling_layout(**back, "hf");
  ASSERT_TRUE(hf.ok()) << hf.error().to_string();
  // The checkpoint's own names, shapes and dtypes, wide items first.
  std::map<std::string, DType> want, got;
  for (const LogicalTensor& t : fused.tensors) want[t.name] = t.dtype;
  const RankLayout rank = rank_of(**hf, 0);
  for (const Parameter& p : rank.parameters) got[p.name] = p.dtype;
  EXPECT_EQ(got, want);
  EXPECT_EQ(rank.parameters[0].dtype, DType::kF32);
  // Per-expert names when asked for.
  EXPECT_GT(rank_of(**sibling_layout(**back, "hf:naming=per-expert"), 0).parameters.size(), got.size());
}

TEST(Facts, OneParameterHasOneDtype) {
  const std::string text = config({});
  Catalogue names = *catalogue_of(text);
  names.tensors[static_cast<std::size_t>(id_of(names, "model.layers.0.self_attn.k_proj.weight"))].dtype = DType::kF32;
  EXPECT_EQ(refusal(text, "fsdp=2", &names), "accepted");
  EXPECT_THAT(refusal(text, "vllm:tp=2", &names), testing::HasSubstr("their dtypes must agree"));
}

}  // namespace
}  // namespace refit::model::test
