// What is kept and what goes, on a clock of the test.
#include "unit/store/helpers.h"

namespace refit::store::testing {
namespace {

constexpr std::int64_t kS = kNsPerSecond;
const RetentionPolicy kPolicy{.keep = 1, .lease_ns = 10 * kS, .grace_ns = 30 * kS};

std::vector<std::uint64_t> numbers_in(MemoryStore& store) {
  History history = History::open(store, {}, soon()).value();
  return history.committed(soon()).value();
}

struct Keeper {
  MemoryStore& store;
  Collector collector{kPolicy};
  std::int64_t now = 0;
  Collected at(std::int64_t seconds) {
    History history = History::open(store, {}, soon()).value();
    auto c = collect(history, collector, (now = seconds) * kS, soon());
    EXPECT_TRUE(c.ok()) << c.error().to_string();
    expect_sound(store);
    return c.ok() ? *c : Collected{};
  }
};

void lease(MemoryStore& store, std::uint64_t counter, std::uint64_t from, std::uint64_t to) {
  store.objects["leases/reader"] = write_lease({counter, from, to});
}

TEST(StoreRetention, KeepsTheNewestAndItsChain) {
  MemoryStore store;
  publish_steps(store, 0, 7);  // anchors: versions 1, 4, 7
  Keeper keeper{store};
  EXPECT_EQ(keeper.at(0).versions, 0);
  EXPECT_EQ(keeper.at(29).versions, 0);  // grace
  EXPECT_EQ(keeper.at(30).versions, 6);
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{7, 8}));
  Reader reader(store);
  ASSERT_TRUE(reader.newest().ok());
  EXPECT_TRUE(reader.holds(7));
}

TEST(StoreRetention, NeverBelowALease) {
  MemoryStore store;
  publish_steps(store, 0, 7);
  Keeper keeper{store};
  for (std::int64_t s = 0; s <= 100; s += 5) {
    lease(store, static_cast<std::uint64_t>(s), 0, 5);  // it lives, and reads version 5: anchor 4 stays too
    keeper.at(s);
  }
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{4, 5, 7, 8}));
  // It moves on; then it stands still.
  lease(store, 1000, 8, 8);
  keeper.at(105);
  keeper.at(110);
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{4, 5, 7, 8}));
  keeper.at(135);
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{7, 8}));
  EXPECT_FALSE(store.objects.contains("leases/reader"));
}

TEST(StoreRetention, AReaderOfAnOldVersionKeepsItsDeltas) {
  MemoryStore store;
  publish_steps(store, 0, 7);
  Keeper keeper{store};
  for (std::int64_t s = 0; s <= 100; s += 5) {
    lease(store, static_cast<std::uint64_t>(s), 5, 8);
    keeper.at(s);
  }
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{4, 5, 6, 7, 8}));  // 6 stands on 5 and 4
}

TEST(StoreRetention, ALeaseWrittenAgainDuringGraceSavesItsVersion) {
  MemoryStore store;
  publish_steps(store, 0, 7);
  Keeper keeper{store};
  keeper.at(0);
  keeper.at(20);
  lease(store, 1, 0, 2);
  keeper.at(25);
  lease(store, 2, 0, 2);
  keeper.at(34);
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{1, 2, 7, 8}));
}

TEST(StoreRetention, AttemptsThatDiedGoToo) {
  MemoryStore store;
  publish_steps(store, 0, 0);
  const Bytes junk(10);
  store.objects[data_key(1, 77, 0)] = junk;  // of another attempt at version 1
  store.objects[data_key(2, 78, 0)] = junk;  // may be under way
  Keeper keeper{store};
  keeper.at(0);
  keeper.at(40);
  EXPECT_FALSE(store.objects.contains(data_key(1, 77, 0)));
  EXPECT_TRUE(store.objects.contains(data_key(2, 78, 0)));
}

TEST(StoreRetention, DiesAtEveryStepAndGoesOn) {
  for (std::int64_t at = 0;; ++at) {
    ASSERT_LT(at, 200);
    MemoryStore store;
    publish_steps(store, 0, 7);
    bool died = false;
    for (const bool after : {false, true}) {
      MortalStore mortal(store, at, after);
      auto history = History::open(mortal, {}, soon());
      if (!history.ok()) {
        died = true;
        continue;
      }
      Collector collector(kPolicy);
      const auto first = collect(*history, collector, 0, soon());
      const auto second = first.ok() ? collect(*history, collector, 100 * kS, soon()) : first;
      died = died || !second.ok();
      expect_sound(store);
    }
    Keeper keeper{store};
    keeper.at(0);
    keeper.at(100);
    EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{7, 8}));
    for (const auto& [key, bytes] : store.objects) {
      const auto a = attempt_of(key);
      EXPECT_TRUE(!a || a->number >= 7u) << key << " is left";
    }
    if (!died) break;
  }
}

TEST(StoreRetention, WhatIsCollectedUnderAReaderIsNoDamage) {
  MemoryStore store;
  publish_steps(store, 0, 7);
  Reader reader(store);
  Keeper keeper{store};
  keeper.at(0);
  keeper.at(100);
  const auto f = reader.follower->fetch(2, soon());
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.error().code, Code::kBusy);
  ASSERT_TRUE(reader.newest().ok());
  EXPECT_TRUE(reader.holds(7));
}

// A manifest that a listing or a proxy hides for a while: what it stands on must not go meanwhile.
TEST(StoreRetention, AManifestThatIsAwayRemovesNothing) {
  MemoryStore store;
  publish_steps(store, 0, 4);  // anchors: versions 1, 4
  const std::uint64_t epoch = read_marker(store.objects.at(committed_key(5))).value().epoch;
  const auto away = store.objects.extract(manifest_key(5, epoch));
  const Bytes manifest = away.mapped();
  const Objects before = store.objects;
  History history = History::open(store, {}, soon()).value();
  Collector collector{kPolicy};
  for (const std::int64_t s : {0, 100, 200}) {
    const auto c = collect(history, collector, s * kS, soon());
    ASSERT_FALSE(c.ok());
    EXPECT_EQ(c.error().code, Code::kCorrupt);
  }
  EXPECT_EQ(store.objects, before);
  EXPECT_TRUE(collector.known().empty());
  store.objects[manifest_key(5, epoch)] = manifest;
  for (const std::int64_t s : {300, 400}) ASSERT_TRUE(collect(history, collector, s * kS, soon()).ok());
  EXPECT_EQ(numbers_in(store), (std::vector<std::uint64_t>{4, 5}));
  expect_sound(store);
}

TEST(StoreRetention, AFollowersLeaseLivesWithIt) {
  MemoryStore store;
  publish_steps(store, 0, 1);
  FollowOptions options;
  options.lease = "me";
  options.renew_ns = 0;
  Reader reader(store, options);
  const Lease a = read_lease(store.objects.at("leases/me")).value();
  ASSERT_TRUE(reader.newest().ok());
  const Lease b = read_lease(store.objects.at("leases/me")).value();
  EXPECT_GT(b.counter, a.counter + 3);  // while it downloads too
  EXPECT_EQ(b.to, 2u);
  ASSERT_TRUE(reader.follower->newest(soon()).ok());
  EXPECT_EQ(read_lease(store.objects.at("leases/me")).value().from, 2u);
  ASSERT_TRUE(reader.follower->end(soon()).ok());
  EXPECT_FALSE(store.objects.contains("leases/me"));
}

}  // namespace
}  // namespace refit::store::testing
