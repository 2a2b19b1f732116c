#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <thread>

namespace refit::engine {
namespace {

TEST(CommitWord, ReadersSeeWholeValuesOnly) {
  CommitWord word;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      WordValue v;
      v.state = WordState::kApplied;
      v.txn.counter = i;
      v.version.number = i;
      v.version.step = static_cast<std::int64_t>(i);
      word.store(v);
    }
  });
  std::uint64_t last = 0;
  for (int i = 0; i < 20000; ++i) {
    const WordValue v = word.load();
    if (v.state != WordState::kApplied) continue;  // unclear is closed
    EXPECT_EQ(v.txn.counter, v.version.number);
    EXPECT_EQ(static_cast<std::int64_t>(v.version.number), v.version.step);
    EXPECT_GE(v.version.number, last);
    last = v.version.number;
  }
  stop = true;
  writer.join();
}

TEST(Walk, VisitsEveryElementOnceInAFactoredTransposedHolding) {
  // Rows factored 2 × 3, the inner factor outermost in memory, columns reversed.
  const model::LogicalTensor t{"t", {6, 4}, DType::kBF16};
  model::Holding h;
  h.view = View{{{2, 3}, {4}}};
  h.box = {{0, 2}, {1, 3}, {0, 4}};
  h.strides = {8, 16, -2};
  h.offset = 6;
  std::vector<std::byte> memory(64);
  std::map<std::int64_t, std::ptrdiff_t> seen;
  for_each_run(t, h, memory.data(), [&](std::int64_t linear, std::byte* at, std::int64_t count) {
    ASSERT_EQ(count, 1) << "reversed columns are no run";
    EXPECT_TRUE(seen.emplace(linear, at - memory.data()).second);
  });
  EXPECT_EQ(seen.size(), 16u);
  // (row 0·3+1, column 0): first of the box; (row 1·3+2, column 3): last.
  EXPECT_EQ(seen.at(1 * 4 + 0), 6);
  EXPECT_EQ(seen.at(5 * 4 + 3), 6 + 8 + 16 - 6);
}

TEST(Walk, RunsAreAsLongAsTheInnerFactor) {
  const model::LogicalTensor t{"t", {3, 8}, DType::kF32};
  model::Holding h;
  h.view = View::trivial(t.shape);
  h.box = {{1, 3}, {2, 7}};
  h.strides = {32, 4};
  h.dtype = DType::kF32;
  h.offset = 0;
  std::vector<std::byte> memory(128);
  int runs = 0;
  for_each_run(t, h, memory.data(), [&](std::int64_t linear, std::byte*, std::int64_t count) {
    EXPECT_EQ(linear, (1 + runs) * 8 + 2);
    EXPECT_EQ(count, 5);
    ++runs;
  });
  EXPECT_EQ(runs, 2);
}

TEST(TrainingStep, IsAFunctionOfTheLogicalIndexAlone) {
  const StepRule rule{.seed = 4, .share = 0.3};
  std::vector<std::byte> whole(2000), parts(2000);
  initial_values(1, "w", DType::kBF16, 0, whole.data(), 1000);
  for (std::int64_t at = 0; at < 1000; at += 125) initial_values(1, "w", DType::kBF16, at, parts.data() + 2 * at, 125);
  ASSERT_EQ(std::memcmp(whole.data(), parts.data(), whole.size()), 0);
  const std::vector<std::byte> before = whole;
  apply_step(rule, 1, "w", DType::kBF16, 0, whole.data(), 1000);
  for (std::int64_t at = 0; at < 1000; at += 125)
    apply_step(rule, 1, "w", DType::kBF16, at, parts.data() + 2 * at, 125);
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size()), 0);
  int changed = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    std::uint16_t a, b;
    std::memcpy(&a, before.data() + 2 * i, 2);
    std::memcpy(&b, whole.data() + 2 * i, 2);
    changed += a != b;
    EXPECT_LE(std::abs(int{a} - int{b}), 3);
    EXPECT_NE(b & 0x7f80, 0x7f80) << "never an infinity or NaN";
  }
  EXPECT_GT(changed, 230);
  EXPECT_LT(changed, 370);
}

TEST(TrainingStep, SpecialValuesStay) {
  for (std::uint16_t bits : {std::uint16_t{0}, std::uint16_t{0x8000}, std::uint16_t{0x7f80}, std::uint16_t{0x7fc1},
                             std::uint16_t{0x0001}, std::uint16_t{0x7f7f}}) {
    for (std::int64_t index = 0; index < 50; ++index) {
      std::uint16_t v = bits;
      apply_step({.seed = 1, .share = 1.0}, 1, "w", DType::kBF16, index, reinterpret_cast<std::byte*>(&v), 1);
      if (bits == 0x7f7f)
        EXPECT_NE(v & 0x7f80, 0x7f80);
      else
        EXPECT_EQ(v, bits);
    }
  }
}

}  // namespace
}  // namespace refit::engine
