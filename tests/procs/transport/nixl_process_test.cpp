// nixl with the real library between real processes: killed, stopped, silent, late, restarted, 200 refits. Only where
// `make test-nixl` says that the library is here (REFIT_TEST_NIXL). REFIT_TEST_NIXL=tcp: UCX_TLS keeps to sockets, on
// which a peer that stands still stalls a read.
#include <sstream>

#include "child.h"
#include "conformance/bed.h"
#include "line.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)
using conformance::open_descriptors;
using conformance::TempDir;

constexpr std::int64_t kStallMs = 2000;

class NixlProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("REFIT_TEST_NIXL") == nullptr) GTEST_SKIP() << "needs NIXL: make test-nixl";
  }
};

std::vector<std::string> as(const std::string& role, const TempDir& dir) {
  return {role, dir.path(), "job", "nixl", std::to_string(kStallMs)};
}

// The test process as the target of a source in another process.
struct Reader {
  std::unique_ptr<Mover> mover;
  Peer source;
  Incarnation self{system_env().random_u64()};

  Reader(const std::string& dir, const std::string& card_line) {
    meet(card_line);
    MoverOptions options;
    options.runtime_dir = dir;
    options.job = hash128("job");
    options.member = 2;
    options.incarnation = self;
    options.net.stall_ns = kStallMs * 1'000'000;
    mover = std::move(make_mover("nixl", options)).value();
  }
  void meet(const std::string& card_line) {
    std::istringstream in(card_line);
    std::string word, card;
    std::uint64_t incarnation = 0;
    in >> word >> card >> incarnation;
    source = Peer{1, Incarnation(incarnation), from_hex(card), "source:0.0"};
  }
  std::unique_ptr<PullLane> open(std::uint64_t round) {
    return std::move(mover->open_pull(lane_id("job", round, self), {&source, 1})).value();
  }
};
const Segment kAll[] = {{0, 0, kWeightsBytes, {}, {}}, {1, 0, kScalesBytes, {}, {}}};

bool right(const Lease& lease, std::uint64_t round) {
  if (lease.packed().size() != kWeightsBytes + kScalesBytes) return false;
  for (std::uint32_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < kAll[r].run_bytes; ++i)
      if (lease.packed()[static_cast<std::size_t>(r * kWeightsBytes + i)] != weight("job", round, r, i)) return false;
  return true;
}
Bytes descriptor_of(const std::string& line) {
  EXPECT_TRUE(line.starts_with("descriptor ")) << line;
  return from_hex(line.substr(line.find(' ') + 1));
}
double seconds_of(const std::function<void()>& work) {
  const std::int64_t start = monotonic_ns();
  work();
  return static_cast<double>(monotonic_ns() - start) / 1e9;
}

TEST_F(NixlProcess, SourceKilledIsNamedAndItsRestartIsRead) {
  TempDir dir;
  auto first = std::make_unique<Child>(as("source", dir));
  Reader reader(dir.path(), first->read());
  const Bytes old = descriptor_of(first->ask("expose 1"));
  {
    auto lane = reader.open(1);
    ASSERT_TRUE(lane->request(BucketId(1), 1, old, kAll).ok());
    const auto lease = lane->next(Deadline::after_s(20));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    first->kill();
    EXPECT_TRUE(right(*lease, 1));  // our own copy
    ASSERT_TRUE(lane->request(BucketId(2), 1, old, kAll).ok());
    const double took = seconds_of([&] {
      const auto second = lane->next(Deadline::after_s(10));
      ASSERT_FALSE(second.ok());
      EXPECT_EQ(second.error().code, Code::kPeerLost) << second.error().to_string();
      EXPECT_EQ(second.error().peer, "source:0.0");
      EXPECT_EQ(second.error().bucket, "2");
    });
    EXPECT_LT(took, 5);
    EXPECT_FALSE(reader.mover->reach(reader.source, Deadline::after_s(5)).ok());
  }
  Child second(as("source", dir));
  reader.meet(second.read());
  auto lane = reader.open(1);
  EXPECT_EQ(lane->request(BucketId(1), 1, old, kAll).error().code, Code::kMismatch);
  const Bytes fresh = descriptor_of(second.ask("expose 1"));
  ASSERT_TRUE(lane->request(BucketId(1), 1, fresh, kAll).ok());
  const auto lease = lane->next(Deadline::after_s(20));
  ASSERT_TRUE(lease.ok()) << lease.error().to_string();
  EXPECT_TRUE(right(*lease, 1));
  EXPECT_TRUE(lane->recheck(1).ok());
}

TEST_F(NixlProcess, SourceThatStandsStillEndsAfterTheStallDeadline) {
  TempDir dir;
  Child source(as("source", dir));
  Reader reader(dir.path(), source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  {  // a first read, so that what follows meets a warm connection
    auto lane = reader.open(1);
    ASSERT_TRUE(lane->request(BucketId(0), 1, d, kAll).ok());
    ASSERT_TRUE(lane->next(Deadline::after_s(20)).ok());
    source.stop();
    ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
    const auto early = lane->next(Deadline::after_s(0.3));
    ASSERT_FALSE(early.ok());
    EXPECT_EQ(early.error().code, Code::kTimeout);  // leaves the lane as it was
    EXPECT_EQ(early.error().peer, "source:0.0");
    const double took = seconds_of([&] {
      const auto late = lane->next(Deadline::after_s(20));
      ASSERT_FALSE(late.ok());
      EXPECT_EQ(late.error().code, Code::kPeerLost) << late.error().to_string();
      EXPECT_EQ(late.error().peer, "source:0.0");
      EXPECT_EQ(late.error().bucket, "1");
    });
    EXPECT_LT(took, kStallMs / 1000.0 + 4);
  }
  EXPECT_EQ(reader.mover->reach(reader.source, Deadline::after_s(0.2)).error().code, Code::kTimeout);
  source.resume();  // late: the next round goes on
  ASSERT_TRUE(reader.mover->reach(reader.source, Deadline::after_s(20)).ok());
  const Bytes again = descriptor_of(source.ask("expose 2"));
  auto lane = reader.open(2);
  ASSERT_TRUE(lane->request(BucketId(1), 1, again, kAll).ok());
  const auto lease = lane->next(Deadline::after_s(20));
  ASSERT_TRUE(lease.ok()) << lease.error().to_string();
  EXPECT_TRUE(right(*lease, 2));
}

TEST_F(NixlProcess, SilentForLessThanTheStallDeadlineIsOnlyLate) {
  TempDir dir;
  Child source(as("source", dir));
  Reader reader(dir.path(), source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  auto lane = reader.open(1);
  source.stop();
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  ASSERT_FALSE(lane->next(Deadline::after_s(kStallMs / 4000.0)).ok());
  source.resume();
  const auto lease = lane->next(Deadline::after_s(20));
  ASSERT_TRUE(lease.ok()) << lease.error().to_string();
  EXPECT_TRUE(right(*lease, 1));
}

TEST_F(NixlProcess, WithdrawalInAnotherProcessIsSeen) {
  TempDir dir;
  Child source(as("source", dir));
  Reader reader(dir.path(), source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  auto lane = reader.open(1);
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  ASSERT_TRUE(lane->next(Deadline::after_s(20)).ok());
  ASSERT_TRUE(lane->recheck(1).ok());
  ASSERT_EQ(source.ask("withdraw"), "ok");
  EXPECT_EQ(lane->recheck(1).error().code, Code::kMismatch);
}

TEST_F(NixlProcess, TargetKilledLeavesTheSourceWhole) {
  TempDir dir;
  Child source(as("source", dir));
  const std::string card = source.read();
  const std::string d = source.ask("expose 1");
  std::string before;
  for (int i = 0; i < 3; ++i) {
    Child target(as("target", dir));
    ASSERT_EQ(target.read(), "ready");
    EXPECT_EQ(target.ask("read 1 " + card.substr(card.find(' ') + 1) + " " + d.substr(d.find(' ') + 1) + " 20", 30),
              "ok");
    target.kill();
    std::string after;
    for (const Deadline deadline = Deadline::after_s(3); after != before && !deadline.over();
         system_env().wait(Deadline::after_ns(20'000'000)))
      after = source.ask("fds");
    if (i > 0) {
      EXPECT_EQ(after, before);  // the dead readers' connections are closed
    }
    before = after;
  }
}

TEST_F(NixlProcess, TwoHundredRefitsAreFlat) {
  TempDir dir;
  Child source(as("source", dir));
  Reader reader(dir.path(), source.read());
  std::size_t here = 0;
  std::int64_t areas = 0;
  std::string there, registered;
  std::uint64_t staged = 0;
  const auto round_trip = [&](std::uint64_t round) {
    const Bytes d = descriptor_of(source.ask("expose " + std::to_string(round)));
    auto lane = reader.open(round);
    ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
    const auto lease = lane->next(Deadline::after_s(20));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    ASSERT_TRUE(right(*lease, round));
    ASSERT_TRUE(lane->recheck(1).ok());
  };
  for (std::uint64_t round = 1; round <= 200; ++round) {
    ASSERT_NO_FATAL_FAILURE(round_trip(round));
    if (round != 5) continue;
    here = open_descriptors(), areas = conformance::mapped_areas();
    there = source.ask("fds"), registered = source.ask("registrations");
    staged = reader.mover->counters().registrations;
  }
  EXPECT_EQ(open_descriptors(), here);
  EXPECT_EQ(source.ask("fds"), there);
  EXPECT_EQ(source.ask("registrations"), registered);
  EXPECT_EQ(registered, "2");
  EXPECT_EQ(reader.mover->counters().registrations, staged);
  EXPECT_EQ(staged, 1u);
  EXPECT_LE(conformance::mapped_areas(), areas + 20);
  // What is counted is what runs: this mover's thread, and the library's for its one agent, beside the test's own.
  EXPECT_EQ(reader.mover->counters().threads, conformance::live_threads() - 1);
}

TEST_F(NixlProcess, AProcessThatLeavesWithoutAWordExitsCleanly) {
  TempDir dir;
  Child source(as("source", dir));
  Reader reader(dir.path(), source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  auto lane = reader.open(1);
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  ASSERT_TRUE(lane->next(Deadline::after_s(20)).ok());
  source.write("leave");
  EXPECT_EQ(source.exit_status(), 0);
  EXPECT_EQ(lane->recheck(1).error().code, Code::kPeerLost);
}

}  // namespace
}  // namespace refit::procs
