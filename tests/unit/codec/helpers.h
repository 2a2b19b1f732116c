// Pairs of versions for the codec tests: where they differ, and by how much.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace refit::codec::testing {

using Bytes = std::vector<std::byte>;

// Seed of a randomised test: REFIT_TEST_SEED repeats a run.
inline std::uint64_t test_seed(std::uint64_t fallback) {
  const char* text = std::getenv("REFIT_TEST_SEED");
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

struct Random {
  explicit Random(std::uint64_t seed) : engine(seed) {}
  std::uint64_t below(std::uint64_t n) { return engine() % n; }
  double unit() { return static_cast<double>(engine() >> 11) * 0x1p-53; }
  std::mt19937_64 engine;
};

enum class Spread { kUlp3, kSkewed, kGeometric, kLogUniform, kPositive, kAny };
inline constexpr Spread kSpreads[] = {Spread::kUlp3,       Spread::kSkewed,   Spread::kGeometric,
                                      Spread::kLogUniform, Spread::kPositive, Spread::kAny};

// A difference that is not zero mod 2^(8 width).
inline std::uint64_t difference(Random& random, Spread spread, int width) {
  std::uint64_t m = 1;
  switch (spread) {
    case Spread::kUlp3:
      m = 1 + random.below(3);
      break;
    case Spread::kSkewed:
      m = random.below(5) != 0 ? 1 : 2 + random.below(2);
      break;
    case Spread::kGeometric:
      m = 1 + static_cast<std::uint64_t>(std::log(1 - random.unit()) / std::log(0.75));
      break;
    case Spread::kLogUniform:
      m = static_cast<std::uint64_t>(std::exp2(random.unit() * (width == 1 ? 7 : 12)));
      break;
    case Spread::kPositive:
      return 1 + random.below(3);
    case Spread::kAny:
      m = random.engine();
      break;
  }
  const std::uint64_t d = random.below(2) != 0 ? m : 0 - m;
  return width < 8 && (d & ((std::uint64_t{1} << (8 * width)) - 1)) == 0 ? 1 : d;
}

struct Pair {
  Shape shape;
  Bytes base, next;
  std::int64_t changed = 0;

  void change(std::int64_t i, std::uint64_t d) {
    const auto w = static_cast<std::size_t>(shape.width), at = static_cast<std::size_t>(i) * w;
    std::uint64_t v = 0;
    std::memcpy(&v, base.data() + at, w);
    v += d;
    std::memcpy(next.data() + at, &v, w);
    ++changed;
  }
};

inline Pair equal_pair(Random& random, int width, std::int64_t elements) {
  Pair p;
  p.shape = {width, elements};
  p.base.resize(static_cast<std::size_t>(p.shape.bytes()));
  for (std::size_t i = 0; i < p.base.size(); i += 8) {
    const std::uint64_t x = random.engine();
    std::memcpy(p.base.data() + i, &x, std::min<std::size_t>(8, p.base.size() - i));
  }
  p.next = p.base;
  return p;
}

// Each element changes with chance `density`, in runs of about `run` elements.
inline Pair random_pair(Random& random, int width, std::int64_t elements, double density, Spread spread,
                        std::int64_t run = 1) {
  Pair p = equal_pair(random, width, elements);
  if (density <= 0) return p;
  for (std::int64_t i = 0; i < elements;) {
    const double chance = density / static_cast<double>(run);
    if (chance < 1) i += static_cast<std::int64_t>(std::log(1 - random.unit()) / std::log1p(-chance));
    const std::int64_t end =
        std::min(elements,
                 i + (run == 1 ? 1 : 1 + static_cast<std::int64_t>(random.below(2 * static_cast<std::uint64_t>(run)))));
    for (; i < end; ++i) p.change(i, difference(random, spread, width));
  }
  return p;
}

// Memory that ends (or begins) at a page that may not be touched.
class Guarded {
 public:
  explicit Guarded(std::span<const std::byte> content, bool at_end = true) : size_(content.size()) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    inner_ = (size_ + page - 1) / page * page + page;
    whole_ = inner_ + 2 * page;
    map_ = static_cast<std::byte*>(::mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(map_ + page, inner_, PROT_READ | PROT_WRITE), 0);
    data_ = at_end ? map_ + page + inner_ - size_ : map_ + page;
    if (size_ != 0) std::memcpy(data_, content.data(), size_);
  }
  ~Guarded() { ::munmap(map_, whole_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::size_t size_, inner_, whole_;
  std::byte *map_, *data_;
};

inline Bytes encode_frame(const Ops& ops, const Pair& p, Form form, Scratch& scratch) {
  Bytes out(static_cast<std::size_t>(ops.bound(p.shape)));
  const std::int64_t n = ops.encode(p.shape, form, p.base, p.next, out, scratch);
  out.resize(static_cast<std::size_t>(n));
  return out;
}

inline Identity identity_of(const Pair& p) { return {hash128(std::span(p.base)), hash128(std::span(p.next))}; }

inline Bytes encode_message(Workspace& work, const Pair& p, Form form) {
  Bytes out(static_cast<std::size_t>(*message_bound(p.shape)));
  const Result<std::int64_t> n = encode(work, p.shape, form, identity_of(p), p.base, p.next, out);
  EXPECT_TRUE(n.ok());
  out.resize(static_cast<std::size_t>(*n));
  return out;
}

}  // namespace refit::codec::testing
