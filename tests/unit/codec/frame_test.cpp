// Frames: every instruction set writes the reference's bytes, and what is written reads back.
#include <algorithm>

#include "unit/codec/helpers.h"

namespace refit::codec::testing {
namespace {

// Encodes with the reference, compares every table with it, applies, undoes, applies again.
void expect_round_trip(const Pair& p, Scratch& scratch) {
  for (const Form form : {Form::kUndoable, Form::kOverwrite}) {
    const Bytes want = encode_frame(reference(), p, form, scratch);
    EXPECT_LE(want.size(), p.next.size());
    if (p.changed == 0) {
      EXPECT_TRUE(want.empty());
    }
    for (const Ops* ops : all_for_this_machine()) {
      SCOPED_TRACE(std::string(ops->name) + " " + std::string(to_string(form)));
      ASSERT_TRUE(encode_frame(*ops, p, form, scratch) == want);
      ASSERT_EQ(ops->check(p.shape, form, want, scratch), Fault::kNone);
      Bytes live = p.base;
      ops->apply(p.shape, form, want, live, scratch);
      ASSERT_TRUE(live == p.next);
      if (form == Form::kUndoable) {
        ops->undo(p.shape, want, live, scratch);
        ASSERT_TRUE(live == p.base);
      } else {
        ops->apply(p.shape, form, want, live, scratch);
        ASSERT_TRUE(live == p.next) << "twice";
      }
    }
  }
}

TEST(Frame, RoundTripOverWidthsAndDensities) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(20261130);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const int width : {1, 2, 4, 8})
    for (const double density : {0.0, 0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0}) {
      SCOPED_TRACE(std::to_string(width) + " bytes, density " + std::to_string(density));
      expect_round_trip(random_pair(random, width, 100'000, density, Spread::kUlp3), scratch);
    }
}

TEST(Frame, RoundTripOverDistributions) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(7);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const int width : {1, 2, 4, 8})
    for (const Spread spread : kSpreads)
      for (const double density : {0.004, 0.3}) {
        SCOPED_TRACE(std::to_string(width) + " bytes, spread " + std::to_string(static_cast<int>(spread)));
        expect_round_trip(random_pair(random, width, 70'000, density, spread), scratch);
      }
}

// Lengths round the sizes of vectors, words, blocks; values and positions at every tail.
TEST(Frame, RoundTripOverTails) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(99);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 0; n <= 140; ++n) sizes.push_back(n);
  for (const std::int64_t n : {65535, 65536, 65537, 65600, 131071}) sizes.push_back(n);
  for (const std::int64_t n : sizes)
    for (const int width : {1, 2, 4, 8}) {
      SCOPED_TRACE(std::to_string(n) + " elements of " + std::to_string(width));
      const double density = std::exp2(-static_cast<double>(random.below(12)));
      expect_round_trip(random_pair(random, width, n, density, kSpreads[random.below(6)]), scratch);
    }
}

TEST(Frame, EveryCountOfChangesInOneBlock) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(5);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (std::int64_t changes = 1; changes < 300; changes += 1 + changes / 12) {
    Pair p = equal_pair(random, 2, 65536);
    std::vector<std::int64_t> at(65536);
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<std::int64_t>(i);
    std::shuffle(at.begin(), at.end(), random.engine);
    for (std::int64_t c = 0; c < changes; ++c)
      p.change(at[static_cast<std::size_t>(c)], difference(random, Spread::kLogUniform, 2));
    SCOPED_TRACE(std::to_string(changes) + " changes");
    expect_round_trip(p, scratch);
  }
}

// Gaps so uneven that the unary plane has long runs of zeros.
TEST(Frame, ClustersAndEdges) {
  Scratch scratch;
  Random random(3);
  const std::vector<std::vector<std::int64_t>> places = {
      {0}, {65535}, {0, 65535}, {65535, 65536}, {131071}, {65534, 65535, 65536, 65537}, {0, 1, 2, 131071}};
  for (const auto& at : places) {
    Pair p = equal_pair(random, 2, 131072);
    for (const std::int64_t i : at) p.change(i, 1);
    expect_round_trip(p, scratch);
  }
  for (const std::int64_t cluster : {50, 700, 3000}) {
    Pair p = equal_pair(random, 2, 65536);
    for (std::int64_t i = 0; i < cluster; ++i) p.change(2 * i, 2);
    p.change(65535, 3);
    expect_round_trip(p, scratch);
  }
}

TEST(Frame, RunsCostToggles) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(11);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const std::int64_t run : {8, 64, 4096}) {
    const Pair p = random_pair(random, 2, 1 << 18, 0.05, Spread::kPositive, run);
    expect_round_trip(p, scratch);
    const Bytes frame = encode_frame(reference(), p, Form::kOverwrite, scratch);
    const double bits = 8.0 * static_cast<double>(frame.size()) / static_cast<double>(p.changed) - 16;
    EXPECT_LT(bits, 4) << "position bits per change in runs of " << run;
  }
  Pair whole = equal_pair(random, 2, 1 << 17);
  for (std::int64_t i = 0; i < 1 << 17; ++i) whole.change(i, 1);
  EXPECT_LT(encode_frame(reference(), whole, Form::kUndoable, scratch).size(), 40U) << "all the same change";
  expect_round_trip(whole, scratch);
}

TEST(Frame, EveryBitPattern) {
  Scratch scratch;
  Random random(1);
  // bf16: +-0, subnormals, infinities, NaN payloads; old against new in every combination.
  const std::uint16_t kinds[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x7f7f, 0x7f80,
                                 0xff80, 0x7f81, 0x7fc0, 0xffff, 0x3f80};
  Pair p = equal_pair(random, 2, 121);
  for (std::size_t i = 0; i < 121; ++i) {
    std::memcpy(p.base.data() + 2 * i, &kinds[i / 11], 2);
    std::memcpy(p.next.data() + 2 * i, &kinds[i % 11], 2);
    p.changed += i / 11 != i % 11 ? 1 : 0;
  }
  expect_round_trip(p, scratch);
  for (const int width : {1, 2, 4, 8}) {  // the difference that is its own negative
    Pair q = equal_pair(random, width, 5000);
    for (std::int64_t i = 0; i < 5000; i += 7) q.change(i, std::uint64_t{1} << (8 * width - 1));
    expect_round_trip(q, scratch);
  }
}

TEST(Frame, RandomChangeCostsNoMoreThanRaw) {
  Scratch scratch;
  Random random(4);
  for (const int width : {1, 2, 4, 8}) {
    const Pair p = random_pair(random, width, 100'000, 1.0, Spread::kAny);
    for (const Form form : {Form::kUndoable, Form::kOverwrite})
      EXPECT_LE(encode_frame(reference(), p, form, scratch).size(), p.next.size());
  }
}

double bound_bits(double density, double value_entropy) {
  const double q = density;
  return (-(q * std::log2(q) + (1 - q) * std::log2(1 - q))) / q + value_entropy;
}

TEST(Frame, NearTheEntropyBound) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(31);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  const struct { double density, over; } rows[] = {{0.001, 1.05}, {0.01, 1.03}, {0.05, 1.03}, {0.2, 1.03}};
  for (const auto& row : rows) {
    const Pair p = random_pair(random, 2, kFrameElements, row.density, Spread::kUlp3);
    const auto& best = *all_for_this_machine().front();
    const double bits = 8.0 * static_cast<double>(encode_frame(best, p, Form::kUndoable, scratch).size()) /
                        static_cast<double>(p.changed);
    const double q = static_cast<double>(p.changed) / static_cast<double>(kFrameElements);
    EXPECT_LT(bits / bound_bits(q, std::log2(6.0)), row.over) << "density " << row.density;
  }
}

// Unaligned input and output, nothing read or written outside.
TEST(Frame, StaysInside) {
  Scratch scratch;
  const std::uint64_t seed = test_seed(17);
  SCOPED_TRACE("REFIT_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    const int width = 1 << random.below(4);
    const auto n = static_cast<std::int64_t>(1 + random.below(round % 10 == 0 ? 70'000 : 300));
    const Pair p =
        random_pair(random, width, n, std::exp2(-static_cast<double>(random.below(10))), kSpreads[random.below(6)]);
    for (const bool at_end : {true, false})
      for (const Form form : {Form::kUndoable, Form::kOverwrite})
        for (const Ops* ops : all_for_this_machine()) {
          const Guarded base(p.base, at_end), next(p.next, at_end), live(p.base, at_end);
          const Guarded out(Bytes(static_cast<std::size_t>(ops->bound(p.shape))), at_end);
          const auto bytes = ops->encode(p.shape, form, base.bytes(), next.bytes(), out.bytes(), scratch);
          const Guarded frame(out.bytes().first(static_cast<std::size_t>(bytes)), at_end);
          ASSERT_EQ(ops->check(p.shape, form, frame.bytes(), scratch), Fault::kNone) << ops->name;
          ops->apply(p.shape, form, frame.bytes(), live.bytes(), scratch);
          ASSERT_EQ(std::memcmp(live.bytes().data(), p.next.data(), p.next.size()), 0) << ops->name;
        }
  }
}

TEST(Isa, FollowsTheKernelRoom) {
  for (const std::string& name : kernel::available_isas()) {
    ASSERT_TRUE(kernel::force_isa(name).ok());
    const std::string want = name == "avx3" ? "avx2" : name == "sse4" ? "scalar" : name;
    EXPECT_EQ(ops().name, want);
  }
  ASSERT_TRUE(kernel::force_isa(kernel::available_isas().front()).ok());
  EXPECT_EQ(all_for_this_machine().back(), &reference());
}

TEST(Isa, EnvironmentForces) {
  const char* forced = std::getenv("REFIT_FORCE_ISA");
  if (forced == nullptr || !kernel::isa_status().ok()) GTEST_SKIP() << "REFIT_FORCE_ISA names no set of this machine";
  EXPECT_EQ(std::string(ops().name), forced);
}

}  // namespace
}  // namespace refit::codec::testing
