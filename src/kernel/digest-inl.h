// Digest bodies: per block of at most 256 items one sum of value * T per word, then one multiply by the other keys.
#if defined(REFIT_KERNEL_DIGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_KERNEL_DIGEST_INL_H_
#undef REFIT_KERNEL_DIGEST_INL_H_
#else
#define REFIT_KERNEL_DIGEST_INL_H_
#endif
#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernel/ops.h"

HWY_BEFORE_NAMESPACE();
namespace refit::kernel::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
inline void digest_rows(Acc& acc, const DigestRows& r) { digest_rows_scalar(acc, r); }
inline void digest_items(Acc& acc, const DigestItems& r) { digest_items_scalar(acc, r); }
#else
namespace hn = hwy::HWY_NAMESPACE;

// One cache line per step where the machine has such vectors.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
using D16 = hn::CappedTag<std::uint16_t, 32>;
#define REFIT_DIGEST_MASKED 1  // masked loads that do not fault: tails in one step
#else
using D16 = hn::CappedTag<std::uint16_t, 16>;
#define REFIT_DIGEST_MASKED 0
#endif
using DI16 = hn::RebindToSigned<D16>;
using DI32 = hn::RepartitionToWide<DI16>;
using DU32 = hn::RebindToUnsigned<DI32>;
using V16 = hn::Vec<DI16>;
using V32 = hn::Vec<DI32>;
inline constexpr std::int64_t kLanes16 = static_cast<std::int64_t>(hn::MaxLanes(D16()));
inline constexpr std::int64_t kLanes32 = kLanes16 / 2;

// Sum of products of neighbours, added to `sum` (wraps).
HWY_INLINE V32 multiply_pairs(V16 a, V16 b, V32 sum) {
  const DI32 d;
#if HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86
  // One instruction instead of two, which Highway 1.0.3 does not offer; it matters where data comes from a cache.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "vm"(b.raw));
  return sum;
#elif HWY_ARCH_X86
  V32 unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, a, b, sum, unused);
#else
  const V32 a32 = hn::BitCast(d, a), b32 = hn::BitCast(d, b);
  const V32 low = hn::ShiftRight<16>(hn::ShiftLeft<16>(a32)) * hn::ShiftRight<16>(hn::ShiftLeft<16>(b32));
  return sum + low + hn::ShiftRight<16>(a32) * hn::ShiftRight<16>(b32);
#endif
}

HWY_INLINE V16 value16(hn::Vec<D16> x) { return hn::BitCast(DI16(), hn::Xor(x, hn::ShiftRight<8>(x))); }

// One vector of a row: how many items it takes, its values, and their products with the T table.
template <int kItem>
struct Body {
  static constexpr std::int64_t kStep = kItem == 1 ? kLanes16 : 2 * kLanes16 / kItem;  // items per vector
  V16 half[kWords];

  explicit HWY_INLINE Body(const HalfKeys& keys) {
    if constexpr (kItem >= 4) {
      alignas(64) std::int16_t pattern[kLanes16];
      for (int w = 0; w < kWords; ++w) {
        for (std::int64_t l = 0; l < kLanes16; ++l) pattern[l] = keys.h[w][l % (kItem / 2)];
        half[w] = hn::Load(DI16(), pattern);
      }
    }
  }
  static HWY_INLINE V16 load(const char* p) {
    if constexpr (kItem == 1) {
      const hn::Rebind<std::uint8_t, D16> d8;
      return hn::BitCast(DI16(), hn::PromoteTo(D16(), hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p))));
    } else {
      return value16(hn::LoadU(D16(), reinterpret_cast<const std::uint16_t*>(p)));
    }
  }
#if REFIT_DIGEST_MASKED
  // The first `lanes` 16-bit parts, zeros behind them; touches no byte beyond.
  static HWY_INLINE V16 load_first(const char* p, std::size_t lanes) {
    return value16(hn::MaskedLoad(hn::FirstN(D16(), lanes), D16(), reinterpret_cast<const std::uint16_t*>(p)));
  }
#endif
  HWY_INLINE V32 add(int w, V16 g, const AxisTables& t, std::int64_t at, V32 sum) const {
    if constexpr (kItem <= 2) return multiply_pairs(g, hn::LoadU(DI16(), t.t16[w] + at), sum);
    const DI32 d;
    const V32 y = multiply_pairs(g, half[w], hn::Zero(d));
    if constexpr (kItem == 4) return hn::Add(sum, hn::Mul(y, hn::LoadU(d, t.t32[w] + at)));
    return hn::Add(sum, hn::Mul(y, hn::LoadU(d, t.t64[w] + 2 * at)));
  }
};

struct Sums {
  V32 s0, s1, s2, s3;
};

template <int kItem>
HWY_INLINE void add_vector(const Body<kItem>& body, V16 g, const AxisTables& t, std::int64_t index, Sums& s) {
  s.s0 = body.add(0, g, t, index, s.s0);
  s.s1 = body.add(1, g, t, index, s.s1);
  s.s2 = body.add(2, g, t, index, s.s2);
  s.s3 = body.add(3, g, t, index, s.s3);
}

template <int kItem, int kFetch, bool kStore>
HWY_INLINE void add_block(const Body<kItem>& body, const char* p, std::int64_t n, std::int64_t at, const AxisTables& t,
                          std::int64_t delta, char* to, Sums& s) {
  constexpr std::int64_t kStep = Body<kItem>::kStep, kBytes = kStep * kItem;
  std::int64_t i = 0;
  const auto one = [&](const char* q, std::int64_t index)
                       HWY_ATTR { add_vector(body, Body<kItem>::load(q), t, index, s); };
  constexpr std::int64_t kPerLine = 64 / kBytes, kLines = kBytes == 64 ? 4 : 1, kUnroll = kPerLine * kLines;
  for (; i + kUnroll * kStep <= n; i += kUnroll * kStep) {
    const char* q = p + i * kItem;
#pragma GCC unroll 4
    for (std::int64_t k = 0; k < kUnroll; ++k) {
      if (kFetch != 0 && k % kPerLine == 0) __builtin_prefetch(q + k * kBytes + delta, 0, kFetch == 1 ? 3 : 2);
      if constexpr (kStore)
        hn::Stream(hn::LoadU(D16(), reinterpret_cast<const std::uint16_t*>(q + k * kBytes)), D16(),
                   reinterpret_cast<std::uint16_t*>(to + i * kItem + k * kBytes));
      one(q + k * kBytes, at + i + k * kStep);
    }
  }
  if constexpr (kStore) std::memcpy(to + i * kItem, p + i * kItem, static_cast<std::size_t>((n - i) * kItem));
  for (; i + kStep <= n; i += kStep) one(p + i * kItem, at + i);
  if (i < n) {
#if REFIT_DIGEST_MASKED
    if constexpr (kItem > 1) {
      const auto lanes = static_cast<std::size_t>((n - i) * kItem / 2);
      add_vector(body, Body<kItem>::load_first(p + i * kItem, lanes), t, at + i, s);
      return;
    }
#endif
    alignas(64) char rest[64] = {};
    std::memcpy(rest, p + i * kItem, static_cast<std::size_t>((n - i) * kItem));
    one(rest, at + i);  // zeros add nothing, whatever their key
  }
}

template <int kItem, int kFetch, bool kStore>
HWY_INLINE void rows_body(Acc& acc, const DigestRows& r) {
  const DI32 d;
  const DU32 du;
  const Body<kItem> body(*r.halves);
  V32 total[kWords];
  for (int w = 0; w < kWords; ++w) total[w] = hn::BitCast(d, hn::Load(du, acc.lane[w]));
  for (std::int64_t row = 0; row < r.rows; ++row) {
    const char* p = r.data + row * r.pitch;
    const Words* u = r.block_key;
    for (std::int64_t i = 0; i < r.n; ++u) {
      const std::int64_t at = (r.index + i) & (kBlock - 1), take = std::min(kBlock - at, r.n - i);
      Sums s{hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      char* const to = kStore ? r.store + row * r.store_pitch + i * kItem : nullptr;
      add_block<kItem, kFetch, kStore>(body, p + i * kItem, take, at, *r.tables, r.prefetch.delta, to, s);
      const V32 sums[kWords] = {s.s0, s.s1, s.s2, s.s3};
#pragma GCC unroll 4
      for (std::size_t w = 0; w < kWords; ++w)
        total[w] =
            hn::Add(total[w], hn::Mul(sums[w], hn::Set(d, static_cast<std::int32_t>((*u)[w] * r.row_key[row][w]))));
      i += take;
    }
  }
  for (int w = 0; w < kWords; ++w) hn::Store(hn::BitCast(du, total[w]), du, acc.lane[w]);
}

template <int kItem, bool kStore>
HWY_INLINE void rows_of(Acc& acc, const DigestRows& r) {
  if (r.prefetch.delta == 0)
    rows_body<kItem, 0, kStore>(acc, r);
  else if (r.prefetch.near)
    rows_body<kItem, 1, kStore>(acc, r);
  else
    rows_body<kItem, 2, kStore>(acc, r);
}

inline void digest_rows(Acc& acc, const DigestRows& r) {
  const bool store = r.store != nullptr;
  if (r.item == 1) return rows_of<1, false>(acc, r);
  if (r.item == 2) return store ? rows_of<2, true>(acc, r) : rows_of<2, false>(acc, r);
  if (r.item == 4) return store ? rows_of<4, true>(acc, r) : rows_of<4, false>(acc, r);
  store ? rows_of<8, true>(acc, r) : rows_of<8, false>(acc, r);
}

// Values of kLanes32 items as 32-bit lanes, for 1- and 2-byte items.
HWY_INLINE V32 load_wide(const char* p, std::int64_t item) {
  const DI32 d;
  if (item == 1) {
    const hn::Rebind<std::uint8_t, DI32> d8;
    return hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
  }
  const hn::Rebind<std::uint16_t, DI32> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  const auto x = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
  return hn::PromoteTo(d, hn::BitCast(di16, hn::Xor(x, hn::ShiftRight<8>(x))));
}

inline void digest_items(Acc& acc, const DigestItems& r) {
  std::int64_t i = 0;
  if (r.item <= 2) {
    const DI32 d;
    V32 sum[kWords];
    for (int w = 0; w < kWords; ++w) sum[w] = hn::Zero(d);
    for (; i + kLanes32 <= r.n; i += kLanes32) {
      const V32 g = load_wide(r.data + i * r.item, r.item);
      for (int w = 0; w < kWords; ++w) sum[w] = hn::Add(sum[w], hn::Mul(g, hn::LoadU(d, r.key[w] + i)));
    }
    const DU32 du;
    for (std::size_t w = 0; w < kWords; ++w) {
      const V32 scaled = hn::Mul(sum[w], hn::Set(d, static_cast<std::int32_t>((*r.row_key)[w])));
      hn::Store(hn::Add(hn::Load(du, acc.lane[w]), hn::BitCast(du, scaled)), du, acc.lane[w]);
    }
  }
  DigestItems rest = r;
  rest.data += i * r.item;
  rest.n -= i;
  for (auto& key : rest.key) key += i;
  digest_items_scalar(acc, rest);
}
#endif

}  // namespace refit::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#undef REFIT_DIGEST_MASKED
#endif
