// Arrangement: a rule run for one rank. An N-D local array and the pieces of logical tensors that lie in it.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "core/core.h"
#include "model/rules/mesh.h"
#include "model/rules/ops.h"
#include "model/rules/symbols.h"

namespace refit::model {

// A box of one member tensor. Factor f of its view moves `step` indices of the array's axis `axis` per index.
struct Piece {
  struct Place {
    int axis = 0;  // -1: a factor of extent 1 that was squeezed away
    std::int64_t step = 1;
  };
  int member = 0;
  std::int64_t expert = -1;  // set by kStack
  View view;
  Box box;
  std::vector<Place> places;  // one per factor
  Dims base;                  // array index of the box's first element
};

struct Arrangement {
  Dims shape;
  std::vector<Piece> pieces;
  std::optional<DType> cast;
  std::string_view value;  // a transform's name
};

// What a program sees when it runs.
struct Frame {
  const Symbols* symbols = nullptr;
  const Mesh* mesh = nullptr;
  const Coordinates* at = nullptr;
  std::vector<Dims> members;  // shapes
  std::int64_t experts = 0;
  std::int64_t pick = 0;  // the expert that kPick takes
};

// The array of one rank. Errors: kInvalid when an extent does not divide; kInternal for a program that is wrong in
// itself.
Result<Arrangement> run(const Program& program, const Frame& frame);

// An array of matrices' elements (joined, stacked) as the array of their blocks' scales: `blocks` holds elements by
// axis, `members` and `names` are the matrices'. Errors: kInvalid naming the matrix when a part of it begins or ends
// inside a block, since then two parts would share a scale.
Result<Arrangement> in_blocks(Arrangement array, const Dims& blocks, const std::vector<Dims>& members,
                              const std::vector<std::string_view>& names);

// The interval that a part of a cut covers.
Result<Interval> cut_interval(const Cut& cut, std::int64_t extent, Mesh::Part part, const Symbols& symbols);

// A piece as the holding it becomes: element strides in a row-major array, with neighbouring factors merged where the
// memory allows, so that plain slices have plain boxes.
struct Lie {
  View view;
  Box box;
  Dims strides;  // elements
  std::int64_t offset = 0;
};
Lie lie_of(const Piece& piece, const Dims& shape);

// The elements [range.lo, range.hi) of a row-major tensor, in a row of their own: at most 2n-1 boxes for n axes.
std::vector<Lie> flat_range(const Dims& shape, Interval range);

}  // namespace refit::model
