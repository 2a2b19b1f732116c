// Row copies. Included once per instruction set.
#if defined(REFIT_KERNEL_COPY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_KERNEL_COPY_INL_H_
#undef REFIT_KERNEL_COPY_INL_H_
#else
#define REFIT_KERNEL_COPY_INL_H_
#endif
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernel/ops.h"

HWY_BEFORE_NAMESPACE();
namespace refit::kernel::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kLine = 64;
inline constexpr std::int64_t kLeastStream = 256;  // shorter rows are mostly partial lines

template <bool kNear>
HWY_INLINE void fetch(const char* p) {
  __builtin_prefetch(p, 0, kNear ? 3 : 2);
}

// kMode: 0 no prefetch, 1 near, 2 far. Lines of 64 bytes from an arbitrary source to an aligned destination.
template <int kMode>
HWY_INLINE void stream_lines(char* dst, const char* src, std::int64_t lines, std::int64_t delta) {
  const hn::ScalableTag<std::uint8_t> d;
  using D = decltype(d);
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  auto* to = reinterpret_cast<std::uint8_t*>(dst);
  const auto* from = reinterpret_cast<const std::uint8_t*>(src);
  for (std::int64_t l = 0; l < lines; ++l, to += kLine, from += kLine) {
    if constexpr (kMode == 1) fetch<true>(reinterpret_cast<const char*>(from) + delta);
    if constexpr (kMode == 2) fetch<false>(reinterpret_cast<const char*>(from) + delta);
#pragma GCC unroll 4
    for (std::int64_t b = 0; b < kLine; b += kStep) hn::Stream(hn::LoadU(d, from + b), d, to + b);
  }
}

HWY_INLINE void stream_row(char* dst, const char* src, std::int64_t bytes, Prefetch ahead) {
  const auto past =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(dst) % static_cast<std::uintptr_t>(kLine));
  const std::int64_t head = (kLine - past) % kLine;
  if (head != 0) std::memcpy(dst, src, static_cast<std::size_t>(head));
  const std::int64_t lines = (bytes - head) / kLine, body = head + lines * kLine;
  if (ahead.delta == 0)
    stream_lines<0>(dst + head, src + head, lines, 0);
  else if (ahead.near)
    stream_lines<1>(dst + head, src + head, lines, ahead.delta);
  else
    stream_lines<2>(dst + head, src + head, lines, ahead.delta);
  if (body != bytes) std::memcpy(dst + body, src + body, static_cast<std::size_t>(bytes - body));
}

// Short rows of whole lines, where a call of memcpy would cost as much as the bytes.
template <int kLines, int kMode>
HWY_INLINE void copy_few_lines(const CopyRows& c) {
  const hn::ScalableTag<std::uint8_t> d;
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<std::uint8_t>()));
  const auto* from = reinterpret_cast<const std::uint8_t*>(c.src);
  auto* to = reinterpret_cast<std::uint8_t*>(c.dst);
  for (std::int64_t r = 0; r < c.rows; ++r, from += c.src_pitch, to += c.dst_pitch) {
#pragma GCC unroll 8
    for (std::int64_t b = 0; b < kLines * kLine; b += kStep) {
      if constexpr (kMode != 0)
        if (b % kLine == 0) fetch<kMode == 1>(reinterpret_cast<const char*>(from + b) + c.prefetch.delta);
      hn::StoreU(hn::LoadU(d, from + b), d, to + b);
    }
  }
}

template <int kLines>
HWY_INLINE void copy_few_lines(const CopyRows& c) {
  if (c.prefetch.delta == 0) return copy_few_lines<kLines, 0>(c);
  c.prefetch.near ? copy_few_lines<kLines, 1>(c) : copy_few_lines<kLines, 2>(c);
}

inline void copy_rows(const CopyRows& c) {
  if (c.stream && c.bytes >= kLeastStream) {
    for (std::int64_t r = 0; r < c.rows; ++r)
      stream_row(c.dst + r * c.dst_pitch, c.src + r * c.src_pitch, c.bytes, c.prefetch);
    return;
  }
  if (c.bytes == kLine) return copy_few_lines<1>(c);
  if (c.bytes == 2 * kLine) return copy_few_lines<2>(c);
  const auto bytes = static_cast<std::size_t>(c.bytes);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const char* from = c.src + r * c.src_pitch;
    if (c.prefetch.delta != 0)
      for (std::int64_t b = 0; b < c.bytes; b += kLine)
        c.prefetch.near ? fetch<true>(from + b + c.prefetch.delta) : fetch<false>(from + b + c.prefetch.delta);
    std::memcpy(c.dst + r * c.dst_pitch, from, bytes);
  }
}

inline void fence() { hwy::FlushStream(); }

}  // namespace refit::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
