// config.json: only the family's keys are read, and what is missing, contradictory or absurd is named.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

struct ConfigCase {
  std::string config_json, message;
};
class Config : public testing::TestWithParam<ConfigCase> {};
TEST_P(Config, ErrorsNameTheKey) {
  EXPECT_THAT(refusal(GetParam().config_json, "hf"), testing::HasSubstr(GetParam().message));
}

std::string with(const std::string& key, const std::string& value) {
  std::string out = config({});
  const std::size_t at = out.find("\"" + key + "\":");
  if (at == std::string::npos) return out.substr(0, out.size() - 1) + ",\"" + key + "\":" + value + "}";
  const std::size_t colon = out.find(':', at), end = out.find_first_of(",}", colon);
  return out.substr(0, colon + 1) + value + out.substr(end);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Config,
    testing::Values(
        ConfigCase{"", "not a JSON object"}, ConfigCase{"[1]", "not a JSON object"},
        ConfigCase{"{\"model_type\":", "not a JSON object"}, ConfigCase{"{}", "model_type is missing"},
        ConfigCase{with("model_type", "7"), "model_type must be a string"},
        ConfigCase{with("model_type", "\"gpt2\""),
                   "unsupported: config.json: no rules for model_type 'gpt2' (built: llama, qwen2, qwen3, qwen3_moe, "},
        ConfigCase{with("architectures", "[\"LlamaForSequenceClassification\"]"),
                   "architectures names LlamaForSequenceClassification"},
        ConfigCase{R"({"model_type":"llama"})", "hidden_size is missing"},
        ConfigCase{with("hidden_size", "\"8\""), "hidden_size must be an integer"},
        ConfigCase{with("hidden_size", "8.5"), "hidden_size must be an integer"},
        ConfigCase{with("hidden_size", "null"), "hidden_size is missing"},
        ConfigCase{with("hidden_size", "-8"), "hidden_size is -8"},
        ConfigCase{with("hidden_size", "0"), "hidden_size is 0"},
        ConfigCase{with("hidden_size", "9223372036854775807"), "hidden_size is 9223372036854775807, more than"},
        ConfigCase{with("hidden_size", "18446744073709551615"), "hidden_size is 18446744073709551615, more than"},
        ConfigCase{with("num_hidden_layers", "2147483647"), "num_hidden_layers 2147483647 makes more than"},
        ConfigCase{with("num_key_value_heads", "3"), "num_attention_heads 4 is no multiple of num_key_value_heads 3"},
        ConfigCase{with("vocab_size", "true"), "vocab_size must be an integer"},
        ConfigCase{with("tie_word_embeddings", "\"yes\""), "tie_word_embeddings must be true or false"},
        ConfigCase{with("torch_dtype", "\"int8\""), "torch_dtype 'int8' is none of"},
        ConfigCase{with("torch_dtype", "16"), "torch_dtype must be a string"},
        ConfigCase{with("quantization_config", R"({"bits":4})"), "must be an object with a quant_method"},
        ConfigCase{with("quantization_config", R"({"quant_method":"gptq"})"),
                   "says gptq; of family llama only unquantised checkpoints are built"},
        ConfigCase{
            R"({"model_type":"llama","hidden_size":10,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":8,"vocab_size":9})",
            "hidden_size 10 does not divide by num_attention_heads 4"},
        ConfigCase{
            R"({"model_type":"llama","hidden_size":2147483648,"num_hidden_layers":1,"num_attention_heads":1024,"head_dim":2147483648,"intermediate_size":8,"vocab_size":9})",
            "pass 2^63"},
        ConfigCase{config({.type = "qwen3_moe"}), "num_experts is missing"},
        ConfigCase{config({.type = "qwen3_moe", .experts = 4, .expert_width = 2, .more = R"(,"num_local_experts":8)"}),
             "num_experts and num_local_experts differ"},
        ConfigCase{
            config({.type = "qwen3_moe", .experts = 4, .expert_width = 2, .more = R"(,"decoder_sparse_step":0)"}),
            "decoder_sparse_step is 0"},
        ConfigCase{config({.type = "qwen3_moe", .experts = 4, .expert_width = 2, .more = R"(,"mlp_only_layers":[-1])"}),
                   "mlp_only_layers is -1"},
        ConfigCase{config({.type = "qwen3_moe", .experts = 4, .expert_width = 2, .more = R"(,"mlp_only_layers":{})"}),
                   "mlp_only_layers must be a list"}));

TEST(ConfigDefaults, DerivedAndForeignKeys) {
  // head_dim from the sizes, KV heads as many as query heads, foreign keys ignored, "dtype" as newer files write it.
  const auto layout =
      must(R"({"model_type":"llama","hidden_size":12,"num_hidden_layers":1,"num_attention_heads":4,"head_dim":null,
                              "intermediate_size":8,"vocab_size":9,"dtype":"float32","rope_scaling":{"factor":-1},"num_experts":-3})",
           "hf");
  ASSERT_TRUE(layout);
  const LogicalTensor& k =
      layout->catalogue()
          .tensors[static_cast<std::size_t>(id_of(layout->catalogue(), "model.layers.0.self_attn.k_proj.weight"))];
  EXPECT_EQ(k.shape, (Dims{12, 12}));
  EXPECT_EQ(k.dtype, DType::kF32);
  EXPECT_NE(id_of(layout->catalogue(), "lm_head.weight"), -1);
}

TEST(ConfigDefaults, BiasesWhereTheConfigurationAsks) {
  for (const auto& [more, tensors] :
       std::map<std::string, std::size_t>{{"", 12}, {R"(,"attention_bias":true)", 16}, {R"(,"mlp_bias":true)", 15}})
    EXPECT_EQ(must(config({.more = more}), "hf")->catalogue().tensors.size(), tensors) << more;
  EXPECT_EQ(must(config({.type = "qwen2"}), "hf")->catalogue().tensors.size(), 15u);
  EXPECT_EQ(must(config({.type = "qwen3"}), "hf")->catalogue().tensors.size(), 14u);
}

TEST(Builtin, ParameterCounts) {
  const std::map<std::string, std::int64_t> counts{
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.2-1b", 1'235'814'400},
      {"smollm2-135m", 134'515'008},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"kimi-k2", 1'026'408'232'448},
      // With its draft layer, less that layer's copies of the embedding and the head.
      {"deepseek-v3", 682'636'487'424},
      {"qwen3-next-80b-a3b", 79'674'391'296},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672}};
  for (const std::string& name : builtin_names()) {
    const auto catalogue = catalogue_of(*builtin_config(name));
    ASSERT_TRUE(catalogue.ok());
    std::int64_t sum = 0;
    for (const LogicalTensor& t : catalogue->tensors) sum += elements(whole(t.shape));
    EXPECT_EQ(sum, counts.at(name)) << name;
  }
}

TEST(Builtin, LayersAndUnknownNames) {
  EXPECT_EQ(catalogue_of(*builtin_config("llama-3.1-8b@layers=3"))->tensors.size(), 3u * 9 + 3);
  EXPECT_THAT(builtin_config("gpt-5").error().message, testing::HasSubstr("known: llama-3.1-8b"));
  for (const char* bad : {"llama-3.1-8b@layers=0", "llama-3.1-8b@layers=-1", "llama-3.1-8b@heads=2",
                          "llama-3.1-8b@layers=99999999999999999999", "llama-3.1-8b@"})
    EXPECT_THAT(builtin_config(bad).error().message, testing::HasSubstr("layers=N")) << bad;
}

TEST(Builtin, FusedNaming) {
  const auto fused = catalogue_of(config({.type = "qwen3_moe", .experts = 5, .expert_width = 3}), "fused");
  const std::size_t at = static_cast<std::size_t>(id_of(*fused, "model.layers.0.mlp.experts.gate_up_proj"));
  ASSERT_LT(at, fused->tensors.size());
  EXPECT_EQ(fused->tensors[at].shape, (Dims{5, 6, 8}));
  EXPECT_FALSE(catalogue_of(config({}), "stacked").ok());
}

}  // namespace
}  // namespace refit::model::test
