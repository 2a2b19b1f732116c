#include "transport/transport.h"

#include <gtest/gtest.h>

#include "transport/common/ledger.h"
#include "transport/common/segments.h"
#include "transport/shm/card.h"
#include "transport/zmq/card.h"

namespace refit::transport {
namespace {

TEST(Registry, NamesWhatIsBuilt) {
  EXPECT_EQ(mover_names(), (std::vector<std::string>{"loopback", "sim", "shm", "zmq", "tcp", "zmq_sparse", "nixl",
                                                     "nixl_host_double"}));
  const auto none = make_mover("carrier-pigeon", {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kUnsupported);
  EXPECT_NE(none.error().message.find("loopback, sim, shm, zmq, tcp, zmq_sparse"), std::string::npos);
}

TEST(Registry, AbsentCapabilitiesAreUnsupported) {
  auto zmq = std::move(make_mover("zmq", {})).value();
  EXPECT_FALSE(zmq->capabilities().push);
  EXPECT_EQ(zmq->open_push({}, {}).error().code, Code::kUnsupported);
  EXPECT_EQ(zmq->open_pull({}, {}).error().code, Code::kUnsupported);
  auto sim = std::move(make_mover("sim", {})).value();
  EXPECT_EQ(sim->open_control({"ipc:///x/y", true}).error().code, Code::kUnsupported);
}

TEST(Ledger, PaysEachEntryOnceAndKeepsTheFirstError) {
  Ledger ledger;
  const std::uint32_t members[] = {4, 9};
  const std::uint64_t ticket = ledger.open(members);
  ledger.finish(ticket, 4);
  ledger.finish(ticket, 4, Error(Code::kInternal, "again"));
  ledger.finish(99, 4);
  EXPECT_EQ(ledger.fail(Error(Code::kTimeout, "first")).message, "first");
  EXPECT_EQ(ledger.fail(Error(Code::kCorrupt, "second")).message, "first");
  ledger.close();
  Completion done[4];
  ASSERT_EQ(ledger.poll(done), 2u);
  EXPECT_EQ(done[0].member, 4u);
  EXPECT_FALSE(done[0].error.has_value());
  EXPECT_EQ(done[1].member, 9u);
  EXPECT_EQ(done[1].error->message, "first");
  EXPECT_EQ(ledger.check().error().message, "first");
  // What is opened after the end is owed too, and paid at once.
  const std::uint64_t late = ledger.open(std::span(members, 1));
  ASSERT_EQ(ledger.poll(done), 1u);
  EXPECT_EQ(done[0].ticket, late);
}

TEST(Segments, GatherFollowsStridesInRowMajorOrder) {
  Bytes region(32);
  for (std::size_t i = 0; i < region.size(); ++i) region[i] = static_cast<std::byte>(i);
  Bytes out;
  gather({0, 20, 2, {2, 3}, {8, -4}}, region.data(), out);
  const std::vector<int> want{20, 21, 16, 17, 12, 13, 28, 29, 24, 25, 20, 21};
  ASSERT_EQ(out.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(std::to_integer<int>(out[i]), want[i]);
}

TEST(ShmCard, RoundTripsAndRefusesOthers) {
  const shm::Card card{hash128("job"), 7, Incarnation(0x1234567890abcdef), 1000};
  const Bytes bytes = shm::encode(card);
  EXPECT_EQ(bytes.size(), shm::kCardBytes);
  EXPECT_EQ(*shm::decode_card(bytes), card);
  EXPECT_FALSE(shm::decode_card(std::span(bytes).first(39)).ok());
  shm::Card other = card;
  other.incarnation = Incarnation(1);
  EXPECT_NE(shm::socket_path("/run/x", card), shm::socket_path("/run/x", other));
  EXPECT_LE(shm::socket_path("", card).size(), 40u);
  const Bytes request = shm::encode(shm::Request{shm::Ask::kFile, 5, card});
  ASSERT_EQ(request.size(), shm::kRequestBytes);
  EXPECT_EQ(shm::decode_request(request)->file, 5u);
  EXPECT_EQ(shm::encode(shm::Reply{}).size(), shm::kReplyBytes);
}

// Every field of a descriptor is checked from its private copy; a valid checksum is not trusted to mean sense.
TEST(ShmDescriptor, RefusesImpossibleRegionsWithAValidChecksum) {
  shm::Descriptor d;
  d.slot = 3;
  d.regions = {{1, 4096, 0, 4096}, {1, 4096, 4096, 0}, {}};
  EXPECT_TRUE(shm::decode_descriptor(shm::encode(d)).ok());
  d.regions.clear();
  EXPECT_TRUE(shm::decode_descriptor(shm::encode(d)).ok());  // a rank that owns nothing
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  for (const shm::LentRegion& bad : {shm::LentRegion{1, 4096, 1, 4096},
                                     {1, 4096, max, max},
                                     {1, 0, 0, 0},
                                     {0, 0, 0, 1},
                                     {1, -1, 0, 0},
                                     {1, 10, -1, 5},
                                     {1, 10, 5, -1}}) {
    d.regions = {bad};
    EXPECT_EQ(shm::decode_descriptor(shm::encode(d)).error().code, Code::kCorrupt);
  }
  d.regions.clear();
  d.slot = shm::kSlots;
  EXPECT_EQ(shm::decode_descriptor(shm::encode(d)).error().code, Code::kCorrupt);
}

TEST(ZmqHead, RefusesForeignMessages) {
  const Bytes good = zmq::encode(zmq::Kind::kData, {});
  EXPECT_EQ(*zmq::decode(good), zmq::Kind::kData);
  for (std::size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(zmq::decode(std::span(good).first(cut)).ok());
  for (std::size_t i : {std::size_t{0}, std::size_t{5}, std::size_t{7}}) {
    Bytes bad = good;
    bad[i] ^= std::byte{0x40};
    EXPECT_FALSE(zmq::decode(bad).ok());
  }
}

}  // namespace
}  // namespace refit::transport
