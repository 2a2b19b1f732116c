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

Result<const Family*> family_of(const json& config, std::span<const Family* const> all) {
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
  for (const Family* f : all) {
    names += (names.empty() ? "" : ", ") + std::string(f->name);
    const bool called = type == f->name || std::find(f->aliases.begin(), f->aliases.end(), type) != f->aliases.end();
    const bool mine = architecture == f->architecture || (!f->whole.empty() && architecture == f->whole);
    if (type.empty() ? !mine : !called) continue;
    if (!architecture.empty() && !mine)
      return Error(Code::kUnsupported, "config.json: architectures names " + architecture + "; of model_type " + type +
                                           " only " + std::string(f->architecture) + " is built");
    return f;
  }
  return Error(Code::kUnsupported, "config.json: no rules for model_type '" + (type.empty() ? architecture : type) +
                                       "' (built: " + names + "); explicit layout files work for any model");
}

std::string key_of(const Family& family, std::string_view symbol) {
  for (const ConfigKey& k : family.sizes)
    if (k.symbol == symbol) return std::string(k.key);
  return std::string(symbol);
}

Status read_sizes(const json& config, const Family& family, ModelConfig& out, json& kept) {
  for (const ConfigKey& k : family.sizes) {
    std::int64_t value = 0;
    const bool other = !k.also.empty() && given(config, k.also);
    if (!k.key.empty() && given(config, k.key)) {
      REFIT_ASSIGN(value, integer(config[std::string(k.key)], k.key, k.least));
      if (!k.built && value > 0)
        return Error(Code::kUnsupported, "config.json: " + std::string(k.key) + " is " + std::to_string(value) +
                                             "; family " + std::string(family.name) + " is built for 0 only");
      if (other && config[std::string(k.also)] != config[std::string(k.key)])
        return bad(k.key, "and " + std::string(k.also) + " differ");
    } else if (other) {
      REFIT_ASSIGN(value, integer(config[std::string(k.also)], k.also, k.least));
    } else if (k.otherwise.empty()) {
      return bad(k.key, "is missing");
    } else {
      const auto parts = split(k.otherwise, '/');
      REFIT_ASSIGN(value, evaluate_term(parts[0], out.symbols));
      if (parts.size() > 1) {
        const std::int64_t divisor = out.size(parts[1]);
        if (divisor == 0 || value % divisor != 0)
          return bad(k.key, (k.key.empty() ? "" : "is missing, and ") + key_of(family, parts[0]) + " " +
                                std::to_string(value) + " does not divide by " + key_of(family, parts[1]) + " " +
                                std::to_string(divisor));
        value /= divisor;
      }
    }
    out.symbols.emplace(k.symbol, value);
    if (!k.key.empty()) kept[std::string(k.key)] = value;
  }
  if (!out.has("Hq") || !out.has("Hkv")) return {};
  const std::int64_t q = out.size("Hq"), kv = out.size("Hkv");
  if (kv == 0 || q % kv != 0)
    return bad("num_attention_heads",
               std::to_string(q) + " is no multiple of num_key_value_heads " + std::to_string(kv));
  out.symbols.emplace("qpg", q / kv);
  return {};
}

Status read_flags(const json& config, const Family& family, ModelConfig& out, json& kept) {
  for (const ConfigFlag& f : family.flags) {
    bool value = f.otherwise;
    if (given(config, f.key)) {
      const json& v = config[std::string(f.key)];
      if (!v.is_boolean()) return bad(f.key, "must be true or false, not " + short_text(v));
      value = v.get<bool>();
    }
    if (value && !f.built)
      return Error(Code::kUnsupported, "config.json: " + std::string(f.key) + " is true; family " +
                                           std::string(family.name) + " is built for false only");
    out.symbols.emplace(f.symbol, value ? 1 : 0);
    kept[std::string(f.key)] = value;
  }
  return {};
}

Status read_sparse(const json& config, std::vector<bool>& out, json& kept) {
  std::int64_t step = 1;
  if (given(config, "decoder_sparse_step")) {
    REFIT_ASSIGN(step, integer(config["decoder_sparse_step"], "decoder_sparse_step", 1));
  }
  json dense = json::array();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
  if (given(config, "mlp_only_layers")) {
    const json& list = config["mlp_only_layers"];
    if (!list.is_array()) return bad("mlp_only_layers", "must be a list, not " + short_text(list));
    for (const json& entry : list) {
      REFIT_ASSIGN(const std::int64_t layer, integer(entry, "mlp_only_layers", 0));
      if (static_cast<std::size_t>(layer) >= out.size()) continue;  // a shortened model keeps the list of the long one
      out[static_cast<std::size_t>(layer)] = false;
      dense.push_back(layer);
    }
  }
  kept["decoder_sparse_step"] = step;
  kept["mlp_only_layers"] = dense;
  return {};
}

Status read_types(const json& config, const LayerTrait& trait, std::vector<bool>& out, json& kept) {
  if (given(config, trait.key)) {
    const json& list = config[std::string(trait.key)];
    if (!list.is_array() || list.size() < out.size())
      return bad(trait.key, "must name the kind of each of the " + std::to_string(out.size()) + " layers");
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!list[i].is_string()) return bad(trait.key, "must be a list of strings, not " + short_text(list[i]));
      out[i] = list[i].get_ref<const std::string&>() == trait.value;
    }
    kept[std::string(trait.key)] = list;
    return {};
  }
  std::int64_t period = trait.period;
  if (!trait.step.empty() && given(config, trait.step)) {
    REFIT_ASSIGN(period, integer(config[std::string(trait.step)], trait.step, 1));
  }
  if (period < 1) return bad(trait.key, "is missing");
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = ((static_cast<std::int64_t>(i) + 1) % period == 0) == trait.last;
  if (!trait.step.empty()) kept[std::string(trait.step)] = period;
  return {};
}

bool is_one_of(std::string_view text, std::string_view names) {
  const auto all = split(names, '|');
  return std::find(all.begin(), all.end(), text) != all.end();
}

Status read_pattern(const json& config, const LayerTrait& trait, std::vector<bool>& out, json& kept) {
  if (!trait.list.empty() && given(config, trait.list)) {
    const json& list = config[std::string(trait.list)];
    if (!list.is_array() || list.size() < out.size())
      return bad(trait.list, "must name the kind of each of the " + std::to_string(out.size()) + " layers");
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!list[i].is_string()) return bad(trait.list, "must be a list of strings, not " + short_text(list[i]));
      out[i] = is_one_of(list[i].get_ref<const std::string&>(), trait.names);
    }
    kept[std::string(trait.list)] = list;
    return {};
  }
  const json value = given(config, trait.key) ? config[std::string(trait.key)] : json();
  if (!value.is_string() || value.get_ref<const std::string&>().size() < out.size())
    return bad(trait.key,
               "must be a string with a character for each of the " + std::to_string(out.size()) + " layers");
  const auto& text = value.get_ref<const std::string&>();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = trait.value.find(text[i]) != std::string_view::npos;
  kept[std::string(trait.key)] = value;
  return {};
}

// Layers whose kind no trait of a pattern knows would silently have no tensors.
Status check_pattern(const ModelConfig& config) {
  std::vector<bool> known(static_cast<std::size_t>(config.size("L")), true);
  std::string_view key;
  for (const LayerTrait& trait : config.family->traits) {
    if (trait.how != LayerTrait::How::kPattern) continue;
    if (key.empty()) known.assign(known.size(), false);
    key = trait.key;
    const std::vector<bool>& has = config.traits.find(trait.name)->second;
    for (std::size_t i = 0; i < known.size(); ++i) known[i] = known[i] || has[i];
  }
  for (std::size_t i = 0; i < known.size(); ++i)
    if (!known[i])
      return Error(Code::kUnsupported, "config.json: " + std::string(key) + ": layer " + std::to_string(i) +
                                           " is of a kind that family " + std::string(config.family->name) +
                                           " does not know");
  return {};
}

Status read_traits(const json& config, ModelConfig& out, json& kept) {
  const auto layers = out.size("L");
  for (const LayerTrait& trait : out.family->traits) {
    std::vector<bool>& has = out.traits[trait.name];
    has.assign(static_cast<std::size_t>(layers), false);
    if (!out.holds(trait.when)) continue;
    switch (trait.how) {
      case LayerTrait::How::kSparse:
        REFIT_TRY(read_sparse(config, has, kept));
        break;
      case LayerTrait::How::kFrom:
      case LayerTrait::How::kTail: {
        std::int64_t count = 0;
        if (!trait.key.empty() && given(config, trait.key)) {
          REFIT_ASSIGN(count, integer(config[std::string(trait.key)], trait.key, 0));
        }
        const bool from = trait.how == LayerTrait::How::kFrom;
        if (!from && count >= layers)
          return bad(trait.key,
                     "is " + std::to_string(count) + ", must be less than num_hidden_layers " + std::to_string(layers));
        for (std::int64_t i = 0; i < layers; ++i)
          has[static_cast<std::size_t>(i)] = from ? i >= count : i >= layers - count;
        if (!trait.key.empty()) kept[std::string(trait.key)] = count;
        break;
      }
      case LayerTrait::How::kTypes:
        REFIT_TRY(read_types(config, trait, has, kept));
        break;
      case LayerTrait::How::kPattern:
        REFIT_TRY(read_pattern(config, trait, has, kept));
        break;
    }
    if (trait.ends) has.back() = true;
  }
  return check_pattern(out);
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

// A configuration may leave out the number of layers where it names the kind of each.
void infer_layers(const Family& family, json& config) {
  if (given(config, "num_hidden_layers")) return;
  for (const LayerTrait& trait : family.traits) {
    if (trait.how != LayerTrait::How::kPattern) continue;
    if (!trait.list.empty() && given(config, trait.list) && config[std::string(trait.list)].is_array())
      config["num_hidden_layers"] = config[std::string(trait.list)].size();
    else if (given(config, trait.key) && config[std::string(trait.key)].is_string())
      config["num_hidden_layers"] = config[std::string(trait.key)].get_ref<const std::string&>().size();
    return;
  }
}

// Values that some layers have for themselves become keys of the configuration: they must be the same in all layers of
// the trait, and no other layer may have any. What cannot be read so is left for check_layer_keys.
void read_layer_keys(const LayerKeys& keys, json& config) {
  if (keys.key.empty() || !given(config, keys.key) || !config[std::string(keys.key)].is_object()) return;
  for (const auto& [layer, values] : config[std::string(keys.key)].items()) {
    if (!values.is_object()) continue;
    for (const auto& [inner, outer] : keys.renamed)
      if (given(values, inner) && !given(config, outer)) config[std::string(outer)] = values[std::string(inner)];
  }
}

Status check_layer_keys(const LayerKeys& keys, const json& config, const ModelConfig& out) {
  if (keys.key.empty() || !given(config, keys.key)) return {};
  const auto refuse = [&](const std::string& what) {
    return Error(Code::kUnsupported, "config.json: " + std::string(keys.key) + ": " + what);
  };
  const json& layers = config[std::string(keys.key)];
  if (!layers.is_object()) return bad(keys.key, "must be an object, not " + short_text(layers));
  const std::vector<bool>& has = out.traits.find(keys.trait)->second;
  std::size_t seen = 0;
  for (const auto& [layer, values] : layers.items()) {
    const auto number = parse_number(layer);
    if (!number || *number >= out.size("L") || !has[static_cast<std::size_t>(*number)])
      return refuse("layer " + layer + " is none that has keys of its own");
    ++seen;
    if (!values.is_object()) return refuse("layer " + layer + " must have an object, not " + short_text(values));
    for (const auto& [inner, value] : values.items()) {
      const auto known = std::find_if(keys.renamed.begin(), keys.renamed.end(),
                                      [&, name = std::string_view(inner)](const auto& r) { return r.first == name; });
      if (known == keys.renamed.end()) return refuse("key '" + inner + "' of layer " + layer + " is not known");
      if (value != config[std::string(known->second)])
        return refuse(inner + " is " + short_text(value) + " in layer " + layer + ", elsewhere " +
                      short_text(config[std::string(known->second)]));
    }
  }
  if (seen != static_cast<std::size_t>(std::count(has.begin(), has.end(), true)))
    return refuse("some layers with keys of their own are missing");
  return {};
}

// "model.layers.12.mlp.up_proj" and "model.layers.{layer}.mlp.up_proj" alike: "model.layers.#.mlp.up_proj".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (std::string_view part : split(name, '.'))
    out += (out.empty() ? "" : ".") + (part.starts_with('{') || parse_number(part) ? "#" : std::string(part));
  return out;
}

// A list of modules that stay unquantised must not name one that the rows hold in codes.
Status check_unquantised(const json& quantisation, const Family& family) {
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    if (!given(quantisation, key)) continue;
    if (!quantisation[key].is_array()) return bad("quantization_config." + std::string(key), "must be a list");
    for (const json& entry : quantisation[key]) {
      if (!entry.is_string()) return bad("quantization_config." + std::string(key), "must be a list of strings");
      const std::string module = without_numbers(entry.get_ref<const std::string&>());
      for (const Row& row : family.rows)
        for (const Member& m : row.members)
          if (!m.of.empty() && without_numbers(m.name) == module + ".weight_scale_inv")
            return Error(Code::kUnsupported, "config.json: quantization_config." + std::string(key) + " names " +
                                                 entry.get<std::string>() + ", which the rules hold in codes");
    }
  }
  return {};
}

Status read_quantisation(const json& config, const Family& family, ModelConfig& out, json& kept) {
  for (const Quantised& q : family.quantised) out.symbols.emplace(q.method, 0);
  if (!given(config, "quantization_config")) return {};
  const json& quantisation = config["quantization_config"];
  if (!quantisation.is_object() || !given(quantisation, "quant_method") || !quantisation["quant_method"].is_string())
    return bad("quantization_config", "must be an object with a quant_method");
  const std::string method = quantisation["quant_method"];
  std::string built;
  for (const Quantised& q : family.quantised) {
    built += (built.empty() ? "" : ", ") + std::string(q.method);
    if (q.method != method) continue;
    json keep{{"quant_method", method}};
    if (q.blocks) {
      const json& sizes = given(quantisation, "weight_block_size") ? quantisation["weight_block_size"] : json();
      if (!sizes.is_array() || sizes.size() != 2)
        return Error(Code::kUnsupported,
                     "config.json: quantization_config without weight_block_size: two numbers; "
                     "other granularities are not built");
      REFIT_ASSIGN(out.symbols["bn"], integer(sizes[0], "quantization_config.weight_block_size", 1));
      REFIT_ASSIGN(out.symbols["bk"], integer(sizes[1], "quantization_config.weight_block_size", 1));
      keep["weight_block_size"] = sizes;
      if (given(quantisation, "fmt") && quantisation["fmt"] != "e4m3")
        return Error(Code::kUnsupported, "config.json: quantization_config.fmt is " + short_text(quantisation["fmt"]) +
                                             "; only \"e4m3\" is built");
    }
    REFIT_TRY(check_unquantised(quantisation, family));
    out.symbols[std::string(q.method)] = 1;
    kept["quantization_config"] = keep;
    return {};
  }
  return Error(Code::kUnsupported, "config.json: quantization_config says " + method + "; of family " +
                                       std::string(family.name) + " " +
                                       (built.empty() ? "only unquantised checkpoints are built"
                                                      : "unquantised checkpoints and " + built + " are built"));
}

// Draft layers that a checkpoint has although its configuration is silent about them, or has not one tensor of although
// it counts them: transformers keeps the number and saves its models without such layers.
void infer_drafts(const Catalogue& names, const Family& family, json& config) {
  if (family.draft.empty()) return;
  const std::string key = key_of(family, family.draft);
  if (given(config, key)) {
    const json& layers = config.value("num_hidden_layers", json());
    if (!config[key].is_number_unsigned() || (family.draft_prefix.empty() && !layers.is_number_unsigned())) return;
    const std::string prefix =
        family.draft_prefix.empty() ? "model.layers." + layers.dump() + "." : instantiate(family.draft_prefix, 0, 0, 0);
    if (std::none_of(names.tensors.begin(), names.tensors.end(),
                     [&](const LogicalTensor& t) { return t.name.starts_with(prefix); }))
      config[key] = 0;
    return;
  }
  if (family.draft_prefix.empty()) return;
  const std::string_view stem = family.draft_prefix.substr(0, family.draft_prefix.find('{'));
  std::int64_t count = 0;
  for (const LogicalTensor& t : names.tensors) {
    if (!t.name.starts_with(stem)) continue;
    const auto rest = std::string_view(t.name).substr(stem.size());
    if (const auto number = parse_number(rest.substr(0, rest.find('.')))) count = std::max(count, *number + 1);
  }
  if (count > 0 && count <= kMaxSize) config[key] = count;
}

Status check_counts(const ModelConfig& config) {
  std::int64_t tensors = 0;
  for (const Row& row : config.family->rows) {
    if (!config.active(row)) continue;
    const auto layers = row.where == kModel ? 1 : config.size("L") + config.draft_layers();
    const auto all =
        checked_mul(checked_mul(layers, static_cast<std::int64_t>(row.members.size())).value_or(kMaxTensors + 1),
                    config.experts(row));
    tensors += std::min(all.value_or(kMaxTensors + 1), kMaxTensors + 1);
    REFIT_ASSIGN(const std::vector<Dims> shapes, config.shapes(row));
    for (std::size_t m = 0; m < shapes.size(); ++m) {
      const auto elements = checked_extent_product(shapes[m]);
      if (!elements || !checked_mul(*elements, 16))
        return Error(Code::kInvalid,
                     "config.json: the sizes make " + std::string(row.members[m].name) + " pass 2^63 bytes");
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

std::string ModelConfig::key(std::string_view symbol) const { return key_of(*family, symbol); }

bool ModelConfig::holds(std::string_view when) const {
  if (when.empty()) return true;
  for (std::string_view part : split(when, '&'))
    if (flag(part[0] == '!' ? part.substr(1) : part) == (part[0] == '!')) return false;
  return true;
}

std::vector<std::int64_t> ModelConfig::layers(const Row& row) const {
  if (row.where == kModel) return {-1};
  const std::int64_t decoder = size("L");
  const auto fits = [&](std::int64_t layer, std::string_view conjunction) {
    if (conjunction == "mtp0") return layer == decoder;
    if (conjunction == "mtp" || layer >= decoder) return conjunction == "mtp" && layer >= decoder;
    if (conjunction == kEveryLayer) return true;
    for (std::string_view part : split(conjunction, '&')) {
      const bool no = part[0] == '!';
      const auto trait = traits.find(no ? part.substr(1) : part);
      if ((trait != traits.end() && trait->second[static_cast<std::size_t>(layer)]) == no) return false;
    }
    return true;
  };
  const auto ways = split(row.where, '|');
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < decoder + draft_layers(); ++i)
    if (std::any_of(ways.begin(), ways.end(), [&](std::string_view way) { return fits(i, way); })) out.push_back(i);
  return out;
}

bool ModelConfig::has_moe() const {
  const auto moe = traits.find("moe");
  return moe != traits.end() && std::find(moe->second.begin(), moe->second.end(), true) != moe->second.end();
}
bool ModelConfig::has_dense() const {
  return std::any_of(family->rows.begin(), family->rows.end(), [&](const Row& row) {
    return row.kind == Kind::kMlpDown && row.members[0].shape == "H,I" && active(row) && !layers(row).empty();
  });
}

std::string ModelConfig::tensor_with(std::string_view symbol) const {
  const auto uses = [&](std::string_view shape) {
    for (std::size_t at = 0; at < shape.size();) {
      const std::size_t end = std::min(shape.find_first_of(",*+:/", at), shape.size());
      if (shape.substr(at, end - at) == symbol) return true;
      at = end + 1;
    }
    return false;
  };
  for (const Row& row : family->rows)
    for (const Member& m : row.members)
      if (uses(m.shape) && active(row))
        if (const auto where = layers(row); !where.empty()) return name(m.name, where[0], 0);
  return {};
}

DType ModelConfig::dtype_of(const Member& member) const {
  return member.dtype.empty() ? dtype : dtype_from_string(member.dtype).value_or(dtype);
}

Result<Symbols> ModelConfig::symbols_of(const Row& row) const {
  Symbols out = symbols;
  for (const auto& [symbol, term] : row.let) {
    REFIT_ASSIGN(out[std::string(symbol)], evaluate_term(term, symbols));
  }
  return out;
}

Result<std::vector<Dims>> ModelConfig::shapes(const Row& row) const {
  REFIT_ASSIGN(const Symbols own, symbols_of(row));
  std::vector<Dims> out;
  for (const Member& m : row.members) {
    REFIT_ASSIGN(out.emplace_back(), evaluate_terms(m.shape, own));
  }
  return out;
}

Result<std::vector<Dims>> ModelConfig::scaled(const Row& row) const {
  std::vector<Dims> out;
  if (row.members[0].of.empty()) return out;
  REFIT_ASSIGN(const Symbols own, symbols_of(row));
  for (const Member& m : row.members) {
    REFIT_ASSIGN(out.emplace_back(), evaluate_terms(m.of, own));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> ModelConfig::ties() const {
  std::vector<std::pair<std::string, std::string>> out;
  if (flag("tied")) out.emplace_back(family->embedding, kHead);
  for (const Tie& tie : family->ties)
    for (std::int64_t k = 0; holds(tie.when) && k < draft_layers(); ++k)
      out.emplace_back(tie.primary, name(tie.copy, size("L") + k, 0));
  return out;
}

std::string ModelConfig::name(std::string_view pattern, std::int64_t layer, std::int64_t expert) const {
  constexpr std::string_view kDecoderNames = "model.layers.{layer}.";
  const std::int64_t draft = layer - size("L");
  if (draft < 0 || family->draft_prefix.empty() || !pattern.starts_with(kDecoderNames))
    return instantiate(pattern, layer, draft, expert);
  return instantiate(family->draft_prefix, layer, draft, expert) +
         instantiate(pattern.substr(kDecoderNames.size()), layer, draft, expert);
}

Result<ModelConfig> read_config(std::string_view config_json, const Catalogue* names,
                                std::span<const Family* const> known) {
  json config = json::parse(config_json, nullptr, false);
  if (config.is_discarded() || !config.is_object()) return Error(Code::kInvalid, "config.json is not a JSON object");
  ModelConfig out;
  REFIT_ASSIGN(out.family, family_of(config, known));
  out.multimodal = !out.family->whole.empty() && given(config, "architectures") &&
                   config["architectures"] == json::array({std::string(out.family->whole)});
  if (!out.family->nested.empty() && given(config, out.family->nested)) {
    json inner = config[std::string(out.family->nested)];
    if (!inner.is_object()) return bad(out.family->nested, "must be an object, not " + short_text(inner));
    for (const char* key : {"tie_word_embeddings", "dtype", "torch_dtype", "quantization_config"})
      if (given(config, key) && !given(inner, key)) inner[key] = config[key];
    config = std::move(inner);
  }
  if (names) infer_drafts(*names, *out.family, config);
  infer_layers(*out.family, config);
  read_layer_keys(out.family->layer_keys, config);
  json kept{{"model_type", out.family->name}};
  REFIT_TRY(read_quantisation(config, *out.family, out, kept));
  REFIT_TRY(read_sizes(config, *out.family, out, kept));
  REFIT_TRY(read_flags(config, *out.family, out, kept));
  REFIT_TRY(check_counts(out));
  REFIT_TRY(read_traits(config, out, kept));
  REFIT_TRY(check_layer_keys(out.family->layer_keys, config, out));
  // Sizes of experts may be left out, but not of a model that has some.
  for (const char* symbol : {"E", "Im"})
    if (out.has_moe() && out.size(symbol) < 1) return bad(out.key(symbol), "is missing");
  REFIT_TRY(read_dtype(config, out, kept));
  out.canonical = kept.dump();
  return out;
}

std::string instantiate(std::string_view pattern, std::int64_t layer, std::int64_t mtp, std::int64_t expert) {
  std::string out;
  out.reserve(pattern.size() + 8);
  while (!pattern.empty()) {
    const std::size_t open = pattern.find('{');
    out += pattern.substr(0, open);
    if (open == std::string_view::npos) break;
    pattern.remove_prefix(open);
    const std::size_t close = pattern.find('}');
    const char which = pattern[1];
    out += std::to_string(which == 'l' ? layer : which == 'm' ? mtp : expert);
    pattern.remove_prefix(close + 1);
  }
  return out;
}

}  // namespace refit::model
