// Transposes by strips of destination columns: whole source lines go into a packed tile, tiles are digested in L1 and
// leave as whole destination lines.
#include <algorithm>

#include "kernel/keyer.h"
#include "kernel/movers.h"

namespace refit::kernel {
namespace {

// Bytes written to one destination row at a time. Streaming stores that hop between rows after every line run at a
// quarter of the speed here: bursts of several lines are what matters.
constexpr std::int64_t kBurst = 512;
// Bytes read from one source row at a time (into L2), and turned at a time (in L1). Reading single lines at the pitch
// of a row is far slower than runs of this length.
constexpr std::int64_t kWide = 1024;
constexpr std::int64_t kPitch = kWide + kLine;  // rows of a tile must not all meet in the same cache sets
constexpr std::int64_t kTurn = kLine;
constexpr std::int64_t kRowsAhead = 4;

// The matrix: rows run along the destination (loop count-1), columns along the source (loop count-2).
struct Matrix {
  const Loop& rows;
  const Loop& columns;
  std::int64_t item, strip, head, strips;
};

Matrix matrix_of(const Loops& loops) {
  const Loop& rows = loops.inner();
  const Loop& columns = loops.loop[static_cast<std::size_t>(loops.count - 2)];
  const std::int64_t strip = std::min(kBurst / loops.wire_item, Keyer::kMaxRows);
  // A first, shorter strip brings the others to a line's start, where destination rows agree on one.
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(loops.dst) % kLine);
  const std::int64_t head =
      past % loops.wire_item == 0 ? std::min((kLine - past) % kLine / loops.wire_item, rows.extent) : 0;
  return {rows, columns, loops.wire_item, strip, head, (head > 0) + ceil_div(rows.extent - head, strip)};
}

class TransposeMover {
 public:
  TransposeMover(const Loops& loops, const Matrix& m, bool large, Moved& out)
      : loops_(loops), m_(m), ops_(ops()), large_(large), out_(out), keyer_(loops, m.columns, &m.rows) {}

  void strip(const Odometer& at, std::int64_t s) {
    const bool in_head = m_.head > 0 && s == 0;
    const std::int64_t first = in_head ? 0 : m_.head + (s - (m_.head > 0)) * m_.strip;
    const std::int64_t rows = in_head ? m_.head : std::min(m_.strip, m_.rows.extent - first);
    const std::int64_t wide = kWide / m_.item;
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
    const Prefetch ahead = large_ ? Prefetch{kRowsAhead * m_.rows.src, true} : Prefetch{};
    ops_.copy_rows({.dst = packed_,
                    .dst_pitch = kPitch,
                    .src = at.src() + r * m_.rows.src + c * m_.item,
                    .src_pitch = m_.rows.src,
                    .rows = rows,
                    .bytes = columns * m_.item,
                    .stream = false,
                    .prefetch = ahead});
    if (loops_.keys != nullptr)
      keyer_.digest(
          ops_, out_.acc, at,
          {.row = r, .rows = rows, .column = c, .n = columns, .data = packed_, .pitch = kPitch, .prefetch = {}});
    for (std::int64_t done = 0, take = kTurn / m_.item; done < columns; done += take)
      turn(at.dst() + r * m_.item + (c + done) * m_.columns.dst, packed_ + done * m_.item, rows,
           std::min(take, columns - done));
  }

  void turn(char* dst, const char* packed, std::int64_t rows, std::int64_t columns) {
    Tile tile{.dst = dst,
              .dst_pitch = m_.columns.dst,
              .src = packed,
              .src_pitch = kPitch,
              .rows = rows,
              .columns = columns,
              .item = m_.item};
    if (!large_) return ops_.transpose_tile(tile);
    tile.dst = turned_;
    tile.dst_pitch = kBurst;
    ops_.transpose_tile(tile);
    ops_.copy_rows({.dst = dst,
                    .dst_pitch = m_.columns.dst,
                    .src = turned_,
                    .src_pitch = kBurst,
                    .rows = columns,
                    .bytes = rows * m_.item,
                    .stream = true,
                    .prefetch = {}});
  }

  const Loops& loops_;
  const Matrix& m_;
  const Ops& ops_;
  bool large_;
  Moved& out_;
  Keyer keyer_;
  alignas(64) char packed_[Keyer::kMaxRows * kPitch];
  alignas(64) char turned_[kBurst * kTurn];
};

}  // namespace

std::int64_t transpose_units(const Loops& loops) { return loops.product(loops.count - 2) * matrix_of(loops).strips; }

void move_transposed(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out) {
  const Matrix m = matrix_of(loops);
  TransposeMover mover(loops, m, large, out);
  for (std::int64_t u = first; u < last; ++u) mover.strip(Odometer(loops, loops.count - 2, u / m.strips), u % m.strips);
}

}  // namespace refit::kernel
