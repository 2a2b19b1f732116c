#include <algorithm>

#include "kernel/keyer.h"
#include "kernel/movers.h"

namespace refit::kernel {
namespace {

constexpr std::int64_t kPartBytes = 256 << 10;  // very long runs are cut for the sake of threads
constexpr std::int64_t kChunkBytes = 4 << 10;   // digested, then copied out of L1
constexpr std::int64_t kFusedBytes = 64 << 10;  // digested, or digested and copied from registers: only keys stay in L1
constexpr std::int64_t kLeastFused = 256;       // shorter rows are mostly partial lines
constexpr std::int64_t kLongRun = 64 << 10;     // from here a run is its own best prefetcher
constexpr std::int64_t kNearDelta = 512;        // a plain copy; digesting bodies wait for more and look further ahead:
constexpr std::int64_t kFusedDelta = 2048;
constexpr std::int64_t kDigestDelta = 8192;
constexpr std::int64_t kFarBytes = 8 << 10;  // how much of the next rows to have under way

struct Parts {
  std::int64_t per_row = 1, elements = 0;
};

Parts parts_of(const Loops& loops) {
  const std::int64_t n = loops.inner().extent, bytes = n * loops.wire_item;
  if (bytes < 2 * kPartBytes) return {1, n};
  const std::int64_t elements = kPartBytes / loops.wire_item;
  return {ceil_div(n, elements), elements};
}

Prefetch prefetch_of(const Loops& loops, std::int64_t bytes, bool large) {
  if (!large) return {};
  const std::int64_t pitch = loops.count < 2 ? bytes : loops.loop[static_cast<std::size_t>(loops.count - 2)].src;
  if (bytes >= kLongRun || pitch == bytes) return {kNearDelta, true};
  return {pitch * std::clamp<std::int64_t>(kFarBytes / std::max<std::int64_t>(bytes, 1), 1, 8), false};
}

class RunMover {
 public:
  RunMover(const Loops& loops, bool large, Moved& out)
      : loops_(loops),
        ops_(ops()),
        large_(large),
        out_(out),
        row_(loops.count < 2 ? nullptr : &loops.loop[static_cast<std::size_t>(loops.count - 2)]),
        keyer_(loops, loops.inner(), row_),
        prefetch_(prefetch_of(loops, loops.inner().extent * loops.wire_item, large)) {}

  void block(const Odometer& at, std::int64_t rows, std::int64_t column, std::int64_t n) {
    out_.elements += rows * n;
    if (loops_.keys == nullptr) {
      copy(at, 0, rows, column, n, prefetch_);
      return;
    }
    const std::int64_t bytes = n * loops_.wire_item;
    if (bytes < kChunkBytes && keyer_.takes_rows()) {
      const std::int64_t together = std::clamp<std::int64_t>(kChunkBytes / bytes, 1, Keyer::kMaxRows);
      const bool fused = dst_pitch() % kLine == 0 && fusable(at, 0, column) && bytes >= kLeastFused;
      for (std::int64_t r = 0; r < rows; r += together) chunk(at, r, std::min(together, rows - r), column, n, fused);
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r) row(at, r, column, n);
  }

 private:
  std::int64_t src_pitch() const { return row_ == nullptr ? 0 : row_->src; }
  std::int64_t dst_pitch() const { return row_ == nullptr ? 0 : row_->dst; }

  // Chunks end on the destination's line borders, so that no line is written in two halves. From such a border on the
  // digest body can copy too, and chunks may be long.
  void row(const Odometer& at, std::int64_t r, std::int64_t column, std::int64_t n) {
    const std::int64_t item = loops_.wire_item;
    std::int64_t past = 0;
    if (loops_.dst != nullptr) past = past_line(at.dst() + r * dst_pitch() + column * item);
    if (past % item != 0) past = 0;
    for (std::int64_t done = 0; done < n;) {
      const bool fused = fusable(at, r, column + done);
      const bool one_pass = fused || loops_.dst == nullptr;
      const std::int64_t take = std::min(((one_pass ? kFusedBytes : kChunkBytes) - past) / item, n - done);
      chunk(at, r, 1, column + done, take, fused);
      done += take;
      past = 0;
    }
  }

  static std::int64_t past_line(const char* p) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p) % kLine);
  }
  bool fusable(const Odometer& at, std::int64_t r, std::int64_t column) const {
    return large_ && loops_.dst != nullptr && past_line(at.dst() + r * dst_pitch() + column * loops_.wire_item) == 0 &&
           keyer_.may_store(at, column);
  }

  void chunk(const Odometer& at, std::int64_t r, std::int64_t rows, std::int64_t column, std::int64_t n, bool fused) {
    const std::int64_t offset = column * loops_.wire_item;
    Keyer::Block b{.row = r,
                   .rows = rows,
                   .column = column,
                   .n = n,
                   .data = at.src() + r * src_pitch() + offset,
                   .pitch = src_pitch(),
                   .prefetch = prefetch_};
    if (b.prefetch.near && b.prefetch.delta != 0) b.prefetch = {fused ? kFusedDelta : kDigestDelta, fused};
    if (fused) {
      b.store = at.dst() + r * dst_pitch() + offset;
      b.store_pitch = dst_pitch();
    }
    keyer_.digest(ops_, out_.acc, at, b);
    if (loops_.dst != nullptr && !fused) copy(at, r, rows, column, n, {});
  }

  void copy(const Odometer& at, std::int64_t r, std::int64_t rows, std::int64_t column, std::int64_t n,
            Prefetch ahead) {
    const std::int64_t offset = column * loops_.wire_item;
    ops_.copy_rows({.dst = at.dst() + r * dst_pitch() + offset,
                    .dst_pitch = dst_pitch(),
                    .src = at.src() + r * src_pitch() + offset,
                    .src_pitch = src_pitch(),
                    .rows = rows,
                    .bytes = n * loops_.wire_item,
                    .stream = large_,
                    .prefetch = ahead});
  }

  const Loops& loops_;
  const Ops& ops_;
  bool large_;
  Moved& out_;
  const Loop* row_;
  Keyer keyer_;
  Prefetch prefetch_;
};

}  // namespace

std::int64_t run_units(const Loops& loops) { return loops.product(loops.count - 1) * parts_of(loops).per_row; }

void move_runs(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out) {
  const Parts parts = parts_of(loops);
  RunMover mover(loops, large, out);
  if (parts.per_row == 1) {
    Odometer at(loops, loops.count - 1, first);
    for (std::int64_t u = first; u < last;) {
      const std::int64_t rows = std::min(at.left(), last - u);
      mover.block(at, rows, 0, parts.elements);
      at.advance(rows);
      u += rows;
    }
    return;
  }
  for (std::int64_t u = first; u < last;) {
    const std::int64_t row = u / parts.per_row, end = std::min(last, (row + 1) * parts.per_row);
    const std::int64_t column = u % parts.per_row * parts.elements;
    const std::int64_t stop = std::min(loops.inner().extent, (end - row * parts.per_row) * parts.elements);
    mover.block(Odometer(loops, loops.count - 1, row), 1, column, stop - column);
    u = end;
  }
}

std::int64_t unit_count(const Loops& loops) {
  if (loops.shape == Shape::kRuns) return run_units(loops);
  return loops.shape == Shape::kTranspose ? transpose_units(loops) : item_units(loops);
}

void move_units(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out) {
  if (loops.shape == Shape::kRuns)
    move_runs(loops, first, last, large, out);
  else if (loops.shape == Shape::kTranspose)
    move_transposed(loops, first, last, large, out);
  else
    move_items(loops, first, last, out);
}

}  // namespace refit::kernel
