// zmq_sparse where the push suite does not look: cards and frames from outside, and what it refuses to start with.
#include <gtest/gtest.h>

#include "transport/zmq_sparse/card.h"

namespace refit::transport::zmq_sparse {
namespace {

Head sample_head() {
  Head h;
  h.type = Type::kData;
  h.from = 3;
  h.process = Incarnation(7);
  h.id = {{1, 2}, {{3, 4}, Epoch(5), 6}, Incarnation(8)};
  h.bucket = BucketId(9);
  h.code = 10;
  h.offset = 11;
  h.bytes = 12;
  return h;
}

TEST(SparseFrames, RoundTripAndNothingElse) {
  Bytes frame = encode(sample_head());
  ASSERT_EQ(frame.size(), kHeadBytes);
  EXPECT_FALSE(decode_head(frame).ok()) << "data without bytes";
  frame.push_back(std::byte{1});
  const auto back = decode_head(frame);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->from, 3u);
  EXPECT_EQ(back->id, sample_head().id);
  EXPECT_EQ(back->bucket, BucketId(9));
  EXPECT_EQ(back->offset, 11u);
  EXPECT_EQ(back->bytes, 12u);
  for (std::size_t n = 0; n < kHeadBytes; ++n) EXPECT_FALSE(decode_head(std::span(frame).first(n)).ok()) << n;
  Head beat = sample_head();
  beat.type = Type::kBeat;
  Bytes longer = encode(beat);
  EXPECT_TRUE(decode_head(longer).ok());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_head(longer).ok()) << "bytes behind a frame that has none";
  for (const int type : {0, 9, 1000}) {
    Head odd = sample_head();
    odd.type = static_cast<Type>(type);
    EXPECT_FALSE(decode_head(encode(odd)).ok()) << type;
  }
  Bytes magic = encode(beat);
  magic[0] ^= std::byte{1};
  EXPECT_FALSE(decode_head(magic).ok());
}

TEST(SparseFrames, CardsAreCheckedToTheirEnd) {
  Card c{{1, 2}, 3, Incarnation(4), Bytes(kKeyBytes, std::byte{5}), "tcp://127.0.0.1:6"};
  const Bytes card = encode(c);
  const auto back = decode_card(card);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->endpoint, c.endpoint);
  EXPECT_EQ(back->key, c.key);
  for (std::size_t n = 0; n < card.size(); ++n) EXPECT_FALSE(decode_card(std::span(card).first(n)).ok()) << n;
  Bytes longer = card;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_card(longer).ok());
  c.key.pop_back();
  EXPECT_FALSE(decode_card(encode(c)).ok()) << "a short key";
  c.key.clear();
  EXPECT_TRUE(decode_card(encode(c)).ok()) << "plain";
}

TEST(SparseMover, BadOptionsAreRefusedByName) {
  const auto made = [](NetOptions net) {
    MoverOptions o;
    o.net = std::move(net);
    auto m = make_mover("zmq_sparse", o);
    return m.ok() ? std::string() : m.error().to_string();
  };
  NetOptions aes;
  aes.security = "aes_gcm";
  EXPECT_NE(made(aes).find("security.bulk"), std::string::npos);
  NetOptions ports;
  ports.port_range = "9-8";
  EXPECT_NE(made(ports).find("port_range"), std::string::npos);
  NetOptions address;
  address.advertise_address = "no such address";
  EXPECT_NE(made(address).find("advertise_address"), std::string::npos);
  EXPECT_EQ(made({}), "");
}

}  // namespace
}  // namespace refit::transport::zmq_sparse
