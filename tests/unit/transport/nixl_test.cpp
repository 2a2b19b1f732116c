// nixl: how segments become descriptors, and what a mover owes when a peer's reads never end (over the host double).
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "transport/common/segments.h"
#include "transport/nixl/api.h"
#include "transport/nixl/cut.h"
#include "transport/transport.h"

namespace refit::transport::nixl {
namespace {

using refit::Segment;

std::vector<std::byte> numbered(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 37 + i / 251);
  return out;
}
// What the reads and the picking come to, beside gather() of the same segments.
void expect_same(const std::vector<Segment>& segments, std::span<const std::byte> region, std::int64_t room) {
  Bytes wanted;
  for (const Segment& s : segments) gather(s, region.data(), wanted);
  const auto packed = static_cast<std::int64_t>(wanted.size());
  const auto c = cut(segments, packed, packed + room);
  ASSERT_TRUE(c.ok());
  ASSERT_LE(c->slot, packed + room);
  Bytes slot(static_cast<std::size_t>(c->slot));
  for (const Run& r : c->runs) {
    ASSERT_LE(r.bytes, kHandleBytes);
    ASSERT_GE(r.from, 0);
    ASSERT_LE(r.from + r.bytes, static_cast<std::int64_t>(region.size()));
    std::memcpy(slot.data() + r.to, region.data() + r.from, static_cast<std::size_t>(r.bytes));
  }
  pick_out(*c, slot.data());
  slot.resize(wanted.size());
  EXPECT_EQ(slot, wanted);
}

TEST(NixlCut, RandomSegmentsArriveAsGathered) {
  const auto region = numbered(1 << 20);
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<Segment> segments;
    for (std::uint64_t n = random() % 5; segments.size() < n;) {
      Segment s{
          0, static_cast<std::int64_t>(random() % region.size()), static_cast<std::int64_t>(random() % 6000), {}, {}};
      for (std::uint64_t axes = random() % 3; s.extents.size() < axes;) {
        s.extents.push_back(static_cast<std::int64_t>(random() % 6));
        s.strides.push_back(static_cast<std::int64_t>(random() % 20'000) - 5000);
      }
      const auto range = touched(s);
      if (range.ok() && range->lo >= 0 && range->hi <= static_cast<std::int64_t>(region.size())) segments.push_back(s);
    }
    expect_same(segments, region, round % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 100'000));
  }
}

TEST(NixlCut, RowsCostNoDescriptorEachUnlessTheGapsAreWide) {
  constexpr std::int64_t kRoom = 1 << 30;
  const auto runs = [](std::int64_t run, std::int64_t stride) {
    const Segment s{0, 0, run, {1000}, {stride}};
    return cut({&s, 1}, 1000 * run, kRoom).value().runs.size();
  };
  EXPECT_EQ(runs(512, 512), 1u);        // no gap at all
  EXPECT_EQ(runs(512, 1024), 1u);       // half of every row: read whole, picked out here
  EXPECT_EQ(runs(512, 4096), 1000u);    // an eighth: too much would be read
  EXPECT_EQ(runs(8192, 16384), 1000u);  // long rows pay for a descriptor
  const Segment huge{0, 0, 3 * kHandleBytes + 1, {}, {}};
  EXPECT_EQ(cut({&huge, 1}, huge.run_bytes, kRoom)->runs.size(), 4u);  // joined and cut again
  const Segment rows{0, 0, 512, {1000}, {1024}};
  EXPECT_EQ(cut({&rows, 1}, 512'000, 600'000)->runs.size(), 1000u);  // no room for the gaps
  const Segment crumbs{0, 0, 1, {kMostRuns + 1}, {16}};
  const auto many = cut({&crumbs, 1}, kMostRuns + 1, kRoom);
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.error().code, Code::kUnsupported);
  EXPECT_NE(many.error().message.find("tcp"), std::string::npos);
}

struct Ends {
  std::unique_ptr<Mover> source, target;
  Peer of_source;
  std::vector<std::byte> weights = numbered(100'000);

  Ends() {
    MoverOptions o;
    o.job = hash128("nixl");
    o.net.stall_ns = 200'000'000;
    o.member = 1;
    o.incarnation = Incarnation(11);
    source = std::move(make_mover("nixl_host_double", o)).value();
    of_source = {1, Incarnation(11), source->card(), "source:0.0"};
    o.member = 2;
    o.incarnation = Incarnation(22);
    target = std::move(make_mover("nixl_host_double", o)).value();
  }
  LaneId id(std::uint64_t member, std::uint64_t round) const {
    return {hash128("nixl"), Txn{hash128("l"), Epoch(1), round}, Incarnation(member * 11)};
  }
  Result<std::unique_ptr<PullLane>> lend(std::uint64_t round, Bytes* descriptor) {
    REFIT_ASSIGN(auto lane, source->open_pull(id(1, round), {}));
    const memory::RegionRef region{weights.data(), static_cast<std::int64_t>(weights.size()), memory::Kind::kHost,
                                   nullptr};
    REFIT_ASSIGN(*descriptor, lane->expose({&region, 1}));
    return lane;
  }
};

TEST(NixlMover, AReadThatNeverEndsNamesItsPeerAndTheNextRoundGoesOn) {
  {
    Ends ends;
    Bytes d;
    const Segment all{0, 0, 100'000, {}, {}};
    {
      auto lender = ends.lend(1, &d);
      ASSERT_TRUE(lender.ok());
      auto lane = std::move(ends.target->open_pull(ends.id(2, 1), {&ends.of_source, 1})).value();
      double_stalls(true);
      ASSERT_TRUE(lane->request(BucketId(7), 1, d, {&all, 1}).ok());
      const auto lease = lane->next(Deadline::after_s(10));
      double_stalls(false);
      ASSERT_FALSE(lease.ok());
      EXPECT_EQ(lease.error().code, Code::kPeerLost) << lease.error().to_string();
      EXPECT_EQ(lease.error().peer, "source:0.0");
      EXPECT_EQ(lease.error().bucket, "7");
      EXPECT_EQ(double_counts().requests, 1u);  // its memory is not given to anybody else
    }
    auto lender = ends.lend(2, &d);
    ASSERT_TRUE(lender.ok());
    auto lane = std::move(ends.target->open_pull(ends.id(2, 2), {&ends.of_source, 1})).value();
    ASSERT_TRUE(lane->request(BucketId(8), 1, d, {&all, 1}).ok());
    const auto lease = lane->next(Deadline::after_s(10));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    EXPECT_TRUE(std::equal(lease->packed().begin(), lease->packed().end(), ends.weights.begin(), ends.weights.end()));
    EXPECT_TRUE(lane->recheck(1).ok());
  }
  const DoubleCounts left = double_counts();
  EXPECT_EQ(left.agents + left.regions + left.requests, 0u);
}

TEST(NixlMover, WhatItCannotDoIsSaid) {
  MoverOptions o;
  o.net.advertise_address = "192.0.2.1";  // leaves this host
  const auto silent = make_mover("nixl_host_double", o);
  ASSERT_FALSE(silent.ok());
  EXPECT_NE(silent.error().message.find("security.bulk"), std::string::npos);
  o = {};
  o.net.port_range = "9-8";
  EXPECT_FALSE(make_mover("nixl_host_double", o).ok());  // and nothing of what never started is stopped
  o = {};
  o.net.nixl.library = "/nowhere/libnixl_capi.so";
  const auto absent = make_mover("nixl", o);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, Code::kUnsupported);
  EXPECT_NE(absent.error().message.find("pip install nixl-cu12"), std::string::npos);
  o = {};
  o.staging_bytes = 1000;
  Ends ends;
  Bytes d;
  auto lender = ends.lend(1, &d);
  o.job = hash128("nixl"), o.member = 3, o.incarnation = Incarnation(33);
  auto small = std::move(make_mover("nixl_host_double", o)).value();
  auto lane = std::move(small->open_pull(ends.id(3, 1), {&ends.of_source, 1})).value();
  const Segment all{0, 0, 100'000, {}, {}};
  const auto asked = lane->request(BucketId(1), 1, d, {&all, 1});
  ASSERT_FALSE(asked.ok());
  EXPECT_NE(asked.error().message.find("refit.staging_bytes"), std::string::npos);
  Completion done[1];
  EXPECT_EQ(lane->poll(done), 0u);  // a refused request opens no ticket
}

}  // namespace
}  // namespace refit::transport::nixl
