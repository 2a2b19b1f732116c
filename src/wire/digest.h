// The placement digest as it travels: four 32-bit words and a count of elements, additive word by word.
#pragma once
#include <array>
#include <cstdint>

#include "core/core.h"

namespace refit::wire {

// Same numbers as kernel::Digest, which this room may not see. Sums wrap mod 2^32 (words) and 2^64 (count).
struct Digest4 {
  std::array<std::uint32_t, 4> word{};
  std::uint64_t count = 0;
  constexpr Digest4& operator+=(const Digest4& o) {
    for (std::size_t i = 0; i < 4; ++i) word[i] += o.word[i];
    count += o.count;
    return *this;
  }
  friend constexpr Digest4 operator+(Digest4 a, const Digest4& b) { return a += b; }
  friend constexpr bool operator==(const Digest4&, const Digest4&) = default;
};

// The four words as 128 bits, word 0 highest: a version's digest as it is shown.
constexpr Hash128 fold(const Digest4& d) {
  return {std::uint64_t{d.word[0]} << 32 | d.word[1], std::uint64_t{d.word[2]} << 32 | d.word[3]};
}

}  // namespace refit::wire
