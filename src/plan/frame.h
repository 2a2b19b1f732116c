// Inside plan: what meets what, once per class of tensors with equal patterns on both sides.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/owners.h"

namespace refit::plan {

// A source atom's part inside target cells; several cells when their intersections with the atom are equal.
struct Overlap {
  std::uint32_t atom = 0;
  std::uint32_t group = 0;  // into Frame::groups
  Box box;
};

struct Frame {
  Coords coords;
  Flats source, target;
  std::vector<Cell> atoms;                         // of the sources, disjoint, in order of origin
  std::vector<Cell> cells;                         // of the targets, disjoint inside each rank
  std::vector<Overlap> overlaps;                   // by (atom, box)
  std::vector<std::vector<std::uint32_t>> groups;  // distinct cell lists of overlaps
  std::vector<std::int64_t> missing;               // per cell: elements that no source holds
  std::vector<std::vector<std::uint32_t>> rivals;  // per cell: cells that overlap it; empty when none do
  // Cells of ranks whose own boxes overlap each other belong to those ranks alone, all others to everybody else.
  std::vector<Ranks> only;  // per cell; empty: no such restriction
  Ranks special;
  bool by_owner = false;  // the cells depend on who owns what, not on the boxes alone

  // Ascending owners of a target cell.
  Ranks owners(std::uint32_t cell, const OwnerTable& table) const;
  // The parts of a cell that one rank holds.
  std::vector<std::uint32_t> parts(std::uint32_t cell, std::uint32_t rank, const OwnerTable& table) const;
  // What the targets want of an atom, as disjoint boxes.
  Result<std::vector<Box>> wanted(std::uint32_t atom) const;
};

Result<Frame> make_frame(const Dims& shape, const Composite& source, const Composite& target,
                         const OwnerTable& target_owners);

}  // namespace refit::plan
