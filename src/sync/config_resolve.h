// Walks the composed tree and resolves `${…}` on the way, only where something is read.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "sync/config_tree.h"

namespace refit::sync {

using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

// A value and where it really lies (which differs from the path asked for once an interpolation was followed).
struct Found {
  const ConfigNode* node = nullptr;  // null when absent
  ConfigPath path;
  std::string via;  // the last interpolation followed
};

// Interpolations: `${a.b}`, `${a[0]}`, `${.x}` and `${..x}` relative to the value's own section, nested ones, text
// around them, `\${` for a literal, `${oc.env:NAME}` and `${oc.env:NAME,default}`. Any other resolver is refused by
// name. *thread-compatible*; the tree must outlive it.
class ConfigResolver {
 public:
  ConfigResolver(const ConfigNode& root, EnvLookup env) : root_(root), env_(std::move(env)) {}
  // Errors: kInvalid naming the path, its place and the interpolation: no such key, a cycle, an unset variable, an
  // unknown resolver; a part of the path that is no map; `???` (a value that is still missing).
  Result<Found> find(const ConfigPath& path);
  // A child of a map that find() returned, resolved likewise.
  Result<Found> child(const Found& parent, const std::string& key);

 private:
  Result<Found> resolve(Found at);
  Result<Found> evaluate(const Found& at);
  Result<Found> interpolate(std::string_view inner, const Found& at);
  Result<Found> interpolate_one(std::string_view inner, const Found& at);
  Result<Found> call(std::string_view name, std::string_view args, const Found& at);
  Result<Found> follow(std::string_view target, const Found& at);
  Result<std::string> expand(std::string_view text, const Found& at);
  Found make(std::string text, bool plain, const Found& at);

  const ConfigNode& root_;
  EnvLookup env_;
  std::deque<ConfigNode> made_;      // values that interpolations built
  std::vector<std::string> active_;  // paths in the middle of being resolved
  int evaluations_ = 0, nested_ = 0;
};

}  // namespace refit::sync
