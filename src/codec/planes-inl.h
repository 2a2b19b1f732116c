// The planes with AVX-512 VBMI2, for which Highway 1.0.3 has no operations: Expand, 8-bit Compress, multishift. Other
// sets keep the scalar loops. Included once per instruction set.
#if defined(REFIT_CODEC_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef REFIT_CODEC_PLANES_INL_H_
#undef REFIT_CODEC_PLANES_INL_H_
#else
#define REFIT_CODEC_PLANES_INL_H_
#endif
#include <algorithm>
#include <array>

#include "codec/body.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace refit::codec::HWY_NAMESPACE {
#if HWY_TARGET != HWY_AVX3_DL
inline void use_planes(Body&) {}
#else

// ---- vectors of 64 bytes

HWY_INLINE __m512i load(const void* p) { return _mm512_loadu_si512(p); }
HWY_INLINE void store(void* p, __m512i v) { _mm512_storeu_si512(p, v); }
// The first n of a vector's lanes.
template <typename Mask>
HWY_INLINE Mask first(std::size_t n) {
  constexpr std::size_t kLanes = 8 * sizeof(Mask);
  return n >= kLanes ? static_cast<Mask>(~Mask{0}) : static_cast<Mask>((std::uint64_t{1} << n) - 1);
}
// Up to 64 bytes, zeros past `have`: never touches what lies behind.
HWY_INLINE __m512i load_some(const Byte* p, std::size_t have) {
  return have >= 64 ? load(p) : _mm512_maskz_loadu_epi8(first<__mmask64>(have), p);
}
HWY_INLINE __m512i set16(int v) { return _mm512_set1_epi16(static_cast<short>(v)); }
HWY_INLINE std::size_t popcount(std::uint64_t m) { return static_cast<std::size_t>(_mm_popcnt_u64(m)); }

template <typename T, std::size_t kCount, typename F>
constexpr std::array<T, kCount> table(F f) {
  std::array<T, kCount> out{};
  for (std::size_t i = 0; i < kCount; ++i) out[i] = static_cast<T>(f(i));
  return out;
}
alignas(64) inline constexpr auto kIota8 = table<Byte, 64>([](std::size_t i) { return i; });
alignas(64) inline constexpr auto kIota16 = table<Pos, 32>([](std::size_t i) { return i; });
// Bytes 0..b-1 of each 16-byte lane, one lane behind the other.
alignas(64) inline constexpr auto kJoin = table<std::array<Byte, 64>, 16>([](std::size_t b) {
  return table<Byte, 64>([b](std::size_t i) { return b == 0 || i / b > 3 ? 0 : i / b * 16 + i % b; });
});
// For each 64-bit lane the eight bytes in which its four fields of b bits begin, and where those begin there.
alignas(64) inline constexpr auto kSpread = table<std::array<Byte, 64>, 16>([](std::size_t b) {
  return table<Byte, 64>([b](std::size_t i) { return i / 8 * b / 2 + i % 8; });
});
alignas(64) inline constexpr auto kShifts = table<std::array<Byte, 64>, 16>([](std::size_t b) {
  return table<Byte, 64>([b](std::size_t i) { return (i / 8 * b % 2 * 4 + i % 8 / 2 * b + i % 2 * 8) % 64; });
});

// Sums of 16-bit numbers up to each, in every 128-bit lane.
HWY_INLINE __m512i sums_of_8(__m512i x) {
  x = _mm512_add_epi16(x, _mm512_bslli_epi128(x, 2));
  x = _mm512_add_epi16(x, _mm512_bslli_epi128(x, 4));
  return _mm512_add_epi16(x, _mm512_bslli_epi128(x, 8));
}
// The same over all 32.
HWY_INLINE __m512i sums_of_32(__m512i x) {
  const __m512i odd =
      _mm512_set_epi64(0x0017001700170017, 0x0017001700170017, 0, 0, 0x0007000700070007, 0x0007000700070007, 0, 0);
  x = sums_of_8(x);
  x = _mm512_add_epi16(x, _mm512_maskz_permutexvar_epi16(0xff00ff00U, odd, x));
  return _mm512_add_epi16(x, _mm512_maskz_permutexvar_epi16(0xffff0000U, set16(15), x));
}

// ---- bits to numbers

// Numbers of the ones of m, plus base; writes 64 lanes.
HWY_INLINE std::size_t put_ones(std::uint64_t m, std::size_t base, Pos* out) {
  const __m512i at = _mm512_maskz_compress_epi8(m, load(kIota8.data())), add = set16(static_cast<int>(base));
  store(out, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(at)), add));
  store(out + 32, _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(at, 1)), add));
  return popcount(m);
}

inline std::size_t bit_positions(const std::uint64_t* bits, std::size_t count, bool set, Pos* positions) {
  const std::uint64_t flip = set ? 0 : ~std::uint64_t{0};
  std::size_t found = 0;
  for (std::size_t i = 0; i < count; i += 64)
    found += put_ones((bits[i / 64] ^ flip) & first<std::uint64_t>(count - i), i, positions + found);
  return found;
}

inline bool ones(const Byte* in, std::size_t have, std::size_t n, Pos* at, Ahead& ahead) {
  std::size_t found = 0;
  for (std::size_t byte = 0; found < n; byte += 8) {
    if (byte >= have || byte >= kBlock / 8) return false;
    ahead.touch();
    found += put_ones(load_word(in + byte, have - byte), byte * 8, at + found);
  }
  return true;
}

// ---- fields of c bits, 1 ≤ c ≤ 15

// Lanes of 16 bits, each below 2^c, to 4c bytes.
HWY_INLINE __m512i join_fields(__m512i v, int c, __m512i join) {
  const auto low = [](__m512i x, std::int64_t mask) { return _mm512_and_si512(x, _mm512_set1_epi64(mask)); };
  const auto count = [](int n) { return _mm_cvtsi32_si128(n); };
  v = _mm512_or_si512(low(v, 0x0000ffff0000ffff), _mm512_sll_epi32(_mm512_srli_epi32(v, 16), count(c)));
  v = _mm512_or_si512(low(v, 0x00000000ffffffff), _mm512_sll_epi64(_mm512_srli_epi64(v, 32), count(2 * c)));
  const __m512i upper = _mm512_unpackhi_epi64(v, v);
  const __m512i first_half = _mm512_or_si512(v, _mm512_sll_epi64(upper, count(4 * c)));
  const __m512i both = _mm512_unpacklo_epi64(first_half, _mm512_srl_epi64(upper, count(64 - 4 * c)));
  return _mm512_permutexvar_epi8(join, both);
}

template <typename Get>
HWY_INLINE void pack_fields(std::size_t n, int c, Byte* out, Ahead& ahead, Get get) {
  const __m512i join = load(kJoin[static_cast<std::size_t>(c)].data());
  for (std::size_t i = 0; i < n; i += 32, out += 4 * c) {
    ahead.touch();
    store(out, join_fields(get(i, first<__mmask32>(n - i)), c, join));
  }
}

inline void pack16(const std::uint16_t* in, std::size_t n, int c, Byte* out, Ahead& ahead) {
  pack_fields(n, c, out, ahead, [in](std::size_t i, __mmask32 m) { return _mm512_maskz_loadu_epi16(m, in + i); });
}

struct Fields {
  __m512i spread, shifts, mask;
  explicit HWY_INLINE Fields(int c)
      : spread(load(kSpread[static_cast<std::size_t>(c)].data())),
        shifts(load(kShifts[static_cast<std::size_t>(c)].data())),
        mask(set16((1 << c) - 1)) {}
  HWY_INLINE __m512i get(__m512i bytes) const {
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(spread, bytes)), mask);
  }
};

inline void unpack16(const Byte* in, std::size_t n, int c, std::uint16_t* out, Ahead& ahead) {
  const Fields fields(c);
  const __m512i lead = set16(1 << c);
  std::size_t left = bytes_of_bits(n * static_cast<std::size_t>(c));
  const auto step = static_cast<std::size_t>(4 * c);
  for (std::size_t i = 0; i < n; i += 32, in += step, left -= std::min(left, step)) {
    ahead.touch();
    store(out + i, _mm512_add_epi16(fields.get(load_some(in, left)), lead));
  }
}

// ---- sets

struct UnaryWriter {
  Byte* out;
  std::size_t at = 0;                                           // bits
  std::uint64_t carry = 0;                                      // bits of the byte begun
  HWY_INLINE void put(std::uint64_t bits, std::size_t count) {  // count ≤ 56
    const std::uint64_t w = carry | bits << (at % 8);
    std::memcpy(out + at / 8, &w, 8);
    const std::size_t next = at + count;
    carry = w >> (8 * (next / 8 - at / 8));
    at = next;
  }
  void put_gap(std::size_t zeros) {
    for (; zeros > 48; zeros -= 48) put(0, 48);
    put(std::uint64_t{1} << zeros, zeros + 1);
  }
};

// The unary parts of 32 gaps, eight to a word. `lengths`: high part + 1 of each, 0 for lanes that do not count, which
// then set the bit of the lane before them once more.
HWY_INLINE void put_unary(UnaryWriter& to, __m512i lengths) {
  const __m512i ends = sums_of_8(lengths), at = _mm512_sub_epi16(ends, set16(1)), one = _mm512_set1_epi64(1);
  const auto bits = [&](__m128i lanes) { return _mm512_sllv_epi64(one, _mm512_cvtepu16_epi64(lanes)); };
  const __m512i a = bits(_mm512_castsi512_si128(at)), b = bits(_mm512_extracti64x2_epi64(at, 1));
  const __m512i c = bits(_mm512_extracti64x2_epi64(at, 2)), d = bits(_mm512_extracti64x2_epi64(at, 3));
  const __m512i ab = _mm512_or_si512(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m512i cd = _mm512_or_si512(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
  __m512i r = _mm512_or_si512(_mm512_shuffle_i64x2(ab, cd, 0x44), _mm512_shuffle_i64x2(ab, cd, 0xee));
  r = _mm512_or_si512(r, _mm512_shuffle_i64x2(r, r, 0xb1));
  alignas(64) std::uint64_t word[8], end[8];
  _mm512_store_si512(word, r);
  _mm512_store_si512(end, ends);
  to.put(word[0], end[1] >> 48);
  to.put(word[1], end[3] >> 48);
  to.put(word[4], end[5] >> 48);
  to.put(word[5], end[7] >> 48);
}

inline std::size_t put_set(Pos* positions, std::size_t n, std::size_t universe, Byte* out, Ahead& ahead) {
  const int k = rice_k(n, universe);
  if (k == 0) return kScalarBody.put_set(positions, n, universe, out, ahead);
  positions[-1] = 0xffff;
  const __m512i one = set16(1);
  const auto gaps = [positions, one](std::size_t i, __mmask32 m) {
    const __m512i p = _mm512_maskz_loadu_epi16(m, positions + i);
    const __m512i before = _mm512_maskz_loadu_epi16(m, positions + i - 1);
    return _mm512_maskz_sub_epi16(m, _mm512_sub_epi16(p, before), one);
  };
  const __m512i low = set16((1 << k) - 1);
  pack_fields(n, k, out, ahead, [&](std::size_t i, __mmask32 m) { return _mm512_and_si512(gaps(i, m), low); });
  UnaryWriter high{out + bytes_of_bits(n * static_cast<std::size_t>(k))};
  for (std::size_t i = 0; i < n; i += 32) {
    ahead.touch();
    const __mmask32 m = first<__mmask32>(n - i);
    const __m512i h = _mm512_srl_epi16(gaps(i, m), _mm_cvtsi32_si128(k));
    // Eight high parts below 7 stay within a word's 56 bits whatever their sum.
    if (_mm512_cmpge_epu16_mask(h, set16(7)) == 0) [[likely]] {
      put_unary(high, _mm512_maskz_add_epi16(m, h, one));
    } else {
      for (std::size_t j = i; j < std::min(n, i + 32); ++j)
        high.put_gap(static_cast<std::size_t>(
            static_cast<Pos>(positions[j] - positions[static_cast<std::ptrdiff_t>(j) - 1] - 1) >> k));
    }
  }
  return static_cast<std::size_t>(high.out - out) + bytes_of_bits(high.at);
}

inline Taken get_bitmap(const Byte* in, std::size_t have, std::size_t n, std::size_t universe, Pos* positions,
                        Ahead& ahead) {
  const std::size_t bytes = bytes_of_bits(universe);
  if (bytes > have) return {0, Fault::kTruncated};
  std::size_t count = 0;
  for (std::size_t b = 0; b < bytes; b += 8) count += popcount(load_word(in + b, bytes - b));
  if (count != n) return {0, Fault::kCount};
  ones(in, bytes, n, positions, ahead);
  return {bytes, positions[n - 1] < universe ? Fault::kNone : Fault::kPadding};
}

// positions holds the bit numbers of the unary plane; adds the low parts. Returns the last position, exact.
inline std::size_t add_lows(const Byte* in, std::size_t have, std::size_t n, int k, Pos* positions, Ahead& ahead) {
  const Fields fields(k);
  const auto step = static_cast<std::size_t>(4 * k);
  const std::size_t last_bit = positions[n - 1];
  __m512i carry = _mm512_setzero_si512(), exact = carry, index = load(kIota16.data());
  std::size_t left = bytes_of_bits(n * static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < n; i += 32, in += step, have -= std::min(have, step), left -= std::min(left, step)) {
    ahead.touch();
    // Behind the last field lies the unary plane: it must not count.
    const __m512i low = fields.get(load_some(in, std::min(have, left)));
    exact = _mm512_add_epi32(exact, _mm512_madd_epi16(low, set16(1)));
    const __m512i sums = _mm512_add_epi16(sums_of_32(low), carry);
    carry = _mm512_permutexvar_epi16(set16(31), sums);
    const __m512i high = _mm512_sll_epi16(_mm512_sub_epi16(load(positions + i), index), _mm_cvtsi32_si128(k));
    store(positions + i, _mm512_add_epi16(_mm512_add_epi16(high, sums), index));
    index = _mm512_add_epi16(index, set16(32));
  }
  const auto sum = static_cast<std::uint32_t>(_mm512_reduce_add_epi32(exact));
  return ((last_bit - (n - 1)) << k) + sum + n - 1;
}

inline Taken get_set(const Byte* in, std::size_t have, std::size_t n, std::size_t universe, Pos* positions,
                     Ahead& ahead) {
  const int k = rice_k(n, universe);
  if (k == 0) return get_bitmap(in, have, n, universe, positions, ahead);
  const std::size_t low_bits = n * static_cast<std::size_t>(k), lows = bytes_of_bits(low_bits);
  if (lows > have) return {0, Fault::kTruncated};
  if (lows * 8 != low_bits && in[lows - 1] >> (low_bits % 8) != 0) return {0, Fault::kPadding};
  if (!ones(in + lows, have - lows, n, positions, ahead)) return {0, Fault::kTruncated};
  const std::size_t last = positions[n - 1];
  if (in[lows + last / 8] >> (last % 8) != 1) return {0, Fault::kPadding};
  if (add_lows(in, lows, n, k, positions, ahead) >= universe) return {0, Fault::kPosition};
  return {lows + last / 8 + 1, Fault::kNone};
}

inline std::size_t runs(const Pos* p, std::size_t n) {
  std::size_t r = n > 0 ? 1 : 0;
  for (std::size_t i = 1; i < n; i += 32) {
    const __mmask32 m = first<__mmask32>(n - i);
    const __m512i after = _mm512_add_epi16(_mm512_maskz_loadu_epi16(m, p + i - 1), set16(1));
    r += popcount(_mm512_mask_cmpneq_epi16_mask(m, _mm512_maskz_loadu_epi16(m, p + i), after));
  }
  return r;
}

// ---- scan: always compress and store, no branch on what changed

HWY_INLINE __m512i difference(__m512i a, __m512i b, Form form) {
  return form == Form::kUndoable ? _mm512_sub_epi16(b, a) : b;
}

struct Scan1 {
  static constexpr std::size_t kLanes = 32;
  static HWY_INLINE void step(const Byte* a, const Byte* b, __mmask32 valid, Form form, __mmask32& m, __m512i& v) {
    const __m256i x = _mm256_maskz_loadu_epi8(valid, a), y = _mm256_maskz_loadu_epi8(valid, b);
    m = _mm256_cmpneq_epi8_mask(x, y);
    const __m256i d = form == Form::kUndoable ? _mm256_sub_epi8(y, x) : y;
    v = _mm512_maskz_compress_epi16(m, form == Form::kUndoable ? _mm512_cvtepi8_epi16(d) : _mm512_cvtepu8_epi16(d));
  }
};
struct Scan2 {
  static constexpr std::size_t kLanes = 32;
  static HWY_INLINE void step(const Byte* a, const Byte* b, __mmask32 valid, Form form, __mmask32& m, __m512i& v) {
    const __m512i x = _mm512_maskz_loadu_epi16(valid, a), y = _mm512_maskz_loadu_epi16(valid, b);
    m = _mm512_cmpneq_epi16_mask(x, y);
    v = _mm512_maskz_compress_epi16(m, difference(x, y, form));
  }
};
struct Scan4 {
  static constexpr std::size_t kLanes = 16;
  static HWY_INLINE void step(const Byte* a, const Byte* b, __mmask32 valid, Form form, __mmask32& m, __m512i& v) {
    const auto some = static_cast<__mmask16>(valid);
    const __m512i x = _mm512_maskz_loadu_epi32(some, a), y = _mm512_maskz_loadu_epi32(some, b);
    m = _mm512_cmpneq_epi32_mask(x, y);
    v = _mm512_maskz_compress_epi32(static_cast<__mmask16>(m), form == Form::kUndoable ? _mm512_sub_epi32(y, x) : y);
  }
};
struct Scan8 {
  static constexpr std::size_t kLanes = 8;
  static HWY_INLINE void step(const Byte* a, const Byte* b, __mmask32 valid, Form form, __mmask32& m, __m512i& v) {
    const auto some = static_cast<__mmask8>(valid);
    const __m512i x = _mm512_maskz_loadu_epi64(some, a), y = _mm512_maskz_loadu_epi64(some, b);
    m = _mm512_cmpneq_epi64_mask(x, y);
    v = _mm512_maskz_compress_epi64(static_cast<__mmask8>(m), form == Form::kUndoable ? _mm512_sub_epi64(y, x) : y);
  }
};

// Both streams are long runs: into L1, two kibibytes ahead. The address may lie past the end.
HWY_INLINE void fetch(const Byte* p) {
  constexpr std::uintptr_t kDistance = 2048;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + kDistance), 0, 3);
}

template <typename Step, typename V, std::size_t kWidth>
HWY_INLINE std::size_t scan_with(const Byte* base, const Byte* next, std::size_t n, Form form, Pos* positions,
                                 V* values) {
  __m512i index = load(kIota16.data());
  const __m512i advance = set16(static_cast<int>(Step::kLanes));
  std::size_t found = 0, i = 0;
  const auto step = [&](__mmask32 valid) {
    __mmask32 m;
    __m512i v;
    fetch(base + i * kWidth);
    fetch(next + i * kWidth);
    Step::step(base + i * kWidth, next + i * kWidth, valid, form, m, v);
    store(positions + found, _mm512_maskz_compress_epi16(m, index));
    store(values + found, v);
    found += popcount(m);
    index = _mm512_add_epi16(index, advance);
  };
  constexpr auto kAll = static_cast<__mmask32>((std::uint64_t{1} << Step::kLanes) - 1);
  for (; i + Step::kLanes <= n; i += Step::kLanes) step(kAll);
  if (i < n) step(first<__mmask32>(n - i));
  return found;
}

template <Form kForm>
std::size_t scan_form(const Byte* base, const Byte* next, std::size_t n, int width, Pos* positions, void* values) {
  switch (width) {
    case 1:
      return scan_with<Scan1, std::uint16_t, 1>(base, next, n, kForm, positions, static_cast<std::uint16_t*>(values));
    case 2:
      return scan_with<Scan2, std::uint16_t, 2>(base, next, n, kForm, positions, static_cast<std::uint16_t*>(values));
    case 4:
      return scan_with<Scan4, std::uint32_t, 4>(base, next, n, kForm, positions, static_cast<std::uint32_t*>(values));
    default:
      return scan_with<Scan8, std::uint64_t, 8>(base, next, n, kForm, positions, static_cast<std::uint64_t*>(values));
  }
}

inline std::size_t scan_vector(const Byte* base, const Byte* next, std::size_t n, int width, Form form, Pos* positions,
                               void* values) {
  return form == Form::kUndoable ? scan_form<Form::kUndoable>(base, next, n, width, positions, values)
                                 : scan_form<Form::kOverwrite>(base, next, n, width, positions, values);
}

inline void use_planes(Body& body) {
  body.scan = scan_vector;
  body.runs = runs;
  body.put_set = put_set;
  body.get_set = get_set;
  body.bit_positions = bit_positions;
}
#endif
}  // namespace refit::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
