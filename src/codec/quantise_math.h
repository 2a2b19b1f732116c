// The arithmetic of quantising, for CPU and GPU: values, scales, codes, and where blocks begin.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "codec/quantise.h"

namespace refit::codec {

inline constexpr std::uint32_t kInfBits = 0x7f800000;

// Bits of an element as f32.
REFIT_HD inline std::uint32_t value_bits(std::uint32_t raw, DType dtype) {
  return dtype == DType::kF32 ? raw : raw << 16;
}
REFIT_HD inline float load_value(const std::byte* at, DType dtype) {
  std::uint32_t raw = 0;
  dtype == DType::kF32 ? std::memcpy(&raw, at, 4) : std::memcpy(&raw, at, 2);
  return std::bit_cast<float>(value_bits(raw, dtype));
}

REFIT_HD inline float exp_byte_to_float(std::byte b) {
  const auto e = static_cast<std::uint32_t>(b);
  return std::bit_cast<float>(e == 0 ? std::uint32_t{1} << 22 : e << 23);  // 2^−127 is subnormal
}
REFIT_HD inline float load_scale(const Quant& q, const std::byte* scales, std::int64_t cell) {
  return q.scale == ScaleKind::kE8M0 ? exp_byte_to_float(scales[cell]) : load_value(scales + 4 * cell, DType::kF32);
}
REFIT_HD inline void store_scale(const Quant& q, float scale, std::byte* scales, std::int64_t cell) {
  if (q.scale == ScaleKind::kE8M0) {
    scales[cell] = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
  } else {
    std::memcpy(scales + 4 * cell, &scale, 4);
  }
}

// ---- E4M3 (OCP FP8): 1 sign, 4 exponent, 3 mantissa bits, bias 7, no infinities, NaN = 0x7f

REFIT_HD inline std::uint8_t e4m3_of(float y) {
  const auto bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t sign = bits >> 24 & 0x80, a = bits & 0x7fffffff;
  constexpr std::uint32_t kMost = 0x43e00000, kLeastNormal = 121u << 23;  // 448 and 2^−6
  if (a > kInfBits) return static_cast<std::uint8_t>(sign | 0x7f);
  if (a >= kMost) return static_cast<std::uint8_t>(sign | 0x7e);
  // Ties to even: half a step less one, and one more where the step before is odd.
  if (a >= kLeastNormal) return static_cast<std::uint8_t>(sign | (((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120u << 3)));
  // Below, steps of 2^−9 are the last bit of numbers from 2^14 on: the addition rounds.
  const float shifted = std::bit_cast<float>(a) + 16384.0F;
  return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000));
}

// ---- scales

REFIT_HD inline float scale_for(const Quant& q, float amax) {
  if (q.scale == ScaleKind::kE8M0) {
    const auto exponent = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(amax) >> 23) - 8;
    return exp_byte_to_float(static_cast<std::byte>(exponent > q.least_byte ? exponent : q.least_byte));
  }
  if (amax == 0) return 1;
  const float ratio = amax / kMostE4M3, least = std::numeric_limits<float>::min();
  const float scale = ratio > least ? ratio : least;
  if (q.scale == ScaleKind::kF32) return scale;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(scale) + 0x007fffff) & kInfBits);
}

// ---- blocks

// Where cell `cell` of an axis begins inside a part: blocks of `block`, 0: one block.
REFIT_HD inline std::int64_t cell_edge(std::int64_t block, std::int64_t cell, std::int64_t origin, std::int64_t extent) {
  if (block == 0) return cell == 0 ? 0 : extent;
  const std::int64_t at = cell * block - origin;
  return at < 0 ? 0 : at > extent ? extent : at;
}

}  // namespace refit::codec
