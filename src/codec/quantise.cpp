// Quantising: the scalar reference, formulas of scales, checks, and the way back.
#include "codec/quantise.h"

#include <cmath>
#include <limits>

#include "codec/quantise_body.h"

namespace refit::codec {

float e4m3_to_float(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((code & 0x7f) == 0x7f) v = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(v, (code & 0x80) != 0 ? -1.0F : 1.0F);
}

std::uint8_t e4m3_from_float(float y) { return e4m3_of(y); }
float scale_of(const Quant& q, float amax) { return scale_for(q, amax); }

std::optional<Quant> quant_named(std::string_view name) {
  if (name == "fp8_block") return fp8_block();
  if (name == "fp8_block_pow2") return fp8_block(ScaleKind::kPowerOfTwo);
  if (name == "fp8_channel") return fp8_channel();
  if (name == "fp8_tensor") return fp8_tensor();
  if (name == "mxfp8") return mxfp8();
  return std::nullopt;
}

Cells cells_of(const Quant& q, const Part& p) {
  const auto axis = [](std::int64_t block, std::int64_t origin, std::int64_t extent, std::int64_t& first,
                       std::int64_t& count) {
    first = block == 0 ? 0 : origin / block;
    count = extent == 0 ? 0 : block == 0 ? 1 : (origin + extent - 1) / block + 1 - first;
  };
  Cells cells;
  axis(q.block_rows, p.row, p.rows, cells.row, cells.rows);
  axis(q.block_cols, p.col, p.cols, cells.col, cells.cols);
  return cells;
}

void Findings::add(const Findings& other) {
  nans += other.nans;
  infinities += other.infinities;
  const bool earlier = nan_row < 0 || other.nan_row < nan_row || (other.nan_row == nan_row && other.nan_col < nan_col);
  if (other.nan_row >= 0 && earlier) nan_row = other.nan_row, nan_col = other.nan_col;
}

// ---- the reference loops

namespace {

template <typename Fn>
void for_each_value(const Rect& rect, const Fn& fn) {
  const auto item = static_cast<std::size_t>(item_size(rect.dtype));
  for (std::size_t r = 0; r < rect.rows; ++r)
    for (std::size_t c = 0; c < rect.cols; ++c)
      fn(r, c, load_value(rect.data + r * rect.stride + c * item, rect.dtype));
}

std::uint32_t peak(const Rect& rect) {
  std::uint32_t most = 0;
  for_each_value(rect, [&](std::size_t, std::size_t, float v) {
    most = std::max(most, std::bit_cast<std::uint32_t>(v) & 0x7fffffff);
  });
  return most;
}

void encode(const Rect& rect, float scale, std::byte* out, std::size_t out_stride) {
  for_each_value(rect, [&](std::size_t r, std::size_t c, float v) {
    out[r * out_stride + c] = static_cast<std::byte>(e4m3_from_float(v / scale));
  });
}

std::uint32_t mx(const Rect& rect, std::uint8_t least, std::byte* bytes, std::byte* out) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < rect.cols / kMxBlock; ++i) {
    const Rect block{rect.data + 2 * kMxBlock * i, 1, kMxBlock, 0, rect.dtype};
    const std::uint32_t bits = peak(block);
    most = std::max(most, bits);
    if (most >= kInfBits) return most;
    const float scale = scale_of(mxfp8(least), std::bit_cast<float>(bits));
    store_scale(mxfp8(), scale, bytes, static_cast<std::int64_t>(i));
    encode(block, scale, out + kMxBlock * i, 0);
  }
  return most;
}

}  // namespace

constexpr QuantBody kScalarQuantBody{peak, encode, mx, [] {}};

float finite_amax(const Rect& rect, std::int64_t row, std::int64_t col, Findings& findings) {
  float most = 0;
  Findings here;
  for_each_value(rect, [&](std::size_t r, std::size_t c, float v) {
    if (std::isfinite(v)) {
      most = std::max(most, std::fabs(v));
    } else if (std::isinf(v)) {
      ++here.infinities;
    } else if (here.nans++ == 0) {
      here.nan_row = row + static_cast<std::int64_t>(r);
      here.nan_col = col + static_cast<std::int64_t>(c);
    }
  });
  findings.add(here);
  return most;
}

// ---- checks

namespace {

Status enough(const char* what, std::size_t have, std::optional<std::int64_t> need) {
  if (need && static_cast<std::uint64_t>(*need) <= have) return {};
  return Error(Code::kInvalid, std::string("quantise: `") + what + "` is too small")
      .amounts(need.value_or(std::numeric_limits<std::int64_t>::max()), static_cast<std::int64_t>(have));
}

Status sound(const Quant& q, const Part& p) {
  if (p.dtype != DType::kBF16 && p.dtype != DType::kF32)
    return Error(Code::kUnsupported, "quantise: values must be bf16 or f32, not " + std::string(to_string(p.dtype)));
  if (q.block_rows < 0 || q.block_cols < 0) return Error(Code::kInvalid, "quantise: a negative block extent");
  if (q.least_byte > 127) return Error(Code::kInvalid, "quantise: the least scale byte may be at most 127");
  const bool extents = p.row >= 0 && p.col >= 0 && p.rows >= 0 && p.cols >= 0 && p.stride >= p.cols;
  if (!extents || !checked_add(p.row, p.rows) || !checked_add(p.col, p.cols) || !checked_mul(p.rows, p.stride) ||
      !checked_mul(p.rows * p.stride, 8) || !checked_add(p.row + p.rows, q.block_rows) ||
      !checked_add(p.col + p.cols, q.block_cols))
    return Error(Code::kInvalid, "quantise: part [" + std::to_string(p.rows) + ", " + std::to_string(p.cols) +
                                     "] at (" + std::to_string(p.row) + ", " + std::to_string(p.col) +
                                     ") with stride " + std::to_string(p.stride) + " is not a box");
  return {};
}

// Bytes from the first element of a part to behind its last.
std::int64_t span_bytes(const Part& p) {
  return p.elements() == 0 ? 0 : ((p.rows - 1) * p.stride + p.cols) * item_size(p.dtype);
}

Status fits(const Quant& q, const Part& p, std::size_t values, std::size_t codes, std::size_t scales) {
  REFIT_TRY(sound(q, p));
  REFIT_TRY(enough("values", values, span_bytes(p)));
  REFIT_TRY(enough("codes", codes, p.elements()));
  return enough("scales", scales, checked_mul(cells_of(q, p).count(), q.scale_bytes()));
}

Status usable(const Quant& q, const Part& p, std::span<const std::byte> scales) {
  const Cells cells = cells_of(q, p);
  for (std::int64_t i = 0; i < cells.count(); ++i) {
    const float s = load_scale(q, scales.data(), i);
    if (std::isfinite(s) && s > 0) continue;
    return Error(Code::kInvalid, "quantise: the scale of block (" + std::to_string(cells.row + i / cells.cols) + ", " +
                                     std::to_string(cells.col + i % cells.cols) + ") is " + std::to_string(s) +
                                     ", not a finite number above 0");
  }
  return {};
}

std::uint16_t round_to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if ((bits & 0x7fffffff) > kInfBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

const std::vector<float>& e4m3_values() {
  static const std::vector<float> kValues = [] {
    std::vector<float> values(256);
    for (unsigned c = 0; c < 256; ++c) values[c] = e4m3_to_float(static_cast<std::uint8_t>(c));
    return values;
  }();
  return kValues;
}

}  // namespace

Status check_part(const Quant& q, const Part& p) { return sound(q, p); }

Result<Findings> block_amax(const Quant& q, const Part& p, std::span<const std::byte> in, std::span<float> amax) {
  REFIT_TRY(sound(q, p));
  REFIT_TRY(enough("values", in.size(), span_bytes(p)));
  REFIT_TRY(enough("amax", amax.size_bytes(), checked_mul(cells_of(q, p).count(), 4)));
  return quant_ops().amax(q, p, in.data(), amax.data());
}

Status scales_of(const Quant& q, std::span<const float> amax, std::span<std::byte> scales) {
  REFIT_TRY(enough("scales", scales.size(), checked_mul(static_cast<std::int64_t>(amax.size()), q.scale_bytes())));
  for (std::size_t i = 0; i < amax.size(); ++i) {
    if (!std::isfinite(amax[i]) || amax[i] < 0)
      return Error(Code::kInvalid, "quantise: amax " + std::to_string(i) + " is " + std::to_string(amax[i]) +
                                       ", not a finite number of at least 0");
    store_scale(q, scale_of(q, amax[i]), scales.data(), static_cast<std::int64_t>(i));
  }
  return {};
}

Status quantise_with(const Quant& q, const Part& p, std::span<const std::byte> in, std::span<const std::byte> scales,
                     std::span<std::byte> codes) {
  REFIT_TRY(fits(q, p, in.size(), codes.size(), scales.size()));
  REFIT_TRY(usable(q, p, scales));
  quant_ops().encode(q, p, in.data(), scales.data(), codes.data());
  return {};
}

Result<Findings> quantise(const Quant& q, const Part& p, std::span<const std::byte> in, std::span<std::byte> scales,
                          std::span<std::byte> codes) {
  REFIT_TRY(fits(q, p, in.size(), codes.size(), scales.size()));
  return quant_ops().quantise(q, p, in.data(), scales.data(), codes.data());
}

Status dequantise(const Quant& q, const Part& p, std::span<const std::byte> codes, std::span<const std::byte> scales,
                  std::span<std::byte> out) {
  REFIT_TRY(fits(q, p, out.size(), codes.size(), scales.size()));
  REFIT_TRY(usable(q, p, scales));
  const float* const values = e4m3_values().data();
  for_each_cell(q, p, out.data(), [&](std::int64_t cell, const Rect& rect, std::int64_t row, std::int64_t col) {
    const float scale = load_scale(q, scales.data(), cell);
    for (std::size_t r = 0; r < rect.rows; ++r) {
      std::byte* const to = out.data() + (rect.data - out.data()) + r * rect.stride;
      const std::byte* const from = codes.data() + (row + static_cast<std::int64_t>(r)) * p.cols + col;
      for (std::size_t c = 0; c < rect.cols; ++c) {
        const float v = values[static_cast<std::uint8_t>(from[c])] * scale;
        const std::uint16_t half = round_to_bf16(v);
        rect.dtype == DType::kF32 ? std::memcpy(to + 4 * c, &v, 4) : std::memcpy(to + 2 * c, &half, 2);
      }
    }
  });
  return {};
}

}  // namespace refit::codec
