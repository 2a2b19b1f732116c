// Buckets as deltas: identities, sections, and every way in which a payload can be wrong.
#include "install/bucket_delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace refit::install {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

const codec::Identity kIdentity{{1, 2}, {3, 4}};

// Two bytes of padding between the sections belong to neither.
std::vector<Section> two_sections() { return {{0, {2, 5001}}, {10004, {4, 300}}}; }
constexpr std::size_t kBytes = 10004 + 1200;

Bytes noise(std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  Bytes out(kBytes);
  for (std::byte& b : out) b = static_cast<std::byte>(rng());
  return out;
}
// Some elements move by a little.
Bytes stepped(Bytes base, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (int i = 0; i < 60; ++i) base[rng() % 5001 * 2] ^= std::byte{1};
  for (int i = 0; i < 5; ++i) base[10004 + rng() % 300 * 4] ^= std::byte{3};
  return base;
}

struct Delta {
  codec::Workspace work;
  std::vector<Section> sections = two_sections();
  Bytes base = noise(1), next = stepped(base, 2), payload;
  EncodedSections coded;
  explicit Delta(codec::Form form = codec::Form::kUndoable) {
    payload.resize(static_cast<std::size_t>(*sections_bound(sections)));
    coded = *encode_sections(work, form, kIdentity, sections, base, next, payload);
    payload.resize(static_cast<std::size_t>(coded.bytes));
  }
  Result<CheckedDelta> check(std::span<const std::byte> bytes, const codec::Identity& identity = kIdentity) {
    return CheckedDelta::check(work, sections, identity, bytes);
  }
};

TEST(BucketDelta, RoundTripAndUndoLeavePaddingAlone) {
  Delta d;
  EXPECT_LT(d.payload.size(), kBytes / 4);
  EXPECT_GT(d.coded.changed, 50);
  const auto checked = d.check(d.payload);
  ASSERT_TRUE(checked.ok()) << checked.error().to_string();
  Bytes packed = d.base;
  packed[10002] = packed[10003] = std::byte{0xee};
  checked->apply(d.work, packed);
  EXPECT_EQ(packed[10002], std::byte{0xee});
  packed[10002] = d.next[10002], packed[10003] = d.next[10003];
  EXPECT_EQ(packed, d.next);
  checked->undo(d.work, packed);
  EXPECT_EQ(packed, d.base);
}

TEST(BucketDelta, TheOverwriteFormMayBeAppliedTwice) {
  Delta d(codec::Form::kOverwrite);
  const auto checked = d.check(d.payload);
  ASSERT_TRUE(checked.ok());
  Bytes packed = d.base;
  checked->apply(d.work, packed);
  checked->apply(d.work, packed);
  EXPECT_EQ(packed, d.next);
}

TEST(BucketDelta, NothingChangedCountsNothing) {
  Delta d;
  Bytes out(static_cast<std::size_t>(*sections_bound(d.sections)));
  EXPECT_EQ(encode_sections(d.work, codec::Form::kUndoable, kIdentity, d.sections, d.base, d.base, out)->changed, 0);
}

TEST(BucketDelta, AnotherBaseResultOrShapeIsRefused) {
  Delta d;
  EXPECT_THAT(d.check(d.payload, {{9, 9}, {3, 4}}).error().message, HasSubstr("made against"));
  EXPECT_THAT(d.check(d.payload, {{1, 2}, {9, 9}}).error().message, HasSubstr("leads to"));
  d.sections[1].shape.elements = 299;
  const auto shape = d.check(d.payload);
  EXPECT_EQ(shape.error().code, Code::kMismatch);
  EXPECT_THAT(shape.error().message, HasSubstr("the plan has 299"));
}

TEST(BucketDelta, CutLengthenedAndFlippedPayloadsAreRefused) {
  Delta d;
  for (std::size_t n = 0; n < d.payload.size(); n += 1 + n / 64)
    EXPECT_FALSE(d.check(std::span(d.payload).first(n)).ok()) << n;
  Bytes longer = d.payload;
  longer.push_back(std::byte{0});
  EXPECT_THAT(d.check(longer).error().message, HasSubstr("behind the last section"));
  for (std::size_t i = 0; i < d.payload.size(); ++i) {
    Bytes bad = d.payload;
    bad[i] ^= std::byte{0x10};
    EXPECT_FALSE(d.check(bad).ok()) << i;
  }
}

TEST(BucketDelta, TheIdentityTellsRoundBucketAndDigests) {
  const Txn txn{{1, 2}, Epoch(3), 4};
  const std::vector<TensorDigest> sealed = {{7, {{1, 2, 3, 4}, 5}}, {9, {{6, 7, 8, 9}, 10}}};
  const Hash128 id = bucket_identity(txn, BucketId(5), sealed);
  EXPECT_EQ(bucket_identity(txn, BucketId(5), sealed), id);
  EXPECT_NE(bucket_identity({{1, 2}, Epoch(3), 5}, BucketId(5), sealed), id);
  EXPECT_NE(bucket_identity(txn, BucketId(6), sealed), id);
  auto other = sealed;
  other[1].digest.word[3] ^= 1;
  EXPECT_NE(bucket_identity(txn, BucketId(5), other), id);
  other = sealed;
  other[0].digest.count ^= 1;
  EXPECT_NE(bucket_identity(txn, BucketId(5), other), id);
}

}  // namespace
}  // namespace refit::install
