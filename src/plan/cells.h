// Inside plan: sets of boxes made disjoint, and who overlaps whom.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/coords.h"

namespace refit::plan {

// A box and the flats that hold all of it.
struct Cell {
  Box box;
  std::vector<std::uint32_t> parts;
};

// Equal boxes become one cell; cells in order of their origin.
std::vector<Cell> gather(const std::vector<Flat>& flats);

// Calls hit(i, j) for each a[i], b[j] that overlap.
void overlaps(const std::vector<Cell>& a, const std::vector<Cell>& b,
              const std::function<void(std::uint32_t, std::uint32_t)>& hit);
// Pairs i < j of one set that overlap.
std::vector<std::pair<std::uint32_t, std::uint32_t>> self_overlaps(const std::vector<Cell>& cells);

// Splits overlapping cells at each other's edges: disjoint cells, each with all the parts that cover it; neighbours of
// equal parts are joined again. Errors: kExhausted past kMaxBoxes.
Result<std::vector<Cell>> atomise(std::vector<Cell> cells);
// The boxes of `box` cut at the edges of `knives` that it overlaps, in order of origin.
std::vector<Box> cut(const Box& box, const std::vector<const Box*>& knives);
// What `boxes` (any overlap) cover, as disjoint boxes in order of origin; `within` alone when they cover all of it.
Result<std::vector<Box>> cover(const Box& within, const std::vector<Box>& boxes);
// A part of `box` that disjoint `boxes` leave uncovered.
Box first_gap(const Box& box, const std::vector<Box>& boxes);

}  // namespace refit::plan
