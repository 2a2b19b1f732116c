#include "coordinator/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace refit::coordinator {
namespace {

const Hash128 kJob{7, 7};
const Lineage kLineage{1, 2};
Txn txn(std::uint64_t epoch, std::uint64_t counter) { return {kLineage, Epoch(epoch), counter}; }
BeginRecord begin(const Txn& t, std::uint64_t number) {
  return {t, number, 1, LayoutEpoch(1), {5, 5}, {{0, Incarnation(10)}, {1, Incarnation(11)}}};
}
CommitRecord commit(const Txn& t, std::uint64_t number) { return {t, {kLineage, number, {9, 9}, 3}, {}}; }

wire::Bytes journal(const std::vector<std::vector<Record>>& frames) {
  wire::Bytes out;
  for (const auto& f : frames) {
    const auto b = encode(f);
    out.insert(out.end(), b.begin(), b.end());
  }
  return out;
}
Record at(std::uint64_t epoch, RecordBody body) { return {Epoch(epoch), std::move(body)}; }
std::vector<std::vector<Record>> story() {
  return {{at(1, EpochRecord{kJob, kLineage, 42})},
          {at(1, begin(txn(1, 1), 1))},
          {at(1, EvictRecord{txn(1, 1), 2, {{1, Incarnation(11)}}}), at(1, commit(txn(1, 1), 1))},
          {at(1, EndRecord{txn(1, 1)})},
          {at(1, begin(txn(1, 2), 2))}};
}

TEST(Journal, Recovers) {
  const auto s = recover(journal(story()), kJob);
  ASSERT_TRUE(s.ok()) << s.error().to_string();
  EXPECT_EQ(s->epoch, Epoch(1));
  EXPECT_EQ(s->counter, 2u);
  EXPECT_EQ(s->number, 2u);
  EXPECT_EQ(s->newest->version.number, 1u);
  EXPECT_THAT(s->committed, testing::ElementsAre(txn(1, 1)));
  ASSERT_TRUE(s->open);
  EXPECT_FALSE(s->open_committed);
  EXPECT_TRUE(s->evicted.empty());  // begun again
  EXPECT_EQ(s->digest_seed, 42u);
}

TEST(Journal, TornTailIsCutAtEveryByte) {
  const auto frames = story();
  const wire::Bytes whole = journal(frames);
  std::vector<std::size_t> ends{0};
  for (const auto& f : frames) ends.push_back(ends.back() + encode(f).size());
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    const auto s = recover(std::span(whole).first(n), kJob);
    ASSERT_TRUE(s.ok()) << n << ": " << s.error().to_string();
    const std::size_t last = *(std::upper_bound(ends.begin(), ends.end(), n) - 1);
    EXPECT_EQ(s->valid_bytes, static_cast<std::int64_t>(last));
    EXPECT_EQ(s->torn_bytes, static_cast<std::int64_t>(n - last));
  }
}

TEST(Journal, DamageBeforeIntactRecordsIsNotGuessed) {
  const wire::Bytes whole = journal(story());
  const std::size_t last = whole.size() - encode(story().back()).size();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    wire::Bytes bad = whole;
    bad[i] ^= std::byte{4};
    const auto s = recover(bad, kJob);
    EXPECT_EQ(s.ok(), i >= last) << i;
    if (!s.ok()) {
      EXPECT_EQ(s.error().code, Code::kCorrupt);
    }
  }
}

TEST(Journal, ALowerEpochDoesNotCount) {
  auto frames = story();
  frames.push_back({at(2, EpochRecord{kJob, kLineage, 42}), at(2, AbortRecord{txn(1, 2)})});
  frames.push_back({at(1, commit(txn(1, 2), 2))});  // the old coordinator wakes up
  const auto s = recover(journal(frames), kJob);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->committed.size(), 1u);
  EXPECT_FALSE(s->open);
}

TEST(Journal, ContradictionsAreRefused) {
  auto with = [](Record r) {
    auto frames = story();
    frames.push_back({std::move(r)});
    return recover(journal(frames), kJob).ok();
  };
  EXPECT_TRUE(with(at(1, commit(txn(1, 2), 2))));
  EXPECT_FALSE(with(at(1, commit(txn(1, 1), 1))));
  EXPECT_FALSE(with(at(1, AbortRecord{txn(1, 1)})));
  EXPECT_FALSE(with(at(1, begin(txn(1, 2), 3))));
  EXPECT_FALSE(with(at(1, begin(txn(1, 3), 2))));
  EXPECT_FALSE(with(at(3, AbortRecord{txn(1, 2)})));
  EXPECT_EQ(recover(journal(story()), {8, 8}).error().code, Code::kMismatch);
}

}  // namespace
}  // namespace refit::coordinator
