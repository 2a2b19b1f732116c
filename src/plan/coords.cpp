#include "plan/coords.h"

#include <algorithm>
#include <functional>
#include <set>

namespace refit::plan {
namespace {

// A factor of one shard: [lo, hi) of radix digits, each worth `step` logical indices and `stride` bytes.
struct Factor {
  std::int64_t radix = 1, step = 1, lo = 0, hi = 1, stride = 0;
};
using Axis = std::vector<Factor>;  // outermost first, radices above 1

// Neighbours whose strides nest become one factor, so that only true interleaving is left.
Axis simplify(const Axis& in) {
  Axis out;
  for (const Factor& f : in) {
    if (f.radix == 1) continue;
    out.push_back(f);
    while (out.size() > 1) {
      Factor& outer = out[out.size() - 2];
      const Factor& inner = out.back();
      const bool single = outer.hi - outer.lo == 1;
      std::int64_t pitch = 0;
      const bool nests = inner.lo == 0 && inner.hi == inner.radix &&
                         !__builtin_mul_overflow(inner.radix, inner.stride, &pitch) && pitch == outer.stride;
      if (!single && !nests) break;
      const std::int64_t lo = outer.lo * inner.radix + inner.lo;
      const std::int64_t hi = (outer.hi - 1) * inner.radix + inner.hi;
      outer = {outer.radix * inner.radix, inner.step, lo, hi, inner.stride};
      out.pop_back();
    }
  }
  return out;
}

std::vector<Axis> axes_of(const model::PatternShard& shard) {
  std::vector<Axis> out;
  const Dims steps = shard.view.steps();
  std::size_t k = 0;
  for (const Dims& radices : shard.view.radices) {
    Axis axis;
    for (std::int64_t r : radices) {
      axis.push_back({r, steps[k], shard.box[k].lo, shard.box[k].hi, shard.strides[k]});
      ++k;
    }
    out.push_back(simplify(axis));
  }
  return out;
}

// Sorted suffix products, if each divides the next.
bool chain(const std::set<std::int64_t>& products) {
  std::int64_t last = 1;
  for (std::int64_t p : products) {
    if (p % last != 0) return false;
    last = p;
  }
  return true;
}

void add_axis(Coords& c, int axis, const std::set<std::int64_t>& products) {
  std::vector<std::int64_t> sorted(products.begin(), products.end());
  for (std::size_t i = sorted.size(); i-- > 1;) {
    c.extents.push_back(sorted[i] / sorted[i - 1]);
    c.axis.push_back(axis);
    c.steps.push_back(sorted[i - 1]);
  }
}

// One axis of a box: an interval per factor of that axis, and where its first element lies.
struct Part {
  Box box;
  std::int64_t delta = 0;
};

// [lo, hi) of a mixed-radix number as boxes of its digits: head, body and tail at each level, at most 2m-1.
void digits(std::int64_t lo, std::int64_t hi, std::span<const std::int64_t> radices, const Box& head,
            std::vector<Box>& out) {
  const auto grow = [&](Interval i) {
    Box b = head;
    b.push_back(i);
    return b;
  };
  if (lo >= hi) return;
  if (radices.size() == 1) return out.push_back(grow({lo, hi}));
  const auto rest = radices.subspan(1);
  std::int64_t inner = 1;
  for (std::int64_t r : rest) inner *= r;
  std::int64_t first = lo / inner;
  const std::int64_t last = hi / inner;
  if (first == last) return digits(lo - first * inner, hi - first * inner, rest, grow({first, first + 1}), out);
  if (lo % inner) {
    digits(lo - first * inner, inner, rest, grow({first, first + 1}), out);
    ++first;
  }
  if (first < last) {
    Box b = grow({first, last});
    for (std::int64_t r : rest) b.push_back({0, r});
    out.push_back(std::move(b));
  }
  if (hi % inner) digits(0, hi - last * inner, rest, grow({last, last + 1}), out);
}

bool multiply(const std::vector<Part>& a, const std::vector<Part>& b, std::vector<Part>& out) {
  if (a.size() * b.size() > kMaxBoxes) return false;
  for (const Part& x : a)
    for (const Part& y : b) {
      out.push_back(x);
      out.back().box.insert(out.back().box.end(), y.box.begin(), y.box.end());
      out.back().delta += y.delta;
    }
  return true;
}

// Parts of one factor over its sub-factors (extents, outermost first).
std::vector<Part> refine(const Factor& f, std::span<const std::int64_t> extents) {
  std::vector<Box> boxes;
  digits(f.lo, f.hi, extents, {}, boxes);
  std::vector<Part> out;
  for (Box& b : boxes) {
    std::int64_t at = 0;
    for (std::size_t k = 0; k < b.size(); ++k) at = at * extents[k] + b[k].lo;
    out.push_back({std::move(b), (at - f.lo) * f.stride});
  }
  return out;
}

// An axis whose factorings do not nest: maximal runs of consecutive indices at the innermost stride.
bool sweep(const Axis& axis, std::vector<Part>& out) {
  const Factor& inner = axis.back();
  std::size_t runs = 1;
  for (std::size_t k = 0; k + 1 < axis.size(); ++k) {
    runs *= static_cast<std::size_t>(axis[k].hi - axis[k].lo);
    if (runs > kMaxBoxes) return false;
  }
  std::function<void(std::size_t, std::int64_t, std::int64_t)> walk = [&](std::size_t k, std::int64_t index,
                                                                          std::int64_t delta) {
    if (k + 1 == axis.size()) {
      const Interval run{index + inner.lo, index + inner.hi};
      const bool joins = !out.empty() && out.back().box[0].hi == run.lo &&
                         out.back().delta + out.back().box[0].size() * inner.stride == delta;
      if (joins)
        out.back().box[0].hi = run.hi;
      else
        out.push_back({{run}, delta});
      return;
    }
    for (std::int64_t d = axis[k].lo; d < axis[k].hi; ++d)
      walk(k + 1, index + d * axis[k].step, delta + (d - axis[k].lo) * axis[k].stride);
  };
  walk(0, 0, 0);
  return true;
}

// The parts of one axis of one shard, and its strides in common coordinates. `first`/`count`: that axis' factors.
bool place_axis(const Axis& axis, const Coords& c, std::size_t first, std::size_t count, bool swept,
                std::vector<Part>& parts, Dims& strides) {
  parts.assign(1, {});
  if (count == 0) return true;
  if (swept) {
    parts.clear();
    strides.push_back(axis.back().stride);
    return sweep(axis, parts);
  }
  std::size_t k = first;
  for (const Factor& f : axis) {
    const std::size_t begin = k;
    for (std::int64_t product = 1; product < f.radix; ++k) product *= c.extents[k];
    const std::span<const std::int64_t> extents(c.extents.data() + begin, k - begin);
    std::vector<Part> next;
    if (!multiply(parts, refine(f, extents), next)) return false;
    parts = std::move(next);
    // Wrapping: where this overflows the box has one index on that factor, and the stride is never used.
    for (std::size_t j = begin; j < k; ++j)
      strides.push_back(static_cast<std::int64_t>(static_cast<std::uint64_t>(c.steps[j] / f.step) *
                                                  static_cast<std::uint64_t>(f.stride)));
  }
  return true;
}

bool empty_shard(const model::PatternShard& s) { return empty(s.box); }

}  // namespace

Dims Coords::origin(const Box& box) const {
  Dims out(static_cast<std::size_t>(axes), 0);
  for (std::size_t k = 0; k < box.size(); ++k) out[static_cast<std::size_t>(axis[k])] += box[k].lo * steps[k];
  return out;
}

std::string Coords::text(const Box& box) const {
  std::string out = "[";
  std::size_t k = 0;
  for (int a = 0; a < axes; ++a) {
    if (a) out += ", ";
    if (k == box.size() || axis[k] != a) out += "[0, 1)";
    for (bool more = false; k < box.size() && axis[k] == a; ++k, more = true)
      out += std::string(more ? "x" : "") + "[" + std::to_string(box[k].lo) + ", " + std::to_string(box[k].hi) + ")";
  }
  return out + "]";
}

Coords common_coords(const Dims& shape, const Composite& source, const Composite& target) {
  Coords c;
  c.axes = static_cast<int>(shape.size());
  std::vector<std::set<std::int64_t>> products(shape.size());
  for (std::size_t a = 0; a < shape.size(); ++a) products[a] = {1, std::max<std::int64_t>(shape[a], 1)};
  for (const Composite* side : {&source, &target})
    for (const model::Pattern* p : *side)
      for (const model::PatternShard& s : p->shards) {
        if (empty_shard(s)) continue;
        const auto axes = axes_of(s);
        for (std::size_t a = 0; a < axes.size(); ++a)
          for (const Factor& f : axes[a]) products[a].insert(f.step);
      }
  std::size_t factors = 0;
  for (std::size_t a = 0; a < shape.size(); ++a) {
    const bool nests = chain(products[a]) && factors + products[a].size() - 1 <= static_cast<std::size_t>(kMaxFactors);
    c.swept.push_back(!nests);
    if (!nests) products[a] = {1, shape[a]};
    add_axis(c, static_cast<int>(a), products[a]);
    factors = c.extents.size();
  }
  return c;
}

Result<Flats> flatten(const Composite& side, const Coords& coords) {
  Flats out;
  for (std::uint32_t m = 0; m < side.size(); ++m) {
    out.strides.emplace_back(side[m]->shards.size());
    for (std::uint32_t s = 0; s < side[m]->shards.size(); ++s) {
      const model::PatternShard& shard = side[m]->shards[s];
      if (empty_shard(shard)) continue;
      const auto axes = axes_of(shard);
      std::vector<Part> parts(1);
      std::size_t first = 0;
      bool fits = true;
      for (std::size_t a = 0; a < axes.size() && fits; ++a) {
        std::size_t count = 0;
        while (first + count < coords.factors() && coords.axis[first + count] == static_cast<int>(a)) ++count;
        std::vector<Part> mine, next;
        fits = place_axis(axes[a], coords, first, count, coords.swept[a], mine, out.strides[m][s]) &&
               multiply(parts, mine, next);
        parts = std::move(next);
        first += count;
      }
      if (!fits || out.boxes.size() + parts.size() > kMaxBoxes)
        return Error(Code::kExhausted,
                     "its views do not nest and fall into more than " + std::to_string(kMaxBoxes) + " boxes")
            .amounts(static_cast<std::int64_t>(kMaxBoxes) + 1, kMaxBoxes);
      for (Part& p : parts) out.boxes.push_back({m, s, std::move(p.box), p.delta});
    }
  }
  return out;
}

}  // namespace refit::plan
