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

TEST(Bucket, EncodingsAndTheirFieldsAgreeOrAreRefused) {
  const Bytes payload = sample_bytes(77);
  const auto refused = [](const BucketHeader& b, const char* why) {
    const auto h = decode_bucket_header(encode(b));
    ASSERT_FALSE(h.ok()) << why;
    EXPECT_THAT(h.error().message, testing::HasSubstr(why));
  };
  BucketHeader delta = sample_bucket(payload);
  delta.encoding = Encoding::kDelta;
  delta.base = {1, 1};
  delta.logical_bytes = 1000;
  EXPECT_EQ(*check_bucket(encode(delta), payload), delta);
  BucketHeader unchanged = sample_bucket({});
  unchanged.encoding = Encoding::kUnchanged;
  unchanged.base = {1, 1};
  unchanged.logical_bytes = 1000;
  EXPECT_EQ(*check_bucket(encode(unchanged), {}), unchanged);

  for (const Encoding later : {Encoding::kQuantised, Encoding::kDeltaQuantised, static_cast<Encoding>(9)}) {
    BucketHeader b = delta;
    b.encoding = later;
    refused(b, "encoding");
  }
  BucketHeader b = delta;
  b.base = {};
  refused(b, "base identity");
  b = sample_bucket(payload);
  b.base = {1, 1};
  refused(b, "base identity");
  b = delta;
  b.logical_bytes = payload.size();
  refused(b, "not shorter");
  b = unchanged;
  b.payload_bytes = 5;
  refused(b, "payload");
  b = sample_bucket(payload);
  b.transform = 1;
  refused(b, "reserved");
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
