// Properties of the placement digest.
#include <algorithm>
#include <cstring>

#include "unit/kernel/helpers.h"

namespace refit::kernel::testing {
namespace {

// Digest of the box [lo, hi) of a row-major (or column-major) matrix.
Digest box_digest(const DigestKeys& keys, const std::vector<char>& data, std::int64_t rows, std::int64_t columns,
                  DType type, Interval r, Interval c, bool turned) {
  const std::int64_t item = item_size(type);
  const Dims strides = turned ? Dims{item, rows * item} : Dims{columns * item, item};
  const Dims extents{r.size(), c.size()}, steps{1, 1}, origin{r.lo, c.lo};
  const std::vector<int> axis{0, 1};
  Job job;
  job.src = data.data() + r.lo * strides[0] + c.lo * strides[1];
  job.extents = extents;
  job.src_strides = strides;
  job.axis = axis;
  job.steps = steps;
  job.origin = origin;
  job.src_dtype = job.wire_dtype = job.dst_dtype = type;
  job.keys = &keys;
  Digest out;
  run({}, std::span(&job, 1), std::span(&out, 1));
  return out;
}

std::vector<std::int64_t> random_cuts(Random& random, std::int64_t n) {
  std::vector<std::int64_t> cuts{0, n};
  for (int i = 0; i < 4; ++i) cuts.push_back(random.below(n));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

TEST(DigestProperty, AdditiveOverOddCutsAndEqualForTransposedStorage) {
  const std::uint64_t seed = test_seed(0xd16e57);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const std::int64_t rows = 513, columns = 1100;
  for (const DType type : {DType::kF8E5M2, DType::kBF16, DType::kF32, DType::kF64}) {
    const std::int64_t item = item_size(type);
    const std::vector<char> data = random_bytes(random, rows * columns * item);
    std::vector<char> turned(data.size());
    transpose({}, turned.data(), rows * item, data.data(), columns * item, rows, columns, item);
    const DigestKeys keys = DigestKeys::make(seed, "w", {rows, columns});
    const Digest whole = box_digest(keys, data, rows, columns, type, {0, rows}, {0, columns}, false);
    EXPECT_EQ(whole.count, static_cast<std::uint64_t>(rows * columns));
    EXPECT_EQ(box_digest(keys, turned, rows, columns, type, {0, rows}, {0, columns}, true), whole);
    Digest sum, sum_turned;
    const auto r = random_cuts(random, rows), c = random_cuts(random, columns);
    for (std::size_t i = 0; i + 1 < r.size(); ++i)
      for (std::size_t j = 0; j + 1 < c.size(); ++j) {
        sum += box_digest(keys, data, rows, columns, type, {r[i], r[i + 1]}, {c[j], c[j + 1]}, false);
        sum_turned += box_digest(keys, turned, rows, columns, type, {r[i], r[i + 1]}, {c[j], c[j + 1]}, true);
      }
    EXPECT_EQ(sum, whole) << to_string(type);
    EXPECT_EQ(sum_turned, whole) << to_string(type);
    EXPECT_EQ(whole - sum, Digest{});
  }
}

// A permuted, factored view: rows = (groups, 2, width) stored as (2, groups, width).
TEST(DigestProperty, FactoredAndPermutedViewsGiveTheSameSum) {
  const std::uint64_t seed = test_seed(0xd16e58);
  Random random(seed);
  const std::int64_t groups = 6, width = 5, columns = 300, rows = groups * 2 * width;
  const std::vector<char> data = random_bytes(random, rows * columns * 2);
  const DigestKeys keys = DigestKeys::make(seed, "w", {rows, columns});
  const Digest plain = box_digest(keys, data, rows, columns, DType::kBF16, {0, rows}, {0, columns}, false);
  std::vector<char> permuted(data.size());
  const Dims extents{groups, 2, width, columns}, steps{2 * width, width, 1, 1}, origin{0, 0};
  const std::vector<int> axis{0, 0, 0, 1};
  const Dims from{2 * width * columns * 2, width * columns * 2, columns * 2, 2},
      to{width * columns * 2, groups * width * columns * 2, columns * 2, 2};
  Job job;
  job.src = data.data();
  job.dst = permuted.data();
  job.extents = extents;
  job.src_strides = from;
  job.dst_strides = to;
  job.axis = axis;
  job.steps = steps;
  job.origin = origin;
  job.keys = &keys;
  Digest moved, read_back;
  run({}, std::span(&job, 1), std::span(&moved, 1));
  EXPECT_EQ(moved, plain);
  job.src = permuted.data();
  job.src_strides = to;
  job.dst = nullptr;
  job.dst_strides = {};
  run({}, std::span(&job, 1), std::span(&read_back, 1));
  EXPECT_EQ(read_back, plain);
}

TEST(DigestProperty, AxesOfLengthOneDoNotCountAndScalarsWork) {
  const std::uint64_t seed = test_seed(0xd16e59);
  const std::vector<char> data = {1, 2, 3, 4, 5, 6};
  const auto digest = [&](const Dims& shape, const Dims& extents, const Dims& strides, const Dims& origin) {
    const DigestKeys keys = DigestKeys::make(seed, "s", shape);
    std::vector<int> axis;
    for (std::size_t i = 0; i < extents.size(); ++i) axis.push_back(static_cast<int>(i));
    const Dims steps(extents.size(), 1);
    Job job;
    job.src = data.data();
    job.extents = extents;
    job.src_strides = strides;
    job.axis = axis;
    job.steps = steps;
    job.origin = origin;
    job.keys = &keys;
    Digest out, want;
    run({}, std::span(&job, 1), std::span(&out, 1));
    run_reference(std::span(&job, 1), std::span(&want, 1));
    EXPECT_EQ(out, want);
    return out;
  };
  EXPECT_EQ(digest({3}, {3}, {2}, {0}), digest({1, 3, 1}, {1, 3, 1}, {6, 2, 2}, {0, 0, 0}));
  const Digest scalar = digest({}, {}, {}, {});
  EXPECT_EQ(scalar.count, 1u);
  EXPECT_EQ(scalar, digest({1, 1}, {1, 1}, {2, 2}, {0, 0}));
  EXPECT_NE(scalar.word[0], 0u);
}

TEST(DigestProperty, KeysDependOnSeedAndNameAndSharedTablesDoNotMix) {
  const std::uint64_t seed = test_seed(0xd16e5a);
  Random random(seed);
  const std::vector<char> a = random_bytes(random, 600 * 4 * 2), b = random_bytes(random, 600 * 4 * 2);
  const auto of = [&](std::uint64_t s, const char* name, const std::vector<char>& data) {
    const DigestKeys keys = DigestKeys::make(s, name, {4, 600});
    return box_digest(keys, data, 4, 600, DType::kBF16, {0, 4}, {0, 600}, false);
  };
  EXPECT_EQ(of(seed, "a", a), of(seed, "a", a));
  EXPECT_NE(of(seed, "a", a), of(seed + 1, "a", a));
  EXPECT_NE(of(seed, "a", a), of(seed, "b", a));
  // Two tensors of equal shape swapped: the sum over all must change.
  EXPECT_NE(of(seed, "a", a) + of(seed, "b", b), of(seed, "a", b) + of(seed, "b", a));
  EXPECT_EQ((of(seed, "a", a)).hex().size(), 32u);
}

// Each word alone moves when any one 16-bit element takes any other value.
TEST(DigestExhaustive, EveryChangeOfOneElementOfASmallTensorIsSeenByEveryWord) {
  const std::uint64_t seed = test_seed(0xd16e5b);
  Random random(seed);
  std::vector<char> data = random_bytes(random, 4 * 4 * 2);
  const DigestKeys keys = DigestKeys::make(seed, "x", {4, 4});
  const Digest before = box_digest(keys, data, 4, 4, DType::kBF16, {0, 4}, {0, 4}, false);
  std::int64_t missed = 0;
  for (std::size_t e = 0; e < 16; ++e) {
    std::uint16_t original;
    std::memcpy(&original, data.data() + 2 * e, 2);
    // One element decides: its own box is enough, by additivity.
    const auto i = static_cast<std::int64_t>(e / 4), j = static_cast<std::int64_t>(e % 4);
    const auto own = [&] { return box_digest(keys, data, 4, 4, DType::kBF16, {i, i + 1}, {j, j + 1}, false); };
    const Digest right = own();
    for (std::uint32_t v = 0; v < 65536; ++v) {
      if (v == original) continue;
      const auto other = static_cast<std::uint16_t>(v);
      std::memcpy(data.data() + 2 * e, &other, 2);
      const Digest wrong = own();
      for (std::size_t w = 0; w < 4; ++w) missed += wrong.word[w] == right.word[w];
    }
    std::memcpy(data.data() + 2 * e, &original, 2);
  }
  EXPECT_EQ(box_digest(keys, data, 4, 4, DType::kBF16, {0, 4}, {0, 4}, false), before);
  EXPECT_EQ(missed, 0) << "seed " << seed;
  EXPECT_EQ(before.count, 16u);
}

TEST(DigestExhaustive, EveryPairSwapOfASmallTensorIsSeen) {
  const std::uint64_t base = test_seed(0xd16e5c);
  for (std::uint64_t seed = base; seed < base + 20; ++seed) {
    Random random(seed);
    for (const DType type : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
      const auto item = static_cast<std::size_t>(item_size(type));
      std::vector<char> data = random_bytes(random, static_cast<std::int64_t>(16 * item));
      const DigestKeys keys = DigestKeys::make(seed, "x", {4, 4});
      const Digest before = box_digest(keys, data, 4, 4, type, {0, 4}, {0, 4}, false);
      for (std::size_t a = 0; a < 16; ++a)
        for (std::size_t b = a + 1; b < 16; ++b) {
          if (std::memcmp(data.data() + a * item, data.data() + b * item, item) == 0) continue;
          const auto swap = [&] {
            std::swap_ranges(data.begin() + static_cast<std::ptrdiff_t>(a * item),
                             data.begin() + static_cast<std::ptrdiff_t>((a + 1) * item),
                             data.begin() + static_cast<std::ptrdiff_t>(b * item));
          };
          swap();
          EXPECT_NE(box_digest(keys, data, 4, 4, type, {0, 4}, {0, 4}, false), before)
              << "seed " << seed << " " << a << "," << b;
          swap();
        }
    }
  }
}

// Wide items: changes chosen so that the parts cancel in one word must show in another.
TEST(DigestProperty, OneWrongWideItemIsSeen) {
  const std::uint64_t base = test_seed(0xd16e5d);
  for (std::uint64_t seed = base; seed < base + 50; ++seed) {
    Random random(seed);
    for (const DType type : {DType::kF32, DType::kF64}) {
      const auto item = static_cast<std::size_t>(item_size(type));
      const DigestKeys keys = DigestKeys::make(seed, "x", {2, 2});
      std::vector<char> data = random_bytes(random, static_cast<std::int64_t>(4 * item));
      const Digest before = box_digest(keys, data, 2, 2, type, {0, 2}, {0, 2}, false);
      for (int i = 0; i < 500; ++i) {
        std::vector<char> other = data;
        for (std::size_t b = 0; b < item; ++b)
          if (random.chance(50)) other[item + b] = static_cast<char>(random.engine());
        if (other == data) continue;
        EXPECT_NE(box_digest(keys, other, 2, 2, type, {0, 2}, {0, 2}, false), before) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace refit::kernel::testing
