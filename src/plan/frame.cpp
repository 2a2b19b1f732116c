#include "plan/frame.h"

#include <algorithm>
#include <map>

namespace refit::plan {
namespace {

// Makes the cells of each rank disjoint. Ranks with overlapping boxes of their own get cells of their own.
Status separate(Frame& f, const OwnerTable& owners) {
  f.cells = gather(f.target.boxes);
  const auto pairs = self_overlaps(f.cells);
  if (pairs.empty()) return {};
  f.by_owner = true;
  std::map<std::uint32_t, std::vector<std::uint32_t>> parts_of;  // special rank -> all its flats
  for (const auto& [i, j] : pairs) {
    const Ranks a = f.owners(i, owners), b = f.owners(j, owners);
    Ranks both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    for (std::uint32_t r : both) parts_of[r];
  }
  if (!parts_of.empty()) {
    std::map<std::vector<std::uint32_t>, Ranks> alike;
    for (auto& [rank, parts] : parts_of) {
      for (std::uint32_t p = 0; p < f.target.boxes.size(); ++p) {
        const Ranks& r = owners.of(f.target.boxes[p]);
        if (std::binary_search(r.begin(), r.end(), rank)) parts.push_back(p);
      }
      alike[parts].push_back(rank);
      f.special.push_back(rank);
    }
    f.only.resize(f.cells.size());
    for (const auto& [parts, ranks] : alike) {
      std::map<Box, std::vector<std::uint32_t>> unique;
      for (std::uint32_t p : parts) unique[f.target.boxes[p].box].push_back(p);
      std::vector<Cell> own;
      for (auto& [box, held] : unique) own.push_back({box, held});
      REFIT_ASSIGN(std::vector<Cell> disjoint, atomise(std::move(own)));
      for (Cell& c : disjoint) {
        f.cells.push_back(std::move(c));
        f.only.push_back(ranks);
      }
    }
    // Cells that nobody is left to own would only split others.
    std::vector<Cell> cells;
    std::vector<Ranks> only;
    for (std::uint32_t c = 0; c < f.cells.size(); ++c) {
      if (f.owners(c, owners).empty()) continue;
      cells.push_back(f.cells[c]);
      only.push_back(f.only[c]);
    }
    f.cells = std::move(cells);
    f.only = std::move(only);
  }
  f.rivals.resize(f.cells.size());
  for (const auto& [i, j] : self_overlaps(f.cells)) {
    if (f.cells[i].box == f.cells[j].box) continue;
    f.rivals[i].push_back(j);
    f.rivals[j].push_back(i);
  }
  return {};
}

void intersect_sides(Frame& f) {
  f.missing.resize(f.cells.size());
  for (std::uint32_t c = 0; c < f.cells.size(); ++c) f.missing[c] = elements(f.cells[c].box);
  std::map<std::vector<std::uint32_t>, std::uint32_t> known;
  std::map<Box, std::vector<std::uint32_t>> mine;
  std::uint32_t atom = 0;
  const auto flush = [&] {
    for (auto& [box, cells] : mine) {
      const auto [at, fresh] = known.emplace(cells, static_cast<std::uint32_t>(f.groups.size()));
      if (fresh) f.groups.push_back(cells);
      f.overlaps.push_back({atom, at->second, box});
    }
    mine.clear();
  };
  overlaps(f.atoms, f.cells, [&](std::uint32_t a, std::uint32_t c) {
    if (a != atom) flush();
    atom = a;
    Box box = intersect(f.atoms[a].box, f.cells[c].box);
    f.missing[c] -= elements(box);
    mine[std::move(box)].push_back(c);
  });
  flush();
}

}  // namespace

Ranks Frame::owners(std::uint32_t cell, const OwnerTable& table) const {
  if (!only.empty() && !only[cell].empty()) return only[cell];
  Ranks out;
  for (const Owner& o : table.of(cells[cell], target.boxes))
    if (only.empty() || !std::binary_search(special.begin(), special.end(), o.rank)) out.push_back(o.rank);
  return out;
}

std::vector<std::uint32_t> Frame::parts(std::uint32_t cell, std::uint32_t rank, const OwnerTable& table) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t p : cells[cell].parts) {
    const Ranks& r = table.of(target.boxes[p]);
    if (std::binary_search(r.begin(), r.end(), rank)) out.push_back(p);
  }
  return out;
}

Result<std::vector<Box>> Frame::wanted(std::uint32_t atom) const {
  std::vector<Box> boxes;
  auto at = std::lower_bound(overlaps.begin(), overlaps.end(), atom,
                             [](const Overlap& o, std::uint32_t a) { return o.atom < a; });
  for (; at != overlaps.end() && at->atom == atom; ++at) boxes.push_back(at->box);
  if (boxes.size() == 1) return boxes;
  return cover(atoms[atom].box, boxes);
}

Result<Frame> make_frame(const Dims& shape, const Composite& source, const Composite& target,
                         const OwnerTable& target_owners) {
  Frame f;
  f.coords = common_coords(shape, source, target);
  REFIT_ASSIGN(f.source, flatten(source, f.coords));
  REFIT_ASSIGN(f.target, flatten(target, f.coords));
  REFIT_ASSIGN(f.atoms, atomise(gather(f.source.boxes)));
  REFIT_TRY(separate(f, target_owners));
  intersect_sides(f);
  return f;
}

}  // namespace refit::plan
