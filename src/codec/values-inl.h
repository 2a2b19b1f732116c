// Signs and classes of values with AVX-512 VBMI2. Included once per instruction set, after planes-inl.h.
#if defined(REFIT_CODEC_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_CODEC_VALUES_INL_H_
#undef REFIT_CODEC_VALUES_INL_H_
#else
#define REFIT_CODEC_VALUES_INL_H_
#endif
#include "codec/planes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
#if HWY_TARGET != HWY_AVX3_DL
inline void use_values(Body&) {}
#else

template <typename V>
struct Lanes;
template <>
struct Lanes<std::uint16_t> {
  using Mask = __mmask32;
  static HWY_INLINE __m512i set(std::uint64_t v) { return _mm512_set1_epi16(static_cast<short>(v)); }
  static HWY_INLINE __m512i some(Mask m, const void* p) { return _mm512_maskz_loadu_epi16(m, p); }
  static HWY_INLINE void store_some(Mask m, void* p, __m512i v) { _mm512_mask_storeu_epi16(p, m, v); }
  static HWY_INLINE Mask negative(__m512i v) { return _mm512_movepi16_mask(v); }
  static HWY_INLINE Mask greater(__m512i a, __m512i b) { return _mm512_cmpgt_epu16_mask(a, b); }
  static HWY_INLINE __m512i subtract(__m512i a, __m512i b) { return _mm512_sub_epi16(a, b); }
  static HWY_INLINE __m512i negate(__m512i v, Mask m) { return _mm512_mask_sub_epi16(v, m, _mm512_setzero_si512(), v); }
  static HWY_INLINE __m512i compress(Mask m, __m512i v) { return _mm512_maskz_compress_epi16(m, v); }
  static HWY_INLINE __m512i expand(__m512i other, Mask m, __m512i v) { return _mm512_mask_expand_epi16(other, m, v); }
};
template <>
struct Lanes<std::uint32_t> {
  using Mask = __mmask16;
  static HWY_INLINE __m512i set(std::uint64_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
  static HWY_INLINE __m512i some(Mask m, const void* p) { return _mm512_maskz_loadu_epi32(m, p); }
  static HWY_INLINE void store_some(Mask m, void* p, __m512i v) { _mm512_mask_storeu_epi32(p, m, v); }
  static HWY_INLINE Mask negative(__m512i v) { return _mm512_movepi32_mask(v); }
  static HWY_INLINE Mask greater(__m512i a, __m512i b) { return _mm512_cmpgt_epu32_mask(a, b); }
  static HWY_INLINE __m512i subtract(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
  static HWY_INLINE __m512i negate(__m512i v, Mask m) { return _mm512_mask_sub_epi32(v, m, _mm512_setzero_si512(), v); }
  static HWY_INLINE __m512i compress(Mask m, __m512i v) { return _mm512_maskz_compress_epi32(m, v); }
  static HWY_INLINE __m512i expand(__m512i other, Mask m, __m512i v) { return _mm512_mask_expand_epi32(other, m, v); }
};
template <>
struct Lanes<std::uint64_t> {
  using Mask = __mmask8;
  static HWY_INLINE __m512i set(std::uint64_t v) { return _mm512_set1_epi64(static_cast<long long>(v)); }
  static HWY_INLINE __m512i some(Mask m, const void* p) { return _mm512_maskz_loadu_epi64(m, p); }
  static HWY_INLINE void store_some(Mask m, void* p, __m512i v) { _mm512_mask_storeu_epi64(p, m, v); }
  static HWY_INLINE Mask negative(__m512i v) { return _mm512_movepi64_mask(v); }
  static HWY_INLINE Mask greater(__m512i a, __m512i b) { return _mm512_cmpgt_epu64_mask(a, b); }
  static HWY_INLINE __m512i subtract(__m512i a, __m512i b) { return _mm512_sub_epi64(a, b); }
  static HWY_INLINE __m512i negate(__m512i v, Mask m) { return _mm512_mask_sub_epi64(v, m, _mm512_setzero_si512(), v); }
  static HWY_INLINE __m512i compress(Mask m, __m512i v) { return _mm512_maskz_compress_epi64(m, v); }
  static HWY_INLINE __m512i expand(__m512i other, Mask m, __m512i v) { return _mm512_mask_expand_epi64(other, m, v); }
};
template <typename V>
inline constexpr std::size_t kLanesOf = 64 / sizeof(V);

// Bit planes are written and read a vector's lanes at a time.
template <typename Mask>
HWY_INLINE void put_bits(std::uint64_t* bits, std::size_t i, Mask m) {
  std::memcpy(reinterpret_cast<Byte*>(bits) + i / 8, &m, sizeof(m));
}
template <typename Mask>
HWY_INLINE Mask get_bits(const std::uint64_t* bits, std::size_t i) {
  Mask m;
  std::memcpy(&m, reinterpret_cast<const Byte*>(bits) + i / 8, sizeof(m));
  return m;
}

template <typename V>
std::size_t signs(V* values, std::size_t n, std::uint64_t* bits, Ahead& ahead) {
  using L = Lanes<V>;
  using Mask = typename L::Mask;
  std::size_t found = 0;
  for (std::size_t i = 0; i < n; i += kLanesOf<V>) {
    ahead.touch();
    const Mask valid = first<Mask>(n - i);
    const __m512i v = L::some(valid, values + i);
    const Mask m = L::negative(v);
    L::store_some(valid, values + i, L::negate(v, m));
    put_bits(bits, i, m);
    found += popcount(m);
  }
  return found;
}

template <typename V>
std::size_t split(const V* in, std::size_t n, int c, std::uint64_t* bits, V* above, V* here, Ahead& ahead) {
  using L = Lanes<V>;
  using Mask = typename L::Mask;
  const __m512i least = L::set(std::uint64_t{1} << c), most = L::set((std::uint64_t{2} << c) - 1);
  std::size_t up = 0;
  for (std::size_t i = 0; i < n; i += kLanesOf<V>) {
    ahead.touch();
    const Mask valid = first<Mask>(n - i);
    const __m512i v = L::some(valid, in + i);
    const Mask m = L::greater(v, most);
    put_bits(bits, i, m);
    store(above + up, L::compress(m, v));
    store(here + (i - up), L::compress(static_cast<Mask>(~m & valid), L::subtract(v, least)));
    up += popcount(m);
  }
  return up;
}

template <typename V>
void merge(const std::uint64_t* bits, std::size_t n, const V* above, const V* here, V* out, Ahead& ahead) {
  using L = Lanes<V>;
  using Mask = typename L::Mask;
  std::size_t up = 0;
  for (std::size_t i = 0; i < n; i += kLanesOf<V>) {
    ahead.touch();
    const Mask m = get_bits<Mask>(bits, i);
    const __m512i v = L::expand(_mm512_setzero_si512(), m, load(above + up));
    store(out + i, L::expand(v, static_cast<Mask>(~m), load(here + (i - up))));
    up += popcount(m);
  }
}

template <typename V>
void negate(const std::uint64_t* bits, std::size_t n, V* values) {
  using L = Lanes<V>;
  for (std::size_t i = 0; i < n; i += kLanesOf<V>)
    store(values + i, L::negate(load(values + i), get_bits<typename L::Mask>(bits, i)));
}

inline void use_values(Body& body) {
  body.v16 = {
      signs<std::uint16_t>, split<std::uint16_t>, merge<std::uint16_t>, negate<std::uint16_t>, pack16, unpack16};
  // Wide mantissas keep the scalar packing.
  body.v32 = {signs<std::uint32_t>,  split<std::uint32_t>, merge<std::uint32_t>,
              negate<std::uint32_t>, kScalarBody.v32.pack, kScalarBody.v32.unpack};
  body.v64 = {signs<std::uint64_t>,  split<std::uint64_t>, merge<std::uint64_t>,
              negate<std::uint64_t>, kScalarBody.v64.pack, kScalarBody.v64.unpack};
}
#endif
}  // namespace refit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
