// The arithmetic of casts, for CPU and GPU: any type to a number of unlimited range, and back.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/core.h"

namespace refit::kernel::casting {

// Any value of any type. Finite: (-1)^negative * magnitude * 2^exponent. NaN: payload, top bit of 64 first.
struct Number {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan } kind = Kind::kFinite;
  bool negative = false;
  bool canonical = true;  // false: a bool byte that is neither 0 nor 1
  std::uint64_t magnitude = 0;
  int exponent = 0;
};

template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct Format {
  static constexpr int exponent_bits = kExponentBits, mantissa_bits = kMantissaBits;
  static constexpr bool has_infinity = kHasInfinity;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1, bits = 1 + exponent_bits + mantissa_bits;
};
using F16 = Format<5, 10, true>;
using BF16 = Format<8, 7, true>;
using F32 = Format<8, 23, true>;
using F64 = Format<11, 52, true>;
using E4M3 = Format<4, 3, false>;
using E5M2 = Format<5, 2, true>;

template <typename T>
REFIT_HD T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename T>
REFIT_HD Number decode_integer(const void* p) {
  const T v = load<T>(p);
  Number out;
  out.negative = v < 0;
  out.magnitude = out.negative ? 0 - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v);
  return out;
}

REFIT_HD inline Number decode_bool(const void* p) {
  const auto v = load<std::uint8_t>(p);
  Number out;
  out.magnitude = v != 0;
  out.canonical = v <= 1;
  return out;
}

template <typename F, typename Bits>
REFIT_HD Number decode_float(const void* p) {
  const std::uint64_t bits = load<Bits>(p);
  const std::uint64_t mantissa = bits & ((1ull << F::mantissa_bits) - 1);
  const int top = (1 << F::exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> F::mantissa_bits) & top;
  Number out;
  out.negative = (bits >> (F::bits - 1) & 1) != 0;
  if (!F::has_infinity && exponent == top && mantissa == (1ull << F::mantissa_bits) - 1) {
    out.kind = Number::Kind::kNan;
    out.magnitude = 1ull << 63;  // the only NaN of e4m3 counts as the plain quiet one
  } else if (F::has_infinity && exponent == top) {
    out.kind = mantissa == 0 ? Number::Kind::kInfinite : Number::Kind::kNan;
    out.magnitude = mantissa << (64 - F::mantissa_bits);
  } else {
    out.magnitude = exponent == 0 ? mantissa : mantissa | 1ull << F::mantissa_bits;
    out.exponent = (exponent == 0 ? 1 : exponent) - F::bias - F::mantissa_bits;
  }
  return out;
}

// v / 2^shift to nearest, ties to even; shift may pass 63.
REFIT_HD inline std::uint64_t shift_round(std::uint64_t v, int shift, bool& exact) {
  if (shift <= 0) return v << -shift;
  const std::uint64_t kept = shift > 63 ? 0 : v >> shift;
  const std::uint64_t rest = shift > 63 ? v : v & ((1ull << shift) - 1);
  if (rest == 0) return kept;
  exact = false;
  if (shift > 64) return kept;
  const std::uint64_t half = 1ull << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1) != 0));
}

template <typename F>
REFIT_HD std::uint64_t encode_finite(const Number& x, bool& exact) {
  const std::uint64_t top = (1ull << F::exponent_bits) - 1;
  const std::uint64_t overflow =
      F::has_infinity ? top << F::mantissa_bits : (top << F::mantissa_bits | ((1ull << F::mantissa_bits) - 1));
  if (x.magnitude == 0) return 0;
  // Align so that the leading one meets the implicit bit, but never below the subnormal step.
  const int leading = 63 - std::countl_zero(x.magnitude);
  int exponent = x.exponent + leading + F::bias;  // biased exponent of the result before rounding
  if (exponent > static_cast<int>(top) + 1) {
    exact = false;
    return overflow;
  }
  if (exponent < 1) exponent = 1;
  const int shift = exponent - F::bias - F::mantissa_bits - x.exponent;
  const std::uint64_t m = shift_round(x.magnitude, shift, exact);
  // m carries the implicit bit: adding it raises the exponent field by one, and a carry out of rounding by one more.
  const std::uint64_t bits = (static_cast<std::uint64_t>(exponent - 1) << F::mantissa_bits) + m;
  if (bits >= overflow) {
    exact = false;
    return overflow;
  }
  return bits;
}

template <typename F>
REFIT_HD std::uint64_t encode_nan(const Number& x, bool& exact) {
  const std::uint64_t ones = (1ull << F::mantissa_bits) - 1;
  const std::uint64_t base = ((1ull << F::exponent_bits) - 1) << F::mantissa_bits;
  if (!F::has_infinity) {
    exact = exact && x.magnitude == 1ull << 63;
    return base | ones;
  }
  std::uint64_t payload = x.magnitude >> (64 - F::mantissa_bits);
  exact = exact && payload << (64 - F::mantissa_bits) == x.magnitude;
  if (payload == 0) payload = 1ull << (F::mantissa_bits - 1);  // else it would read as infinity
  return base | payload;
}

template <typename F, typename Bits>
REFIT_HD bool encode_float(const Number& x, void* p) {
  bool exact = x.canonical;
  std::uint64_t bits = 0;
  if (x.kind == Number::Kind::kFinite) {
    bits = encode_finite<F>(x, exact);
  } else if (x.kind == Number::Kind::kNan) {
    bits = encode_nan<F>(x, exact);
  } else {
    bits = ((1ull << F::exponent_bits) - 1) << F::mantissa_bits;
    if (!F::has_infinity) {
      bits |= (1ull << F::mantissa_bits) - 1;
      exact = false;
    }
  }
  const auto out = static_cast<Bits>(bits | static_cast<std::uint64_t>(x.negative) << (F::bits - 1));
  std::memcpy(p, &out, sizeof out);
  return exact;
}

template <typename T>
REFIT_HD bool encode_integer(const Number& x, void* p) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  const std::uint64_t most = x.negative ? (std::numeric_limits<T>::min() == 0 ? 0 : kMax + 1) : kMax;
  bool exact = x.canonical && x.kind != Number::Kind::kNan && !(x.negative && x.magnitude == 0);
  std::uint64_t m = 0;
  const int width = 64 - std::countl_zero(x.magnitude);
  if (x.kind == Number::Kind::kInfinite ||
      (x.kind == Number::Kind::kFinite && x.magnitude != 0 && width + x.exponent > 64)) {
    m = most;
    exact = false;
  } else if (x.kind == Number::Kind::kFinite) {
    m = shift_round(x.magnitude, -x.exponent, exact);
    if (m > most) {
      m = most;
      exact = false;
    }
  }
  const T out = static_cast<T>(x.negative ? 0 - m : m);
  std::memcpy(p, &out, sizeof out);
  return exact;
}

REFIT_HD inline bool encode_bool(const Number& x, void* p) {
  const std::uint8_t out = x.kind != Number::Kind::kFinite || x.magnitude != 0;
  std::memcpy(p, &out, 1);
  if (!x.canonical || x.kind != Number::Kind::kFinite || x.negative) return false;
  return x.magnitude == 0 || (std::has_single_bit(x.magnitude) && std::countr_zero(x.magnitude) == -x.exponent);
}

// The pair in the order of DType, as values and not as a table: a GPU cannot call through a table of the CPU.
REFIT_HD inline Number decode(DType t, const void* p) {
  switch (t) {
    case DType::kBool:
      return decode_bool(p);
    case DType::kU8:
      return decode_integer<std::uint8_t>(p);
    case DType::kI8:
      return decode_integer<std::int8_t>(p);
    case DType::kI16:
      return decode_integer<std::int16_t>(p);
    case DType::kI32:
      return decode_integer<std::int32_t>(p);
    case DType::kI64:
      return decode_integer<std::int64_t>(p);
    case DType::kF16:
      return decode_float<F16, std::uint16_t>(p);
    case DType::kBF16:
      return decode_float<BF16, std::uint16_t>(p);
    case DType::kF32:
      return decode_float<F32, std::uint32_t>(p);
    case DType::kF64:
      return decode_float<F64, std::uint64_t>(p);
    case DType::kF8E4M3:
      return decode_float<E4M3, std::uint8_t>(p);
    case DType::kF8E5M2:
      break;
  }
  return decode_float<E5M2, std::uint8_t>(p);
}
REFIT_HD inline bool encode(DType t, const Number& x, void* p) {
  switch (t) {
    case DType::kBool:
      return encode_bool(x, p);
    case DType::kU8:
      return encode_integer<std::uint8_t>(x, p);
    case DType::kI8:
      return encode_integer<std::int8_t>(x, p);
    case DType::kI16:
      return encode_integer<std::int16_t>(x, p);
    case DType::kI32:
      return encode_integer<std::int32_t>(x, p);
    case DType::kI64:
      return encode_integer<std::int64_t>(x, p);
    case DType::kF16:
      return encode_float<F16, std::uint16_t>(x, p);
    case DType::kBF16:
      return encode_float<BF16, std::uint16_t>(x, p);
    case DType::kF32:
      return encode_float<F32, std::uint32_t>(x, p);
    case DType::kF64:
      return encode_float<F64, std::uint64_t>(x, p);
    case DType::kF8E4M3:
      return encode_float<E4M3, std::uint8_t>(x, p);
    case DType::kF8E5M2:
      break;
  }
  return encode_float<E5M2, std::uint8_t>(x, p);
}

// One element; false when it was not exact. The contract is cast_scalar's.
REFIT_HD REFIT_COLD bool cast_one(DType from, DType to, void* dst, const void* src) {
  return encode(to, decode(from, src), dst);
}

}  // namespace refit::kernel::casting
