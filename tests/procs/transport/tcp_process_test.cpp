// tcp and zmq_sparse between real processes: killed, stopped, silent, late and restarted peers; strangers; many rounds. Errors name
// the peer within the deadline.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "child.h"
#include "conformance/bed.h"
#include "line.h"
#include "transport/tcp/frame.h"
#include "transport/zmq_sparse/card.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)

struct Way {
  std::string security = "mac", mover = "tcp";
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.mover << "_" << way.security; }

struct End {
  explicit End(std::uint32_t number, const Way& way = {}, int stall_ms = 2000)
      : member(number), child({way.mover, "job", std::to_string(number), way.security, std::to_string(stall_ms)}) {
    card = child.read();
  }
  std::string ask(const std::string& line, double seconds = 20) { return child.ask(line, seconds); }
  void knows(const End& other) { EXPECT_EQ(ask("peer " + std::to_string(other.member) + other.card.substr(4)), "ok"); }
  std::uint32_t member;
  Child child;
  std::string card;
};

// A source (member 1) and a target (member 2) in round 1.
struct Two {
  explicit Two(const Way& way = {}, int stall_ms = 2000) : source(1, way, stall_ms), target(2, way, stall_ms) {
    source.knows(target);
    target.knows(source);
    open(1);
  }
  void open(int round) {
    EXPECT_EQ(source.ask("open " + std::to_string(round)), "ok");
    EXPECT_EQ(target.ask("open " + std::to_string(round)), "ok");
  }
  End source, target;
};
bool names(const std::string& answer, const std::string& peer) {
  return answer.find("peer=peer:" + peer) != std::string::npos;
}

class TcpProcess : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Security, TcpProcess, testing::Values(Way{}, Way{"none"}));
INSTANTIATE_TEST_SUITE_P(Sparse, TcpProcess, testing::Values(Way{"mac", "zmq_sparse"}, Way{"none", "zmq_sparse"}));

TEST_P(TcpProcess, BucketsArriveWhole) {
  Two t(GetParam());
  EXPECT_EQ(t.target.ask("expect 3 20000000"), "ok");
  for (int b = 0; b < 3; ++b)
    EXPECT_EQ(t.source.ask("post " + std::to_string(b) + " " + std::to_string(7'000'001 + b)), "ok");
  std::vector<std::string> seen;
  for (int b = 0; b < 3; ++b) seen.push_back(t.target.ask("next 10"));
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"lease 0", "lease 1", "lease 2"}));
  for (int b = 0; b < 3; ++b) EXPECT_EQ(t.source.ask("done 5"), "done");
}

TEST_P(TcpProcess, KilledSource) {
  for (const int when : {0, 1, 2}) {  // before it posts, with one bucket under way, after one arrived
    Two t(GetParam());
    if (when != 1) {
      EXPECT_EQ(t.target.ask("expect 2 60000000"), "ok");
    }
    if (when > 0) {
      EXPECT_EQ(t.source.ask("post 0 40000000"), "ok");
    }
    if (when == 2) {
      EXPECT_EQ(t.target.ask("next 10"), "lease 0");
    }
    t.source.child.kill();
    if (when == 1) {
      EXPECT_EQ(t.target.ask("expect 2 60000000"), "ok");
    }
    const std::int64_t start = monotonic_ns();
    const std::string answer = t.target.ask("next 10");
    EXPECT_LT(monotonic_ns() - start, 5 * kNsPerSecond);
    EXPECT_TRUE(names(answer, "1") && answer.find("bucket=" + std::to_string(when == 2)) != std::string::npos)
        << answer;
    EXPECT_TRUE(names(t.target.ask("reach 2"), "1"));
  }
}

TEST_P(TcpProcess, KilledTarget) {
  for (const bool expecting : {false, true}) {
    Two t(GetParam());
    if (expecting) {
      EXPECT_EQ(t.target.ask("expect 2 60000000"), "ok");
    }
    EXPECT_EQ(t.source.ask("post 0 40000000"), "ok");
    EXPECT_EQ(t.source.ask("post 1 40000000"), "ok");
    if (expecting) {
      EXPECT_EQ(t.source.ask("done 10"), "done");  // the second has no room and is still lent
    }
    t.target.child.kill();
    const std::string answer = t.source.ask("done 10");
    EXPECT_TRUE(names(answer, "2") && answer.find("peer_lost") != std::string::npos) << answer;
  }
}

TEST_P(TcpProcess, StoppedPeersEndAtTheStallDeadline) {
  {
    Two t(GetParam(), 1000);
    EXPECT_EQ(t.target.ask("expect 2 60000000"), "ok");
    EXPECT_EQ(t.source.ask("post 0 1000"), "ok");
    EXPECT_EQ(t.target.ask("next 10"), "lease 0");
    t.source.child.stop();
    EXPECT_NE(t.target.ask("next 0.2").find("no bucket arrived"), std::string::npos);  // the lane stays usable
    const std::string answer = t.target.ask("next 10");
    EXPECT_TRUE(names(answer, "1") && answer.find("timeout") != std::string::npos) << answer;
  }
  Two t(GetParam(), 1000);
  EXPECT_EQ(t.source.ask("post 0 40000000"), "ok");
  EXPECT_EQ(t.source.ask("done 0.2"), "nothing");  // the target has not opened its lane's doors yet
  t.target.child.stop();
  const std::string answer = t.source.ask("done 10");
  EXPECT_TRUE(names(answer, "2") && answer.find("timeout") != std::string::npos) << answer;
}

TEST_P(TcpProcess, AShortStopIsForgiven) {
  Two t(GetParam(), 4000);
  EXPECT_EQ(t.target.ask("expect 1 60000000"), "ok");
  t.target.child.stop();
  EXPECT_EQ(t.source.ask("post 0 50000000"), "ok");
  system_env().wait(Deadline::after_s(1));
  t.target.child.resume();
  EXPECT_EQ(t.target.ask("next 10"), "lease 0");
  EXPECT_EQ(t.source.ask("done 10"), "done");
}

TEST_P(TcpProcess, LateAndRestartedTarget) {
  Two t(GetParam());
  EXPECT_EQ(t.source.ask("post 0 5000"), "ok");
  EXPECT_EQ(t.source.ask("done 0.5"), "nothing");
  EXPECT_EQ(t.target.ask("expect 1 5000"), "ok");  // late
  EXPECT_EQ(t.target.ask("next 10"), "lease 0");
  EXPECT_EQ(t.source.ask("done 10"), "done");
  t.target.child.kill();
  End again(2, GetParam());  // the same member, another incarnation and port
  again.knows(t.source);
  t.source.knows(again);
  EXPECT_EQ(t.source.ask("open 2"), "ok");
  EXPECT_EQ(again.ask("open 2"), "ok");
  EXPECT_EQ(again.ask("expect 1 5000"), "ok");
  EXPECT_EQ(t.source.ask("post 0 5000"), "ok");
  EXPECT_EQ(again.ask("next 10"), "lease 0");
  EXPECT_EQ(t.source.ask("done 10"), "done");
}

TEST(TcpSecurity, TheTwoEndsMustAgreeOnSecurity) {
  End source(1), target(2, {"none"});
  source.knows(target);
  const std::string answer = source.ask("reach 5");
  EXPECT_TRUE(answer.find("security.bulk") != std::string::npos && names(answer, "2")) << answer;
}

TEST(TcpSecurity, AWrongKeyGetsNothingIn) {
  Two t({}, 1000);
  const std::string hex = t.target.card.substr(5, t.target.card.find(' ', 5) - 5);
  auto card = std::move(tcp::decode_card(from_hex(hex))).value();
  card.key[0] ^= std::byte{1};
  EXPECT_EQ(t.target.ask("expect 1 1000"), "ok");
  EXPECT_EQ(t.source.ask("peer 2 " + to_hex(tcp::encode(card)) + t.target.card.substr(t.target.card.rfind(' '))), "ok");
  EXPECT_NE(t.source.ask("reach 5").find("does not know its key"), std::string::npos);
  EXPECT_EQ(t.source.ask("open 1"), "ok");
  EXPECT_EQ(t.source.ask("post 0 1000"), "ok");
  EXPECT_TRUE(names(t.source.ask("done 10"), "2"));
  EXPECT_NE(t.target.ask("next 0.2").find("error"), std::string::npos);
}

TEST(SparseSecurity, AnotherKeyOrNoneGetsNothingIn) {
  const Way curve{"mac", "zmq_sparse"}, plain{"none", "zmq_sparse"};
  {
    End source(1, curve), target(2, plain);
    source.knows(target);
    const std::string answer = source.ask("reach 5");
    EXPECT_TRUE(answer.find("security.bulk") != std::string::npos && names(answer, "2")) << answer;
  }
  Two t(curve, 1000);
  auto card =
      std::move(zmq_sparse::decode_card(from_hex(t.target.card.substr(5, t.target.card.find(' ', 5) - 5)))).value();
  card.key[0] ^= std::byte{1};
  EXPECT_EQ(t.target.ask("expect 1 1000"), "ok");
  EXPECT_EQ(
      t.source.ask("peer 2 " + to_hex(zmq_sparse::encode(card)) + t.target.card.substr(t.target.card.rfind(' '))), "ok");
  EXPECT_NE(t.source.ask("reach 5").find("error"), std::string::npos);
  EXPECT_EQ(t.source.ask("open 1"), "ok");
  EXPECT_EQ(t.source.ask("post 0 1000"), "ok");
  EXPECT_TRUE(names(t.source.ask("done 10"), "2"));
  EXPECT_NE(t.target.ask("next 0.2").find("error"), std::string::npos);
}

// Bytes of any kind at the port neither stop nor confuse a round.
TEST(TcpSecurity, StrangersAtThePortAreTurnedAway) {
  Two t({}, 1000);
  const auto card =
      std::move(tcp::decode_card(from_hex(t.target.card.substr(5, t.target.card.find(' ', 5) - 5)))).value();
  std::vector<Fd> strangers;
  for (int i = 0; i < 8; ++i) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(card.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const Bytes noise(i % 2 == 0 ? 3 : 400, static_cast<std::byte>(i * 37));
    EXPECT_GT(::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 0);
    strangers.push_back(std::move(fd));
  }
  EXPECT_EQ(t.target.ask("expect 1 1000"), "ok");
  EXPECT_EQ(t.source.ask("post 0 1000"), "ok");
  EXPECT_EQ(t.target.ask("next 10"), "lease 0");
}

TEST_P(TcpProcess, ResourcesStayFlat) {
  Two t(GetParam());
  std::string at_source, at_target;
  for (int round = 2; round < 202; ++round) {
    t.open(round);
    ASSERT_EQ(t.target.ask("expect 1 20000"), "ok");
    ASSERT_EQ(t.source.ask("post 0 20000"), "ok");
    ASSERT_EQ(t.target.ask("next 10"), "lease 0");
    ASSERT_EQ(t.source.ask("done 10"), "done");
    ASSERT_EQ(t.source.ask("close"), "ok");
    ASSERT_EQ(t.target.ask("close"), "ok");
    if (round == 11) at_source = t.source.ask("fds"), at_target = t.target.ask("fds");
  }
  EXPECT_EQ(t.source.ask("fds"), at_source);
  EXPECT_EQ(t.target.ask("fds"), at_target);
}

}  // namespace
}  // namespace refit::procs
