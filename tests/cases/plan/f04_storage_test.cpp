// F04 tied tensors, F05 non-contiguous sources, F06 mixed dtypes, F07 sizes that do not fit; uneven FSDP cuts.
#include <gmock/gmock.h>

#include "cases/plan/desk.h"

namespace refit::testing {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

using F04 = Desk;
const std::vector<std::pair<std::string, std::string>> kTied{{"embed", "head"}};

TEST_F(F04, OneStorageIsWrittenOnceTwoStoragesBoth) {
  const std::vector<model::LogicalTensor> both{{"embed", {4, 3}, DType::kBF16}, {"head", {4, 3}, DType::kBF16}};
  Draft s({both[0]}, kTied);
  s.add(0, "embed", {{0, 4}, {0, 3}});
  for (bool one : {true, false}) {
    Draft t(both);  // the source's tie holds for both files
    t.add(0, "embed", {{0, 4}, {0, 3}});
    if (one) {
      t.add(0, "head", {{0, 4}, {0, 3}}).offset = 0;
      t.rank(0).buffers[0].bytes = 24;
    } else {
      t.add(0, "head", {{0, 4}, {0, 3}});
    }
    const auto source = s.done(), target = t.done();
    write_sources(*source);
    const auto report = move(source, target);
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    auto expected = reference(*source, 0)[0];
    if (!one) expected.insert(expected.end(), expected.begin(), expected.end());
    EXPECT_EQ(result(0), expected);
    const auto plan = plan::make_plan(*source, *target, options_, plan::Side::kTarget, Rank(0));
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->landings.size(), one ? 1u : 2u);
    EXPECT_EQ(plan->bytes_needed, 24);
  }
}

TEST_F(F04, DifferentBytesUnderATieNameBothRanks) {
  const std::vector<model::LogicalTensor> both{{"embed", {4, 3}, DType::kBF16}, {"head", {4, 3}, DType::kBF16}};
  Draft s(both, kTied), t(both, kTied);
  s.add(0, "embed", {{0, 4}, {0, 3}});
  s.add(1, "head", {{0, 4}, {0, 3}});
  t.add(0, "head", {{0, 4}, {0, 3}});
  const auto source = s.done(), target = t.done();
  expect_moved(source, target);
  auto bytes = reference(*source, 1)[0];
  bytes[5] ^= 0x80;
  write(data(1), bytes);
  EXPECT_THAT(refusal(source, target), AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("embed")));
}

TEST_F(F04, TwoStoragesOfOneRankMustAgreeToo) {
  const std::vector<model::LogicalTensor> both{{"embed", {4, 3}, DType::kBF16}, {"head", {4, 3}, DType::kBF16}};
  Draft s(both, kTied), t(both, kTied);
  s.add(0, "embed", {{0, 4}, {0, 3}});
  s.add(0, "head", {{0, 4}, {0, 3}});
  t.add(0, "head", {{0, 4}, {0, 3}});
  const auto source = s.done();
  expect_moved(source, t.done());
  auto bytes = reference(*source, 0)[0];
  bytes[30] ^= 1;
  write(data(0), bytes);
  EXPECT_THAT(refusal(source, t.done()), AllOf(HasSubstr("ranks 0 and 0"), HasSubstr("embed")));
}

using F05 = Desk;

TEST_F(F05, StridedSourcesArriveInLogicalOrder) {
  const std::vector<model::LogicalTensor> tensors{
      {"every", {4}, DType::kF32}, {"turned", {4, 3}, DType::kF32}, {"slice", {3}, DType::kBF16}};
  Draft s(tensors), t(tensors);
  auto& every = s.add(0, "every", {{0, 4}});
  every.strides = {8};
  s.rank(0).buffers[0].bytes = 32;
  s.add(0, "turned", {{0, 4}, {0, 3}}).strides = {4, 16};
  auto& slice = s.add(0, "slice", {{0, 3}});
  slice.offset += 11;
  s.rank(0).buffers[0].bytes += 11;
  for (const auto& x : tensors) t.add(0, x.name, whole(x.shape));
  expect_moved(s.done(), t.done());
}

TEST_F(F05, BroadcastRowIsReadOnceAndWrittenEverywhere) {
  Draft s({{"row", {3, 2}, DType::kU8}}), t({{"row", {3, 2}, DType::kU8}});
  s.add(0, "row", {{0, 3}, {0, 2}}).strides = {0, 1};
  s.rank(0).buffers[0].bytes = 2;
  t.add(0, "row", {{0, 3}, {0, 2}});
  write(data(0), {5, 9});
  ASSERT_TRUE(move(s.done(), t.done()).ok());
  EXPECT_EQ(result(0), (std::vector<std::uint8_t>{5, 9, 5, 9, 5, 9}));
}

using F06 = Desk;

TEST_F(F06, MixedTinyAndEmptyKeepTheirBits) {
  const std::vector<model::LogicalTensor> tensors{
      {"a", {3}, DType::kF16}, {"b", {1}, DType::kF32},    {"c", {5}, DType::kU8},  {"d", {1}, DType::kI64},
      {"e", {}, DType::kBF16}, {"f", {0, 7}, DType::kF32}, {"g", {2}, DType::kBool}};
  Draft s(tensors), t(tensors);
  for (const auto& x : tensors) {
    s.add(0, x.name, whole(x.shape));
    t.add(0, x.name, whole(x.shape));
  }
  const auto source = s.done(), target = t.done();
  auto bytes = reference(*source, 0)[0];
  const std::uint8_t nan[] = {0x01, 0x7D, 0x00, 0x80};  // a NaN with a payload, and -0.0
  std::copy(std::begin(nan), std::end(nan), bytes.begin());
  write(data(0), bytes);
  ASSERT_TRUE(move(source, target).ok());
  // Same holdings, same packing: the whole buffer is equal but for alignment gaps, which keep the fill on both sides.
  EXPECT_EQ(result(0), bytes);
}

TEST_F(F06, StartsAreAlignedAndAnExactFitOpensANewBucket) {
  const std::vector<model::LogicalTensor> tensors{{"a", {3}, DType::kU8}, {"b", {1}, DType::kI64}};
  Draft s(tensors), t(tensors);
  for (const auto& x : tensors) {
    s.add(0, x.name, whole(x.shape));
    t.add(0, x.name, whole(x.shape));
  }
  for (const auto& [limit, buckets, bytes] : {std::tuple(16, 1u, 16), std::tuple(15, 2u, 3), std::tuple(11, 2u, 3)}) {
    options_.bucket_bytes = limit;  // 11 is the unpadded total: a start at 8 would overrun
    const auto p = plan::make_plan(*s.done(), *t.done(), options_, plan::Side::kTarget, Rank(0));
    ASSERT_TRUE(p.ok());
    ASSERT_EQ(p->buckets.size(), buckets);
    EXPECT_EQ(p->buckets[0].bytes, bytes);
  }
}

using F07 = Desk;

TEST_F(F07, LargeTensorsTravelInPieces) {
  const std::vector<model::LogicalTensor> tensors{{"a", {1024}, DType::kU8},
                                                  {"b", {1025}, DType::kU8},
                                                  {"c", {4, 2560}, DType::kU8},
                                                  {"row", {1, 3000}, DType::kF32}};
  Draft s(tensors), t(tensors);
  for (const auto& x : tensors) {
    s.add(0, x.name, whole(x.shape));
    t.add(0, x.name, whole(x.shape));
  }
  s.add(1, "a", {{0, 0}});  // an owner of nothing
  options_.bucket_bytes = 1024;
  expect_moved(s.done(), t.done());
  const auto p = plan::make_plan(*s.done(), *t.done(), options_, plan::Side::kTarget, Rank(0));
  ASSERT_TRUE(p.ok());
  for (const auto& b : p->buckets) EXPECT_LE(b.bytes, 1024);
}

TEST_F(F07, BucketBelowOneElementNamesTheOption) {
  Draft s({{"w", {2}, DType::kI64}}), t({{"w", {2}, DType::kI64}});
  s.add(0, "w", {{0, 2}});
  t.add(0, "w", {{0, 2}});
  const auto source = s.done(), target = t.done();
  write_sources(*source);
  options_.bucket_bytes = 7;
  EXPECT_THAT(refusal(source, target),
              AllOf(HasSubstr("refit.bucket_bytes"), HasSubstr("tensor=w"), HasSubstr("need=8"), HasSubstr("have=7")));
  options_.bucket_bytes = 0;
  EXPECT_THAT(refusal(source, target), HasSubstr("refit.bucket_bytes"));
  options_ = {};
  options_.staging_bytes = 15;
  EXPECT_THAT(refusal(source, target), HasSubstr("refit.staging_bytes"));
}

TEST_F(F07, NoElementsForADeclaredShapeIsAHole) {
  Draft s({{"w", {4, 4}, DType::kBF16}}), t({{"w", {4, 4}, DType::kBF16}});
  s.add(0, "w", {{0, 0}, {0, 0}});
  t.add(0, "w", {{0, 4}, {0, 4}});
  const auto source = s.done();
  write_sources(*source);
  EXPECT_THAT(refusal(source, t.done()), AllOf(HasSubstr("hole"), HasSubstr("tensor=w")));
}

using Casts = Desk;

TEST_F(Casts, LossNeedsPermissionAndIsListed) {
  Draft s({{"w", {2, 2}, DType::kF32}}), t({{"w", {2, 2}, DType::kF32}});
  s.add(0, "w", {{0, 2}, {0, 2}});
  auto& h = t.add(0, "w", {{0, 2}, {0, 2}});
  h.dtype = DType::kBF16;
  h.strides = {4, 2};
  t.rank(0).buffers[0].bytes = 8;
  const auto source = s.done(), target = t.done();
  std::vector<float> values{1.0f, 2.0f, 1.0f + 1.0f / 4096, -0.0f};
  std::vector<std::uint8_t> bytes(16);
  std::memcpy(bytes.data(), values.data(), 16);
  write(data(0), bytes);
  EXPECT_THAT(refusal(source, target), AllOf(HasSubstr("[1, 0]"), HasSubstr("tensor=w"), HasSubstr("--allow-cast")));
  options_.allow_cast = {"w*"};
  const auto report = move(source, target);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->inexact, std::vector<std::string>{"w"});
  EXPECT_EQ(result(0), (std::vector<std::uint8_t>{0x80, 0x3F, 0x00, 0x40, 0x80, 0x3F, 0x00, 0x80}));
}

using Uneven = Desk;

// Ceiling chunks, an empty last one included; and rows dealt over two mesh axes.
TEST_F(Uneven, CeilingChunksAndStridedMesh) {
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{3, 3, 3, 1}, {2, 2, 1, 0}}) {
    std::int64_t rows = 0;
    for (std::int64_t n : sizes) rows += n;
    Draft s({{"w", {rows, 3}, DType::kBF16}}), t({{"w", {rows, 3}, DType::kBF16}});
    std::int64_t at = 0;
    for (std::uint32_t r = 0; r < 4; at += sizes[r++]) s.add(r, "w", {{at, at + sizes[r]}, {0, 3}});
    t.add(0, "w", {{0, rows}, {0, 2}});
    t.add(1, "w", {{0, rows}, {2, 3}});
    expect_moved(s.done(), t.done());
  }
  Draft s({{"w", {8, 2}, DType::kBF16}}), t({{"w", {8, 2}, DType::kBF16}});
  std::uint32_t r = 0;
  for (std::int64_t first : {0, 4, 2, 6}) s.add(r++, "w", {{first, first + 2}, {0, 2}});
  t.add(0, "w", {{1, 7}, {0, 2}});
  expect_moved(s.done(), t.done());
}

}  // namespace
}  // namespace refit::testing
