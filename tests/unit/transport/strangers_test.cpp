// What a connection without a proven key may cost a listener.
#include "transport/common/strangers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <vector>

namespace refit::transport {
namespace {

sockaddr_in local(std::uint32_t last_byte, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(0x7f000000u | last_byte);
  return a;
}

struct Listener {
  Fd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;
  Listener() {
    sockaddr_in a = local(1, 0);
    socklen_t size = sizeof a;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
    EXPECT_EQ(::listen(fd.get(), 512), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&a), &size), 0);
    port = ntohs(a.sin_port);
  }
};
struct Connection {
  Fd theirs{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}, ours;
  explicit Connection(const Listener& at, std::uint32_t from = 1) {
    const sockaddr_in mine = local(from, 0), to = local(1, at.port);
    EXPECT_EQ(::bind(theirs.get(), reinterpret_cast<const sockaddr*>(&mine), sizeof mine), 0);
    EXPECT_EQ(::connect(theirs.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    ours = Fd(::accept(at.fd.get(), nullptr, nullptr));
  }
  bool is_cut() const {
    char c;
    return ::recv(theirs.get(), &c, 1, MSG_DONTWAIT) == 0;
  }
};

TEST(Strangers, TooManyAreCutFromOneAddressAndInAll) {
  const Listener listener;
  Strangers strangers;
  std::vector<Connection> all;
  std::size_t cut = 0;
  for (std::uint32_t address = 1; address <= 3; ++address)
    for (std::size_t i = 0; i < 70; ++i) {
      const Connection& c = all.emplace_back(listener, address);
      strangers.accepted(c.ours.get(), listener.port, 0);
      cut += c.is_cut();
      const std::size_t before = (address - 1) * kMaxStrangersPerAddress;
      const std::size_t most = std::min(before + kMaxStrangersPerAddress, kMaxStrangers);
      EXPECT_EQ(c.is_cut(), before + i >= most || i >= kMaxStrangersPerAddress) << address << " " << i;
    }
  EXPECT_EQ(cut, all.size() - kMaxStrangers);
  EXPECT_EQ(strangers.cut(), cut);
  // Who has proven a key or is gone makes room.
  strangers.forget(all[0].ours.get());
  const Connection next(listener, 9), after(listener, 9);
  strangers.accepted(next.ours.get(), listener.port, 0);
  strangers.accepted(after.ours.get(), listener.port, 0);
  EXPECT_FALSE(next.is_cut());
  EXPECT_TRUE(after.is_cut());
}

TEST(Strangers, TheSlowAreCutAndTheProvenAreNot) {
  const Listener listener;
  Strangers strangers;
  const Connection slow(listener), proven(listener);
  strangers.accepted(slow.ours.get(), listener.port, 5);
  strangers.accepted(proven.ours.get(), listener.port, 5);
  strangers.forget(proven.ours.get());
  strangers.watch(5 + kHandshakeNs);
  EXPECT_FALSE(slow.is_cut());
  strangers.watch(6 + kHandshakeNs);
  EXPECT_TRUE(slow.is_cut());
  EXPECT_FALSE(proven.is_cut());
  EXPECT_EQ(strangers.cut(), 1u);
}

TEST(Strangers, TheTalkativeAreCut) {
  const Listener listener;
  Strangers strangers;
  const Connection brief(listener), talkative(listener);
  for (const Connection* c : {&brief, &talkative}) strangers.accepted(c->ours.get(), listener.port, 0);
  const std::vector<char> words(kMaxStrangerBytes + 1, 'x');
  ASSERT_EQ(::send(brief.theirs.get(), words.data(), words.size() - 1, 0), static_cast<ssize_t>(words.size() - 1));
  ASSERT_EQ(::send(talkative.theirs.get(), words.data(), words.size(), 0), static_cast<ssize_t>(words.size()));
  for (const Deadline deadline = Deadline::after_s(5); !talkative.is_cut() && !deadline.over();) strangers.watch(1);
  EXPECT_TRUE(talkative.is_cut());
  EXPECT_FALSE(brief.is_cut());
}

// The number that libzmq told may have become another descriptor's.
TEST(Strangers, ADescriptorThatIsNotOfTheListenerIsLeftAlone) {
  const Listener listener, other;
  Strangers strangers;
  const Connection foreign(other);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const Fd near(pair[0]), far(pair[1]);
  strangers.accepted(foreign.ours.get(), listener.port, 0);
  strangers.accepted(near.get(), listener.port, 0);
  strangers.accepted(9999, listener.port, 0);
  strangers.watch(1 + kHandshakeNs);
  EXPECT_EQ(strangers.cut(), 0u);
  EXPECT_FALSE(foreign.is_cut());
  EXPECT_EQ(::send(near.get(), "x", 1, MSG_NOSIGNAL), 1);
}

}  // namespace
}  // namespace refit::transport
