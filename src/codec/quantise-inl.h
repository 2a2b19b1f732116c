// Quantising with Highway. Included once per instruction set.
#if defined(REFIT_CODEC_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_CODEC_QUANTISE_INL_H_
#undef REFIT_CODEC_QUANTISE_INL_H_
#else
#define REFIT_CODEC_QUANTISE_INL_H_
#endif
#include "codec/quantise_body.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// A vector of codes must hold whole MX blocks; smaller sets run the reference.
#if HWY_MAX_BYTES >= 32
HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Q16 = hn::ScalableTag<std::uint16_t>;
using Q32 = hn::ScalableTag<std::uint32_t>;
using QF = hn::ScalableTag<float>;
using Q8 = hn::ScalableTag<std::uint8_t>;
inline constexpr std::size_t kLanes16 = hn::MaxLanes(Q16());
inline constexpr std::size_t kStep = 2 * kLanes16;  // elements that make one vector of codes

// How x becomes y = x / scale. The product with 1 / scale is within 3 patterns of the quotient; codes change only at
// patterns that are multiples of 2^19. Where no 8-bit mantissa comes near one, the product gives the quotient's codes.
struct ByProduct {
  hn::Vec<QF> inverse;
  HWY_INLINE hn::Vec<QF> operator()(hn::Vec<QF> x) const { return hn::Mul(x, inverse); }
};
struct ByQuotient {
  hn::Vec<QF> scale;
  HWY_INLINE hn::Vec<QF> operator()(hn::Vec<QF> x) const { return hn::Div(x, scale); }
};
inline constexpr std::uint32_t kNear = 4, kBoundary = (1U << 19) - 1;

inline bool product_is_exact(float scale) {
  if (!(scale >= 0x1p-126F && scale <= 0x1p126F)) return false;
  if ((std::bit_cast<std::uint32_t>(scale) & 0x007fffff) == 0) return true;
  const Q32 d;
  const QF df;
  const auto inverse = hn::Set(df, 1 / scale);
  auto least = hn::Set(d, kBoundary);
  for (std::uint32_t m = 0; m < 128; m += static_cast<std::uint32_t>(hn::Lanes(d))) {
    const auto x = hn::BitCast(df, hn::Or(hn::ShiftLeft<16>(hn::Iota(d, m)), hn::Set(d, 0x3f800000U)));
    const auto y = hn::BitCast(d, hn::Mul(x, inverse));
    least = hn::Min(least, hn::And(hn::Add(y, hn::Set(d, kNear)), hn::Set(d, kBoundary)));
  }
  return hn::GetLane(hn::MinOfLanes(d, least)) > 2 * kNear;
}

// Code + 1128 in the low 16 bits, of y ≥ 0. Adding 2^20 times its power of two (at least 2^-6) rounds y to three
// mantissa bits, ties to even, and leaves them at the bottom of the sum.
HWY_INLINE hn::Vec<Q32> code_bits(hn::Vec<QF> y) {
  const Q32 d;
  const QF df;
  const auto u = hn::Min(hn::BitCast(d, y), hn::Set(d, std::bit_cast<std::uint32_t>(kMostE4M3)));
  const auto power = hn::And(hn::Max(u, hn::Set(d, 121U << 23)), hn::Set(d, kInfBits));
  const auto magic = hn::BitCast(df, hn::Add(power, hn::Set(d, 20U << 23)));
  const auto t = hn::BitCast(d, hn::Add(hn::BitCast(df, u), magic));
  return hn::Add(t, hn::ShiftRight<20>(t));
}

// Codes of one vector of bf16, one in each 16-bit lane; `peak` collects magnitudes.
template <typename Scaler>
HWY_INLINE hn::Vec<Q16> codes_of(hn::Vec<Q16> x, const Scaler& scaler, hn::Vec<Q16>& peak) {
  const Q16 d;
  const Q32 d32;
  const QF df;
  const auto a = hn::And(x, hn::Set(d, std::uint16_t{0x7fff}));
  peak = hn::Max(peak, a);
  const auto pair = hn::BitCast(d32, a);
  const auto even = code_bits(scaler(hn::BitCast(df, hn::ShiftLeft<16>(pair))));
  const auto odd = code_bits(scaler(hn::BitCast(df, hn::And(pair, hn::Set(d32, 0xffff0000U)))));
  const auto both = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(odd)), hn::BitCast(d, even));
  const auto sign = hn::And(hn::ShiftRight<8>(x), hn::Set(d, std::uint16_t{0x80}));
  return hn::Or(hn::Sub(both, hn::Set(d, std::uint16_t{1128})), sign);
}

// The low halves of the lanes of a, then those of b.
template <typename D, typename V>
HWY_INLINE hn::Vec<D> narrow_two(D d, V a, V b) {
  return hn::ConcatEven(d, hn::BitCast(d, b), hn::BitCast(d, a));
}

template <typename Scaler>
HWY_INLINE hn::Vec<Q8> step_of(const std::uint16_t* in, const Scaler& scaler, hn::Vec<Q16>& peak) {
  const Q16 d;
  const auto a = codes_of(hn::LoadU(d, in), scaler, peak);
  const auto b = codes_of(hn::LoadU(d, in + kLanes16), scaler, peak);
  return narrow_two(Q8(), a, b);
}

// One step of f32.
template <typename Scaler>
HWY_INLINE hn::Vec<Q8> step_of(const std::uint32_t* in, const Scaler& scaler, hn::Vec<Q32>& peak) {
  const Q16 d;
  const Q32 d32;
  const QF df;
  const std::size_t n = kLanes16 / 2;
  hn::Vec<Q32> code[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const auto x = hn::LoadU(d32, in + i * n);
    const auto a = hn::And(x, hn::Set(d32, 0x7fffffffU));
    peak = hn::Max(peak, a);
    code[i] = hn::Sub(code_bits(scaler(hn::BitCast(df, a))), hn::Set(d32, 1128U));
    code[i] = hn::Or(hn::And(code[i], hn::Set(d32, 0x7fU)), hn::And(hn::ShiftRight<24>(x), hn::Set(d32, 0x80U)));
  }
  return narrow_two(Q8(), narrow_two(d, code[0], code[1]), narrow_two(d, code[2], code[3]));
}

HWY_INLINE void fetch(const std::byte* row, std::ptrdiff_t ahead, std::size_t bytes) {
  if (ahead == 0) return;
  const auto at = reinterpret_cast<std::uintptr_t>(row) + static_cast<std::uintptr_t>(ahead);
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i), 0, 2);
}

template <typename E, typename Scaler>
std::uint32_t encode_rect(const Rect& rect, const Scaler& scaler, std::byte* out, std::size_t out_stride) {
  const hn::ScalableTag<E> d;
  auto peak = hn::Zero(d);
  const std::size_t whole = rect.cols / kStep * kStep, rest = rect.cols - whole;
  for (std::size_t r = 0; r < rect.rows; ++r) {
    const std::byte* const row = rect.data + r * rect.stride;
    fetch(row, rect.ahead, rect.cols * sizeof(E));
    const auto* const in = reinterpret_cast<const E*>(row);
    auto* const to = reinterpret_cast<std::uint8_t*>(out + r * out_stride);
    const bool stream = rect.stream && reinterpret_cast<std::uintptr_t>(to) % kStep == 0;
    for (std::size_t c = 0; c < whole; c += kStep) {
      const auto codes = step_of(in + c, scaler, peak);
      stream ? hn::Stream(codes, Q8(), to + c) : hn::StoreU(codes, Q8(), to + c);
    }
    if (rest == 0) continue;
    E tail[kStep] = {};
    std::uint8_t tail_codes[kStep];
    std::memcpy(tail, in + whole, rest * sizeof(E));
    hn::StoreU(step_of(tail, scaler, peak), Q8(), tail_codes);
    std::memcpy(to + whole, tail_codes, rest);
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, peak))) << (32 - 8 * sizeof(E));
}

template <typename E>
void encode_as(const Rect& rect, float scale, std::byte* out, std::size_t out_stride) {
  // Looking at 128 mantissas costs more than it saves below this.
  const bool product = sizeof(E) == 2 && rect.rows * rect.cols >= 1024 && product_is_exact(scale);
  const std::uint32_t peak = product ? encode_rect<E>(rect, ByProduct{hn::Set(QF(), 1 / scale)}, out, out_stride)
                                     : encode_rect<E>(rect, ByQuotient{hn::Set(QF(), scale)}, out, out_stride);
  if (peak > kInfBits) kScalarQuantBody.encode(rect, scale, out, out_stride);  // the clamp lost its NaNs
}

inline void quant_encode(const Rect& rect, float scale, std::byte* out, std::size_t out_stride) {
  rect.dtype == DType::kBF16 ? encode_as<std::uint16_t>(rect, scale, out, out_stride)
                             : encode_as<std::uint32_t>(rect, scale, out, out_stride);
}

template <typename E>
std::uint32_t peak_as(const Rect& rect) {
  const hn::ScalableTag<E> d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr auto kMagnitude = static_cast<E>(static_cast<E>(~E{0}) >> 1);
  auto most = hn::Zero(d), more = most;
  E rest = 0;
  for (std::size_t r = 0; r < rect.rows; ++r) {
    const auto* const in = reinterpret_cast<const E*>(rect.data + r * rect.stride);
    std::size_t c = 0;
    for (; c + 2 * lanes <= rect.cols; c += 2 * lanes) {
      most = hn::Max(most, hn::And(hn::LoadU(d, in + c), hn::Set(d, kMagnitude)));
      more = hn::Max(more, hn::And(hn::LoadU(d, in + c + lanes), hn::Set(d, kMagnitude)));
    }
    for (; c < rect.cols; ++c) {
      E v;
      std::memcpy(&v, in + c, sizeof(E));
      rest = std::max(rest, static_cast<E>(v & kMagnitude));
    }
  }
  const E vector = hn::GetLane(hn::MaxOfLanes(d, hn::Max(most, more)));
  return static_cast<std::uint32_t>(std::max(rest, vector)) << (32 - 8 * sizeof(E));
}

inline std::uint32_t quant_peak(const Rect& rect) {
  return rect.dtype == DType::kBF16 ? peak_as<std::uint16_t>(rect) : peak_as<std::uint32_t>(rect);
}

// ---- MX: the maxima of eight blocks at once, by a tree that halves eight vectors to one

HWY_INLINE hn::Vec<Q16> block_max(const std::uint16_t* in) {
  const Q16 d;
  auto most = hn::Zero(d);
  for (std::size_t i = 0; i < kMxBlock; i += kLanes16)
    most = hn::Max(most, hn::And(hn::LoadU(d, in + i), hn::Set(d, std::uint16_t{0x7fff})));
  return most;
}
// Lanes of T of a and b in turn, each the larger of two.
template <typename T>
HWY_INLINE hn::Vec<Q16> halve(hn::Vec<Q16> a, hn::Vec<Q16> b) {
  const Q16 d;
  const hn::Repartition<T, Q16> dt;
  const auto x = hn::BitCast(dt, a), y = hn::BitCast(dt, b);
  return hn::Max(hn::BitCast(d, hn::InterleaveLower(dt, x, y)), hn::BitCast(d, hn::InterleaveUpper(dt, x, y)));
}
template <typename D, typename V>
HWY_INLINE auto fold(D d, V v) {
  if constexpr (hn::MaxLanes(d) == 8) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
HWY_INLINE auto eight_maxima(const std::uint16_t* in) {
  hn::Vec<Q16> pair[4];
  for (std::size_t i = 0; i < 4; ++i)
    pair[i] = halve<std::uint16_t>(block_max(in + 2 * i * kMxBlock), block_max(in + (2 * i + 1) * kMxBlock));
  return fold(Q16(),
              halve<std::uint64_t>(halve<std::uint32_t>(pair[0], pair[1]), halve<std::uint32_t>(pair[2], pair[3])));
}

// Bytes of eight blocks; their maxima join `peak`.
using Eight = hn::CappedTag<std::uint16_t, 8>;
HWY_INLINE void eight_bytes(const std::uint16_t* in, std::uint8_t least, std::uint8_t* bytes, hn::Vec<Eight>& peak) {
  const Eight d;
  const auto most = eight_maxima(in);
  peak = hn::Max(peak, most);
  const auto e = hn::Max(hn::SaturatedSub(hn::ShiftRight<7>(most), hn::Set(d, std::uint16_t{8})),
                         hn::Set(d, std::uint16_t{least}));
  hn::StoreU(hn::TruncateTo(hn::Rebind<std::uint8_t, Eight>(), e), hn::Rebind<std::uint8_t, Eight>(), bytes);
}

inline std::uint32_t mx_bytes(const std::uint16_t* in, std::size_t blocks, std::uint8_t least, std::uint8_t* bytes) {
  const Eight d;
  auto peak = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 8 <= blocks; i += 8) eight_bytes(in + i * kMxBlock, least, bytes + i, peak);
  if (i < blocks) {
    std::uint16_t tail[8 * kMxBlock] = {};
    std::uint8_t tail_bytes[8];
    std::memcpy(tail, in + i * kMxBlock, (blocks - i) * kMxBlock * 2);
    eight_bytes(tail, least, tail_bytes, peak);
    std::memcpy(bytes + i, tail_bytes, blocks - i);
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, peak))) << 16;
}

HWY_INLINE ByProduct by_byte(std::uint8_t byte) {  // 2^(127 - byte), byte ≤ 247
  return {hn::BitCast(QF(), hn::Set(Q32(), (254U - byte) << 23))};
}

inline std::uint32_t quant_mx(const Rect& rect, std::uint8_t least, std::byte* bytes_out, std::byte* out) {
  const auto* const in = reinterpret_cast<const std::uint16_t*>(rect.data);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(bytes_out);
  auto* const to = reinterpret_cast<std::uint8_t*>(out);
  const std::size_t blocks = rect.cols / kMxBlock;
  const std::uint32_t peak = mx_bytes(in, blocks, least, bytes);
  if (peak >= kInfBits) return peak;
  const bool stream = rect.stream && reinterpret_cast<std::uintptr_t>(to) % kStep == 0;
  auto unused = hn::Zero(Q16());
  std::size_t i = 0;
  for (; i + kStep / kMxBlock <= blocks; i += kStep / kMxBlock) {
    const std::uint16_t* const block = in + i * kMxBlock;
    fetch(reinterpret_cast<const std::byte*>(block), rect.ahead, kStep * 2);
    const Q16 d;
    const auto a = codes_of(hn::LoadU(d, block), by_byte(bytes[i]), unused);
    const auto b = codes_of(hn::LoadU(d, block + kLanes16), by_byte(bytes[i + (kLanes16 == kMxBlock ? 1 : 0)]), unused);
    const auto codes = narrow_two(Q8(), a, b);
    stream ? hn::Stream(codes, Q8(), to + i * kMxBlock) : hn::StoreU(codes, Q8(), to + i * kMxBlock);
  }
  for (; i < blocks; ++i) {
    const Rect block{rect.data + 2 * kMxBlock * i, 1, kMxBlock, 0, DType::kBF16};
    encode_rect<std::uint16_t>(block, by_byte(bytes[i]), out + kMxBlock * i, 0);
  }
  return peak;
}

inline QuantBody make_quant_body() {
  static_assert(kStep % kMxBlock == 0);
  return {quant_peak, quant_encode, quant_mx, [] { hwy::FlushStream(); }};
}

}  // namespace refit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
#endif
