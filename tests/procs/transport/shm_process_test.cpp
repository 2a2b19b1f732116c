// shm between real processes: killed, stopped, two jobs, many rounds. Errors name the peer within the deadline and
// nothing stays behind.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "child.h"
#include "conformance/bed.h"
#include "line.h"

namespace refit::procs {
namespace {

using namespace refit::transport;  // NOLINT(google-build-using-namespace)
using conformance::count_entries;
using conformance::open_descriptors;
using conformance::TempDir;

// The test process as the target of a source in another process.
struct Target {
  std::string job;
  std::unique_ptr<Mover> mover;
  Peer source;
  Incarnation self{system_env().random_u64()};

  Target(const std::string& dir, std::string job_name, const std::string& card_line) : job(std::move(job_name)) {
    std::istringstream in(card_line);
    std::string word, card;
    std::uint64_t incarnation = 0;
    in >> word >> card >> incarnation;
    source = Peer{1, Incarnation(incarnation), from_hex(card), "source:0.0"};
    MoverOptions options;
    options.runtime_dir = dir;
    options.job = hash128(job);
    options.member = 2;
    options.incarnation = self;
    mover = std::move(make_mover("shm", options)).value();
  }
  std::unique_ptr<PullLane> open(std::uint64_t round) {
    return std::move(mover->open_pull(lane_id(job, round, self), {&source, 1})).value();
  }
};
const Segment kAll[] = {{0, 0, kWeightsBytes, {}, {}}, {1, 0, kScalesBytes, {}, {}}};

bool right(const Lease& lease, const std::string& job, std::uint64_t round) {
  for (std::uint32_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < kAll[r].run_bytes; ++i)
      if (lease.bases()[r][i] != weight(job, round, r, i)) return false;
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

TEST(ShmProcess, SourceKilledWhileTheTargetReads) {
  TempDir dir;
  {
    Child source({"source", dir.path(), "job"});
    Target target(dir.path(), "job", source.read());
    const Bytes d = descriptor_of(source.ask("expose 1"));
    auto lane = target.open(1);
    ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
    const auto lease = lane->next(Deadline::after_s(10));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    ASSERT_TRUE(lane->request(BucketId(2), 1, d, kAll).ok());
    source.kill();
    EXPECT_TRUE(right(*lease, "job", 1));  // mapped pages stay: no SIGBUS, no other bytes
    const double took = seconds_of([&] {
      const auto second = lane->next(Deadline::after_s(5));
      ASSERT_FALSE(second.ok());
      EXPECT_EQ(second.error().code, Code::kPeerLost);
      EXPECT_EQ(second.error().peer, "source:0.0");
      EXPECT_EQ(second.error().bucket, "2");
    });
    EXPECT_LT(took, 4);
    EXPECT_EQ(lane->recheck(1).error().code, Code::kPeerLost);
    const auto reached = target.mover->reach(target.source, Deadline::after_s(5));
    EXPECT_EQ(reached.error().code, Code::kUnsupported);
    EXPECT_EQ(reached.error().peer, "source:0.0");
  }
  EXPECT_EQ(count_entries(dir.path()), 0u);  // the survivor swept the dead socket
}

TEST(ShmProcess, SourceKilledBeforeAnythingWasAsked) {
  TempDir dir;
  Child source({"source", dir.path(), "job"});
  Target target(dir.path(), "job", source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  source.kill();
  auto lane = target.open(1);
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  const auto lease = lane->next(Deadline::after_s(5));
  ASSERT_FALSE(lease.ok());
  EXPECT_EQ(lease.error().code, Code::kPeerLost);
  EXPECT_EQ(lease.error().peer, "source:0.0");
  Completion done[2];
  EXPECT_EQ(lane->poll(done), 1u);
}

TEST(ShmProcess, StoppedSourceEndsInATimeoutAndGoesOnAfterwards) {
  TempDir dir;
  Child source({"source", dir.path(), "job"});
  Target target(dir.path(), "job", source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  source.stop();
  auto lane = target.open(1);
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const double took = seconds_of([&] {
      const auto lease = lane->next(Deadline::after_s(0.3));
      ASSERT_FALSE(lease.ok());
      EXPECT_EQ(lease.error().code, Code::kTimeout);
      EXPECT_EQ(lease.error().peer, "source:0.0");
    });
    EXPECT_LT(took, 3);
  }
  EXPECT_EQ(target.mover->reach(target.source, Deadline::after_s(0.2)).error().code, Code::kTimeout);
  source.resume();
  const auto lease = lane->next(Deadline::after_s(10));  // a timeout left the lane usable
  ASSERT_TRUE(lease.ok()) << lease.error().to_string();
  EXPECT_TRUE(right(*lease, "job", 1));
  EXPECT_TRUE(lane->recheck(1).ok());
  // Once mapped, a source that stands still is no obstacle.
  source.stop();
  ASSERT_TRUE(lane->request(BucketId(2), 1, d, kAll).ok());
  EXPECT_TRUE(lane->next(Deadline::after_s(1)).ok());
  EXPECT_TRUE(lane->recheck(1).ok());
  source.resume();
}

TEST(ShmProcess, WithdrawalInAnotherProcessIsSeen) {
  TempDir dir;
  Child source({"source", dir.path(), "job"});
  Target target(dir.path(), "job", source.read());
  const Bytes d = descriptor_of(source.ask("expose 1"));
  auto lane = target.open(1);
  ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
  ASSERT_TRUE(lane->next(Deadline::after_s(10)).ok());
  ASSERT_TRUE(lane->recheck(1).ok());
  ASSERT_EQ(source.ask("withdraw"), "ok");
  EXPECT_EQ(lane->recheck(1).error().code, Code::kMismatch);
}

TEST(ShmProcess, TargetKilledLeavesTheSourceWhole) {
  TempDir dir;
  {
    Child source({"source", dir.path(), "job"});
    const std::string card = source.read();
    const std::string card_and_incarnation = card.substr(card.find(' ') + 1);
    const std::string d = source.ask("expose 1");
    const auto read_with = [&](Child& target) {
      return target.ask("read 1 " + card_and_incarnation + " " + d.substr(d.find(' ') + 1) + " 10");
    };
    const std::string before = source.ask("fds");
    for (int i = 0; i < 3; ++i) {
      Child target({"target", dir.path(), "job"});
      ASSERT_EQ(target.read(), "ready");
      EXPECT_EQ(read_with(target), "ok");
      target.kill();
    }
    std::string after;
    for (const Deadline deadline = Deadline::after_s(5); after != before && !deadline.over();
         system_env().wait(Deadline::after_ns(10'000'000)))
      after = source.ask("fds");
    EXPECT_EQ(after, before);  // the dead readers' connections are closed
    source.quit();
  }
  EXPECT_EQ(count_entries(dir.path()), 0u);
}

TEST(ShmProcess, TwoJobsOnOneHost) {
  TempDir dir;
  Child red({"source", dir.path(), "red"}), blue({"source", dir.path(), "blue"});
  Target red_target(dir.path(), "red", red.read()), blue_target(dir.path(), "blue", blue.read());
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const std::string expose = "expose " + std::to_string(round);
    const Bytes red_d = descriptor_of(red.ask(expose)), blue_d = descriptor_of(blue.ask(expose));
    for (auto [target, d, foreign] :
         {std::tuple(&red_target, &red_d, &blue_d), std::tuple(&blue_target, &blue_d, &red_d)}) {
      auto lane = target->open(round);
      EXPECT_EQ(lane->request(BucketId(0), 1, *foreign, kAll).error().code, Code::kMismatch);
      ASSERT_TRUE(lane->request(BucketId(1), 1, *d, kAll).ok());
      const auto lease = lane->next(Deadline::after_s(10));
      ASSERT_TRUE(lease.ok()) << lease.error().to_string();
      EXPECT_TRUE(right(*lease, target->job, round));
    }
  }
}

TEST(ShmProcess, TwoHundredRoundsAreFlat) {
  TempDir dir;
  Child source({"source", dir.path(), "job"});
  Target target(dir.path(), "job", source.read());
  std::size_t here = 0;
  std::int64_t areas = 0;
  std::string there;
  const auto round_trip = [&](std::uint64_t round) {
    const Bytes d = descriptor_of(source.ask("expose " + std::to_string(round)));
    auto lane = target.open(round);
    ASSERT_TRUE(lane->request(BucketId(1), 1, d, kAll).ok());
    const auto lease = lane->next(Deadline::after_s(10));
    ASSERT_TRUE(lease.ok()) << lease.error().to_string();
    ASSERT_EQ(lease->bases()[1][77], weight("job", round, 1, 77));
    ASSERT_EQ(lease->bases()[0][kWeightsBytes - 1], weight("job", round, 0, kWeightsBytes - 1));
    ASSERT_TRUE(lane->recheck(1).ok());
  };
  for (std::uint64_t round = 1; round <= 200; ++round) {
    ASSERT_NO_FATAL_FAILURE(round_trip(round));
    if (round == 5) here = open_descriptors(), areas = conformance::mapped_areas(), there = source.ask("fds");
  }
  EXPECT_EQ(open_descriptors(), here);
  EXPECT_EQ(source.ask("fds"), there);
  EXPECT_LE(conformance::mapped_areas(), areas + 20);
}

TEST(ShmProcess, RestartedSourceIsAnotherOne) {
  TempDir dir;
  Child first({"source", dir.path(), "job"});
  Target target(dir.path(), "job", first.read());
  const Bytes old = descriptor_of(first.ask("expose 1"));
  first.kill();
  Child second({"source", dir.path(), "job"});
  Target again(dir.path(), "job", second.read());
  EXPECT_NE(again.source.incarnation, target.source.incarnation);
  auto lane = again.open(1);
  EXPECT_EQ(lane->request(BucketId(1), 1, old, kAll).error().code, Code::kMismatch);
  const Bytes fresh = descriptor_of(second.ask("expose 1"));
  ASSERT_TRUE(lane->request(BucketId(1), 1, fresh, kAll).ok());
  EXPECT_TRUE(lane->next(Deadline::after_s(10)).ok());
}

TEST(ShmProcess, DeadSocketsAreReclaimedOtherFilesKept) {
  TempDir dir;
  {
    Child source({"source", dir.path(), "job"});
    source.read();
    source.kill();
  }
  EXPECT_EQ(count_entries(dir.path()), 1u);
  std::ofstream(dir.path() + "/note.sock") << "not a socket";
  Child next({"source", dir.path(), "job"});
  next.read();
  next.quit();
  EXPECT_EQ(count_entries(dir.path()), 1u);
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/note.sock"));
}

TEST(ShmProcess, RuntimeDirectoryMustBePrivate) {
  TempDir dir;
  const auto made = make_runtime_dir(system_env(), dir.path() + "/run/");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, dir.path() + "/run");
  struct stat st {};
  ASSERT_EQ(::stat(made->c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);
  ::chmod(made->c_str(), 0755);
  EXPECT_EQ(make_runtime_dir(system_env(), *made).error().code, Code::kInvalid);
  std::ofstream(dir.path() + "/file") << "x";
  EXPECT_EQ(make_runtime_dir(system_env(), dir.path() + "/file").error().code, Code::kInvalid);
  std::filesystem::create_directory_symlink(*made, dir.path() + "/link");
  EXPECT_EQ(make_runtime_dir(system_env(), dir.path() + "/link").error().code, Code::kInvalid);
  EXPECT_EQ(make_runtime_dir(system_env(), "relative").error().code, Code::kInvalid);
  const auto longer = make_runtime_dir(system_env(), "/" + std::string(120, 'x'));
  EXPECT_EQ(longer.error().code, Code::kInvalid);
  EXPECT_NE(longer.error().message.find("shorter"), std::string::npos);
}

}  // namespace
}  // namespace refit::procs
