// Configurations of every family with drawn sizes, or with all sizes equal wherever the family allows it.
#pragma once
#include <random>

#include "unit/model/fixtures.h"

namespace refit::model::test {

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, std::initializer_list<std::int64_t> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

// Sizes for one family; equal ones when `n` is given.
class ConfigText {
 public:
  ConfigText(const std::string& type, Random& random, std::int64_t equal = 0)
      : random_(random), equal_(equal), text_("{\"model_type\":\"" + type + "\"") {}
  ConfigText& set(const std::string& key, std::int64_t value) { return raw(key, std::to_string(value)); }
  ConfigText& raw(const std::string& key, const std::string& value) {
    text_ += ",\"" + key + "\":" + value;
    return *this;
  }
  // The equal size, or one of the values.
  ConfigText& size(const std::string& key, std::initializer_list<std::int64_t> values) {
    return set(key, equal_ ? equal_ : pick(random_, values));
  }
  ConfigText& maybe(const std::string& key) { return raw(key, random_() % 2 == 0 ? "true" : "false"); }
  std::string done() const { return text_ + "}"; }

 private:
  Random& random_;
  std::int64_t equal_;
  std::string text_;
};

inline std::string latent_config(const std::string& type, Random& random, std::int64_t equal) {
  ConfigText c(type, random, equal);
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", pick(random, {2, 3, 4}));
  c.set("num_attention_heads", equal ? 4 : pick(random, {4, 8})).set("first_k_dense_replace", pick(random, {0, 1}));
  if (random() % 3 != 0) c.size("q_lora_rank", {6, 18});
  c.size("kv_lora_rank", {8, 10}).size("qk_nope_head_dim", {2, 6}).size("qk_rope_head_dim", {4, 16});
  c.size("v_head_dim", {3, 5}).size("intermediate_size", {24, 40}).size("n_routed_experts", {4, 8});
  c.size("moe_intermediate_size", {16, 32}).set("n_shared_experts", equal ? 1 : 2).size("vocab_size", {66, 130});
  c.set("num_nextn_predict_layers", pick(random, {0, 1})).maybe("tie_word_embeddings");
  return c.done();
}

inline std::string glm_config(Random& random, std::int64_t equal) {
  ConfigText c("glm4_moe", random, equal);
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", pick(random, {2, 3, 4}));
  c.set("num_attention_heads", 4).set("num_key_value_heads", pick(random, {2, 4})).size("head_dim", {2, 6});
  c.set("first_k_dense_replace", 1).size("intermediate_size", {24, 40}).size("n_routed_experts", {4, 8});
  c.size("moe_intermediate_size", {16, 32}).set("n_shared_experts", 1).size("vocab_size", {66, 130});
  c.set("num_nextn_predict_layers", pick(random, {0, 1})).maybe("use_qk_norm").maybe("attention_bias");
  return c.done();
}

inline std::string delta_config(const std::string& type, Random& random, std::int64_t equal) {
  ConfigText c(type, random, equal);
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", pick(random, {2, 4}));
  c.set("num_attention_heads", equal ? 4 : pick(random, {4, 8})).set("num_key_value_heads", pick(random, {2, 4}));
  c.size("head_dim", {2, 6}).size("vocab_size", {66, 130}).set("full_attention_interval", 2);
  const std::int64_t keys = pick(random, {2, 4});
  c.set("linear_num_key_heads", keys).set("linear_num_value_heads", equal ? keys : keys * pick(random, {1, 2, 3}));
  c.size("linear_key_head_dim", {3, 5}).size("linear_value_head_dim", {7, 9}).size("linear_conv_kernel_dim", {4});
  c.set("num_nextn_predict_layers", pick(random, {0, 1}));
  if (type != "qwen3_5_text")
    c.size("num_experts", {4, 8})
        .size("moe_intermediate_size", {16, 32})
        .size("shared_expert_intermediate_size", {24, 40});
  if (type != "qwen3_5_moe_text") c.size("intermediate_size", {48, 56});
  return c.done();
}

inline std::string oss_config(Random& random, std::int64_t equal) {
  ConfigText c("gpt_oss", random, equal);
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", pick(random, {1, 2, 4}));
  c.set("num_attention_heads", equal ? 4 : 8).set("num_key_value_heads", pick(random, {2, 4})).size("head_dim", {2, 6});
  c.size("intermediate_size", {16, 24}).size("num_local_experts", {4, 8}).size("vocab_size", {66, 130});
  return c.done();
}

inline std::string gemma3_config(Random& random, std::int64_t equal) {
  ConfigText c("gemma3_text", random, equal);
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", pick(random, {2, 4}));
  c.set("num_attention_heads", 4).set("num_key_value_heads", pick(random, {2, 4})).size("head_dim", {2, 6});
  c.size("intermediate_size", {24, 40}).size("vocab_size", {66, 130});
  return c.done();
}

inline std::string gemma4_config(Random& random, std::int64_t equal) {
  ConfigText c("gemma4_text", random, equal);
  const std::int64_t layers = pick(random, {2, 4});
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", layers).set("num_attention_heads", 4);
  c.set("num_key_value_heads", pick(random, {2, 4})).set("num_global_key_value_heads", pick(random, {1, 2}));
  c.size("head_dim", {2, 6}).size("global_head_dim", {10, 26}).size("intermediate_size", {24, 40});
  c.size("vocab_size", {66, 130}).size("vocab_size_per_layer_input", {70, 140});
  c.set("hidden_size_per_layer_input", random() % 2 == 0 ? 0 : equal ? equal : 8);
  // Megatron has no place for borrowed keys, nor for per-layer inputs: half of the draws are without.
  c.set("num_kv_shared_layers", pick(random, {0, 1})).maybe("attention_k_eq_v").maybe("use_double_wide_mlp");
  if (random() % 2 == 0)
    c.raw("enable_moe_block", "true").size("num_experts", {4, 8}).size("moe_intermediate_size", {16, 32});
  std::string types;
  for (std::int64_t i = 0; i < layers; ++i)
    types += std::string(i ? "," : "") +
             (i + 1 == layers || random() % 2 == 0 ? "\"full_attention\"" : "\"sliding_attention\"");
  return c.raw("layer_types", "[" + types + "]").maybe("tie_word_embeddings").done();
}

inline std::string nemotron_config(Random& random, std::int64_t equal) {
  ConfigText c("nemotron_h", random, equal);
  std::string pattern = "M*-E";
  for (std::uint64_t i = random() % 2 * 4; i > 0; --i) pattern += "M*-E"[random() % 4];
  c.size("hidden_size", {12, 14, 20, 22}).set("num_hidden_layers", static_cast<std::int64_t>(pattern.size()));
  c.raw("hybrid_override_pattern", "\"" + pattern + "\"").set("num_attention_heads", 4);
  c.set("num_key_value_heads", pick(random, {2, 4})).size("head_dim", {2, 6}).size("intermediate_size", {24, 40});
  c.set("mamba_num_heads", equal ? 16 : 8).size("mamba_head_dim", {3, 5}).size("ssm_state_size", {2, 7});
  c.set("n_groups", pick(random, {1, 2, 8})).size("conv_kernel", {4}).maybe("use_conv_bias");
  c.size("n_routed_experts", {4, 8}).size("moe_intermediate_size", {16, 32}).size("vocab_size", {66, 130});
  c.size("moe_shared_expert_intermediate_size", {48, 56});
  if (random() % 2 == 0) c.size("moe_latent_size", {9, 11});
  return c.done();
}

inline std::string oss_blocks_config(Random& random, std::int64_t equal) {
  ConfigText c("gpt_oss", random, equal ? 64 : 0);
  c.size("hidden_size", {32, 96}).set("num_hidden_layers", pick(random, {1, 2}));
  c.set("num_attention_heads", equal ? 4 : 8).set("num_key_value_heads", pick(random, {2, 4})).set("head_dim", 6);
  c.size("intermediate_size", {64, 96, 160}).set("num_local_experts", pick(random, {4, 8})).set("vocab_size", 66);
  return c.raw("quantization_config", R"({"quant_method":"mxfp4"})").done();
}

// Sizes that differ pairwise wherever shapes could be confused.
inline std::string dense_config(const std::string& type, Random& random, std::int64_t equal) {
  Sizes s{.type = type};
  if (equal) {
    s = {.type = type,
         .hidden = equal,
         .layers = 2,
         .heads = 4,
         .kv_heads = 4,
         .head_dim = equal / 4,
         .width = equal,
         .vocabulary = equal};
    if (type == "qwen3_moe") s.experts = s.expert_width = equal;
    return config(s);
  }
  s.kv_heads = pick(random, {1, 2, 4});
  s.heads = s.kv_heads * pick(random, {1, 2, 3, 8});
  s.head_dim = pick(random, {2, 6, 10});
  s.hidden = pick(random, {12, 14, 20, 22});
  s.width = pick(random, {24, 26, 40, 48});
  s.vocabulary = pick(random, {67, 128, 131});
  s.layers = pick(random, {1, 2, 3, 4});
  s.tied = random() % 2 == 0;
  if (type == "qwen3_moe") {
    s.experts = pick(random, {3, 5, 8});
    s.expert_width = pick(random, {16, 32});
    if (random() % 2 == 0) s.more = R"(,"mlp_only_layers":[0])";
  }
  if (type != "qwen2" && random() % 3 == 0) s.more += R"(,"attention_bias":true)";
  return config(s);
}

// A type with "_fp8" after it is the family's FP8 checkpoint, in blocks that its small sizes can have.
inline std::string family_config(const std::string& type, Random& random, std::int64_t equal = 0) {
  if (type.ends_with("_fp8")) {
    std::string text = family_config(type.substr(0, type.size() - 4), random, equal);
    text.pop_back();
    return text + R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[2,)" +
           (random() % 2 == 0 ? "2" : "4") + "]}}";
  }
  if (type == "gpt_oss_mxfp4") return oss_blocks_config(random, equal);
  if (type == "gemma4_text") return gemma4_config(random, equal);
  if (type == "nemotron_h") return nemotron_config(random, equal);
  if (type == "deepseek_v3" || type == "kimi_k2") return latent_config(type, random, equal);
  if (type == "glm4_moe") return glm_config(random, equal);
  if (type == "qwen3_next" || type.starts_with("qwen3_5")) return delta_config(type, random, equal);
  if (type == "gpt_oss") return oss_config(random, equal);
  if (type == "gemma3_text") return gemma3_config(random, equal);
  return dense_config(type, random, equal);
}

}  // namespace refit::model::test
