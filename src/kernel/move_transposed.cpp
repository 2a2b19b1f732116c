// Transposes by strips of destination columns: whole source lines go into a packed tile, tiles are digested in L1 and
// leave as whole destination lines.
#include <algorithm>

#include "kernel/keyer.h"
#include "kernel/movers.h"

namespace refit::kernel {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kStripRows = 128;

// The matrix: rows run along the destination (loop count-1), columns along the source (loop count-2).
struct Matrix {
  const Loop& rows;
  const Loop& columns;
  std::int64_t item, head, strips;
  bool lines;  // destination rows start alike within a line, so that whole lines can be streamed
};

Matrix matrix_of(const Loops& loops) {
  const Loop& rows = loops.inner();
  const Loop& columns = loops.loop[static_cast<std::size_t>(loops.count - 2)];
  bool lines = columns.dst % kLine == 0;
  for (int k = 0; k + 2 < loops.count; ++k) lines = lines && loops.loop[static_cast<std::size_t>(k)].dst % kLine == 0;
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(loops.dst) % kLine);
  lines = lines && past % loops.wire_item == 0;
  // A first, shorter strip brings the others to a line's start.
  std::int64_t head = lines ? (kLine - past) % kLine / loops.wire_item : 0;
  head = std::min(head, rows.extent);
  return {rows, columns, loops.wire_item, head, (head > 0) + ceil_div(rows.extent - head, kStripRows), lines};
}

class TransposeMover {
 public:
  TransposeMover(const Loops& loops, const Matrix& m, bool large, Moved& out)
      : loops_(loops), m_(m), ops_(ops()), large_(large), out_(out), keyer_(loops, m.columns, &m.rows) {}

  void strip(const Odometer& at, std::int64_t s) {
    const bool in_head = m_.head > 0 && s == 0;
    const std::int64_t first = in_head ? 0 : m_.head + (s - (m_.head > 0)) * kStripRows;
    const std::int64_t rows = in_head ? m_.head : std::min(kStripRows, m_.rows.extent - first);
    const std::int64_t wide = kLine / m_.item;
    // First column block up to a line border of the source, so that each later one reads whole lines.
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at.src()) % kLine);
    std::int64_t take = past % m_.item == 0 ? wide - past / m_.item : wide;
    for (std::int64_t c = 0; c < m_.columns.extent; take = wide) {
      take = std::min(take, m_.columns.extent - c);
      tile(at, first, rows, c, take);
      c += take;
    }
    out_.elements += rows * m_.columns.extent;
  }

 private:
  void tile(const Odometer& at, std::int64_t r, std::int64_t rows, std::int64_t c, std::int64_t columns) {
    const char* src = at.src() + r * m_.rows.src + c * m_.item;
    char* dst = at.dst() + r * m_.item + c * m_.columns.dst;
    ops_.copy_rows({.dst = packed_, .dst_pitch = kLine, .src = src, .src_pitch = m_.rows.src, .rows = rows, .bytes = columns * m_.item,
                    .stream = false, .prefetch = large_ ? Prefetch{kLine, false} : Prefetch{}});
    if (loops_.keys != nullptr)
      keyer_.digest(ops_, out_.acc, at, {.row = r, .rows = rows, .column = c, .n = columns, .data = packed_, .pitch = kLine, .prefetch = {}});
    const std::int64_t whole = large_ && m_.lines && !(m_.head > 0 && r == 0) ? rows * m_.item / kLine * kLine / m_.item : 0;
    if (whole > 0)
      ops_.transpose_tile({.dst = dst, .dst_pitch = m_.columns.dst, .src = packed_, .src_pitch = kLine, .rows = whole, .columns = columns, .item = m_.item, .stream = true});
    if (whole < rows)
      ops_.transpose_tile({.dst = dst + whole * m_.item, .dst_pitch = m_.columns.dst, .src = packed_ + whole * kLine, .src_pitch = kLine,
                           .rows = rows - whole, .columns = columns, .item = m_.item, .stream = false});
  }

  const Loops& loops_;
  const Matrix& m_;
  const Ops& ops_;
  bool large_;
  Moved& out_;
  Keyer keyer_;
  alignas(64) char packed_[kStripRows * kLine];
};

}  // namespace

std::int64_t transpose_units(const Loops& loops) { return loops.product(loops.count - 2) * matrix_of(loops).strips; }

void move_transposed(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out) {
  const Matrix m = matrix_of(loops);
  TransposeMover mover(loops, m, large, out);
  for (std::int64_t u = first; u < last; ++u) mover.strip(Odometer(loops, loops.count - 2, u / m.strips), u % m.strips);
}

}  // namespace refit::kernel
