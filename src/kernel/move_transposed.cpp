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

constexpr std::int64_t kDirectRows = 64;  // of a strip, where the turning body streams whole lines itself; more are slower

std::int64_t line_offset(const char* p) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(kLine));
}

// The matrix: rows run along the destination (loop count-1), columns along the source (loop count-2).
struct Matrix {
  const Loop& rows;
  const Loop& columns;
  std::int64_t item, strip, head, strips;
  bool direct;  // the turning body writes the destination itself, where a strip starts at a line's start
};

Matrix matrix_of(const Loops& loops) {
  const Loop& rows = loops.inner();
  const Loop& columns = loops.loop[static_cast<std::size_t>(loops.count - 2)];
  const std::int64_t past = line_offset(loops.dst);
  const bool borders = past % loops.wire_item == 0;
  const bool direct = ops().transpose_strip != nullptr && borders && columns.dst % kLine == 0;
  const std::int64_t strip = std::min({kBurst / loops.wire_item, Keyer::kMaxRows, direct ? kDirectRows : kBurst});
  // A first, shorter strip brings the others to a line's start, where destination rows agree on one.
  const std::int64_t head = borders ? std::min((kLine - past) % kLine / loops.wire_item, rows.extent) : 0;
  return {rows, columns, loops.wire_item, strip, head, (head > 0) + ceil_div(rows.extent - head, strip), direct};
}

class TransposeMover {
 public:
  TransposeMover(const Loops& loops, const Matrix& m, bool large, Moved& out)
      : loops_(loops), m_(m), ops_(ops()), large_(large), out_(out), keyer_(loops, m.columns, &m.rows) {}

  void strip(const Odometer& at, std::int64_t s) {
    const bool in_head = m_.head > 0 && s == 0;
    const std::int64_t first = in_head ? 0 : m_.head + (s - (m_.head > 0)) * m_.strip;
    const std::int64_t rows = in_head ? m_.head : std::min(m_.strip, m_.rows.extent - first);
    const bool direct = m_.direct && line_offset(at.dst() + first * m_.item) == 0;
    const std::int64_t wide = (direct ? kStripWide : kWide) / m_.item;
    // First column block up to a line border of the source, so that each later one reads whole lines.
    const std::int64_t past = line_offset(at.src());
    std::int64_t take = past % m_.item == 0 ? wide - past / m_.item : wide;
    for (std::int64_t c = 0; c < m_.columns.extent; take = wide) {
      if (direct && large_ && loops_.keys == nullptr && take == wide && m_.columns.extent - c >= wide) {
        c += whole_blocks(at, first, rows, c, wide);
        continue;
      }
      take = std::min(take, m_.columns.extent - c);
      tile(at, first, rows, c, take, direct);
      c += take;
    }
    out_.elements += rows * m_.columns.extent;
  }

 private:
  // All whole blocks from column c on in one call; how many columns that were.
  std::int64_t whole_blocks(const Odometer& at, std::int64_t r, std::int64_t rows, std::int64_t c, std::int64_t wide) {
    const std::int64_t columns = (m_.columns.extent - c) / wide * wide;
    ops_.transpose_strip({.dst = at.dst() + r * m_.item + c * m_.columns.dst,
                          .dst_pitch = m_.columns.dst,
                          .src = at.src() + r * m_.rows.src + c * m_.item,
                          .src_pitch = m_.rows.src,
                          .rows = rows,
                          .columns = columns,
                          .item = m_.item,
                          .stream = true},
                         packed_);
    return columns;
  }

  void tile(const Odometer& at, std::int64_t r, std::int64_t rows, std::int64_t c, std::int64_t columns, bool direct) {
    Prefetch ahead;
    if (large_) ahead = direct ? Prefetch{kStripWide, false} : Prefetch{kRowsAhead * m_.rows.src, true};
    const std::int64_t pitch = direct ? kStripPitch : kPitch;
    ops_.copy_rows({.dst = packed_,
                    .dst_pitch = pitch,
                    .src = at.src() + r * m_.rows.src + c * m_.item,
                    .src_pitch = m_.rows.src,
                    .rows = rows,
                    .bytes = columns * m_.item,
                    .stream = false,
                    .prefetch = ahead});
    if (loops_.keys != nullptr)
      keyer_.digest(
          ops_, out_.acc, at,
          {.row = r, .rows = rows, .column = c, .n = columns, .data = packed_, .pitch = pitch, .prefetch = {}});
    const Tile whole{.dst = at.dst() + r * m_.item + c * m_.columns.dst,
               .dst_pitch = m_.columns.dst,
               .src = packed_,
               .src_pitch = pitch,
               .rows = rows,
               .columns = columns,
               .item = m_.item,
               .stream = direct && large_};
    if (direct || !large_) return ops_.transpose_tile(whole);
    for (std::int64_t done = 0, take = kTurn / m_.item; done < columns; done += take) {
      Tile part = whole;
      part.dst += done * m_.columns.dst;
      part.src += done * m_.item;
      part.columns = std::min(take, columns - done);
      burst(part);
    }
  }

  // Turned in L1, then written row by row.
  void burst(const Tile& part) {
    Tile inner = part;
    inner.dst = turned_;
    inner.dst_pitch = kBurst;
    ops_.transpose_tile(inner);
    ops_.copy_rows({.dst = part.dst,
                    .dst_pitch = part.dst_pitch,
                    .src = turned_,
                    .src_pitch = kBurst,
                    .rows = part.columns,
                    .bytes = part.rows * part.item,
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
