#include "kernel/loops.h"

#include <algorithm>
#include <cstdlib>

namespace refit::kernel {
namespace {

// Loops of extent 1 carry no stride; their axes keep their origin.
void take_loops(const Job& job, bool digest, Loops& out) {
  REFIT_CHECK(job.extents.size() <= kMaxLoops && job.src_strides.size() == job.extents.size());
  REFIT_CHECK(job.dst == nullptr || job.dst_strides.size() == job.extents.size());
  REFIT_CHECK(!digest || (job.axis.size() == job.extents.size() && job.steps.size() == job.extents.size() &&
                          job.origin.size() == out.keys->key_axis.size()));
  std::array<int, kMaxLoops> logical{};  // logical axis behind each of out.axes
  for (std::size_t k = 0; k < job.extents.size(); ++k) {
    if (job.extents[k] == 1) continue;
    Loop& loop = out.loop[static_cast<std::size_t>(out.count++)];
    loop = Loop{job.extents[k], job.src_strides[k], job.dst == nullptr ? 0 : job.dst_strides[k], -1, 0};
    if (!digest) continue;
    const int a = job.axis[k];
    REFIT_CHECK(a >= 0 && static_cast<std::size_t>(a) < job.origin.size());
    const int key_axis = out.keys->key_axis[static_cast<std::size_t>(a)];
    if (key_axis < 0) continue;
    const auto* const end = logical.begin() + out.axis_count;
    const auto* const known = std::find(logical.cbegin(), static_cast<decltype(logical)::const_iterator>(end), a);
    loop.axis = static_cast<int>(known - logical.cbegin());
    loop.step = job.steps[k];
    if (known == end) {
      logical[static_cast<std::size_t>(out.axis_count)] = a;
      out.axes[static_cast<std::size_t>(out.axis_count++)] = Axis{key_axis, job.origin[static_cast<std::size_t>(a)]};
    }
  }
  if (!digest) return;
  for (std::size_t a = 0; a < job.origin.size(); ++a) {
    const int key_axis = out.keys->key_axis[a];
    const auto* const end = logical.cbegin() + out.axis_count;
    if (key_axis < 0 || std::find(logical.cbegin(), end, static_cast<int>(a)) != end) continue;
    const Words key = out.keys->keys(key_axis, job.origin[a]);
    for (std::size_t w = 0; w < kWords; ++w) out.constant[w] *= key[w];
  }
}

// Makes strides positive on the side that is written (or read, when nothing is written).
void flip(Loops& out) {
  for (int k = 0; k < out.count; ++k) {
    Loop& loop = out.loop[static_cast<std::size_t>(k)];
    if ((out.dst != nullptr ? loop.dst : loop.src) >= 0) continue;
    const std::int64_t last = loop.extent - 1;
    out.src += last * loop.src;
    if (out.dst != nullptr) out.dst += last * loop.dst;
    if (loop.axis >= 0) out.axes[static_cast<std::size_t>(loop.axis)].base += last * loop.step;
    loop.src = -loop.src;
    loop.dst = -loop.dst;
    loop.step = -loop.step;
  }
}

void merge(Loops& out) {
  int kept = 0;
  for (int k = 1; k < out.count; ++k) {
    Loop& outer = out.loop[static_cast<std::size_t>(kept)];
    const Loop& inner = out.loop[static_cast<std::size_t>(k)];
    const bool same_axis = outer.axis == inner.axis && outer.step == inner.step * inner.extent;
    if (same_axis && outer.src == inner.src * inner.extent && outer.dst == inner.dst * inner.extent)
      outer = Loop{outer.extent * inner.extent, inner.src, inner.dst, inner.axis, inner.step};
    else
      out.loop[static_cast<std::size_t>(++kept)] = inner;
  }
  out.count = kept + 1;
}

// Moves loop k to place `to` (≥ k), keeping the order of the others.
void move_in(Loops& out, int k, int to) {
  std::rotate(out.loop.begin() + k, out.loop.begin() + k + 1, out.loop.begin() + to + 1);
}

int find_src_contiguous(const Loops& out) {
  for (int k = out.count - 1; k >= 0; --k)
    if (out.loop[static_cast<std::size_t>(k)].src == out.src_item) return k;
  return -1;
}

void choose_shape(Loops& out) {
  constexpr std::int64_t kLeastTile = 8;  // thinner matrices gain nothing from tiles
  const bool writes = out.dst != nullptr;
  const int along_src = find_src_contiguous(out);
  if (writes && out.inner().dst != out.dst_item && along_src >= 0) move_in(out, along_src, out.count - 1);
  const Loop& inner = out.inner();
  const bool src_runs = inner.src == out.src_item, dst_runs = !writes || inner.dst == out.dst_item;
  if (out.casts()) {
    out.shape = Shape::kItems;
  } else if (src_runs && dst_runs) {
    out.shape = Shape::kRuns;
  } else if (writes && dst_runs && along_src >= 0 && inner.extent >= kLeastTile &&
             out.loop[static_cast<std::size_t>(along_src)].extent >= kLeastTile) {
    move_in(out, along_src, out.count - 2);
    out.shape = Shape::kTranspose;
  } else {
    out.shape = Shape::kItems;
  }
}

}  // namespace

std::int64_t Loops::product(int end) const {
  std::int64_t p = 1;
  for (int k = 0; k < end; ++k) p *= loop[static_cast<std::size_t>(k)].extent;
  return p;
}

std::int64_t job_elements(const Job& job) {
  std::int64_t n = 1;
  for (const std::int64_t e : job.extents) n *= e;
  return n;
}

namespace {
// Addresses, types and loops as the job has them; false when there is nothing to do.
bool begin(const Job& job, bool digest, Loops& out) {
  out.src = static_cast<const char*>(job.src);
  out.dst = static_cast<char*>(job.dst);
  out.src_dtype = job.src_dtype;
  out.wire_dtype = job.wire_dtype;
  out.dst_dtype = job.dst_dtype;
  out.src_item = item_size(job.src_dtype);
  out.wire_item = item_size(job.wire_dtype);
  out.dst_item = item_size(job.dst_dtype);
  if (digest) out.keys = &job.keys->impl();
  if (job_elements(job) == 0) return false;
  take_loops(job, digest, out);
  if (out.count == 0)
    out.loop[static_cast<std::size_t>(out.count++)] =
        Loop{1, out.src_item, out.dst == nullptr ? 0 : out.dst_item, -1, 0};
  return true;
}
}  // namespace

Loops normalise(const Job& job, bool digest) {
  Loops out;
  if (!begin(job, digest, out)) return out;
  flip(out);
  const bool writes = out.dst != nullptr;
  std::stable_sort(out.loop.begin(), out.loop.begin() + out.count, [writes](const Loop& a, const Loop& b) {
    const std::int64_t a1 = writes ? a.dst : a.src, b1 = writes ? b.dst : b.src;
    return a1 != b1 ? a1 > b1 : std::abs(a.src) > std::abs(b.src);
  });
  merge(out);
  choose_shape(out);
  return out;
}

Loops in_order(const Job& job, bool digest) {
  Loops out;
  if (!begin(job, digest, out)) return out;
  merge(out);
  out.shape = Shape::kItems;
  return out;
}

Odometer::Odometer(const Loops& loops, int end, std::int64_t start)
    : loops_(loops), end_(end), src_(loops.src), dst_(loops.dst) {
  for (int a = 0; a < loops.axis_count; ++a)
    index_[static_cast<std::size_t>(a)] = loops.axes[static_cast<std::size_t>(a)].base;
  for (int k = end; k-- > 0 && start != 0;) {
    const std::int64_t extent = loops.loop[static_cast<std::size_t>(k)].extent;
    // The outermost loop may stand one past its end: the caller then takes nothing more.
    move(k, k == 0 ? start : start % extent);
    start = k == 0 ? 0 : start / extent;
  }
}

std::int64_t Odometer::left() const {
  if (end_ == 0) return 1;
  const auto last = static_cast<std::size_t>(end_ - 1);
  return loops_.loop[last].extent - at_[last];
}

void Odometer::move(int loop, std::int64_t by) {
  const Loop& l = loops_.loop[static_cast<std::size_t>(loop)];
  at_[static_cast<std::size_t>(loop)] += by;
  src_ += by * l.src;
  if (dst_ != nullptr) dst_ += by * l.dst;
  if (l.axis >= 0) index_[static_cast<std::size_t>(l.axis)] += by * l.step;
}

void Odometer::advance(std::int64_t n) {
  if (end_ == 0) return;
  move(end_ - 1, n);
  for (int k = end_ - 1; k > 0; --k) {
    const std::int64_t extent = loops_.loop[static_cast<std::size_t>(k)].extent;
    if (at_[static_cast<std::size_t>(k)] < extent) return;
    move(k, -extent);
    move(k - 1, 1);
  }
}

}  // namespace refit::kernel
