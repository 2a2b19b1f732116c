#include "sync/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "sync/config_keys.h"

namespace refit::sync {
namespace {

constexpr std::string_view kTrueWords[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
constexpr std::string_view kFalseWords[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};

constexpr std::size_t kMaxCompared = 128;  // letters: no key of ours is near that, and the cost is quadratic

bool one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

std::optional<bool> as_bool(const ConfigNode& n) {
  if (!n.plain) return std::nullopt;
  if (one_of(n.text, kTrueWords)) return true;
  if (one_of(n.text, kFalseWords)) return false;
  return std::nullopt;
}

std::optional<double> as_number(const ConfigNode& n) {
  if (!n.plain) return std::nullopt;
  std::string text = n.text;
  std::erase(text, '_');  // 536_870_912
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool in_range(const KeySpec& spec, double v) {
  return spec.open ? v > spec.low && v < spec.high : v >= spec.low && v <= spec.high;
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t end = text.find(by);
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

// "low-high"
bool is_port_range(const std::string& text) {
  const std::vector<std::string> ends = split(text, '-');
  if (ends.size() != 2) return false;
  std::array<int, 2> ports{};
  for (std::size_t i = 0; i < 2; ++i) {
    const char* last = ends[i].data() + ends[i].size();
    const auto [end, error] = std::from_chars(ends[i].data(), last, ports[i]);
    if (error != std::errc() || end != last || ends[i].empty()) return false;
  }
  return ports[0] >= 1 && ports[0] <= ports[1] && ports[1] <= 65535;
}

// Reads one node into one type; nullopt when it is not of that type.
std::optional<bool> value_of(const KeySpec&, const ConfigNode& n, const bool*) { return as_bool(n); }
std::optional<double> value_of(const KeySpec& spec, const ConfigNode& n, const double*) {
  const auto v = as_number(n);
  return v && in_range(spec, *v) ? v : std::nullopt;
}
std::optional<std::int64_t> value_of(const KeySpec& spec, const ConfigNode& n, const std::int64_t*) {
  std::optional<double> v = as_number(n);
  if (spec.size && !v) {
    const auto bytes = parse_bytes(n.text, std::string(spec.path));
    if (bytes.ok()) v = static_cast<double>(*bytes);
  }
  if (!v || *v != std::floor(*v) || !in_range(spec, *v)) return std::nullopt;
  return static_cast<std::int64_t>(*v);
}
std::optional<std::string> value_of(const KeySpec& spec, const ConfigNode& n, const std::string*) {
  if (as_bool(n) || (as_number(n) && spec.choices.empty())) return std::nullopt;
  if (!spec.choices.empty()) {
    const std::vector<std::string> choices = split(spec.choices, '|');
    if (std::ranges::find(choices, n.text) == choices.end()) return std::nullopt;
  }
  if (spec.path == "refit.port_range" && !is_port_range(n.text)) return std::nullopt;
  return n.text;
}

class Reader {
 public:
  Reader(const ConfigNode& root, const EnvLookup& env) : root_(root), resolver_(root, env) {}

  ConfigResult read() {
    for (const auto& [name, value] : root_.map) out_.config.sections.push_back(name);
    for (const KeySpec& spec : key_specs()) read_key(spec);
    for (const std::string_view section : kStrictSections) check_strict(std::string(section));
    check_spelling();
    if (out_.config.bucket_bytes.value > out_.config.staging_bytes.value)
      refuse("refit.bucket_bytes", out_.config.bucket_bytes.origin,
             "is larger than refit.staging_bytes (" + std::to_string(out_.config.staging_bytes.value) +
                 "); needs at most that");
    if (out_.config.baseline_in_memory.value && out_.config.baseline_mmap_dir.value)
      refuse("policy.generation.refit_cfg.sparse.baseline.mmap_dir", out_.config.baseline_mmap_dir.origin,
             "contradicts baseline.in_memory: true; needs null, or in_memory: false");
    return std::move(out_);
  }

 private:
  // Interpolations are shared by many keys: the same complaint is kept once.
  void keep(Error e) {
    if (std::ranges::find(out_.errors, e) == out_.errors.end()) out_.errors.push_back(std::move(e));
  }
  // An error met on the way to a key: it names its own place; the first key that needed it is named too.
  void keep_behind(std::string_view key, Error e) {
    if (std::ranges::find(behind_, e.message) != behind_.end()) return;
    behind_.push_back(e.message);
    if (e.message.find(key) == std::string::npos) e.message = std::string(key) + ": " + e.message;
    keep(std::move(e));
  }
  void refuse(const std::string& path, const Origin& at, const std::string& what) {
    keep(Error(Code::kInvalid, path + " (" + at.text() + ") " + what));
  }
  static std::string shown(const ConfigNode& n) {
    switch (n.kind) {
      case ConfigNode::Kind::kNull:
        return "null";
      case ConfigNode::Kind::kMap:
        return "a section";
      case ConfigNode::Kind::kSequence:
        return "a list";
      case ConfigNode::Kind::kScalar:
        break;
    }
    const std::string text = n.text.size() > 60 ? n.text.substr(0, 60) + "…" : n.text;
    return n.plain ? "'" + text + "'" : "the text \"" + text + "\"";
  }

  void read_key(const KeySpec& spec) {
    auto path = parse_path(spec.path);
    auto found = resolver_.find(*path);
    // `zstd_threads: 4` says the same for s3 and zmq.
    if (const std::string& leaf = path->back(); leaf == "s3" || leaf == "zmq") {
      const ConfigPath parent(path->begin(), path->end() - 1);
      auto pair = resolver_.find(parent);
      if (pair.ok() && pair->node && pair->node->kind == ConfigNode::Kind::kScalar) found = std::move(pair);
    }
    if (!found.ok()) return keep_behind(spec.path, std::move(found).error());
    if (!found->node) return;
    std::visit([&](auto field) { assign(spec, *found, out_.config.*field); }, spec.field);
  }

  static Origin origin_of(const Found& f) {
    Origin at = f.node->at;
    at.via = f.via;
    return at;
  }
  void mistyped(const KeySpec& spec, const Found& f) {
    const std::string tag = f.node->tag.empty() ? "" : " with the tag '" + f.node->tag + "'";
    refuse(std::string(spec.path), origin_of(f), "is " + shown(*f.node) + tag + "; needs " + std::string(spec.needs));
  }
  template <typename T>
  void assign(const KeySpec& spec, const Found& f, Key<T>& key) {
    if (f.node->kind != ConfigNode::Kind::kScalar || !f.node->tag.empty()) return mistyped(spec, f);
    auto value = value_of(spec, *f.node, static_cast<const T*>(nullptr));
    if (!value) return mistyped(spec, f);
    key = {std::move(*value), origin_of(f)};
  }
  template <typename T>
  void assign(const KeySpec& spec, const Found& f, Key<std::optional<T>>& key) {
    if (f.node->is_null()) {
      key = {std::nullopt, origin_of(f)};
      return;
    }
    Key<T> plain;
    assign(spec, f, plain);
    if (!plain.origin.is_default()) key = {std::move(plain.value), std::move(plain.origin)};
  }
  void assign(const KeySpec& spec, const Found& f, Key<std::vector<std::string>>& key) {
    if (f.node->kind != ConfigNode::Kind::kSequence) return mistyped(spec, f);
    std::vector<std::string> values;
    for (std::size_t i = 0; i < f.node->items.size(); ++i) {
      auto item = resolver_.child(f, std::to_string(i));
      if (!item.ok()) return keep(std::move(item).error());
      const auto text = value_of(spec, *item->node, static_cast<const std::string*>(nullptr));
      if (item->node->kind != ConfigNode::Kind::kScalar || !text) return mistyped(spec, *item);
      values.push_back(*text);
    }
    key = {std::move(values), origin_of(f)};
  }

  // The names that may stand in the map at `prefix` ("" is the top level).
  static std::vector<std::string> children(const std::string& prefix) {
    const std::string start = prefix.empty() ? "" : prefix + ".";
    std::vector<std::string> names;
    const auto add = [&](std::string_view path) {
      if (!path.starts_with(start)) return;
      const std::string name(path.substr(start.size(), path.find('.', start.size()) - start.size()));
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    };
    for (const KeySpec& spec : key_specs()) add(spec.path);
    for (const std::string_view open : kOpenSections) add(open);
    return names;
  }
  static bool is_leaf(const std::string& path) {
    return std::ranges::any_of(key_specs(), [&](const KeySpec& s) { return s.path == path; });
  }
  static bool is_open(const std::string& path) {
    return std::ranges::find(kOpenSections, path) != std::end(kOpenSections);
  }

  void check_strict(const std::string& section) {
    auto path = parse_path(section);
    auto found = resolver_.find(*path);
    if (!found.ok()) return keep_behind(section, std::move(found).error());
    if (found->node) check_section(section, *found);
  }
  void check_section(const std::string& prefix, const Found& section) {
    if (section.node->is_null()) return;
    const bool pair = prefix.ends_with("export_chunk_bytes") || prefix.ends_with("zstd_threads");
    if (!section.node->is_map()) {
      if (!pair || section.node->kind != ConfigNode::Kind::kScalar)
        refuse(prefix, section.node->at, "is " + shown(*section.node) + "; needs a section");
      return;
    }
    const std::vector<std::string> known = children(prefix);
    for (const auto& [name, value] : section.node->map) {
      const std::string path = prefix + "." + name;
      if (std::ranges::find(known, name) == known.end()) {
        unknown(prefix, name, value, known);
        continue;
      }
      if (is_open(path)) keep_open(path, value);
      if (is_leaf(path) || is_open(path)) continue;
      auto inner = resolver_.child(section, name);
      if (!inner.ok())
        keep(std::move(inner).error());
      else
        check_section(path, *inner);
    }
  }
  // What NIXL's plugin is told, as plain texts; the other open section is not read.
  void keep_open(const std::string& path, const ConfigNode& value) {
    if (path != kOpenSections[1]) return;
    for (const auto& [name, one] : value.map) {
      if (one.kind == ConfigNode::Kind::kScalar && one.text.find("${") == std::string::npos)
        out_.config.nixl_backend_init_params.emplace_back(name, one.text);
      else
        refuse(path + "." + name, one.at, "is " + shown(one) + "; needs a plain value");
    }
  }
  void unknown(const std::string& prefix, const std::string& name, const ConfigNode& value,
               const std::vector<std::string>& known) {
    ConfigPath full = *parse_path(prefix);
    full.push_back(name);
    const std::string path = to_string(full);
    if (prefix == kStrictSections[0] && name.find(':') != std::string::npos) {
      if (out_.config.refit_transport.value != name)
        out_.config.notes.push_back(path + " is not read: refit_transport does not select it");
      return;
    }
    const auto nearest =
        std::ranges::min_element(known, {}, [&](const std::string& k) { return edit_distance(k, name); });
    refuse(path, value.at, "is not a key here; the nearest is " + prefix + "." + *nearest);
  }

  // Elsewhere the file holds hundreds of foreign keys; one that is a slip away from ours would be ignored in silence.
  void check_spelling() {
    std::vector<std::string> done;
    for (const KeySpec& spec : key_specs()) {
      std::string prefix(spec.path);
      while (!prefix.empty()) {
        prefix = prefix.substr(0, prefix.rfind('.') == std::string::npos ? 0 : prefix.rfind('.'));
        if (is_strict(prefix) || std::ranges::find(done, prefix) != done.end()) continue;
        done.push_back(prefix);
        check_spelling_in(prefix);
      }
    }
  }
  static bool is_strict(const std::string& prefix) {
    return std::ranges::any_of(
        kStrictSections, [&](std::string_view s) { return prefix == s || prefix.starts_with(std::string(s) + "."); });
  }
  void check_spelling_in(const std::string& prefix) {
    ConfigPath path;
    if (!prefix.empty()) path = *parse_path(prefix);
    const auto found = resolver_.find(path);
    if (!found.ok() || !found->node || !found->node->is_map()) return;
    const std::vector<std::string> known = children(prefix);
    for (const auto& [name, value] : found->node->map) {
      if (std::ranges::find(known, name) != known.end()) continue;
      for (const std::string& k : known)
        if (edit_distance(k, name) <= (k.size() >= 8 ? 2u : 1u))
          refuse(prefix.empty() ? name : prefix + "." + name, value.at,
                 "is not a key; is " + (prefix.empty() ? k : prefix + "." + k) + " meant?");
    }
  }

  const ConfigNode& root_;
  ConfigResolver resolver_;
  std::vector<std::string> behind_;  // messages of keep_behind
  ConfigResult out_;
};

std::string text_of(bool v) { return v ? "true" : "false"; }
std::string text_of(std::int64_t v) { return std::to_string(v); }
std::string text_of(double v) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v);
  return error == std::errc() ? std::string(buffer.data(), end) : "?";
}
std::string text_of(const std::string& v) { return v; }
std::string text_of(const std::vector<std::string>& v) {
  std::string out = "[";
  for (const std::string& item : v) out += (out.size() > 1 ? ", " : "") + item;
  return out + "]";
}
template <typename T>
std::string text_of(const std::optional<T>& v) {
  return v ? text_of(*v) : "null";
}

}  // namespace

ConfigResult read_config(const ConfigNode& root, const EnvLookup& env) { return Reader(root, env).read(); }

ConfigResult load_config(const std::string& path, std::span<const std::string> sets, const ReadConfigFile& read,
                         const EnvLookup& env) {
  ConfigResult failed;
  auto root = compose_config(path, read);
  if (!root.ok()) {
    failed.errors.push_back(std::move(root).error());
    return failed;
  }
  for (const std::string& assignment : sets)
    if (Status s = apply_set(*root, assignment); !s.ok()) failed.errors.push_back(std::move(s).error());
  return failed.ok() ? read_config(*root, env) : failed;
}

std::vector<KeyRow> config_rows(const Config& config) {
  std::vector<KeyRow> rows;
  for (const KeySpec& spec : key_specs())
    std::visit(
        [&](auto field) {
          const auto& key = config.*field;
          rows.push_back({std::string(spec.path), text_of(key.value), std::string(spec.needs), key.origin});
        },
        spec.field);
  return rows;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  if (std::max(a.size(), b.size()) > kMaxCompared) return std::max(a.size(), b.size());
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace refit::sync
