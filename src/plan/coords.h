// Inside plan: the common coordinates of one tensor, in which every holding of both sides is a few plain boxes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/core.h"
#include "model/model.h"

namespace refit::plan {

inline constexpr std::size_t kMaxBoxes = 1u << 18;  // most boxes of one tensor on one side

// Mixed-radix coordinates: factors with extents above 1 only, axis by axis, outermost first. Lexicographic order of
// coordinates is lexicographic order of logical indices.
struct Coords {
  int axes = 0;
  Dims extents;
  std::vector<int> axis;    // of each factor
  Dims steps;               // logical indices of that axis per step
  std::vector<bool> swept;  // per axis: factorings that do not nest; its one factor is the axis, boxes are affine runs

  std::size_t factors() const { return extents.size(); }
  // Logical index per axis of a box's first element.
  Dims origin(const Box& box) const;
  std::string text(const Box& box) const;
};

// One box of a shard. Its first element lies `delta` bytes after the shard's first; one byte stride per factor.
struct Flat {
  std::uint32_t member = 0;  // which tensor of a tie
  std::uint32_t shard = 0;   // in that tensor's pattern
  Box box;
  std::int64_t delta = 0;
  friend bool operator==(const Flat&, const Flat&) = default;
};

// Patterns of the tensors that a tie makes one (almost always a single one).
using Composite = std::vector<const model::Pattern*>;

Coords common_coords(const Dims& shape, const Composite& source, const Composite& target);

struct Flats {
  std::vector<Flat> boxes;
  std::vector<std::vector<Dims>> strides;  // [member][shard]
  const Dims& strides_of(const Flat& f) const { return strides[f.member][f.shard]; }
};
// Errors: kExhausted when a side falls into more than kMaxBoxes boxes.
Result<Flats> flatten(const Composite& side, const Coords& coords);

}  // namespace refit::plan
