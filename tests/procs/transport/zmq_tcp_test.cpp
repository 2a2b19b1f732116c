// Control lanes over TCP with keys: who is turned away, what may be spent on strangers, dead and damaged connections.
#include "relay.h"

#include <zmq.h>

#include "child.h"
#include "conformance/control_suite.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)
using conformance::message;
using conformance::open_descriptors;

constexpr double kPatienceS = 10;

// A coordinator that admits target:0.0, and its keys.
struct Hub {
  ControlKeys own, member;
  std::unique_ptr<Mover> mover = std::move(make_mover("zmq", {})).value();
  std::unique_ptr<ControlLane> lane;
  std::vector<Liveness> events;  // seen, not yet waited for
  explicit Hub(std::int64_t silent_ms = 10'000) {
    own.own = make_key_pair().value();
    member.own = make_key_pair().value();
    member.coordinator = own.own.public_key;
    own.admitted = {{{Role::kTarget, 0, 0}, member.own.public_key}};
    ControlAddress at{"tcp://127.0.0.1:0", true, silent_ms};
    at.keys = own;
    lane = std::move(mover->open_control(at)).value();
  }
  std::uint16_t port() const {
    const std::string address = lane->address();
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  std::unique_ptr<ControlLane> join(const std::string& address, const ControlKeys& keys,
                                    std::int64_t silent_ms = 10'000) {
    ControlAddress at{address, false, silent_ms};
    at.keys = keys;
    return std::move(mover->open_control(at)).value();
  }
  // Seconds until the event, or -1.
  double wait_for(PeerEvent wanted, double patience, ControlLane* of = nullptr) {
    const std::int64_t start = monotonic_ns();
    ControlLane& from = of != nullptr ? *of : *lane;
    for (const Deadline deadline = Deadline::after_s(patience); !deadline.over();
         system_env().wait(Deadline::after_ns(2'000'000)))
      for (const Liveness& l : from.liveness())
        if (l.event == wanted) return static_cast<double>(monotonic_ns() - start) / 1e9;
    return -1;
  }
  bool refuses(std::uint64_t at_least) const {
    for (const Deadline deadline = Deadline::after_s(kPatienceS); !deadline.over();
         system_env().wait(Deadline::after_ns(2'000'000)))
      if (lane->refused() >= at_least) return true;
    return false;
  }
};

// What a ZMTP 3.0 connection begins with.
std::vector<char> greeting(const std::string& mechanism) {
  std::vector<char> out(64, 0);
  out[0] = '\xff', out[9] = '\x7f', out[10] = 3;
  std::copy(mechanism.begin(), mechanism.end(), out.begin() + 12);
  return out;
}

TEST(ZmqTcp, AProvenMemberIsNamedToTheCoordinator) {
  Hub hub;
  const auto member = hub.join(hub.lane->address(), hub.member);
  ASSERT_TRUE(member->send(0, message(100, 1)).ok());
  const auto up = hub.lane->next(Deadline::after_s(kPatienceS));
  ASSERT_TRUE(up.ok()) << up.error().to_string();
  EXPECT_EQ(up->proven, (MemberName{Role::kTarget, 0, 0}));
  EXPECT_EQ(hub.lane->refused(), 0u);
}

TEST(ZmqTcp, AKeyThatIsNotAdmittedIsToldSoAndCounted) {
  Hub hub;
  ControlKeys stranger = hub.member;
  stranger.own = make_key_pair().value();
  const auto lane = hub.join(hub.lane->address(), stranger);
  const auto got = lane->next(Deadline::after_s(kPatienceS));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, Code::kInvalid);
  EXPECT_NE(got.error().message.find("does not admit this process' key"), std::string::npos) << got.error().message;
  EXPECT_EQ(got.error().message.find(stranger.own.secret_key), std::string::npos);
  EXPECT_TRUE(hub.refuses(1));
  EXPECT_LT(hub.wait_for(PeerEvent::kConnected, 0.1), 0);
}

TEST(ZmqTcp, AnotherCoordinatorsKeyNeverConnectsAndSaysWhy) {
  Hub hub;
  ControlKeys misled = hub.member;
  misled.coordinator = make_key_pair().value().public_key;
  const auto lane = hub.join(hub.lane->address(), misled);
  std::string why;
  for (const Deadline deadline = Deadline::after_s(kPatienceS);
       !deadline.over() && why.find("proves its key") == std::string::npos;) {
    const auto got = lane->next(Deadline::after_ns(100'000'000));
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().code, Code::kTimeout);
    why = got.error().message;
  }
  EXPECT_NE(why.find("before it proves its key"), std::string::npos) << why;
  EXPECT_LT(hub.wait_for(PeerEvent::kConnected, 0.05), 0);
}

TEST(ZmqTcp, KeysAreCheckedBeforeAnythingListens) {
  const Hub hub;
  const auto open = [&](ControlKeys keys, bool listen) {
    ControlAddress at{listen ? "tcp://127.0.0.1:0" : hub.lane->address(), listen, 10'000};
    at.keys = std::move(keys);
    const auto lane = hub.mover->open_control(at);
    return lane.ok() ? std::string("opened") : lane.error().message;
  };
  ControlKeys bad = hub.own;
  bad.admitted.clear();
  EXPECT_NE(open(bad, true).find("allow-list is empty"), std::string::npos);
  bad = hub.own;
  bad.admitted.push_back({{Role::kSource, 0, 0}, bad.admitted[0].public_key});
  EXPECT_NE(open(bad, true).find("same public key"), std::string::npos);
  bad = hub.own;
  bad.own.secret_key = hub.member.own.secret_key;
  EXPECT_NE(open(bad, true).find("does not belong"), std::string::npos);
  EXPECT_NE(open(hub.own, false).find("coordinator's public key"), std::string::npos);
  for (const char* address : {"tcp://127.0.0.1", "tcp://:5", "tcp://127.0.0.1:5-4", "tcp://127.0.0.1:70000",
                              "tcp://*:5", "tcp://::1:5", "tcp://[::1]", "ipc:///tmp/x"}) {
    ControlAddress at{address, true, 10'000};
    at.keys = hub.own;
    const auto lane = hub.mover->open_control(at);
    EXPECT_FALSE(lane.ok()) << address;
  }
  ControlAddress taken{hub.lane->address(), true, 10'000};
  taken.keys = hub.own;
  EXPECT_EQ(hub.mover->open_control(taken).error().code, Code::kExhausted);
}

// Strangers without a key: what they hold is bounded, and members still get in.
TEST(ZmqTcp, StrangersAreCutAndMembersStillJoin) {
  Hub hub;
  const std::size_t before = open_descriptors();
  std::vector<Fd> strangers;
  for (int i = 0; i < 150; ++i) strangers.push_back(dial(hub.port()));
  EXPECT_TRUE(hub.refuses(150 - 64)) << hub.lane->refused();  // 64 from one address
  // Ours, and for each that is not cut its connection and the door's hold on it.
  for (const Deadline deadline = Deadline::after_s(kPatienceS);
       open_descriptors() > before + 150 + 2 * 64 + 8 && !deadline.over();)
    system_env().wait(Deadline::after_ns(2'000'000));
  EXPECT_LE(open_descriptors(), before + 150 + 2 * 64 + 8);
  strangers.resize(40);
  // One whose handshake's first message is to be 4 MiB long is cut long before the handshake's time is over.
  const std::uint64_t so_far = hub.lane->refused();
  const Fd talker = dial(hub.port());
  std::vector<char> words = greeting("CURVE");
  words.insert(words.end(), {6, 0, 0, 0, 0, 0, 64, 0, 0});  // a long command of 2^22 bytes
  words.resize(words.size() + (1 << 20), 'x');
  (void)::send(talker.get(), words.data(), words.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(closes(talker, 5));
  EXPECT_TRUE(hub.refuses(so_far + 1));
  const auto member = hub.join(hub.lane->address(), hub.member);
  ASSERT_TRUE(member->send(0, message(100, 1)).ok());
  EXPECT_TRUE(hub.lane->next(Deadline::after_s(kPatienceS)).ok());
}

// One key opens so many lanes and no more; who goes makes room.
TEST(ZmqTcp, OneKeyIsLimited) {
  Hub hub;
  std::vector<std::unique_ptr<ControlLane>> lanes;
  const auto answer = [&](ControlLane& lane) {
    while (true) {
      for (const Liveness& l : lane.liveness())
        if (l.event == PeerEvent::kConnected) return Code::kBusy;  // it is in
      const auto got = lane.next(Deadline::after_ns(2'000'000));
      if (!got.ok() && got.error().code != Code::kTimeout) {
        EXPECT_NE(got.error().message.find("under this process' key"), std::string::npos) << got.error().message;
        return got.error().code;
      }
    }
  };
  for (int i = 0; i < 16; ++i) {
    lanes.push_back(hub.join(hub.lane->address(), hub.member));
    ASSERT_EQ(answer(*lanes.back()), Code::kBusy) << i;
  }
  const auto refused = hub.join(hub.lane->address(), hub.member);
  EXPECT_EQ(answer(*refused), Code::kExhausted);
  EXPECT_TRUE(hub.refuses(1));
  EXPECT_EQ(hub.lane->refused(), 1u);
  lanes.pop_back();
  ASSERT_GE(hub.wait_for(PeerEvent::kGone, kPatienceS), 0);
  const auto next = hub.join(hub.lane->address(), hub.member);
  EXPECT_EQ(answer(*next), Code::kBusy);
}

// A key makes no peer: whoever holds one and says something else than hello stays a stranger, and is bounded as such.
TEST(ZmqTcp, AKeyWithoutAHelloStaysAStranger) {
  Hub hub;
  void* context = zmq_ctx_new();
  std::vector<void*> sockets;
  constexpr std::uint64_t kMost = 64;  // from one address
  for (std::uint64_t i = 0; i <= kMost; ++i) {
    void* socket = sockets.emplace_back(zmq_socket(context, ZMQ_DEALER));
    const int zero = 0;
    const auto set = [&](int option, const std::string& value) {
      return zmq_setsockopt(socket, option, value.data(), value.size()) == 0;
    };
    ASSERT_EQ(zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero), 0);
    ASSERT_TRUE(set(ZMQ_CURVE_SERVERKEY, hub.member.coordinator) &&
                set(ZMQ_CURVE_PUBLICKEY, hub.member.own.public_key) &&
                set(ZMQ_CURVE_SECRETKEY, hub.member.own.secret_key));
    ASSERT_EQ(zmq_connect(socket, hub.lane->address().c_str()), 0);
    ASSERT_EQ(zmq_send(socket, "nonsense", 8, 0), 8);
    if (i == kMost) break;
    // It has proven its key and was heard before the next one comes.
    const Deadline deadline = Deadline::after_s(kPatienceS);
    while (hub.mover->counters().frames_bad <= i && !deadline.over()) system_env().wait(Deadline::after_ns(1'000'000));
    ASSERT_EQ(hub.mover->counters().frames_bad, i + 1);
  }
  EXPECT_TRUE(hub.refuses(1));
  EXPECT_EQ(hub.mover->counters().frames_bad, kMost);
  for (void* socket : sockets) zmq_close(socket);
  zmq_ctx_term(context);
}

TEST(ZmqTcp, APlainPeerGetsNothing) {
  Hub hub;
  const Fd plain = dial(hub.port());
  const std::vector<char> words = greeting("NULL");
  ASSERT_EQ(::send(plain.get(), words.data(), words.size(), 0), 64);
  EXPECT_TRUE(closes(plain, 15));
  EXPECT_LT(hub.wait_for(PeerEvent::kConnected, 0.05), 0);
}

TEST(ZmqTcp, AHalfOpenConnectionIsNoticedAtBothEnds) {
  Hub hub(600);
  Relay relay(hub.port());
  const auto member = hub.join(relay.address(), hub.member, 600);
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, kPatienceS), 0);
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, kPatienceS, member.get()), 0);
  relay.hold(true);
  const double hub_took = hub.wait_for(PeerEvent::kGone, kPatienceS);
  EXPECT_GE(hub_took, 0.2);
  EXPECT_LT(hub_took, 4);
  EXPECT_GE(hub.wait_for(PeerEvent::kGone, kPatienceS, member.get()), 0);
  EXPECT_EQ(member->next(Deadline::after_s(1)).error().code, Code::kPeerLost);
}

TEST(ZmqTcp, RepeatedBytesAreNotTakenAgain) {
  Hub hub;
  std::vector<char> recorded;
  {
    Relay relay(hub.port());
    const auto member = hub.join(relay.address(), hub.member);
    ASSERT_TRUE(member->send(0, message(64, 1)).ok());
    ASSERT_TRUE(hub.lane->next(Deadline::after_s(kPatienceS)).ok());
    recorded = relay.recorded_upward();
  }
  ASSERT_GT(recorded.size(), 300u);
  ASSERT_GE(hub.wait_for(PeerEvent::kGone, kPatienceS), 0);
  const Fd replayer = dial(hub.port());
  ASSERT_EQ(::send(replayer.get(), recorded.data(), recorded.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(recorded.size()));
  EXPECT_TRUE(closes(replayer, 15));
  EXPECT_LT(hub.wait_for(PeerEvent::kConnected, 0.05), 0);
  EXPECT_EQ(hub.lane->next(Deadline::after_ns(50'000'000)).error().code, Code::kTimeout);
}

TEST(ZmqTcp, ADamagedByteIsNeverDelivered) {
  Hub hub;
  Relay relay(hub.port());
  const auto member = hub.join(relay.address(), hub.member);
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, kPatienceS), 0);
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, kPatienceS, member.get()), 0);
  relay.damage_next_upward();
  for (std::uint32_t i = 0; i < 20; ++i) (void)member->send(0, message(64, 9));
  EXPECT_GE(hub.wait_for(PeerEvent::kGone, kPatienceS), 0);
  while (true) {
    const auto got = hub.lane->next(Deadline::after_ns(50'000'000));
    if (!got.ok()) break;
    EXPECT_EQ(got->bytes, message(64, 9));
  }
}

}  // namespace
}  // namespace refit::procs
