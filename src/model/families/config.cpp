#include "model/families/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace refit::model {
namespace {
using nlohmann::json;

// Far above any model; keeps every later product within 63 bits or refused.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
constexpr std::int64_t kMaxTensors = 4'000'000;

Error bad(std::string_view key, const std::string& what) {
  return Error(Code::kInvalid, "config.json: " + std::string(key) + " " + what);
}

std::string short_text(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

bool given(const json& config, std::string_view key) {
  const auto it = config.find(key);
  return it != config.end() && !it->is_null();
}

Result<std::int64_t> integer(const json& value, std::string_view key, std::int64_t least) {
  if (!value.is_number_integer()) return bad(key, "must be an integer, not " + short_text(value));
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxSize))
    return bad(key, "is " + short_text(value) + ", more than " + std::to_string(kMaxSize));
  const auto n = value.get<std::int64_t>();
  if (n < least) return bad(key, "is " + std::to_string(n) + ", must be at least " + std::to_string(least));
  return n;
}

Result<const Family*> family_of(const json& config) {
  std::string type, names;
  if (given(config, "model_type")) {
    if (!config["model_type"].is_string())
      return bad("model_type", "must be a string, not " + short_text(config["model_type"]));
    type = config["model_type"].get<std::string>();
  }
  const bool lists = given(config, "architectures") && config["architectures"].is_array() &&
                     config["architectures"].size() == 1 && config["architectures"][0].is_string();
  const std::string architecture = lists ? config["architectures"][0].get<std::string>() : "";
  if (type.empty() && architecture.empty()) return bad("model_type", "is missing");
  for (const Family* f : families()) {
    names += (names.empty() ? "" : ", ") + std::string(f->name);
    if (type.empty() ? architecture != f->architecture : type != f->name) continue;
    if (!architecture.empty() && architecture != f->architecture)
      return Error(Code::kUnsupported, "config.json: architectures names " + architecture + "; of model_type " + type +
                                           " only " + std::string(f->architecture) + " is built");
    return f;
  }
  return Error(Code::kUnsupported, "config.json: no rules for model_type '" + (type.empty() ? architecture : type) +
                                       "' (built: " + names + "); explicit layout files work for any model");
}

Status read_sizes(const json& config, const Family& family, ModelConfig& out, json& kept) {
  for (const ConfigKey& k : family.sizes) {
    std::int64_t value = 0;
    if (given(config, k.key)) {
      REFIT_ASSIGN(value, integer(config[std::string(k.key)], k.key, 1));
    } else if (k.otherwise.empty()) {
      return bad(k.key, "is missing");
    } else {
      const auto parts = split(k.otherwise, '/');
      REFIT_ASSIGN(value, evaluate_term(parts[0], out.symbols));
      if (parts.size() > 1) {
        const std::int64_t divisor = out.size(parts[1]);
        if (value % divisor != 0)
          return bad(k.key, "is missing, and hidden_size " + std::to_string(value) +
                                " does not divide by num_attention_heads " + std::to_string(divisor));
        value /= divisor;
      }
    }
    out.symbols.emplace(k.symbol, value);
    kept[std::string(k.key)] = value;
  }
  const std::int64_t q = out.size("Hq"), kv = out.size("Hkv");
  if (q % kv != 0)
    return bad("num_attention_heads",
               std::to_string(q) + " is no multiple of num_key_value_heads " + std::to_string(kv));
  out.symbols.emplace("qpg", q / kv);
  return {};
}

Status read_flags(const json& config, const Family& family, ModelConfig& out, json& kept) {
  for (const ConfigFlag& f : family.flags) {
    bool value = false;
    if (given(config, f.key)) {
      const json& v = config[std::string(f.key)];
      if (!v.is_boolean()) return bad(f.key, "must be true or false, not " + short_text(v));
      value = v.get<bool>();
    }
    out.symbols.emplace(f.symbol, value ? 1 : 0);
    kept[std::string(f.key)] = value;
  }
  return {};
}

Status read_experts(const json& config, ModelConfig& out, json& kept) {
  std::int64_t step = 1;
  if (given(config, "decoder_sparse_step")) {
    REFIT_ASSIGN(step, integer(config["decoder_sparse_step"], "decoder_sparse_step", 1));
  }
  json dense = json::array();
  for (std::size_t i = 0; i < out.moe.size(); ++i) out.moe[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
  if (given(config, "mlp_only_layers")) {
    const json& list = config["mlp_only_layers"];
    if (!list.is_array()) return bad("mlp_only_layers", "must be a list, not " + short_text(list));
    for (const json& entry : list) {
      REFIT_ASSIGN(const std::int64_t layer, integer(entry, "mlp_only_layers", 0));
      if (static_cast<std::size_t>(layer) >= out.moe.size())
        continue;  // a shortened model keeps the list of the long one
      out.moe[static_cast<std::size_t>(layer)] = false;
      dense.push_back(layer);
    }
  }
  kept["decoder_sparse_step"] = step;
  kept["mlp_only_layers"] = dense;
  return {};
}

Status read_dtype(const json& config, ModelConfig& out, json& kept) {
  static constexpr std::pair<std::string_view, DType> kNames[] = {
      {"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float32", DType::kF32}};
  const char* key = given(config, "dtype") ? "dtype" : "torch_dtype";
  std::string_view name = "bfloat16";
  if (given(config, key)) {
    if (!config[key].is_string()) return bad(key, "must be a string, not " + short_text(config[key]));
    name = config[key].get_ref<const std::string&>();
    if (name.starts_with("torch.")) name.remove_prefix(6);
  }
  for (const auto& [text, dtype] : kNames)
    if (name == text) {
      out.dtype = dtype;
      kept["torch_dtype"] = text;
      return {};
    }
  return bad(key, "'" + std::string(name) + "' is none of bfloat16, float16, float32");
}

Status check_counts(const ModelConfig& config) {
  std::int64_t tensors = 0;
  for (const Row& row : config.family->rows) {
    if (!config.active(row)) continue;
    const bool per_expert = row.kind == Kind::kExpertGateUp || row.kind == Kind::kExpertDown;
    const auto layers = row.where == Where::kModel ? 1 : config.size("L");
    const auto all =
        checked_mul(checked_mul(layers, static_cast<std::int64_t>(row.members.size())).value_or(kMaxTensors + 1),
                    per_expert ? config.size("E") : 1);
    tensors += std::min(all.value_or(kMaxTensors + 1), kMaxTensors + 1);
    for (const Member& m : row.members) {
      REFIT_ASSIGN(const Dims shape, evaluate_terms(m.shape, config.symbols));
      const auto elements = checked_extent_product(shape);
      if (!elements || !checked_mul(*elements, 16))
        return Error(Code::kInvalid, "config.json: the sizes make " + std::string(m.name) + " pass 2^63 bytes");
    }
  }
  if (tensors > kMaxTensors)
    return bad("num_hidden_layers",
               std::to_string(config.size("L")) + " makes more than " + std::to_string(kMaxTensors) + " tensors");
  return {};
}

}  // namespace

bool ModelConfig::flag(std::string_view name) const {
  const auto found = symbols.find(name);
  return found != symbols.end() && found->second != 0;
}

bool ModelConfig::active(const Row& row) const {
  if (row.when.empty()) return true;
  return row.when[0] == '!' ? !flag(row.when.substr(1)) : flag(row.when);
}

std::vector<std::int64_t> ModelConfig::layers(const Row& row) const {
  if (row.where == Where::kModel) return {-1};
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < moe.size(); ++i)
    if (row.where == Where::kEveryLayer || moe[i] == (row.where == Where::kMoeLayer))
      out.push_back(static_cast<std::int64_t>(i));
  return out;
}

bool ModelConfig::has_moe() const { return std::find(moe.begin(), moe.end(), true) != moe.end(); }
bool ModelConfig::has_dense() const { return std::find(moe.begin(), moe.end(), false) != moe.end(); }

Result<ModelConfig> read_config(std::string_view config_json) {
  const json config = json::parse(config_json, nullptr, false);
  if (config.is_discarded() || !config.is_object()) return Error(Code::kInvalid, "config.json is not a JSON object");
  if (given(config, "quantization_config"))
    return Error(Code::kUnsupported,
                 "config.json: quantization_config is set; rules describe unquantised checkpoints only");
  ModelConfig out;
  REFIT_ASSIGN(out.family, family_of(config));
  json kept{{"model_type", out.family->name}};
  REFIT_TRY(read_sizes(config, *out.family, out, kept));
  REFIT_TRY(read_flags(config, *out.family, out, kept));
  REFIT_TRY(check_counts(out));
  out.moe.assign(static_cast<std::size_t>(out.size("L")), false);
  if (out.family->experts) REFIT_TRY(read_experts(config, out, kept));
  REFIT_TRY(read_dtype(config, out, kept));
  out.canonical = kept.dump();
  return out;
}

std::string instantiate(std::string_view pattern, std::int64_t layer, std::int64_t expert) {
  std::string out;
  out.reserve(pattern.size() + 8);
  while (!pattern.empty()) {
    const bool is_layer = pattern.starts_with("{layer}");
    if (is_layer || pattern.starts_with("{expert}")) {
      out += std::to_string(is_layer ? layer : expert);
      pattern.remove_prefix(is_layer ? 7 : 8);
      continue;
    }
    out += pattern[0];
    pattern.remove_prefix(1);
  }
  return out;
}

}  // namespace refit::model
