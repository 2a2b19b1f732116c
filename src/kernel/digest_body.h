// The arithmetic of the placement digest, for CPU and GPU. Formula: docs/design/digest.md.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/core.h"

namespace refit::kernel {

inline constexpr int kWords = 4;
inline constexpr int kBlock = 256;  // entries of a T table; larger ones lose L1 to the stream
inline constexpr int kBlockShift = 8;

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of splitmix64.
REFIT_HD inline std::uint64_t mix(std::uint64_t z) {
  z += kGolden;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// U of one word: an odd number drawn from the seed of tensor, axis and word.
REFIT_HD inline std::uint32_t block_key(std::uint64_t block_seed, std::int64_t block) {
  return static_cast<std::uint32_t>(mix(block_seed + static_cast<std::uint64_t>(block) * kGolden) >> 32) | 1u;
}

// Factor of the h-th 16-bit part of a 4- or 8-byte item, per word.
struct HalfKeys {
  std::int16_t h[kWords][4];
};

// g of one 16-bit part.
REFIT_HD inline std::int32_t digest_value(std::uint16_t x) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(x ^ (x >> 8)));
}

// Sum over the parts of one item, given as the number whose low bytes it is, of g(part) * its half key. Items of 1 and
// 2 bytes have one part and no half key.
REFIT_HD inline std::uint32_t item_value(const HalfKeys& halves, int word, std::uint64_t item, std::int64_t item_bytes) {
  if (item_bytes == 1) return static_cast<std::uint8_t>(item);
  if (item_bytes == 2) return static_cast<std::uint32_t>(digest_value(static_cast<std::uint16_t>(item)));
  std::uint32_t sum = 0;
  for (int h = 0; h < item_bytes / 2; ++h)
    sum += static_cast<std::uint32_t>(digest_value(static_cast<std::uint16_t>(item >> (16 * h)))) *
           static_cast<std::uint32_t>(halves.h[word][h]);
  return sum;
}
// The item at an address of any alignment, as that number.
REFIT_HD inline std::uint64_t load_item(const void* at, std::int64_t item_bytes) {
  const auto* const p = static_cast<const unsigned char*>(at);
  std::uint64_t x = 0;
  for (int b = 0; b < item_bytes; ++b) x |= static_cast<std::uint64_t>(p[b]) << (8 * b);
  return x;
}
inline std::uint32_t item_value(const HalfKeys& halves, int word, const void* item, std::int64_t item_bytes) {
  return item_value(halves, word, load_item(item, item_bytes), item_bytes);
}

}  // namespace refit::kernel
