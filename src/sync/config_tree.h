// A user's YAML as a plain tree: bounded, aliases and merge keys expanded, every value with its place. *pure*.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/core.h"

namespace refit::sync {

// Where a value came from.
struct Origin {
  std::string file;  // "" for a default; "--set" for the command line
  int line = 0;      // 1-based, 0 where there is none
  std::string via;   // the interpolation that brought it, if one did
  bool is_default() const { return file.empty(); }
  std::string text() const;  // "default", "grpo.yaml:12", "grpo.yaml:12 via ${policy.precision}"
};

struct ConfigNode {
  enum class Kind : std::uint8_t { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool plain = true;  // of a scalar: unquoted, so that it may be a number or a boolean
  std::string text;
  std::string tag;  // a tag outside YAML's own: the value is refused where it is read
  Origin at;
  std::vector<std::pair<std::string, ConfigNode>> map;  // in file order
  std::vector<ConfigNode> items;

  bool is_map() const { return kind == Kind::kMap; }
  bool is_null() const { return kind == Kind::kNull; }
  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
};

// Limits of one file, and (nodes, text) of what its aliases expand to. A training configuration has some hundred keys.
inline constexpr std::int64_t kMaxConfigBytes = 2 << 20;
inline constexpr int kMaxConfigDepth = 64;
inline constexpr std::size_t kMaxConfigNodes = 200'000;
inline constexpr std::size_t kMaxConfigText = 16 << 20;

// One document. Errors: kInvalid naming file, line and key: not UTF-8, syntax, a key given twice, a key that is no
// scalar, an alias into itself, several documents; kExhausted beyond a limit, with need and have.
Result<ConfigNode> parse_yaml(std::string_view text, const std::string& file);

// A path through the tree; a segment may hold dots: `policy.generation.refit_cfg["pkg.mod:Class"]`.
using ConfigPath = std::vector<std::string>;
std::string to_string(const ConfigPath& path);
// Hydra's and OmegaConf's spelling: a.b.c, a[b], a["b.c"]. Errors: kInvalid naming the text.
Result<ConfigPath> parse_path(std::string_view text);

using ReadConfigFile = std::function<Result<std::string>(const std::string& path)>;

// The file with its `defaults:` merged under it: depth first, later over earlier, own keys last or where `_self_` says.
// Names are relative to the file that names them; `group: option` is `group/option.yaml` under `group`. A section with
// `_override_: true` at the top level replaces instead of merging. Errors: those of parse_yaml and `read`; kInvalid for
// a cycle, too many files, or a form of `defaults:` that is not known, naming it.
Result<ConfigNode> compose_config(const std::string& path, const ReadConfigFile& read);

// `path=value`, the value read as YAML. Errors: kInvalid naming the option.
Status apply_set(ConfigNode& root, std::string_view assignment);

}  // namespace refit::sync
