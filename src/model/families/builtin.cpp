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
};

}  // namespace

std::vector<std::string> builtin_names() {
  std::vector<std::string> out;
  for (const Builtin& b : kBuiltins) out.emplace_back(b.name);
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
  return Error(Code::kInvalid, "no built-in model '" + std::string(name) + "' (known: " + known + ")");
}

}  // namespace refit::model
