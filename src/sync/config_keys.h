// The table of keys: path, field, what a value must be. Private to the room.
#pragma once
#include <limits>
#include <span>
#include <string_view>
#include <variant>

#include "sync/config.h"

namespace refit::sync {

template <typename T>
using KeyField = Key<T> Config::*;
using AnyField = std::variant<KeyField<bool>, KeyField<std::int64_t>, KeyField<double>, KeyField<std::string>,
                              KeyField<std::optional<bool>>, KeyField<std::optional<double>>,
                              KeyField<std::optional<std::string>>, KeyField<std::vector<std::string>>>;

struct KeySpec {
  std::string_view path;
  AnyField field;
  std::string_view needs;         // in words, for messages
  std::string_view choices = {};  // "a|b|c", or empty for any text
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open = false;  // both limits are excluded
  bool size = false;  // an integer written as a size
};

std::span<const KeySpec> key_specs();

// Sections inside which every key must be known.
inline constexpr std::string_view kStrictSections[] = {"policy.generation.refit_cfg", "refit"};
// Maps inside them that hold what another library defines; accepted, passed on, not read.
inline constexpr std::string_view kOpenSections[] = {"policy.generation.refit_cfg.sparse.tuning",
                                                     "policy.generation.refit_cfg.nixl.backend_init_params"};

}  // namespace refit::sync
