// Configurations of well-known models by name, from their public config.json.
#include <nlohmann/json.hpp>

#include "model/families/config.h"
#include "model/recipe.h"

namespace refit::model {
namespace {

struct Builtin {
  std::string_view name, type;
  std::int64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary;
  bool tied;
  std::int64_t experts = 0, expert_width = 0;
};

constexpr Builtin kBuiltins[] = {
    {"llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, false},
    {"llama-3.1-70b", "llama", 8192, 80, 64, 8, 128, 28672, 128256, false},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, true},
    {"smollm2-135m", "llama", 576, 30, 9, 3, 64, 1536, 49152, true},
    {"qwen2.5-0.5b", "qwen2", 896, 24, 14, 2, 64, 4864, 151936, true},
    {"qwen2.5-7b", "qwen2", 3584, 28, 28, 4, 128, 18944, 152064, false},
    {"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, true},
    {"qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, false},
    {"qwen3-30b-a3b", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, false, 128, 768},
    {"qwen3-235b-a22b", "qwen3_moe", 4096, 94, 64, 4, 128, 12288, 151936, false, 128, 1536},
};

// Models whose configuration has keys of its own.
struct BuiltinText {
  std::string_view name, text;
};
constexpr BuiltinText kTexts[] = {
    {"deepseek-v3",
     R"({"model_type":"deepseek_v3","architectures":["DeepseekV3ForCausalLM"],"torch_dtype":"bfloat16",
"hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"num_hidden_layers":61,
"num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":256,"n_shared_experts":1,"first_k_dense_replace":3,
"num_nextn_predict_layers":1,"vocab_size":129280,"tie_word_embeddings":false})"},
    {"kimi-k2",
     R"({"model_type":"kimi_k2","architectures":["DeepseekV3ForCausalLM"],"torch_dtype":"bfloat16",
"hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"num_hidden_layers":61,
"num_attention_heads":64,"num_key_value_heads":64,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":384,"n_shared_experts":1,"first_k_dense_replace":1,
"num_nextn_predict_layers":0,"vocab_size":163840,"tie_word_embeddings":false})"},
    {"qwen3-next-80b-a3b",
     R"({"model_type":"qwen3_next","architectures":["Qwen3NextForCausalLM"],"torch_dtype":"bfloat16",
"hidden_size":2048,"intermediate_size":5120,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,
"num_hidden_layers":48,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"num_experts":512,
"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,
"linear_conv_kernel_dim":4,"full_attention_interval":4,"decoder_sparse_step":1,"mlp_only_layers":[],
"vocab_size":151936,"tie_word_embeddings":false})"},
    {"gpt-oss-20b",
     R"({"model_type":"gpt_oss","architectures":["GptOssForCausalLM"],"torch_dtype":"bfloat16","hidden_size":2880,
"intermediate_size":2880,"num_hidden_layers":24,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
"num_local_experts":32,"vocab_size":201088,"tie_word_embeddings":false})"},
    {"gpt-oss-120b",
     R"({"model_type":"gpt_oss","architectures":["GptOssForCausalLM"],"torch_dtype":"bfloat16","hidden_size":2880,
"intermediate_size":2880,"num_hidden_layers":36,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,
"num_local_experts":128,"vocab_size":201088,"tie_word_embeddings":false})"},
};

// A few layers of a long pattern are a short model of the same kind, so no other key changes with their number.
std::string with_layers(std::string_view text, std::int64_t layers) {
  nlohmann::json config = nlohmann::json::parse(text);
  if (layers > 0) config["num_hidden_layers"] = layers;
  return config.dump(1);
}

}  // namespace

std::vector<std::string> builtin_names() {
  std::vector<std::string> out;
  for (const Builtin& b : kBuiltins) out.emplace_back(b.name);
  for (const BuiltinText& b : kTexts) out.emplace_back(b.name);
  return out;
}

Result<std::string> builtin_config(std::string_view name) {
  const std::size_t at = name.find('@');
  std::int64_t layers = 0;
  if (at != std::string_view::npos) {
    const std::string_view option = name.substr(at + 1);
    const auto number = option.starts_with("layers=") ? parse_number(option.substr(7)) : std::nullopt;
    if (!number || *number < 1)
      return Error(Code::kInvalid, "model '" + std::string(name) + "': after @ only layers=N with N ≥ 1 is understood");
    layers = *number;
  }
  std::string known;
  for (const Builtin& b : kBuiltins) {
    known += (known.empty() ? "" : ", ") + std::string(b.name);
    if (b.name != name.substr(0, at)) continue;
    nlohmann::json config{{"model_type", b.type},
                          {"hidden_size", b.hidden},
                          {"num_attention_heads", b.heads},
                          {"num_hidden_layers", layers > 0 ? layers : b.layers},
                          {"num_key_value_heads", b.kv_heads},
                          {"head_dim", b.head_dim},
                          {"intermediate_size", b.intermediate},
                          {"vocab_size", b.vocabulary},
                          {"tie_word_embeddings", b.tied},
                          {"torch_dtype", "bfloat16"}};
    for (const Family* f : families())
      if (f->name == b.type) config["architectures"] = {f->architecture};
    if (b.experts > 0) {
      config["num_experts"] = b.experts;
      config["moe_intermediate_size"] = b.expert_width;
      config["decoder_sparse_step"] = 1;
      config["mlp_only_layers"] = nlohmann::json::array();
    }
    return config.dump(1);
  }
  for (const BuiltinText& b : kTexts) {
    known += ", " + std::string(b.name);
    if (b.name == name.substr(0, at)) return with_layers(b.text, layers);
  }
  return Error(Code::kInvalid, "no built-in model '" + std::string(name) + "' (known: " + known + ")");
}

}  // namespace refit::model
