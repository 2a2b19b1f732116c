#include <algorithm>

#include "model/sides/side.h"

namespace refit::model {
namespace {

// Keys of every side.
const std::vector<SpecKey>& common_keys() {
  static const std::vector<SpecKey> keys{
      {"draft", 1, "skip|own"}, {"replicas", 1}, {"gpus_per_host", 8}, {"hosts", 1, "*"}, {"vision", 1, "skip"}};
  return keys;
}

Error bad(std::string_view spec, const std::string& what) {
  return Error(Code::kInvalid, "SPEC '" + std::string(spec) + "': " + what);
}

std::string allowed_keys(const Side& side) {
  std::string out;
  for (const auto* keys : {&side.keys, &common_keys()})
    for (const SpecKey& k : *keys) out += (out.empty() ? "" : ", ") + std::string(k.name);
  return out;
}

const SpecKey* find(const std::vector<SpecKey>& keys, std::string_view name) {
  const auto at = std::find_if(keys.begin(), keys.end(), [&](const SpecKey& k) { return k.name == name; });
  return at == keys.end() ? nullptr : &*at;
}

const SpecKey* find_key(const Side& side, std::string_view name) {
  const SpecKey* own = find(side.keys, name);
  return own ? own : find(common_keys(), name);
}

const std::vector<const Side*>& sides() {
  static const std::vector<const Side*> all{&hf_side(),     &sharded_side(),  &vllm_side(),
                                            &sglang_side(), &megatron_side(), &jax_side()};
  return all;
}

// Host prefixes become part of host names, and SPECs are cut at commas: keep texts to plain characters.
bool plain(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

Status set_key(std::string_view text, const Side& side, std::string_view name, std::string_view value, Spec& out) {
  const SpecKey* key = find_key(side, name);
  if (!key) return bad(text, "unknown key '" + std::string(name) + "' (allowed: " + allowed_keys(side) + ")");
  if (key->values.empty()) {
    const auto number = parse_number(value);
    if (!number || *number < 1)
      return bad(text, std::string(name) + "='" + std::string(value) + "' must be a whole number of at least 1");
    if (*number > Mesh::kMaxRanks)
      return bad(text,
                 std::string(name) + "=" + std::string(value) + " is more than " + std::to_string(Mesh::kMaxRanks));
    if (!out.numbers.emplace(name, *number).second) return bad(text, "key '" + std::string(name) + "' is given twice");
    if (side.ordered && find(side.keys, name) && key->axis) out.axes.emplace_back(name);
    return {};
  }
  if (key->read) {
    auto read = key->read(value);
    if (!read.ok()) return bad(text, read.error().message);
    if (!out.texts.emplace(name, std::move(*read)).second)
      return bad(text, "key '" + std::string(name) + "' is given twice");
    return {};
  }
  const auto values = split(key->values, '|');
  const bool several = key->values == "*+", word = several || key->values == "*";
  const bool fits = several ? std::ranges::all_of(split(value, '+'), plain)
                    : word  ? plain(value)
                            : std::ranges::find(values, value) != values.end();
  if (!fits)
    return bad(text, std::string(name) + "='" + std::string(value) + "' must be " +
                         (word ? "1 to 64 of a-z A-Z 0-9 - _ ." : std::string(key->values)) +
                         (several ? ", or several such with + between them" : ""));
  if (!out.texts.emplace(name, value).second) return bad(text, "key '" + std::string(name) + "' is given twice");
  return {};
}

}  // namespace

Result<const Side*> side_of(std::string_view text) {
  const std::string_view name = text.substr(0, text.find_first_of(":=,"));
  const bool sharded = name == "fsdp" || name == "tp";
  for (const Side* side : sides())
    if (side->name == (sharded ? std::string_view("fsdp") : name)) {
      if (sharded == (text.substr(name.size()).starts_with("=")) &&
          (sharded || name.size() == text.size() || text[name.size()] == ':'))
        return side;
      return bad(text, sharded ? "write " + std::string(name) + "=N"
                               : "write " + std::string(name) + " or " + std::string(name) + ":key=value,…");
    }
  return bad(text, "unknown side '" + std::string(name) + "' (built: " + side_names() + ")");
}

std::string side_names() {
  std::string out;
  for (const Side* side : sides())
    out += (out.empty() ? "" : ", ") + std::string(side == &sharded_side() ? "fsdp, tp" : side->name);
  return out;
}

Result<Spec> parse_spec(std::string_view text) {
  REFIT_ASSIGN(const Side* side, side_of(text));
  Spec out{.side = std::string(side->name), .numbers = {}, .texts = {}, .axes = {}};
  std::string_view rest = text;
  if (side != &sharded_side()) rest.remove_prefix(std::min(text.size(), side->name.size() + 1));
  if (!rest.empty() || text.ends_with(':'))
    for (std::string_view pair : split(rest, ',')) {
      const std::size_t eq = pair.find('=');
      if (eq == std::string_view::npos || eq == 0)
        return bad(text, "'" + std::string(pair) + "' is not key=value" +
                             (out.given("layout") ? " (layout= is written without commas)" : ""));
      REFIT_TRY(set_key(text, *side, pair.substr(0, eq), pair.substr(eq + 1), out));
    }
  for (const auto* keys : {&side->keys, &common_keys()})
    for (const SpecKey& k : *keys)
      if (k.values.empty()) out.numbers.emplace(k.name, k.otherwise);
  if (out.draft_model() && !side->draft_parameter)
    return bad(text, "draft=own is for an engine's draft model, and " + std::string(side->name) +
                         " has none that is built (built: vllm)");
  if (side->complete) REFIT_TRY(side->complete(out));
  return out;
}

std::string canonical_spec(const Spec& spec) {
  const Side& side = **side_of(spec.side == "fsdp" ? "fsdp=1" : spec.side);
  std::string keys;
  const auto add = [&](std::string_view name, const std::string& value) {
    keys += (keys.empty() ? "" : ",") + std::string(name) + "=" + value;
  };
  for (const std::string& axis : spec.axes) add(axis, std::to_string(spec.number(axis)));
  Spec least{.side = spec.side, .numbers = spec.numbers, .texts = {}, .axes = {}};
  for (const SpecKey& k : side.keys)
    if (k.values.empty() && k.otherwise == 0) least.numbers[std::string(k.name)] = 0;
  // Only a bad number makes it fail, and this SPEC has been through it.
  if (side.complete) REFIT_CHECK(side.complete(least).ok());
  for (const auto* list : {&side.keys, &common_keys()})
    for (const SpecKey& k : *list) {
      if (std::find(spec.axes.begin(), spec.axes.end(), k.name) != spec.axes.end()) continue;
      if (k.name == "vision") continue;  // says how a checkpoint is read, not what the layout is
      const std::int64_t otherwise = k.otherwise == 0 ? least.number(k.name) : k.otherwise;
      if (k.values.empty() && spec.number(k.name) != otherwise) add(k.name, std::to_string(spec.number(k.name)));
      if (!k.values.empty() && spec.given(k.name)) add(k.name, spec.texts.find(k.name)->second);
    }
  if (side.name == "fsdp") return keys;
  return spec.side + (keys.empty() ? "" : ":" + keys);
}

Status must_divide(std::string_view label, const ModelConfig& config, std::string_view symbol, std::string_view key,
                   std::int64_t k) {
  Status s = must_divide(label, config.key(symbol), config.size(symbol), key, k);
  if (s.ok()) return s;
  return std::move(s).error().at_tensor(config.tensor_with(symbol));
}

Status must_divide(std::string_view label, std::string_view quantity, std::int64_t n, std::string_view key,
                   std::int64_t k) {
  if (n % k == 0) return {};
  return Error(Code::kInvalid, std::string(label) + ": " + std::string(quantity) + " " + std::to_string(n) +
                                   " does not divide by " + std::string(key) + "=" + std::to_string(k));
}

}  // namespace refit::model
