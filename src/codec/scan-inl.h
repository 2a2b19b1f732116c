// The scan with Highway: masks of what differs, then the ones of each mask. Included once per instruction set.
#if defined(REFIT_CODEC_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_CODEC_SCAN_INL_H_
#undef REFIT_CODEC_SCAN_INL_H_
#else
#define REFIT_CODEC_SCAN_INL_H_
#endif
#include "codec/body.h"
#include "codec/change_body.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename E, typename V>
HWY_INLINE void take_element(const Byte* base, const Byte* next, std::size_t i, Form form, Pos* position, V* value) {
  E a, b;
  std::memcpy(&a, base + i * sizeof(E), sizeof(E));
  std::memcpy(&b, next + i * sizeof(E), sizeof(E));
  *position = static_cast<Pos>(i);
  *value = change_value<E, V>(form, a, b);
}

template <typename E, typename V>
std::size_t scan_masks(const Byte* base, const Byte* next, std::size_t n, Form form, Pos* positions, V* values) {
  const hn::ScalableTag<E> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t found = 0, i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto a = hn::LoadU(d, reinterpret_cast<const E*>(base + i * sizeof(E)));
    const auto b = hn::LoadU(d, reinterpret_cast<const E*>(next + i * sizeof(E)));
    const auto differs = hn::Not(hn::Eq(a, b));
    if (hn::AllFalse(d, differs)) continue;
    alignas(8) Byte bits[8] = {};
    hn::StoreMaskBits(d, differs, bits);
    for (std::uint64_t m = load_word(bits, 8); m != 0; m &= m - 1, ++found)
      take_element<E>(base, next, i + static_cast<std::size_t>(std::countr_zero(m)), form, positions + found,
                      values + found);
  }
  for (; i < n; ++i)
    if (std::memcmp(base + i * sizeof(E), next + i * sizeof(E), sizeof(E)) != 0) {
      take_element<E>(base, next, i, form, positions + found, values + found);
      ++found;
    }
  return found;
}

inline std::size_t scan(const Byte* base, const Byte* next, std::size_t n, int width, Form form, Pos* positions,
                        void* values) {
  if (width == 1) return scan_masks<std::uint8_t>(base, next, n, form, positions, static_cast<std::uint16_t*>(values));
  if (width == 2) return scan_masks<std::uint16_t>(base, next, n, form, positions, static_cast<std::uint16_t*>(values));
  if (width == 4) return scan_masks<std::uint32_t>(base, next, n, form, positions, static_cast<std::uint32_t*>(values));
  return scan_masks<std::uint64_t>(base, next, n, form, positions, static_cast<std::uint64_t*>(values));
}

inline void use_scan(Body& body) { body.scan = scan; }

}  // namespace refit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
