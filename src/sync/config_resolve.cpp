#include "sync/config_resolve.h"

#include <algorithm>

namespace refit::sync {
namespace {

constexpr std::string_view kMissing = "?\?\?";  // how these files mark a value that must still be given
constexpr int kMaxEvaluations = 10'000;
constexpr std::size_t kMaxInterpolatedText = 64 << 10;
constexpr std::size_t kMaxChain = 64;
constexpr int kMaxNested = 128;  // of `${` in `${`, over a whole chain

Error interpolation_error(const Found& at, const std::string& what) {
  return Error(Code::kInvalid, to_string(at.path) + " (" + at.node->at.text() + "): " + what);
}

// Index behind the `}` that closes the `${` at `open`, or npos.
std::size_t closing(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text.substr(i).starts_with("${")) {
      ++depth;
      ++i;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// First `wanted` outside of nested interpolations.
std::size_t find_outside(std::string_view text, char wanted) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("${")) ++depth;
    if (depth == 0 && text[i] == wanted) return i;
    if (text[i] == '}' && depth > 0) --depth;
  }
  return std::string_view::npos;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

std::string shown(const ConfigNode& node) { return node.text.size() > 80 ? node.text.substr(0, 80) + "…" : node.text; }

bool has_interpolation(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::kScalar && node.text.find("${") != std::string::npos;
}

const ConfigNode* element(const ConfigNode& node, const std::string& key) {
  if (node.kind != ConfigNode::Kind::kSequence) return node.find(key);
  if (key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos) return nullptr;
  const std::size_t index = std::stoul(key);
  return index < node.items.size() ? &node.items[index] : nullptr;
}

}  // namespace

Result<Found> ConfigResolver::find(const ConfigPath& path) {
  Found at{&root_, {}, {}};
  for (const std::string& key : path) {
    REFIT_ASSIGN(at, child(at, key));
    if (!at.node) return at;
  }
  return at;
}

Result<Found> ConfigResolver::child(const Found& parent, const std::string& key) {
  if (!parent.node || parent.node->is_null()) return Found{};
  if (parent.node->kind == ConfigNode::Kind::kScalar || !parent.node->tag.empty())
    return interpolation_error(parent, "needs a map, to hold '" + key + "'");
  Found at{element(*parent.node, key), parent.path, parent.via};
  if (!at.node) return Found{};
  at.path.push_back(key);
  return resolve(std::move(at));
}

Result<Found> ConfigResolver::resolve(Found at) {
  if (at.node->text == kMissing) return interpolation_error(at, "still stands for a missing value: give it one");
  if (!has_interpolation(*at.node)) return at;
  const std::string name = to_string(at.path);
  if (const auto before = std::ranges::find(active_, name); before != active_.end()) {
    std::string chain;
    for (auto it = before; it != active_.end(); ++it) chain += *it + " -> ";
    return interpolation_error(at, "'" + shown(*at.node) + "' is a cycle of interpolations: " + chain + name);
  }
  if (active_.size() >= kMaxChain)
    return interpolation_error(
        at, "'" + shown(*at.node) + "' lies behind more than " + std::to_string(kMaxChain) + " interpolations");
  if (++evaluations_ > kMaxEvaluations)
    return interpolation_error(
        at, "'" + at.node->text + "' needs more than " + std::to_string(kMaxEvaluations) + " interpolations");
  active_.push_back(name);
  auto result = evaluate(at);
  active_.pop_back();
  return result;
}

Result<Found> ConfigResolver::evaluate(const Found& at) {
  const std::string_view text = at.node->text;
  if (text.starts_with("${") && closing(text, 0) == text.size()) {
    REFIT_ASSIGN(Found found, interpolate(text.substr(2, text.size() - 3), at));
    found.via = std::string(text);
    return found;
  }
  REFIT_ASSIGN(std::string expanded, expand(text, at));
  Found found = make(std::move(expanded), false, at);
  found.via = std::string(text);
  return found;
}

Result<std::string> ConfigResolver::expand(std::string_view text, const Found& at) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with("\\${")) {
      out += "${";
      i += 3;
    } else if (text.substr(i).starts_with("${")) {
      const std::size_t end = closing(text, i);
      if (end == std::string_view::npos)
        return interpolation_error(at, "'" + std::string(text) + "' has a '${' without its '}'");
      REFIT_ASSIGN(const Found part, interpolate(text.substr(i + 2, end - i - 3), at));
      if (part.node->kind != ConfigNode::Kind::kScalar)
        return interpolation_error(at, "'" + std::string(text.substr(i, end - i)) + "' is not a single value");
      out += part.node->text;
      i = end;
    } else {
      out += text[i++];
    }
    if (out.size() > kMaxInterpolatedText)
      return interpolation_error(at, "'" + std::string(text.substr(0, 80)) + "' grows beyond 64 KiB");
  }
  return out;
}

Result<Found> ConfigResolver::interpolate(std::string_view inner, const Found& at) {
  if (nested_ >= kMaxNested)
    return interpolation_error(at, "interpolations nested deeper than " + std::to_string(kMaxNested));
  ++nested_;
  auto result = interpolate_one(inner, at);
  --nested_;
  return result;
}

Result<Found> ConfigResolver::interpolate_one(std::string_view inner, const Found& at) {
  const std::size_t colon = find_outside(inner, ':');
  if (colon != std::string_view::npos) return call(trimmed(inner.substr(0, colon)), inner.substr(colon + 1), at);
  REFIT_ASSIGN(const std::string target, expand(trimmed(inner), at));
  return follow(target, at);
}

Result<Found> ConfigResolver::call(std::string_view name, std::string_view args, const Found& at) {
  const std::string shown = "'${" + std::string(name) + ":" + std::string(args) + "}'";
  if (name != "oc.env")
    return interpolation_error(at, shown +
                                       " uses a resolver that Refit does not have (it has oc.env); give the value "
                                       "itself, here or with --set " +
                                       to_string(at.path) + "=…");
  const std::size_t comma = find_outside(args, ',');
  REFIT_ASSIGN(const std::string variable, expand(trimmed(args.substr(0, comma)), at));
  if (const auto value = env_(variable)) return make(*value, true, at);
  if (comma == std::string_view::npos)
    return interpolation_error(
        at, shown + ": the environment variable '" + variable + "' is not set and there is no default");
  std::string_view fallback = trimmed(args.substr(comma + 1));
  if (fallback.starts_with("${") && closing(fallback, 0) == fallback.size())
    return interpolate(fallback.substr(2, fallback.size() - 3), at);
  const bool quoted = fallback.size() >= 2 && (fallback.front() == '"' || fallback.front() == '\'') &&
                      fallback.back() == fallback.front();
  if (quoted) fallback = fallback.substr(1, fallback.size() - 2);
  REFIT_ASSIGN(std::string expanded, expand(fallback, at));
  Found made = make(std::move(expanded), !quoted, at);
  if (!quoted && made.node->text == "null") made_.back().kind = ConfigNode::Kind::kNull;
  return made;
}

Result<Found> ConfigResolver::follow(std::string_view target, const Found& at) {
  const std::string shown = "'${" + std::string(target) + "}'";
  ConfigPath path;
  std::string_view rest = target;
  if (rest.starts_with('.')) {  // one dot: the section that the value lies in; each further dot: one up
    path = at.path;
    while (rest.starts_with('.')) {
      if (path.empty()) return interpolation_error(at, shown + " goes above the top of the configuration");
      path.pop_back();
      rest.remove_prefix(1);
    }
  }
  auto parsed = parse_path(rest);
  if (!parsed.ok()) return interpolation_error(at, shown + ": " + parsed.error().message);
  path.insert(path.end(), parsed->begin(), parsed->end());
  if (path.size() > static_cast<std::size_t>(kMaxConfigDepth)) return interpolation_error(at, shown + " is too deep");
  REFIT_ASSIGN(Found found, find(path));
  if (!found.node) return interpolation_error(at, shown + ": there is no " + to_string(path));
  return found;
}

Found ConfigResolver::make(std::string text, bool plain, const Found& at) {
  ConfigNode node;
  node.kind = ConfigNode::Kind::kScalar;
  node.text = std::move(text);
  node.plain = plain;
  node.at = at.node->at;
  made_.push_back(std::move(node));
  return {&made_.back(), at.path, {}};
}

}  // namespace refit::sync
