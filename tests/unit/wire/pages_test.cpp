// Bucket header and manifest page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "unit/wire/samples.h"

namespace refit::wire {
namespace {

TEST(Bucket, RoundTripAndEveryBit) {
  const Bytes payload = sample_bytes(77);
  const auto header = encode(sample_bucket(payload));
  EXPECT_EQ(*check_bucket(header, payload), sample_bucket(payload));
  for (std::size_t i = 0; i < header.size(); ++i) {
    auto bad = header;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(decode_bucket_header(bad).ok()) << i;
  }
  Bytes other = payload;
  other[3] ^= std::byte{1};
  EXPECT_EQ(check_bucket(header, other).error().code, Code::kCorrupt);
  EXPECT_EQ(check_bucket(header, std::span(payload).first(10)).error().have, 10);
}

TEST(Bucket, ReservedFieldsAreRefusedForNow) {
  BucketHeader b = sample_bucket({});
  b.encoding = Encoding::kDelta;
  EXPECT_THAT(decode_bucket_header(encode(b)).error().message, testing::HasSubstr("encoding"));
  b = sample_bucket({});
  b.base = {1, 1};
  EXPECT_THAT(decode_bucket_header(encode(b)).error().message, testing::HasSubstr("reserved"));
}

Bytes page_of(const Manifest& m, Hash128& hash) {
  Bytes page(manifest_bytes(m.recipients.size(), m.buckets.size(), m.entries.size()));
  const auto written = write_manifest(m, page);
  EXPECT_TRUE(written.ok());
  hash = written->hash;
  return page;
}

TEST(ManifestPage, RoundTripAndLookup) {
  Hash128 hash;
  const Manifest m = sample_manifest();
  const Bytes page = page_of(m, hash);
  const auto back = parse_manifest(page, hash);
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(*back, m);
  EXPECT_EQ(back->of(*back->find(BucketId(5)))[0].digest.count, 30u);
  EXPECT_EQ(back->find(BucketId(1)), nullptr);
  EXPECT_EQ(back->find(Rank(2))->bucket_list, (Hash128{2, 2}));
  EXPECT_TRUE(check_identity(*back, {m.job, m.txn, m.member, m.incarnation, m.layout_epoch, m.plan}).ok());
  EXPECT_THAT(check_identity(*back, {m.job, m.txn, 5, m.incarnation, m.layout_epoch, m.plan}).error().message,
              testing::HasSubstr("member"));
}

TEST(ManifestPage, LiesAreRefused) {
  Hash128 hash;
  const Bytes page = page_of(sample_manifest(), hash);
  EXPECT_EQ(parse_manifest(page, {1, 1}).error().code, Code::kMismatch);
  for (std::size_t n = 0; n < page.size(); ++n) EXPECT_FALSE(parse_manifest(std::span(page).first(n), hash).ok());
  for (std::size_t i = 0; i < page.size(); ++i) {
    Bytes bad = page;
    bad[i] ^= std::byte{0x80};
    EXPECT_FALSE(parse_manifest(bad, hash).ok()) << i;
  }
}

TEST(ManifestPage, TablesMustTile) {
  auto written = [](auto change) {
    Manifest m = sample_manifest();
    change(m);
    Bytes page(4096);
    return write_manifest(m, page).ok();
  };
  EXPECT_TRUE(written([](Manifest&) {}));
  EXPECT_FALSE(written([](Manifest& m) { m.buckets[1].first_entry = 1; }));
  EXPECT_FALSE(written([](Manifest& m) { m.buckets[1].entries = 9; }));
  EXPECT_FALSE(written([](Manifest& m) { m.buckets.pop_back(); }));
  EXPECT_FALSE(written([](Manifest& m) { std::swap(m.entries[0], m.entries[1]); }));
  EXPECT_FALSE(written([](Manifest& m) { m.recipients[1].rank = Rank(0); }));
  Bytes small(100);
  EXPECT_EQ(write_manifest(sample_manifest(), small).error().code, Code::kExhausted);
}

}  // namespace
}  // namespace refit::wire
