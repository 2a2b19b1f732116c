#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "transport/common/net.h"
#include "transport/common/staging.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/mac.h"
#include "transport/tcp/stream.h"

namespace refit::transport::tcp {
namespace {

Bytes some_header() {
  Header h{.type = Type::kData, .length = 7, .id = {}, .bucket = BucketId(3), .code = 0, .offset = 10, .bytes = 17};
  h.id.job = hash128("job");
  h.id.txn = {hash128("lineage"), Epoch(4), 5};
  h.id.incarnation = Incarnation(6);
  return encode(h);
}

TEST(TcpFrame, SizesAndRoundTrip) {
  const Bytes bytes = some_header();
  ASSERT_EQ(bytes.size(), kFrameBytes);
  const auto h = decode_header(bytes);
  ASSERT_TRUE(h.ok());
  EXPECT_EQ(h->id.txn.counter, 5u);
  EXPECT_EQ(h->offset, 10u);
  EXPECT_EQ(encode(*h), bytes);
  EXPECT_EQ(encode(Hello{}).size(), kHelloBytes);
  EXPECT_EQ(encode(Welcome{}).size(), kWelcomeBytes);
}

TEST(TcpFrame, HeadersThatNoSenderWritesAreRefused) {
  const auto refused = [](const std::function<void(Header&)>& change) {
    Header h = *decode_header(some_header());
    change(h);
    return !decode_header(encode(h)).ok();
  };
  EXPECT_TRUE(refused([](Header& h) { h.type = static_cast<Type>(99); }));
  EXPECT_TRUE(refused([](Header& h) { h.length = 0; }));
  EXPECT_TRUE(refused([](Header& h) { h.length = kMaxChunk + 1, h.bytes = 1 << 30; }));
  EXPECT_TRUE(refused([](Header& h) { h.offset = 11; }));
  EXPECT_TRUE(refused([](Header& h) { h.offset = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](Header& h) { h.bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](Header& h) { h.type = Type::kOffer; }));
  EXPECT_TRUE(refused([](Header& h) { h.code = 1000; }));
}

// Whatever bytes come, decoding ends with a value whose ranges hold, or an error.
TEST(TcpFrame, NoiseIsDecodedToSenseOrRefused) {
  const std::uint64_t seed = system_env().random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Card card{.job = hash128("job"),
            .member = 1,
            .incarnation = Incarnation(2),
            .security = Security::kMac,
            .key = {},
            .port = 7,
            .host = "127.0.0.1"};
  const std::vector<Bytes> good{some_header(), encode(Hello{}), encode(Welcome{}), encode(card)};
  for (int i = 0; i < 20'000; ++i) {
    Bytes b = good[random() % good.size()];
    for (std::uint64_t n = random() % 4; n > 0; --n) b[random() % b.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) b.resize(random() % (b.size() + 1));
    if (const auto h = decode_header(b); h.ok() && h->type == Type::kData) {
      EXPECT_LE(h->length, kMaxChunk);
      EXPECT_LE(h->offset + h->length, h->bytes);
    }
    if (const auto c = decode_card(b); c.ok()) {
      EXPECT_LE(c->host.size(), kLongestHost);
    }
    (void)decode_hello(b);
    (void)decode_welcome(b);
  }
}

TEST(TcpIncoming, RangesAreClaimedOnce) {
  const std::uint64_t seed = system_env().random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Incoming in;
  in.bytes = 64;
  std::vector<bool> taken(64);
  for (int i = 0; i < 400; ++i) {
    const std::uint64_t from = random() % 64, length = 1 + random() % std::min<std::uint64_t>(64 - from, 9);
    bool free = true;
    for (std::uint64_t k = from; k < from + length; ++k) free = free && !taken[k];
    ASSERT_EQ(in.claim(from, length), free) << from << "+" << length;
    if (free)
      for (std::uint64_t k = from; k < from + length; ++k) taken[k] = true;
  }
}

TEST(TcpMac, EveryBitAndTheOrderCount) {
  Key key{};
  key[3] = std::byte{9};
  Hello hello;
  const auto keys = std::move(derive_keys(key, hello, {})).value();
  EXPECT_NE(keys.to_listener, keys.to_connector);
  hello.nonce[0] = std::byte{1};
  EXPECT_NE(std::move(derive_keys(key, hello, {})).value().to_listener, keys.to_listener)
      << "a new connection, a new key";
  const auto tag_of = [&](const Key& k, std::span<const std::byte> header, std::span<const std::byte> payload,
                          int skip) {
    Gmac mac = std::move(Gmac::make(k)).value();
    for (int i = 0; i < skip; ++i) mac.begin(header), (void)mac.finish();
    mac.begin(header);
    mac.add(payload.first(payload.size() / 3));  // in pieces or at once: the same
    mac.add(payload.subspan(payload.size() / 3));
    return std::move(mac.finish()).value();
  };
  const Bytes header = some_header();
  Bytes payload(100, std::byte{5});
  const Tag tag = tag_of(keys.to_listener, header, payload, 0);
  EXPECT_TRUE(same_tag(tag_of(keys.to_listener, header, payload, 0), tag));
  EXPECT_FALSE(same_tag(tag_of(keys.to_listener, header, payload, 1), tag)) << "a replayed frame";
  EXPECT_FALSE(same_tag(tag_of(keys.to_connector, header, payload, 0), tag)) << "a reflected frame";
  for (std::size_t i = 0; i < payload.size() * 8; ++i) {
    payload[i / 8] ^= std::byte(1u << i % 8);
    EXPECT_FALSE(same_tag(tag_of(keys.to_listener, header, payload, 0), tag));
    payload[i / 8] ^= std::byte(1u << i % 8);
  }
}

TEST(TcpStaging, PlacesAreDisjointAndComeBack) {
  auto wake = std::make_shared<const Wake>(std::move(Wake::make()).value());
  auto staging = std::make_shared<Staging>(1 << 20, nullptr, wake);
  ASSERT_TRUE(staging->reserve(1 << 30).ok());  // no more than the limit
  const std::uint64_t seed = system_env().random_u64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<Staging::Slot> held;
  for (int i = 0; i < 2000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    auto slot = staging->take(static_cast<std::int64_t>(random() % 200'000 + 1));
    if (!slot) continue;
    for (const auto& other : held)
      ASSERT_TRUE(slot->data() + slot->bytes() <= other.data() || other.data() + other.bytes() <= slot->data());
    held.push_back(std::move(*slot));
  }
  held.clear();
  EXPECT_TRUE(staging->take(1 << 20).has_value()) << "all of it is free again";
  EXPECT_FALSE(staging->take((1 << 20) + 1).has_value());
}

TEST(TcpPorts, ATakenPortIsPassedOver) {
  EXPECT_FALSE(parse_ports("0").ok());
  EXPECT_FALSE(parse_ports("70000").ok());
  EXPECT_FALSE(parse_ports("9-8").ok());
  EXPECT_FALSE(parse_ports("1-x").ok());
  // Two neighbours that are free now: the second listener takes what the first left.
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto first = std::move(listen_on("", {}, 0)).value();
    if (first.port == 0xffff) continue;
    const Ports both{first.port, static_cast<std::uint16_t>(first.port + 1)};
    const auto second = listen_on("", both, 0);
    if (!second.ok()) continue;  // somebody else has it
    EXPECT_EQ(second->port, first.port + 1);
    const auto third = listen_on("127.0.0.1", both, 1);
    EXPECT_EQ(third.error().code, Code::kExhausted);
    EXPECT_NE(third.error().message.find("port_range"), std::string::npos);
    return;
  }
  FAIL() << "no two free ports";
}

TEST(TcpOptions, SecurityMustBeSpelledOut) {
  MoverOptions o;
  o.net.security = "";
  EXPECT_EQ(make_mover("tcp", o).error().code, Code::kInvalid);
  o.net.security = "aes_gcm";
  EXPECT_EQ(make_mover("tcp", o).error().code, Code::kUnsupported);
  o.net.security = "none";
  EXPECT_EQ(std::move(make_mover("tcp", o)).value()->capabilities().security, "none");
  o.net.security = "mac";
  EXPECT_EQ(std::move(make_mover("tcp", o)).value()->capabilities().security, "mac");
}

}  // namespace
}  // namespace refit::transport::tcp
