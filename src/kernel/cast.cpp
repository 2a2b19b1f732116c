#include "kernel/cast.h"

#include <array>
#include <bit>
#include <cstring>

namespace refit::kernel {
namespace {

// Any value of any type. Finite: (-1)^negative * magnitude * 2^exponent. NaN: payload, top bit of 64 first.
struct Number {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan } kind = Kind::kFinite;
  bool negative = false;
  bool canonical = true;  // false: a bool byte that is neither 0 nor 1
  std::uint64_t magnitude = 0;
  int exponent = 0;
};

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
};
constexpr Format kF16{5, 10, true}, kBF16{8, 7, true}, kF32{8, 23, true}, kF64{11, 52, true}, kE4M3{4, 3, false},
    kE5M2{5, 2, true};

template <typename T>
T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename T>
Number decode_integer(const void* p) {
  const T v = load<T>(p);
  Number out;
  out.negative = v < 0;
  out.magnitude = out.negative ? 0 - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v);
  return out;
}

Number decode_bool(const void* p) {
  const auto v = load<std::uint8_t>(p);
  Number out;
  out.magnitude = v != 0;
  out.canonical = v <= 1;
  return out;
}

template <const Format& f, typename Bits>
Number decode_float(const void* p) {
  const std::uint64_t bits = load<Bits>(p);
  const std::uint64_t mantissa = bits & ((1ull << f.mantissa_bits) - 1);
  const int top = (1 << f.exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> f.mantissa_bits) & top;
  Number out;
  out.negative = (bits >> (f.bits() - 1) & 1) != 0;
  if (!f.has_infinity && exponent == top && mantissa == (1ull << f.mantissa_bits) - 1) {
    out.kind = Number::Kind::kNan;
    out.magnitude = 1ull << 63;  // the only NaN of e4m3 counts as the plain quiet one
  } else if (f.has_infinity && exponent == top) {
    out.kind = mantissa == 0 ? Number::Kind::kInfinite : Number::Kind::kNan;
    out.magnitude = mantissa << (64 - f.mantissa_bits);
  } else {
    out.magnitude = exponent == 0 ? mantissa : mantissa | 1ull << f.mantissa_bits;
    out.exponent = (exponent == 0 ? 1 : exponent) - f.bias() - f.mantissa_bits;
  }
  return out;
}

// v / 2^shift to nearest, ties to even; shift may pass 63.
std::uint64_t shift_round(std::uint64_t v, int shift, bool& exact) {
  if (shift <= 0) return v << -shift;
  const std::uint64_t kept = shift > 63 ? 0 : v >> shift;
  const std::uint64_t rest = shift > 63 ? v : v & ((1ull << shift) - 1);
  if (rest == 0) return kept;
  exact = false;
  if (shift > 64) return kept;
  const std::uint64_t half = 1ull << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1) != 0));
}

template <const Format& f>
std::uint64_t encode_finite(const Number& x, bool& exact) {
  const std::uint64_t top = (1ull << f.exponent_bits) - 1;
  const std::uint64_t overflow =
      f.has_infinity ? top << f.mantissa_bits : (top << f.mantissa_bits | ((1ull << f.mantissa_bits) - 1));
  if (x.magnitude == 0) return 0;
  // Align so that the leading one meets the implicit bit, but never below the subnormal step.
  const int leading = 63 - std::countl_zero(x.magnitude);
  int exponent = x.exponent + leading + f.bias();  // biased exponent of the result before rounding
  if (exponent > static_cast<int>(top) + 1) {
    exact = false;
    return overflow;
  }
  if (exponent < 1) exponent = 1;
  const int shift = exponent - f.bias() - f.mantissa_bits - x.exponent;
  const std::uint64_t m = shift_round(x.magnitude, shift, exact);
  // m carries the implicit bit: adding it raises the exponent field by one, and a carry out of rounding by one more.
  const std::uint64_t bits = (static_cast<std::uint64_t>(exponent - 1) << f.mantissa_bits) + m;
  if (bits >= overflow) {
    exact = false;
    return overflow;
  }
  return bits;
}

template <const Format& f>
std::uint64_t encode_nan(const Number& x, bool& exact) {
  const std::uint64_t ones = (1ull << f.mantissa_bits) - 1;
  const std::uint64_t base = ((1ull << f.exponent_bits) - 1) << f.mantissa_bits;
  if (!f.has_infinity) {
    exact = exact && x.magnitude == 1ull << 63;
    return base | ones;
  }
  std::uint64_t payload = x.magnitude >> (64 - f.mantissa_bits);
  exact = exact && payload << (64 - f.mantissa_bits) == x.magnitude;
  if (payload == 0) payload = 1ull << (f.mantissa_bits - 1);  // else it would read as infinity
  return base | payload;
}

template <const Format& f, typename Bits>
bool encode_float(const Number& x, void* p) {
  bool exact = x.canonical;
  std::uint64_t bits = 0;
  if (x.kind == Number::Kind::kFinite) {
    bits = encode_finite<f>(x, exact);
  } else if (x.kind == Number::Kind::kNan) {
    bits = encode_nan<f>(x, exact);
  } else {
    bits = ((1ull << f.exponent_bits) - 1) << f.mantissa_bits;
    if (!f.has_infinity) {
      bits |= (1ull << f.mantissa_bits) - 1;
      exact = false;
    }
  }
  const auto out = static_cast<Bits>(bits | static_cast<std::uint64_t>(x.negative) << (f.bits() - 1));
  std::memcpy(p, &out, sizeof out);
  return exact;
}

template <typename T>
bool encode_integer(const Number& x, void* p) {
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

bool encode_bool(const Number& x, void* p) {
  const std::uint8_t out = x.kind != Number::Kind::kFinite || x.magnitude != 0;
  std::memcpy(p, &out, 1);
  if (!x.canonical || x.kind != Number::Kind::kFinite || x.negative) return false;
  return x.magnitude == 0 || (std::has_single_bit(x.magnitude) && std::countr_zero(x.magnitude) == -x.exponent);
}

struct Codec {
  Number (*decode)(const void*);
  bool (*encode)(const Number&, void*);
};
template <typename T>
constexpr Codec kInteger{decode_integer<T>, encode_integer<T>};
template <const Format& f, typename Bits>
constexpr Codec kFloat{decode_float<f, Bits>, encode_float<f, Bits>};

// In the order of DType.
constexpr std::array<Codec, kDTypeCount> kCodecs = {
    Codec{decode_bool, encode_bool}, kInteger<std::uint8_t>,       kInteger<std::int8_t>,
    kInteger<std::int16_t>,          kInteger<std::int32_t>,       kInteger<std::int64_t>,
    kFloat<kF16, std::uint16_t>,     kFloat<kBF16, std::uint16_t>, kFloat<kF32, std::uint32_t>,
    kFloat<kF64, std::uint64_t>,     kFloat<kE4M3, std::uint8_t>,  kFloat<kE5M2, std::uint8_t>};

}  // namespace

bool cast_scalar(DType from, DType to, void* dst, const void* src, std::int64_t n) {
  const Codec& in = kCodecs[static_cast<std::size_t>(from)];
  const Codec& out = kCodecs[static_cast<std::size_t>(to)];
  const std::int64_t in_bytes = item_size(from), out_bytes = item_size(to);
  bool exact = true;
  for (std::int64_t i = 0; i < n; ++i)
    exact &=
        out.encode(in.decode(static_cast<const char*>(src) + i * in_bytes), static_cast<char*>(dst) + i * out_bytes);
  return exact;
}

}  // namespace refit::kernel
