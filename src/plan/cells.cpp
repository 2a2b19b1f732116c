#include "plan/cells.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace refit::plan {
namespace {

bool before(const Box& a, const Box& b) {
  for (std::size_t k = 0; k < a.size(); ++k)
    if (a[k].lo != b[k].lo) return a[k].lo < b[k].lo;
  return a < b;
}

bool meet(const Box& a, const Box& b) {
  for (std::size_t k = 0; k < a.size(); ++k)
    if (a[k].lo >= b[k].hi || b[k].lo >= a[k].hi) return false;
  return true;
}

bool inside(const Box& inner, const Box& outer) {
  for (std::size_t k = 0; k < inner.size(); ++k)
    if (inner[k].lo < outer[k].lo || inner[k].hi > outer[k].hi) return false;
  return true;
}

// The factor along which most boxes differ: a sweep along it meets the fewest candidates.
std::size_t sharpest(const std::vector<Cell>& a, const std::vector<Cell>& b) {
  const std::size_t factors = a.empty() ? 0 : a[0].box.size();
  std::size_t best = 0, most = 0;
  for (std::size_t k = 0; k < factors; ++k) {
    std::vector<std::int64_t> lows;
    for (const auto* side : {&a, &b})
      for (const Cell& c : *side) lows.push_back(c.box[k].lo);
    std::sort(lows.begin(), lows.end());
    const auto distinct = static_cast<std::size_t>(std::unique(lows.begin(), lows.end()) - lows.begin());
    if (distinct > most) most = distinct, best = k;
  }
  return best;
}

// Cells ordered along one factor, with the highest end so far: all that may meet an interval are one stretch.
struct Index {
  std::size_t factor;
  std::vector<std::uint32_t> order;
  std::vector<std::int64_t> lows, reach;

  Index(const std::vector<Cell>& cells, std::size_t f) : factor(f), order(cells.size()) {
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t x, std::uint32_t y) { return cells[x].box[f].lo < cells[y].box[f].lo; });
    for (std::uint32_t i : order) {
      lows.push_back(cells[i].box[f].lo);
      reach.push_back(std::max(cells[i].box[f].hi, reach.empty() ? cells[i].box[f].hi : reach.back()));
    }
  }
};

// All coordinates at which a box must be cut, per factor.
std::vector<std::vector<std::int64_t>> edges(const Box& box, const std::vector<const Box*>& knives) {
  std::vector<std::vector<std::int64_t>> out(box.size());
  for (std::size_t k = 0; k < box.size(); ++k) {
    std::set<std::int64_t> at{box[k].lo, box[k].hi};
    for (const Box* n : knives)
      for (std::int64_t e : {(*n)[k].lo, (*n)[k].hi})
        if (e > box[k].lo && e < box[k].hi) at.insert(e);
    out[k].assign(at.begin(), at.end());
  }
  return out;
}

void grid(const std::vector<std::vector<std::int64_t>>& at, std::size_t k, Box& box, std::vector<Box>& out) {
  if (k == at.size()) return out.push_back(box);
  for (std::size_t i = 0; i + 1 < at[k].size(); ++i) {
    box.push_back({at[k][i], at[k][i + 1]});
    grid(at, k + 1, box, out);
    box.pop_back();
  }
}

Error too_many() {
  return Error(Code::kExhausted, "its boxes split each other into more than " + std::to_string(kMaxBoxes))
      .amounts(static_cast<std::int64_t>(kMaxBoxes) + 1, kMaxBoxes);
}

// Joins neighbours of equal parts along each factor in turn, innermost first.
std::vector<Cell> join(std::vector<Cell> cells) {
  const std::size_t factors = cells.empty() ? 0 : cells[0].box.size();
  for (std::size_t k = factors; k-- > 0;) {
    std::sort(cells.begin(), cells.end(), [&](const Cell& a, const Cell& b) {
      for (std::size_t j = 0; j < factors; ++j)
        if (j != k && a.box[j] != b.box[j]) return a.box[j] < b.box[j];
      return a.box[k] < b.box[k];
    });
    std::vector<Cell> out;
    for (Cell& c : cells) {
      bool joins = !out.empty() && out.back().parts == c.parts && out.back().box[k].hi == c.box[k].lo;
      for (std::size_t j = 0; j < factors && joins; ++j) joins = j == k || out.back().box[j] == c.box[j];
      if (joins)
        out.back().box[k].hi = c.box[k].hi;
      else
        out.push_back(std::move(c));
    }
    cells = std::move(out);
  }
  return cells;
}

// One cluster of cells that overlap each other, directly or not.
Result<std::vector<Cell>> split_cluster(const std::vector<const Cell*>& cluster) {
  Box hull = cluster[0]->box;
  std::vector<const Box*> knives;
  for (const Cell* c : cluster) {
    knives.push_back(&c->box);
    for (std::size_t k = 0; k < hull.size(); ++k)
      hull[k] = {std::min(hull[k].lo, c->box[k].lo), std::max(hull[k].hi, c->box[k].hi)};
  }
  const auto at = edges(hull, knives);
  std::size_t count = 1;
  for (const auto& e : at) {
    count *= e.size() - 1;
    if (count > kMaxBoxes) return too_many();
  }
  std::vector<Box> boxes;
  Box scratch;
  grid(at, 0, scratch, boxes);
  std::vector<Cell> out;
  for (Box& b : boxes) {
    Cell cell{std::move(b), {}};
    for (const Cell* c : cluster)
      if (inside(cell.box, c->box)) cell.parts.insert(cell.parts.end(), c->parts.begin(), c->parts.end());
    std::sort(cell.parts.begin(), cell.parts.end());
    cell.parts.erase(std::unique(cell.parts.begin(), cell.parts.end()), cell.parts.end());
    if (!cell.parts.empty()) out.push_back(std::move(cell));
  }
  return join(std::move(out));
}

}  // namespace

std::vector<Cell> gather(const std::vector<Flat>& flats) {
  std::vector<std::uint32_t> order(flats.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return before(flats[a].box, flats[b].box); });
  std::vector<Cell> out;
  for (std::uint32_t i : order) {
    if (out.empty() || out.back().box != flats[i].box) out.push_back({flats[i].box, {}});
    out.back().parts.push_back(i);
  }
  return out;
}

void overlaps(const std::vector<Cell>& a, const std::vector<Cell>& b,
              const std::function<void(std::uint32_t, std::uint32_t)>& hit) {
  if (a.empty() || b.empty()) return;
  if (a[0].box.empty()) {  // a single element: all meet
    for (std::uint32_t i = 0; i < a.size(); ++i)
      for (std::uint32_t j = 0; j < b.size(); ++j) hit(i, j);
    return;
  }
  const Index index(b, sharpest(a, b));
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < a.size(); ++i) {
    const Interval span = a[i].box[index.factor];
    auto end =
        static_cast<std::size_t>(std::lower_bound(index.lows.begin(), index.lows.end(), span.hi) - index.lows.begin());
    found.clear();
    for (; end > 0 && index.reach[end - 1] > span.lo; --end)
      if (meet(a[i].box, b[index.order[end - 1]].box)) found.push_back(index.order[end - 1]);
    std::sort(found.begin(), found.end());
    for (std::uint32_t j : found) hit(i, j);
  }
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> self_overlaps(const std::vector<Cell>& cells) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
  overlaps(cells, cells, [&](std::uint32_t i, std::uint32_t j) {
    if (i < j) out.emplace_back(i, j);
  });
  return out;
}

Result<std::vector<Cell>> atomise(std::vector<Cell> cells) {
  const auto pairs = self_overlaps(cells);
  if (pairs.empty()) return cells;
  std::vector<std::uint32_t> root(cells.size());
  std::iota(root.begin(), root.end(), 0u);
  const auto find = [&](std::uint32_t i) {
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
  };
  for (const auto& [i, j] : pairs) root[std::max(find(i), find(j))] = std::min(find(i), find(j));
  std::map<std::uint32_t, std::vector<const Cell*>> clusters;
  for (std::uint32_t i = 0; i < cells.size(); ++i) clusters[find(i)].push_back(&cells[i]);
  std::vector<Cell> out;
  for (const auto& [first, cluster] : clusters) {
    if (cluster.size() == 1) {
      out.push_back(*cluster[0]);
    } else {
      REFIT_ASSIGN(std::vector<Cell> split, split_cluster(cluster));
      std::move(split.begin(), split.end(), std::back_inserter(out));
    }
    if (out.size() > kMaxBoxes) return too_many();
  }
  std::sort(out.begin(), out.end(), [](const Cell& a, const Cell& b) { return before(a.box, b.box); });
  return out;
}

std::vector<Box> cut(const Box& box, const std::vector<const Box*>& knives) {
  std::vector<Box> out;
  Box scratch;
  grid(edges(box, knives), 0, scratch, out);
  return out;
}

Result<std::vector<Box>> cover(const Box& within, const std::vector<Box>& boxes) {
  std::vector<Cell> cells;
  for (const Box& b : boxes)
    if (Box i = intersect(within, b); !empty(i)) cells.push_back({std::move(i), {0}});
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return before(a.box, b.box); });
  cells.erase(std::unique(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.box == b.box; }),
              cells.end());
  REFIT_ASSIGN(std::vector<Cell> disjoint, atomise(std::move(cells)));
  std::int64_t covered = 0;
  std::vector<Box> out;
  for (Cell& c : disjoint) {
    covered += elements(c.box);
    out.push_back(std::move(c.box));
  }
  if (covered == elements(within)) return std::vector<Box>{within};
  return out;
}

Box first_gap(const Box& box, const std::vector<Box>& boxes) {
  std::vector<Box> left{box};
  for (const Box& b : boxes) {
    std::vector<Box> next;
    for (Box& l : left) {
      if (!meet(l, b)) {
        next.push_back(std::move(l));
        continue;
      }
      // Peel off the slabs of l outside b, factor by factor.
      for (std::size_t k = 0; k < l.size(); ++k) {
        for (Interval out : {Interval{l[k].lo, b[k].lo}, Interval{b[k].hi, l[k].hi}}) {
          if (out.empty()) continue;
          next.push_back(l);
          next.back()[k] = out;
        }
        l[k] = intersect(l[k], b[k]);
      }
    }
    left = std::move(next);
  }
  return left.empty() ? Box(box.size()) : left.front();
}

}  // namespace refit::plan
