// Tile transposes: the same interleave applied log2(n) times turns n registers of n lanes round; wider registers hold two
// or four such groups of rows, with 512 bits exactly a line of a destination row.
#if defined(REFIT_KERNEL_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_KERNEL_TRANSPOSE_INL_H_
#undef REFIT_KERNEL_TRANSPOSE_INL_H_
#else
#define REFIT_KERNEL_TRANSPOSE_INL_H_
#endif
#include <algorithm>

#include "hwy/highway.h"
#include "kernel/copy-inl.h"
#include "kernel/ops.h"

HWY_BEFORE_NAMESPACE();
namespace refit::kernel::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
inline void transpose_tile(const Tile& t) { transpose_scalar(t); }
inline constexpr void (*kTransposeStrip)(const Tile&, char*) = nullptr;
#else
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline constexpr int kGroups = 4;  // 128-bit groups per register
#elif HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
inline constexpr int kGroups = 2;
#else
inline constexpr int kGroups = 1;
#endif

template <typename T>
struct Turn {
  static constexpr int kSide = 16 / static_cast<int>(sizeof(T));  // columns, and rows per group
  static constexpr int kRows = kSide * kGroups;                   // rows per register set
  static constexpr int kSteps = kSide == 16 ? 4 : kSide == 8 ? 3 : kSide == 4 ? 2 : 1;  // log2(kSide)
  using D128 = hn::FixedTag<T, kSide>;
  using D = hn::FixedTag<T, kSide * kGroups>;
  using V = hn::Vec<D>;

  // Row i of each group, from the group's own rows.
  static HWY_INLINE V load_row(const char* src, std::int64_t pitch) {
    const auto group = [&](int g) HWY_ATTR { return hn::LoadU(D128(), reinterpret_cast<const T*>(src + g * kSide * pitch)); };
    if constexpr (kGroups == 1) {
      return group(0);
    } else {
      const hn::FixedTag<T, kSide * 2> d2;
      const auto low = hn::Combine(d2, group(1), group(0));
      if constexpr (kGroups == 2) return low;
      else return hn::Combine(D(), hn::Combine(d2, group(3), group(2)), low);
    }
  }
  static HWY_INLINE void turn(V* v) {
    V t[kSide];
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 8
      for (int i = 0; i < kSide / 2; ++i) {
        t[2 * i] = hn::InterleaveLower(D(), v[i], v[i + kSide / 2]);
        t[2 * i + 1] = hn::InterleaveUpper(D(), v[i], v[i + kSide / 2]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) v[i] = t[i];
    }
  }
  template <bool kStream>
  static HWY_INLINE void block(char* dst, std::int64_t dst_pitch, const char* src, std::int64_t pitch) {
    V v[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) v[i] = load_row(src + i * pitch, pitch);
    turn(v);
#pragma GCC unroll 16
    for (int j = 0; j < kSide; ++j) {
      T* const to = reinterpret_cast<T*>(dst + j * dst_pitch);
      if constexpr (kStream) hn::Stream(v[j], D(), to);
      else hn::StoreU(v[j], D(), to);
    }
  }

  template <bool kStream>
  static HWY_INLINE void blocks(const Tile& t, std::int64_t columns, std::int64_t rows) {
    for (std::int64_t j = 0; j < columns; j += kSide) {
      char* dst = t.dst + j * t.dst_pitch;
      const char* src = t.src + j * static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t i = 0; i < rows; i += kRows)
        block<kStream>(dst + i * t.item, t.dst_pitch, src + i * t.src_pitch, t.src_pitch);
    }
  }

  static HWY_INLINE void tile(const Tile& t) {
    const std::int64_t columns = t.columns / kSide * kSide;
    const std::int64_t rows = t.rows / kRows * kRows;
    t.stream ? blocks<kGroups == 4>(t, columns, rows) : blocks<false>(t, columns, rows);
    Tile rest = t;  // columns on the right, all rows
    rest.dst += columns * t.dst_pitch;
    rest.src += columns * t.item;
    rest.columns -= columns;
    if (rest.columns > 0) transpose_scalar(rest);
    if (rows == t.rows) return;
    rest = t;  // rows at the bottom, left of those columns
    rest.dst += rows * t.item;
    rest.src += rows * t.src_pitch;
    rest.rows -= rows;
    rest.columns = columns;
    transpose_scalar(rest);
  }

  // Block after block of whole source lines: packed, so that rows do not meet in the same cache sets, then turned.
  static HWY_INLINE void strip(const Tile& t, char* packed) {
    constexpr std::int64_t kColumns = kStripWide / static_cast<std::int64_t>(sizeof(T));
    Tile block = t;
    block.src = packed;
    block.src_pitch = kStripPitch;
    block.columns = kColumns;
    CopyRows pack{.dst = packed,
                  .dst_pitch = kStripPitch,
                  .src = t.src,
                  .src_pitch = t.src_pitch,
                  .rows = t.rows,
                  .bytes = kStripWide,
                  .stream = false,
                  .prefetch = {kStripWide, false}};
    for (std::int64_t c = 0; c < t.columns; c += kColumns) {
      copy_few_lines<kStripWide / kLine, 2>(pack);
      tile(block);
      pack.src += kStripWide;
      block.dst += kColumns * t.dst_pitch;
    }
  }
};

inline void transpose_tile(const Tile& t) {
  if (t.item == 1) return Turn<std::uint8_t>::tile(t);
  if (t.item == 2) return Turn<std::uint16_t>::tile(t);
  if (t.item == 4) return Turn<std::uint32_t>::tile(t);
  Turn<std::uint64_t>::tile(t);
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline void transpose_strip(const Tile& t, char* packed) {
  if (t.item == 1) return Turn<std::uint8_t>::strip(t, packed);
  if (t.item == 2) return Turn<std::uint16_t>::strip(t, packed);
  if (t.item == 4) return Turn<std::uint32_t>::strip(t, packed);
  Turn<std::uint64_t>::strip(t, packed);
}
inline constexpr void (*kTransposeStrip)(const Tile&, char*) = transpose_strip;
#else
inline constexpr void (*kTransposeStrip)(const Tile&, char*) = nullptr;
#endif
#endif

}  // namespace refit::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
