// Constants and small parts of the delta format that all bodies share. The page is schema/delta.md.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/codec.h"

namespace refit::codec {

using Byte = std::uint8_t;
using Pos = std::uint16_t;  // position in a block

inline constexpr std::size_t kBlock = std::size_t{1} << 16;  // elements
inline constexpr std::size_t kBlocks = 16;                   // of a frame
inline constexpr std::size_t kGroup = std::size_t{1} << 15;  // values coded at a time
inline constexpr std::size_t kSlack = 128;                   // lanes or bytes that bodies may write past what counts

static_assert(kBlock * kBlocks == static_cast<std::size_t>(kFrameElements));

// Golomb-Rice parameter k of a set of n in a universe of u: the least cost for geometric gaps, whose switching points
// lie where (1 - n/u)^(2^k) is the golden ratio - 1. kSwitch[k] = round(2^32 (1 - phi^(-1/2^k))).
inline constexpr std::uint32_t kSwitch[15] = {1640531527, 918472839, 486826901, 250732083, 127251138,
                                              64103956,   32172476,  16116476,  8065812,   4034801,
                                              2017875,    1009056,   504558,    252286,    126145};
constexpr int rice_k(std::size_t n, std::size_t u) {
  int k = 0;
  while (k < 15 && (static_cast<std::uint64_t>(n) << 32) < std::uint64_t{kSwitch[k]} * u) ++k;
  return k;
}

constexpr std::size_t bytes_of_bits(std::size_t bits) { return (bits + 7) / 8; }
constexpr std::size_t words_of_bits(std::size_t bits) { return (bits + 63) / 64; }

// How the set of t among m members is written.
enum class SetForm : std::uint8_t { kNothing, kBitmap, kMembers, kOthers };
constexpr SetForm set_form(std::size_t t, std::size_t m) {
  if (t == 0 || t == m) return SetForm::kNothing;
  if (10 * t < 3 * m) return SetForm::kMembers;
  return 10 * t > 7 * m ? SetForm::kOthers : SetForm::kBitmap;
}

// Up to eight bytes at `at`, zeros past `have`.
inline std::uint64_t load_word(const Byte* at, std::size_t have) {
  std::uint64_t w = 0;
  std::memcpy(&w, at, have < 8 ? have : 8);
  return w;
}

// Numbers: seven bits a byte, low first, the high bit says that more follow; never longer than needed.
inline constexpr std::size_t kMaxNumber = 3;
inline Byte* put_number(Byte* out, std::uint32_t v) {
  for (; v >= 0x80; v >>= 7) *out++ = static_cast<Byte>(v | 0x80);
  *out++ = static_cast<Byte>(v);
  return out;
}

// Reads forward through hostile bytes; the first fault sticks.
struct Reader {
  const Byte* at;
  const Byte* end;
  Fault fault = Fault::kNone;

  std::size_t left() const { return static_cast<std::size_t>(end - at); }
  bool ok() const { return fault == Fault::kNone; }
  bool fail(Fault why) {
    if (ok()) fault = why;
    return false;
  }
  bool take(std::size_t n, const Byte*& part) {
    if (!ok()) return false;
    if (n > left()) return fail(Fault::kTruncated);
    part = at;
    at += n;
    return true;
  }
  bool number(std::size_t limit, std::size_t& v) {
    v = 0;
    for (std::size_t i = 0; i < kMaxNumber; ++i) {
      const Byte* p = nullptr;
      if (!take(1, p)) return false;
      v |= static_cast<std::size_t>(*p & 0x7f) << (7 * i);
      if (*p < 0x80) return (*p != 0 || i == 0) && v <= limit ? true : fail(Fault::kNumber);
    }
    return fail(Fault::kNumber);
  }
};

}  // namespace refit::codec
