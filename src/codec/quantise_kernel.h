// Quantising on a GPU. Small blocks (128 x 128, a channel's row, 32 along K) are read twice by the threads that own them,
// the second time from cache; larger ones (a whole tensor) go by a kernel for amax and one for the codes.
#pragma once
#include "codec/quantise_math.h"

namespace refit::codec {

// What a launch found, in device memory.
struct DeviceFindings {
  std::uint64_t nans, infinities;
  std::uint64_t first_nan;  // row * cols + col in the part, all ones: none
};

struct QuantParams {
  Quant q;
  Part p;
  Cells cells;
  const std::byte* in;
  std::byte* scales;
  std::byte* codes;
  std::uint32_t* amax;  // bits of f32 per cell; may be null for the fused kernel
  DeviceFindings* findings;
  std::int32_t threads_per_cell;  // fused: a power of two up to kQuantThreads
  std::int32_t each;              // elements of one access: 1, or 16 bytes' worth
  std::int64_t chunks;            // thread blocks per cell of the other two
  bool given_scales;              // encode reads scales instead of amax
};

inline constexpr int kQuantThreads = 256;
using QuantBlock = grid::Block<kQuantThreads>;

// A cell of the part.
struct DeviceCell {
  std::int64_t row, col, rows, cols;

  REFIT_HD DeviceCell(const QuantParams& p, std::int64_t cell) {
    const std::int64_t r = p.cells.row + cell / p.cells.cols, c = p.cells.col + cell % p.cells.cols;
    row = cell_edge(p.q.block_rows, r, p.p.row, p.p.rows);
    col = cell_edge(p.q.block_cols, c, p.p.col, p.p.cols);
    // The last cell of an axis without blocks ends where the part does.
    rows = (p.q.block_rows == 0 ? p.p.rows : cell_edge(p.q.block_rows, r + 1, p.p.row, p.p.rows)) - row;
    cols = (p.q.block_cols == 0 ? p.p.cols : cell_edge(p.q.block_cols, c + 1, p.p.col, p.p.cols)) - col;
  }
};

template <typename Raw, int kEach>
struct alignas(sizeof(Raw) * kEach) Values {
  Raw raw[static_cast<std::size_t>(kEach)];
};

// Walks accesses [first, last) by `step` of a cell: fn(row, col, values, count), where accesses are kEach elements wide
// and the last of a row may hold fewer.
template <typename Raw, int kEach, typename Fn>
REFIT_HD inline void walk(const QuantParams& p, const DeviceCell& cell, std::int64_t first, std::int64_t last,
                          std::int64_t step, const Fn& fn) {
  const std::int64_t per_row = (cell.cols + kEach - 1) / kEach;
  for (std::int64_t i = first; i < last; i += step) {
    const std::int64_t r = cell.row + i / per_row, c = i % per_row * kEach;
    const std::byte* const at =
        p.in + (r * p.p.stride + cell.col + c) * static_cast<std::int64_t>(sizeof(Raw));
    Values<Raw, kEach> v;
    int n = kEach;
    if (cell.cols - c >= kEach) {
      v = grid::load_wide<Values<Raw, kEach>>(at);
    } else {
      n = static_cast<int>(cell.cols - c);
      REFIT_UNROLL  // with indices known, values stay in registers
      for (int e = 0; e < kEach; ++e) v.raw[e] = e < n ? reinterpret_cast<const Raw*>(at)[e] : Raw{0};
    }
    fn(r, cell.col + c, v, n);
  }
}
template <int kEach>
REFIT_HD inline std::int64_t accesses(const DeviceCell& cell) {
  return cell.rows * ((cell.cols + kEach - 1) / kEach);
}

template <typename Raw, int kEach>
REFIT_HD inline std::uint32_t finite_peak(const QuantParams& p, const DeviceCell& cell, std::int64_t first,
                                          std::int64_t last, std::int64_t step) {
  std::uint32_t peak = 0;
  walk<Raw, kEach>(p, cell, first, last, step,
                   [&](std::int64_t row, std::int64_t col, const Values<Raw, kEach>& v, int) {
    REFIT_UNROLL
    for (int e = 0; e < kEach; ++e) {
      const std::uint32_t a = value_bits(v.raw[e], p.p.dtype) & 0x7fffffff;  // 0 behind the last
      if (a < kInfBits) {
        if (a > peak) peak = a;
      } else if (a == kInfBits) {
        grid::atomic_add(&p.findings->infinities, 1);
      } else {
        grid::atomic_add(&p.findings->nans, 1);
        grid::atomic_min(&p.findings->first_nan, static_cast<std::uint64_t>(row * p.p.cols + col + e));
      }
    }
  });
  return peak;
}

template <typename Raw, int kEach>
REFIT_HD inline void put_codes(const QuantParams& p, const DeviceCell& cell, float scale, std::int64_t first,
                               std::int64_t last, std::int64_t step) {
  walk<Raw, kEach>(p, cell, first, last, step,
                   [&](std::int64_t row, std::int64_t col, const Values<Raw, kEach>& v, int n) {
    std::byte* const to = p.codes + row * p.p.cols + col;
    Values<std::uint8_t, kEach> codes;
    REFIT_UNROLL
    for (int e = 0; e < kEach; ++e)
      codes.raw[e] = e4m3_of(std::bit_cast<float>(value_bits(v.raw[e], p.p.dtype)) / scale);
    if (n == kEach) grid::store_wide(to, codes);
    else
      REFIT_UNROLL
      for (int e = 0; e < kEach; ++e)
        if (e < n) to[e] = static_cast<std::byte>(codes.raw[e]);
  });
}

// Calls fn.template operator()<Raw, kEach>() for the part's type and alignment.
template <typename Fn>
REFIT_HD inline void with_values(const QuantParams& p, const Fn& fn) {
  if (p.p.dtype == DType::kF32) {
    if (p.each == 4) fn.template operator()<std::uint32_t, 4>();
    else fn.template operator()<std::uint32_t, 1>();
  } else {
    if (p.each == 8) fn.template operator()<std::uint16_t, 8>();
    else fn.template operator()<std::uint16_t, 1>();
  }
}

// Amax, scale and codes of whole cells; kQuantThreads / threads_per_cell cells per thread block.
struct QuantiseKernel {
  static constexpr const char* kName = "refit_quantise";
  static constexpr int kThreads = kQuantThreads;
  using Params = QuantParams;
  struct Shared {
    std::uint32_t peak[kQuantThreads];
  };

  static REFIT_HD void run(const QuantBlock& block, const Params& p, Shared& s) {
    const std::int32_t each = p.threads_per_cell, groups = kQuantThreads / each;
    const auto cell_of = [&](int t) { return block.index * groups + t / each; };
    block.each([&](int t) { s.peak[t] = 0; });
    block.each([&](int t) {
      if (cell_of(t) >= p.cells.count()) return;
      const DeviceCell cell(p, cell_of(t));
      with_values(p, [&]<typename Raw, int kEach>() {
        const std::uint32_t peak = finite_peak<Raw, kEach>(p, cell, t % each, accesses<kEach>(cell), each);
        grid::atomic_max(&s.peak[t / each], peak);
      });
    });
    block.each([&](int t) {
      if (cell_of(t) >= p.cells.count()) return;
      const DeviceCell cell(p, cell_of(t));
      const float scale = scale_for(p.q, std::bit_cast<float>(s.peak[t / each]));
      if (t % each == 0) store_scale(p.q, scale, p.scales, cell_of(t));
      with_values(p, [&]<typename Raw, int kEach>() {
        put_codes<Raw, kEach>(p, cell, scale, t % each, accesses<kEach>(cell), each);
      });
    });
  }
};

// Share [first, last) of a cell's accesses that a thread block of the two kernels below takes.
template <int kEach>
REFIT_HD inline void share_of(const QuantParams& p, const DeviceCell& cell, std::int64_t chunk, std::int64_t& first,
                              std::int64_t& last) {
  const std::int64_t all = accesses<kEach>(cell), size = (all + p.chunks - 1) / p.chunks;
  first = chunk * size < all ? chunk * size : all;
  last = first + size < all ? first + size : all;
}

struct AmaxKernel {
  static constexpr const char* kName = "refit_amax";
  static constexpr int kThreads = kQuantThreads;
  using Params = QuantParams;
  struct Shared {
    std::uint32_t peak;
  };

  static REFIT_HD void run(const QuantBlock& block, const Params& p, Shared& s) {
    const DeviceCell cell(p, block.index / p.chunks);
    block.each([&](int t) {
      if (t == 0) s.peak = 0;
    });
    block.each([&](int t) {
      with_values(p, [&]<typename Raw, int kEach>() {
        std::int64_t first, last;
        share_of<kEach>(p, cell, block.index % p.chunks, first, last);
        grid::atomic_max(&s.peak, finite_peak<Raw, kEach>(p, cell, first + t, last, kQuantThreads));
      });
    });
    block.each([&](int t) {
      if (t == 0) grid::atomic_max(&p.amax[block.index / p.chunks], s.peak);
    });
  }
};

struct EncodeKernel {
  static constexpr const char* kName = "refit_encode";
  static constexpr int kThreads = kQuantThreads;
  using Params = QuantParams;
  struct Shared {
    float scale;
  };

  static REFIT_HD void run(const QuantBlock& block, const Params& p, Shared& s) {
    const std::int64_t index = block.index / p.chunks;
    const DeviceCell cell(p, index);
    block.each([&](int t) {
      if (t != 0) return;
      s.scale = p.given_scales ? load_scale(p.q, p.scales, index) : scale_for(p.q, std::bit_cast<float>(p.amax[index]));
      if (!p.given_scales && block.index % p.chunks == 0) store_scale(p.q, s.scale, p.scales, index);
    });
    block.each([&](int t) {
      with_values(p, [&]<typename Raw, int kEach>() {
        std::int64_t first, last;
        share_of<kEach>(p, cell, block.index % p.chunks, first, last);
        put_codes<Raw, kEach>(p, cell, s.scale, first + t, last, kQuantThreads);
      });
    });
  }
};

}  // namespace refit::codec
