// The inner loops of quantising, once per instruction set, and the driver over blocks that turns them into a table.
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/quantise_math.h"

namespace refit::codec {

inline constexpr std::size_t kMxBlock = 32, kMxRun = 32;  // elements of a block, blocks of a run
// From here on codes bypass the caches: they will not be there when someone asks for them.
inline constexpr std::int64_t kStreamBytes = std::int64_t{8} << 20;

// Part of one block in memory.
struct Rect {
  const std::byte* data = nullptr;
  std::size_t rows = 0, cols = 0, stride = 0;  // stride in bytes
  DType dtype = DType::kBF16;
  std::ptrdiff_t ahead = 0;  // bytes to what is needed next, fetched on the way; 0: nothing
  bool stream = false;       // store past the caches
};

struct QuantBody {
  // Largest magnitude as bits of an f32, NaN above inf above every number.
  std::uint32_t (*peak)(const Rect&);
  // Codes of x / scale.
  void (*encode)(const Rect&, float scale, std::byte* out, std::size_t out_stride);
  // Bytes and codes of up to kMxRun whole MX blocks of bf16. Returns the peak; nothing counts if that is no number.
  std::uint32_t (*mx)(const Rect&, std::uint8_t least, std::byte* bytes, std::byte* out);
  void (*fence)();  // after the last streamed store
};
extern const QuantBody kScalarQuantBody;

// Walks the cells of a part: fn(cell, rect, first row, first col in the part).
template <typename Fn>
void for_each_cell(const Quant& q, const Part& p, const std::byte* in, const Fn& fn) {
  const Cells cells = cells_of(q, p);
  const std::int64_t item = item_size(p.dtype);
  const auto row_at = [&](std::int64_t r) { return cell_edge(q.block_rows, cells.row + r, p.row, p.rows); };
  const auto col_at = [&](std::int64_t c) { return cell_edge(q.block_cols, cells.col + c, p.col, p.cols); };
  for (std::int64_t r = 0, cell = 0; r < cells.rows; ++r) {
    const std::int64_t row = row_at(r), rows = row_at(r + 1) - row;
    for (std::int64_t c = 0; c < cells.cols; ++c, ++cell) {
      const std::int64_t col = col_at(c), end = col_at(c + 1);
      const std::int64_t ahead = c + 1 < cells.cols   ? (end - col) * item
                                 : r + 1 < cells.rows ? (rows * p.stride - col) * item
                                                      : 0;
      const Rect rect{in + (row * p.stride + col) * item,
                      static_cast<std::size_t>(rows),
                      static_cast<std::size_t>(end - col),
                      static_cast<std::size_t>(p.stride * item),
                      p.dtype,
                      static_cast<std::ptrdiff_t>(ahead),
                      p.elements() >= kStreamBytes};
      fn(cell, rect, row, col);
    }
  }
}

// The slow look at a block that holds a NaN or an infinity: the largest finite magnitude, and what was found.
float finite_amax(const Rect& rect, std::int64_t row, std::int64_t col, Findings& findings);

template <const QuantBody& kBody>
float rect_amax(const Rect& rect, std::int64_t row, std::int64_t col, Findings& findings) {
  const std::uint32_t peak = kBody.peak(rect);
  return peak < kInfBits ? std::bit_cast<float>(peak) : finite_amax(rect, row, col, findings);
}

template <const QuantBody& kBody>
Findings amax_cells(const Quant& q, const Part& p, const std::byte* in, float* amax) noexcept {
  Findings findings;
  for_each_cell(q, p, in, [&](std::int64_t cell, const Rect& rect, std::int64_t row, std::int64_t col) {
    amax[cell] = rect_amax<kBody>(rect, p.row + row, p.col + col, findings);
  });
  return findings;
}

template <const QuantBody& kBody>
void encode_cells(const Quant& q, const Part& p, const std::byte* in, const std::byte* scales,
                  std::byte* codes) noexcept {
  for_each_cell(q, p, in, [&](std::int64_t cell, const Rect& rect, std::int64_t row, std::int64_t col) {
    kBody.encode(rect, load_scale(q, scales, cell), codes + row * p.cols + col, static_cast<std::size_t>(p.cols));
  });
  kBody.fence();
}

template <const QuantBody& kBody>
Findings quantise_cells(const Quant& q, const Part& p, const std::byte* in, std::byte* scales,
                        std::byte* codes) noexcept {
  Findings findings;
  for_each_cell(q, p, in, [&](std::int64_t cell, const Rect& rect, std::int64_t row, std::int64_t col) {
    const float scale = scale_of(q, rect_amax<kBody>(rect, p.row + row, p.col + col, findings));
    store_scale(q, scale, scales, cell);
    kBody.encode(rect, scale, codes + row * p.cols + col, static_cast<std::size_t>(p.cols));
  });
  kBody.fence();
  return findings;
}

// MX blocks of bf16 go by runs of a row: one block at a time is bound by the wait for its maximum.
template <const QuantBody& kBody>
Findings quantise_mx_rows(const Quant& q, const Part& p, const std::byte* in, std::byte* scales,
                          std::byte* codes) noexcept {
  Findings findings;
  const std::int64_t blocks = ceil_div(p.cols, std::int64_t{kMxBlock}), whole = p.cols / std::int64_t{kMxBlock};
  for (std::int64_t row = 0; row < p.rows; ++row)
    for (std::int64_t b = 0; b < blocks;) {
      const std::int64_t n = std::min(whole - b, std::int64_t{kMxRun}), col = b * std::int64_t{kMxBlock};
      const std::byte* const at = in + 2 * (row * p.stride + col);
      std::byte *const to = codes + row * p.cols + col, *const bytes = scales + row * blocks + b;
      const Rect rect{at, 1, static_cast<std::size_t>(n) * kMxBlock, 0, p.dtype, 2048, p.elements() >= kStreamBytes};
      if (n > 0 && kBody.mx(rect, q.least_byte, bytes, to) < kInfBits) {
        b += n;
        continue;
      }
      const std::int64_t end = n > 0 ? col + n * std::int64_t{kMxBlock} : p.cols;
      const Part rest{p.row + row, p.col + col, 1, end - col, p.stride, p.dtype};
      findings.add(quantise_cells<kBody>(q, rest, at, bytes, to));
      b += std::max<std::int64_t>(n, 1);
    }
  kBody.fence();
  return findings;
}

template <const QuantBody& kBody>
Findings quantise_any(const Quant& q, const Part& p, const std::byte* in, std::byte* scales,
                      std::byte* codes) noexcept {
  const bool rows_of_mx = q.scale == ScaleKind::kE8M0 && q.block_rows == 1 && q.block_cols == std::int64_t{kMxBlock} &&
                          p.dtype == DType::kBF16 && p.col % q.block_cols == 0;
  return rows_of_mx ? quantise_mx_rows<kBody>(q, p, in, scales, codes) : quantise_cells<kBody>(q, p, in, scales, codes);
}

template <const QuantBody& kBody>
constexpr QuantOps make_quant_ops(const char* name, const char* needs) {
  return {name, needs, amax_cells<kBody>, encode_cells<kBody>, quantise_any<kBody>};
}

}  // namespace refit::codec
