// Series: tensors that differ in the numbers of their names alone, so that a layout's text does not grow with layers
// and experts. "model.layers.{}.mlp.experts.{}.w" with a run of numbers for each "{}".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::model {

// Numbers first, first + step, … of one "{}", and how far apart their places are.
struct Run {
  std::int64_t first = 0, count = 1, step = 1, bytes = 0;
};

struct Series {
  std::string pattern = {};    // a name with "{}" for each run
  std::vector<Run> runs = {};  // by "{}"
  std::size_t alike = 0;       // of equal content but for name and offset: the caller's number
  std::int64_t offset = 0;     // of the first
};

// One name as a series of one: every number that stands between dots is a run. None for a name with braces.
Series series_of(std::string_view name);
// Joins neighbours, the last "{}" first; runs of one number become part of the pattern again. The order is its own.
std::vector<Series> joined_series(std::vector<Series> items);
// What a series may be at most: a short text must not ask for all memory. series_of() leaves longer names alone.
inline constexpr std::size_t kMostPattern = 1024, kMostRuns = 24;
// Names that a series stands for. Errors: kInvalid when `pattern` has another number of "{}" than there are runs, for
// runs that are empty or go beyond 2^31, for more of either than above, and for more than `most` names.
Result<std::vector<std::pair<std::string, std::int64_t>>> names_in(const Series& series, std::size_t most);

}  // namespace refit::model
