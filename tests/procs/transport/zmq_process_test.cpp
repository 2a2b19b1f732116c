// Control lanes between real processes: who died, who stands still, what is left at the path.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "child.h"
#include "conformance/control_suite.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)
using conformance::TempDir;

struct Lane {
  std::unique_ptr<Mover> mover = std::move(make_mover("zmq", {})).value();
  std::unique_ptr<ControlLane> lane;
  std::vector<Liveness> events;  // seen, not yet waited for
  Lane(const std::string& address, bool listen, std::int64_t silent_ms = 10'000)
      : lane(std::move(mover->open_control({address, listen, silent_ms})).value()) {}
  // Seconds until the event, or -1.
  double wait_for(PeerEvent event, double patience, std::uint32_t* peer = nullptr) {
    const std::int64_t start = monotonic_ns();
    for (const Deadline deadline = Deadline::after_s(patience); !deadline.over();
         system_env().wait(Deadline::after_ns(2'000'000))) {
      for (const Liveness& l : lane->liveness()) events.push_back(l);
      const auto it = std::find_if(events.begin(), events.end(), [&](const Liveness& l) { return l.event == event; });
      if (it == events.end()) continue;
      if (peer != nullptr) *peer = it->peer;
      events.erase(it);
      return static_cast<double>(monotonic_ns() - start) / 1e9;
    }
    return -1;
  }
};

TEST(ZmqProcess, KilledMemberIsGoneWithinThreeSeconds) {
  TempDir dir;
  const std::string address = "ipc://" + dir.path() + "/c.sock";
  Lane hub(address, true);
  Child a({"member", address, "10000"}), b({"member", address, "10000"});
  std::uint32_t first = 0, second = 0, gone = 0;
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, 10, &first), 0);
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, 10, &second), 0);
  ASSERT_TRUE(hub.lane->send(first, conformance::message(100, 1)).ok());
  ASSERT_TRUE(hub.lane->next(Deadline::after_s(10)).ok());
  a.kill();
  const double took = hub.wait_for(PeerEvent::kGone, 10, &gone);
  EXPECT_GE(took, 0);
  EXPECT_LT(took, 3);
  // The survivor still answers; a third process is a new peer.
  const std::uint32_t left = gone == first ? second : first;
  ASSERT_TRUE(hub.lane->send(left, conformance::message(100, 2)).ok());
  EXPECT_EQ(hub.lane->next(Deadline::after_s(10))->peer, left);
  EXPECT_EQ(hub.lane->send(gone, conformance::message(1, 1)).error().code, Code::kPeerLost);
  Child c({"member", address, "10000"});
  std::uint32_t third = 0;
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, 10, &third), 0);
  EXPECT_NE(third, gone);
  EXPECT_NE(third, left);
}

TEST(ZmqProcess, StandingStillIsGoneAfterTheStatedTimeAndComesBackAsNew) {
  TempDir dir;
  const std::string address = "ipc://" + dir.path() + "/c.sock";
  Lane hub(address, true, 800);
  Child a({"member", address, "800"});
  ASSERT_EQ(a.read(), "open");
  std::uint32_t first = 0, gone = 0;
  ASSERT_GE(hub.wait_for(PeerEvent::kConnected, 10, &first), 0);
  ASSERT_EQ(a.read(), "connected 0");
  a.stop();
  const double took = hub.wait_for(PeerEvent::kGone, 10, &gone);
  EXPECT_GE(took, 0.4);
  EXPECT_LT(took, 4);
  EXPECT_EQ(gone, first);
  a.resume();
  EXPECT_EQ(a.read(), "gone 0");  // it learns that it was dropped, and does not slip back in
  EXPECT_TRUE(a.read().starts_with("error peer_lost"));
}

TEST(ZmqProcess, OwnStandstillBlamesNobody) {
  TempDir dir;
  const std::string address = "ipc://" + dir.path() + "/c.sock";
  Child hub({"coordinator", address, "1500"});
  ASSERT_EQ(hub.read(), "open");
  Lane member(address, false, 10'000);
  ASSERT_GE(member.wait_for(PeerEvent::kConnected, 10), 0);
  ASSERT_EQ(hub.read(), "connected 1");
  hub.stop();
  system_env().wait(Deadline::after_s(2));
  hub.resume();
  ASSERT_TRUE(member.lane->send(0, conformance::message(64, 1)).ok());
  const auto echo = member.lane->next(Deadline::after_s(10));
  ASSERT_TRUE(echo.ok()) << echo.error().to_string();
  EXPECT_EQ(hub.read(0.3), "");  // nobody was declared gone
}

TEST(ZmqProcess, KilledCoordinatorIsGoneAndItsPlaceIsTaken) {
  TempDir dir;
  const std::string path = dir.path() + "/c.sock", address = "ipc://" + path;
  Child hub({"coordinator", address, "10000"});
  ASSERT_EQ(hub.read(), "open");
  Lane member(address, false);
  ASSERT_GE(member.wait_for(PeerEvent::kConnected, 10), 0);
  hub.kill();
  const double took = member.wait_for(PeerEvent::kGone, 10);
  EXPECT_GE(took, 0);
  EXPECT_LT(took, 3);
  const auto end = member.lane->next(Deadline::after_s(5));
  EXPECT_EQ(end.error().code, Code::kPeerLost);
  EXPECT_EQ(end.error().peer, "coordinator");
  EXPECT_TRUE(std::filesystem::exists(path));  // the dead one's socket
  {
    Lane next(address, true);
    Lane again(address, false);
    EXPECT_GE(again.wait_for(PeerEvent::kConnected, 10), 0);
    // While it lives the place is taken, and its socket is left alone.
    EXPECT_EQ(next.mover->open_control({address, true, 10'000}).error().code, Code::kBusy);
    ASSERT_TRUE(again.lane->send(0, conformance::message(5, 1)).ok());
    EXPECT_TRUE(next.lane->next(Deadline::after_s(10)).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ZmqProcess, RegularFileAtThePathIsKeptAndReported) {
  TempDir dir;
  const std::string path = dir.path() + "/c.sock";
  std::ofstream(path) << "precious";
  auto mover = std::move(make_mover("zmq", {})).value();
  const auto lane = mover->open_control({"ipc://" + path, true, 10'000});
  ASSERT_FALSE(lane.ok());
  EXPECT_EQ(lane.error().code, Code::kInvalid);
  EXPECT_NE(lane.error().message.find(path), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
  const auto longer = mover->open_control({"ipc:///" + std::string(120, 'x'), true, 10'000});
  EXPECT_NE(longer.error().message.find("at most 107"), std::string::npos);
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
  EXPECT_EQ(mover->open_control({"ipc://" + dir.path() + "/d.sock", true, 10'000}).error().code, Code::kInvalid);
}

}  // namespace
}  // namespace refit::procs
