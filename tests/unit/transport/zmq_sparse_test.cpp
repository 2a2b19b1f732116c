// zmq_sparse where the push suite does not look: cards and frames from outside, and what it refuses to start with.
#include <gtest/gtest.h>
#include <zmq.h>

#include <atomic>

#include "transport/common/net.h"
#include "transport/zmq_sparse/hub.h"

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
  for (const char* endpoint : {"ipc:///tmp/x", "inproc://x", "127.0.0.1:6", "udp://127.0.0.1:6"}) {
    c.endpoint = endpoint;
    EXPECT_FALSE(decode_card(encode(c)).ok()) << endpoint;
  }
}

constexpr Hash128 kJob{1, 2};
const Txn kTxn{{3, 4}, Epoch(5), 6};
constexpr double kPatienceS = 20;

// The system's, at a time that can be put forward.
class Later final : public Env {
 public:
  std::atomic<std::int64_t> by_ns{0};
  std::int64_t now_ns() override { return system_env().now_ns() + by_ns; }
  void wait(Deadline until) override { system_env().wait(until); }
  Status random(std::span<std::byte> out) override { return system_env().random(out); }
  Result<Fd> shm(std::string_view label, std::int64_t bytes) override { return system_env().shm(label, bytes); }
  Result<std::unique_ptr<File>> file(const std::string& path) override { return system_env().file(path); }
  Status replace(const std::string& from, const std::string& to) override { return system_env().replace(from, to); }
  Result<Fd> listen(const std::string& path) override { return system_env().listen(path); }
  Result<Fd> connect(const std::string& path, Deadline d) override { return system_env().connect(path, d); }
  Result<int> spawn(const std::vector<std::string>& argv) override { return system_env().spawn(argv); }
};

std::unique_ptr<Mover> plain_mover(std::uint32_t member, std::int64_t stall_ns = 30 * kNsPerSecond,
                                   Env& env = system_env()) {
  MoverOptions o;
  o.env = &env;
  o.job = kJob;
  o.member = member;
  o.incarnation = Incarnation(100 + member);
  o.net.security = "none";
  o.net.stall_ns = stall_ns;
  return std::move(make_mover("zmq_sparse", o)).value();
}
Peer peer_of(std::uint32_t member, Bytes card) {
  return {member, Incarnation(100 + member), std::move(card), "peer " + std::to_string(member)};
}
template <typename F>
bool soon(F done) {
  for (const Deadline deadline = Deadline::after_s(kPatienceS); !deadline.over();
       system_env().wait(Deadline::after_ns(2'000'000)))
    if (done()) return true;
  return false;
}

// A bucket of many small runs travels in few messages, whole.
TEST(SparseMover, RunsAreGatheredIntoChunks) {
  const auto a = plain_mover(1), b = plain_mover(2);
  auto from = std::move(a->open_push({kJob, kTxn, Incarnation(101)}, std::vector{peer_of(2, b->card())})).value();
  auto to = std::move(b->open_push({kJob, kTxn, Incarnation(102)}, std::vector{peer_of(1, a->card())})).value();
  constexpr std::size_t kRuns = 150'000, kRun = 16;
  Bytes bytes(kRuns * kRun);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<std::span<const std::byte>> runs;
  for (std::size_t i = 0; i < kRuns; ++i) runs.push_back(std::span(bytes).subspan(i * kRun, kRun));
  ASSERT_TRUE(to->expect(std::vector{Expected{BucketId(9), 1, static_cast<std::int64_t>(bytes.size())}}).ok());
  ASSERT_TRUE(from->post(BucketId(9), runs, std::vector<std::uint32_t>{2}).ok());
  const auto lease = to->next(Deadline::after_s(kPatienceS));
  ASSERT_TRUE(lease.ok()) << lease.error().to_string();
  ASSERT_EQ(lease->packed().size(), bytes.size());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), lease->packed().begin()));
  EXPECT_LT(a->counters().bytes_out, bytes.size() + 100 * kHeadBytes);
}

// libzmq by hand: a peer that does what it likes.
struct Raw {
  void* context = zmq_ctx_new();
  void* listener = zmq_socket(context, ZMQ_ROUTER);  // so that others may connect to it; it says nothing
  void* socket = zmq_socket(context, ZMQ_DEALER);
  Bytes card;
  Raw(std::uint32_t member, const Mover& to) {
    const int none = 0, few = 1, small = 4096;
    for (void* s : {listener, socket}) zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &few, sizeof few);
    zmq_setsockopt(socket, ZMQ_RCVBUF, &small, sizeof small);
    EXPECT_EQ(zmq_bind(listener, "tcp://127.0.0.1:*"), 0);
    char endpoint[128] = {};
    std::size_t size = sizeof endpoint;
    EXPECT_EQ(zmq_getsockopt(listener, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
    card = encode(Card{kJob, member, Incarnation(100 + member), {}, endpoint});
    EXPECT_EQ(zmq_connect(socket, decode_card(to.card())->endpoint.c_str()), 0);
  }
  ~Raw() {
    zmq_close(socket);
    zmq_close(listener);
    zmq_ctx_term(context);
  }
  bool send(const Head& head, std::size_t rest = 0) {
    Bytes frame = encode(head);
    frame.resize(frame.size() + rest);
    return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT) >= 0;
  }
  bool hears(Type type) {
    Bytes frame(kHeadBytes);
    return zmq_recv(socket, frame.data(), frame.size(), ZMQ_DONTWAIT) == static_cast<int>(kHeadBytes) &&
           decode_head(frame)->type == type;
  }
};
Head head_of(Type type, std::uint32_t from, std::uint64_t bytes) {
  Head h;
  h.type = type;
  h.from = from;
  h.process = Incarnation(100 + from);
  h.id = {kJob, kTxn, h.process};
  h.bucket = BucketId(1);
  h.bytes = bytes;
  return h;
}

TEST(SparseMover, OffersOfASilentSenderAreReclaimed) {
  const auto b = plain_mover(2, 300'000'000);
  Raw sender(1, *b);
  ASSERT_TRUE(soon([&] { return sender.send(head_of(Type::kOffer, 1, 8)); }));
  ASSERT_TRUE(soon([&] { return b->counters().bytes_in > 0; }));
  EXPECT_EQ(b->counters().frames_foreign, 0u) << "its lane may still open";
  EXPECT_TRUE(soon([&] { return b->counters().frames_foreign == 1; }));
}

TEST(SparseMover, OneSenderOffersSoManyBucketsAndNoMore) {
  const auto b = plain_mover(2);
  Raw sender(1, *b);
  const int all = 1000;
  zmq_setsockopt(sender.socket, ZMQ_RCVHWM, &all, sizeof all);
  for (int i = 0; i < 65; ++i) ASSERT_TRUE(soon([&] { return sender.send(head_of(Type::kOffer, 1, 8)); }));
  EXPECT_TRUE(soon([&] { return sender.hears(Type::kRefuse); }));
  EXPECT_EQ(b->counters().frames_bad, 1u);
}

// Answers that are not read may not pile up, nor be lost in silence: who does not read is cut and named.
TEST(SparseMover, ASenderThatReadsNoAnswersIsCutAndNamed) {
  const auto b = plain_mover(2);
  Raw sender(1, *b);
  auto lane = std::move(b->open_push({kJob, kTxn, Incarnation(102)}, std::vector{peer_of(1, sender.card)})).value();
  constexpr std::uint64_t kBytes = 2'000'000;
  ASSERT_TRUE(lane->expect(std::vector{Expected{BucketId(1), 1, kBytes}}).ok());
  ASSERT_TRUE(soon([&] { return sender.send(head_of(Type::kOffer, 1, kBytes)); }));
  ASSERT_TRUE(soon([&] { return sender.hears(Type::kGrant); }));
  Head data = head_of(Type::kData, 1, kBytes);
  std::optional<Error> error;
  for (const Deadline deadline = Deadline::after_s(kPatienceS); !error && !deadline.over();) {
    for (int i = 0; i < 2000 && data.offset + 1 < kBytes && sender.send(data, 1); ++i) ++data.offset;
    if (auto got = lane->next(Deadline::after_ns(0)); !got.ok() && got.error().code != Code::kTimeout)
      error = got.error();
  }
  ASSERT_TRUE(error) << data.offset << " chunks were taken";
  EXPECT_EQ(error->code, Code::kExhausted) << error->to_string();
  EXPECT_EQ(error->peer, "peer 1");
  EXPECT_EQ(error->bucket, "1");
}

// A peer's connection lives over rounds; one that has said nothing is cut when its time is over.
TEST(SparseMover, ConnectionsThatProveNothingAreCutInTime) {
  Later env;
  const auto a = plain_mover(1, 30 * kNsPerSecond, env), b = plain_mover(2, 30 * kNsPerSecond, env);
  const std::string endpoint = decode_card(b->card())->endpoint;
  const auto silent =
      connect_to("127.0.0.1", static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  ASSERT_TRUE(silent.ok());
  const Bytes bytes(100, std::byte{7});
  const std::span<const std::byte> part(bytes);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    const Txn txn{{3, 4}, Epoch(5), round};
    auto from = std::move(a->open_push({kJob, txn, Incarnation(101)}, std::vector{peer_of(2, b->card())})).value();
    auto to = std::move(b->open_push({kJob, txn, Incarnation(102)}, std::vector{peer_of(1, a->card())})).value();
    ASSERT_TRUE(to->expect(std::vector{Expected{BucketId(9), 1, 100}}).ok());
    ASSERT_TRUE(from->post(BucketId(9), {&part, 1}, std::vector<std::uint32_t>{2}).ok());
    const auto lease = to->next(Deadline::after_s(kPatienceS));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    if (round == 2) break;
    env.by_ns = kHandshakeNs + kNsPerSecond;
    EXPECT_TRUE(soon([&] { return b->counters().connections_refused == 1; }));
  }
  EXPECT_EQ(b->counters().connections_refused, 1u);
  EXPECT_EQ(a->counters().connections_refused, 0u);
}

TEST(SparseMover, ConnectionsThatProveNothingAreLimitedAndCounted) {
  MoverOptions o;
  o.job = kJob;
  const auto b = std::move(make_mover("zmq_sparse", o)).value();
  const std::string endpoint = decode_card(b->card())->endpoint;
  const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  std::vector<Fd> strangers;
  for (std::size_t i = 0; i < kMostStrangers + 16; ++i) {
    auto fd = connect_to("127.0.0.1", port);
    ASSERT_TRUE(fd.ok());
    strangers.push_back(std::move(*fd));
  }
  EXPECT_TRUE(soon([&] { return b->counters().connections_refused == 16u; }))
      << b->counters().connections_refused;
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
