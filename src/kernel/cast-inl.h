// Casts between f32 and the 16-bit floats. A vector that holds a NaN takes the scalar form: conversion instructions
// would quieten it.
#if defined(REFIT_KERNEL_CAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_KERNEL_CAST_INL_H_
#undef REFIT_KERNEL_CAST_INL_H_
#else
#define REFIT_KERNEL_CAST_INL_H_
#endif
#include "hwy/highway.h"
#include "kernel/cast.h"
#include "kernel/ops.h"

HWY_BEFORE_NAMESPACE();
namespace refit::kernel::HWY_NAMESPACE {
using CastBody = bool (*)(void* dst, const void* src, std::int64_t n);
#if HWY_TARGET == HWY_SCALAR
inline CastBody fast_cast(DType, DType) { return nullptr; }
#else
namespace hn = hwy::HWY_NAMESPACE;

using CU32 = hn::CappedTag<std::uint32_t, 8>;
using CU16 = hn::Rebind<std::uint16_t, CU32>;
using CI32 = hn::RebindToSigned<CU32>;
inline constexpr std::int64_t kCastLanes = static_cast<std::int64_t>(hn::MaxLanes(CU32()));

template <DType kFrom, DType kTo>
HWY_INLINE bool tail(void* dst, const void* src, std::int64_t i, std::int64_t n) {
  return cast_scalar(kFrom, kTo, static_cast<char*>(dst) + i * item_size(kTo),
                     static_cast<const char*>(src) + i * item_size(kFrom), n);
}

HWY_INLINE bool any_nan(hn::Vec<CU32> bits) {
  const CI32 d;
  const auto magnitude = hn::BitCast(d, hn::And(bits, hn::Set(CU32(), 0x7fffffffu)));
  return !hn::AllFalse(d, hn::Gt(magnitude, hn::Set(d, 0x7f800000)));
}

inline bool bf16_to_f32(void* dst, const void* src, std::int64_t n) {
  const CU32 d;
  std::int64_t i = 0;
  for (; i + kCastLanes <= n; i += kCastLanes) {
    const auto x = hn::PromoteTo(d, hn::LoadU(CU16(), static_cast<const std::uint16_t*>(src) + i));
    hn::StoreU(hn::ShiftLeft<16>(x), d, static_cast<std::uint32_t*>(dst) + i);
  }
  return tail<DType::kBF16, DType::kF32>(dst, src, i, n - i);
}

inline bool f32_to_bf16(void* dst, const void* src, std::int64_t n) {
  const CU32 d;
  const CI32 di;
  bool exact = true;
  auto lost = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kCastLanes <= n; i += kCastLanes) {
    const auto x = hn::LoadU(d, static_cast<const std::uint32_t*>(src) + i);
    if (any_nan(x)) {
      exact &= tail<DType::kF32, DType::kBF16>(dst, src, i, kCastLanes);
      continue;
    }
    lost = hn::Or(lost, hn::And(x, hn::Set(d, 0xffffu)));
    const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(x, hn::Add(odd, hn::Set(d, 0x7fffu))));
    hn::StoreU(hn::DemoteTo(CU16(), hn::BitCast(di, rounded)), CU16(), static_cast<std::uint16_t*>(dst) + i);
  }
  exact &= hn::AllTrue(d, hn::Eq(lost, hn::Zero(d)));
  return tail<DType::kF32, DType::kBF16>(dst, src, i, n - i) && exact;
}

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86 && !defined(HWY_DISABLE_F16C)
inline bool f16_to_f32(void* dst, const void* src, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::uint16_t*>(src) + i));
    const __m128i magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7fff));
    if (_mm_movemask_epi8(_mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00))) != 0)
      tail<DType::kF16, DType::kF32>(dst, src, i, 8);
    else
      _mm256_storeu_ps(static_cast<float*>(dst) + i, _mm256_cvtph_ps(x));
  }
  return tail<DType::kF16, DType::kF32>(dst, src, i, n - i);
}

inline bool f32_to_f16(void* dst, const void* src, std::int64_t n) {
  const CU32 d;
  bool exact = true;
  auto lost = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto x = hn::LoadU(d, static_cast<const std::uint32_t*>(src) + i);
    if (any_nan(x)) {
      exact &= tail<DType::kF32, DType::kF16>(dst, src, i, 8);
      continue;
    }
    const __m128i h = _mm256_cvtps_ph(_mm256_castsi256_ps(x.raw), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::uint16_t*>(dst) + i), h);
    const hn::Vec<CU32> back{_mm256_castps_si256(_mm256_cvtph_ps(h))};
    lost = hn::Or(lost, hn::Xor(x, back));
  }
  exact &= hn::AllTrue(d, hn::Eq(lost, hn::Zero(d)));
  return tail<DType::kF32, DType::kF16>(dst, src, i, n - i) && exact;
}
#endif

inline CastBody fast_cast(DType from, DType to) {
  if (from == DType::kBF16 && to == DType::kF32) return bf16_to_f32;
  if (from == DType::kF32 && to == DType::kBF16) return f32_to_bf16;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86 && !defined(HWY_DISABLE_F16C)
  if (from == DType::kF16 && to == DType::kF32) return f16_to_f32;
  if (from == DType::kF32 && to == DType::kF16) return f32_to_f16;
#endif
  return nullptr;
}
#endif

}  // namespace refit::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
