// The general walk: gather into L1, cast, digest, cast, scatter.
#include <algorithm>
#include <cstring>

#include "kernel/cast.h"
#include "kernel/keyer.h"
#include "kernel/movers.h"

namespace refit::kernel {
namespace {

constexpr std::int64_t kChunk = 512;         // elements held in L1 between the steps
constexpr std::int64_t kPart = 64 * kChunk;  // long rows are cut for the sake of threads

template <typename T>
void strided(char* dst, std::int64_t dst_stride, const char* src, std::int64_t src_stride, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, sizeof(T));
}

void move_strided(char* dst, std::int64_t dst_stride, const char* src, std::int64_t src_stride, std::int64_t n,
                  std::int64_t item) {
  if (dst_stride == item && src_stride == item)
    std::memcpy(dst, src, static_cast<std::size_t>(n * item));
  else if (item == 1)
    strided<std::uint8_t>(dst, dst_stride, src, src_stride, n);
  else if (item == 2)
    strided<std::uint16_t>(dst, dst_stride, src, src_stride, n);
  else if (item == 4)
    strided<std::uint32_t>(dst, dst_stride, src, src_stride, n);
  else
    strided<std::uint64_t>(dst, dst_stride, src, src_stride, n);
}

class ItemMover {
 public:
  ItemMover(const Loops& loops, Moved& out)
      : loops_(loops),
        ops_(ops()),
        out_(out),
        keyer_(loops, loops.inner(), nullptr),
        in_(ops_.fast_cast(loops.src_dtype, loops.wire_dtype)),
        out_cast_(ops_.fast_cast(loops.wire_dtype, loops.dst_dtype)) {}

  void chunk(const Odometer& at, std::int64_t column, std::int64_t n) {
    const Loop& inner = loops_.inner();
    const char* data = at.src() + column * inner.src;
    if (inner.src != loops_.src_item) {
      move_strided(gathered_, loops_.src_item, data, inner.src, n, loops_.src_item);
      data = gathered_;
    }
    if (loops_.src_dtype != loops_.wire_dtype) {
      cast(in_, loops_.src_dtype, loops_.wire_dtype, wire_, data, n);
      data = wire_;
    }
    if (loops_.keys != nullptr)
      keyer_.digest(ops_, out_.acc, at,
                    {.row = 0, .rows = 1, .column = column, .n = n, .data = data, .pitch = 0, .prefetch = {}});
    out_.elements += n;
    if (loops_.dst == nullptr) return;
    char* dst = at.dst() + column * inner.dst;
    if (loops_.wire_dtype == loops_.dst_dtype) {
      move_strided(dst, inner.dst, data, loops_.wire_item, n, loops_.dst_item);
    } else if (inner.dst == loops_.dst_item) {
      cast(out_cast_, loops_.wire_dtype, loops_.dst_dtype, dst, data, n);
    } else {
      cast(out_cast_, loops_.wire_dtype, loops_.dst_dtype, scattered_, data, n);
      move_strided(dst, inner.dst, scattered_, loops_.dst_item, n, loops_.dst_item);
    }
  }

 private:
  using Cast = bool (*)(void*, const void*, std::int64_t);
  void cast(Cast fast, DType from, DType to, void* dst, const void* src, std::int64_t n) {
    const bool exact = fast != nullptr ? fast(dst, src, n) : cast_scalar(from, to, dst, src, n);
    out_.exact = out_.exact && exact;
  }

  const Loops& loops_;
  const Ops& ops_;
  Moved& out_;
  Keyer keyer_;
  Cast in_, out_cast_;
  alignas(64) char gathered_[kChunk * 8], wire_[kChunk * 8], scattered_[kChunk * 8];
};

}  // namespace

std::int64_t item_units(const Loops& loops) {
  return loops.product(loops.count - 1) * ceil_div(loops.inner().extent, kPart);
}

void move_items(const Loops& loops, std::int64_t first, std::int64_t last, Moved& out) {
  const std::int64_t n = loops.inner().extent, parts = ceil_div(n, kPart);
  ItemMover mover(loops, out);
  for (std::int64_t u = first; u < last; ++u) {
    const Odometer at(loops, loops.count - 1, u / parts);
    const std::int64_t begin = u % parts * kPart, end = std::min(n, begin + kPart);
    for (std::int64_t c = begin; c < end; c += kChunk) mover.chunk(at, c, std::min(kChunk, end - c));
  }
}

}  // namespace refit::kernel
