// What a plan costs on given links, on matrices written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan.h"

namespace refit::plan {
namespace {

World by_rank(std::vector<Link> links) {
  World w;
  w.links = std::move(links);
  w.bucket_limit = 100;
  for (const Link& l : w.links) w.bytes_moved += l.bytes;
  return w;
}

TEST(Cost, BoundIsTheBusiestPort) {
  // Source 0 sends 300, target 1 receives 250.
  const World w = by_rank({{0, 0, 100}, {0, 1, 200}, {1, 1, 50}});
  LinkTable t;
  t.nic_rank = 100;
  t.efficiency = 0.5;
  t.latency_s = 0.25;
  const auto c = cost_of(w, t);
  ASSERT_TRUE(c.ok());
  EXPECT_DOUBLE_EQ(c->bound_s, 3);
  EXPECT_DOUBLE_EQ(c->expected_s, 6 + 3 * 0.25);  // three buckets behind each other at source 0
  ASSERT_EQ(c->ports.size(), 4u);
  EXPECT_EQ(c->ports[0].name, "source:0");
  EXPECT_TRUE(c->ports[0].out);
  EXPECT_EQ(c->ports[1].name, "target:1");
  EXPECT_EQ(c->ports[1].bytes, 250);
  EXPECT_EQ(c->bytes_network, 350);
}

TEST(Cost, CardsOfAHostAddUpItsRanks) {
  const World w = by_rank({{0, 0, 100}, {1, 1, 100}, {2, 2, 100}});
  LinkTable t;
  t.ranks_per_host = 2;
  t.nic_rank = 100, t.nic_host = 50;
  const auto c = cost_of(w, t);
  ASSERT_TRUE(c.ok());
  EXPECT_DOUBLE_EQ(c->bound_s, 4);  // two ranks of source-host:0 through 50
  EXPECT_EQ(c->ports[0].name, "source-host:0");
}

TEST(Cost, OneHostMovesOverItsLocalLinks) {
  World w = by_rank({{0, 0, 100}, {0, 1, 300}});
  w.rank_hosts = {{"source:0", "a"}, {"target:0", "a"}, {"target:1", "b"}};
  LinkTable t;
  t.nic_rank = 100, t.local = 1000;
  t.nic_of_host["b"] = 30;
  const auto c = cost_of(w, t);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->bytes_local, 100);
  EXPECT_EQ(c->bytes_network, 300);
  EXPECT_DOUBLE_EQ(c->bound_s, 10);  // b takes 300 at 30
  EXPECT_EQ(c->ports[0].name, "b");
  EXPECT_FALSE(c->ports[0].out);
}

TEST(Cost, AMatrixByHostsKeepsTheBusiestRank) {
  World w = by_rank({{0, 1, 800}});
  w.by_host = true;
  w.hosts = {"src-0", "tgt-0"};
  w.bound_bytes = 700;
  LinkTable t;
  t.nic_rank = 100, t.nic_host = 800;
  const auto c = cost_of(w, t);
  ASSERT_TRUE(c.ok());
  EXPECT_DOUBLE_EQ(c->bound_s, 7);
  EXPECT_EQ(c->ports[0].name, "the busiest rank");
}

TEST(Cost, NothingMovesInNoTime) {
  LinkTable t;
  t.nic_rank = 1;
  const auto c = cost_of(World{}, t);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->bound_s, 0);
  EXPECT_TRUE(c->ports.empty());
}

TEST(Cost, RefusesTablesThatMakeNoSense) {
  const auto refused = [](const std::function<void(LinkTable&)>& spoil, const char* key) {
    LinkTable t;
    t.nic_rank = 1;
    EXPECT_TRUE(check_links(t).ok());
    spoil(t);
    const Status s = check_links(t);
    ASSERT_FALSE(s.ok()) << key;
    EXPECT_THAT(s.error().message, ::testing::HasSubstr(key));
  };
  refused([](LinkTable& t) { t.nic_rank = 0; }, "both missing");
  refused([](LinkTable& t) { t.nic_host = -1; }, "nic_gbps_per_host");
  refused([](LinkTable& t) { t.local = std::numeric_limits<double>::quiet_NaN(); }, "local_gbps_per_rank");
  refused([](LinkTable& t) { t.ranks_per_host = 0; }, "ranks_per_host");
  refused([](LinkTable& t) { t.efficiency = 0; }, "efficiency");
  refused([](LinkTable& t) { t.latency_s = -1; }, "latency_us");
  refused([](LinkTable& t) { t.nic_of_host["a"] = 0; }, "hosts.a");
}

}  // namespace
}  // namespace refit::plan
