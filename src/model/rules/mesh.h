// Mesh: the ranks of a layout as a grid of named axes, the last varying fastest.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/core.h"

namespace refit::model {

using Coordinates = std::vector<std::int64_t>;  // one per mesh axis

class Mesh {
 public:
  struct Axis {
    std::string name;  // several names joined by '|' mean the same axis
    std::int64_t size = 1;
  };
  // Errors: kInvalid when the product passes kMaxRanks.
  static Result<Mesh> make(std::vector<Axis> axes);
  static constexpr std::int64_t kMaxRanks = 1 << 17;

  std::int64_t size() const { return size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  Coordinates coordinates(std::int64_t rank) const;
  std::int64_t rank(const Coordinates& at) const;

  // Where a rank stands among the parts of a cut over "dp*tp": axes that the mesh lacks count as size 1.
  struct Part {
    std::int64_t index = 0, count = 1;
  };
  Part part(std::string_view over, const Coordinates& at) const;
  // Ranks between neighbours on an axis; 0 without it.
  std::int64_t step(std::string_view axis) const;
  // Marks the axes that `over` names.
  void mark(std::string_view over, std::vector<bool>& axes) const;
  // (count, step) for each unmarked axis of size above 1, slowest first, neighbours joined: the ranks that share the
  // coordinates of the marked axes, less their first.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> free_axes(const std::vector<bool>& marked) const;

 private:
  std::vector<Axis> axes_;
  std::vector<std::int64_t> steps_;
  std::int64_t size_ = 1;
};

}  // namespace refit::model
