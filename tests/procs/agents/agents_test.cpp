#include <dirent.h>

#include "procs/agents/rig.h"

namespace refit::rig {
namespace {

using wire::Outcome;

struct Way {
  const char* transport;
  const char* encoding = "raw";
};
class OverMovers : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override { transport_in_use = GetParam().transport, encoding_in_use = GetParam().encoding; }
  void TearDown() override { transport_in_use = "shm", encoding_in_use = "raw"; }
};
INSTANTIATE_TEST_SUITE_P(Transport, OverMovers,
                         testing::Values(Way{"shm"}, Way{"tcp"}, Way{"tcp", "xor"}, Way{"nixl_host_double"}),
                         [](const auto& one) { return std::string(one.param.transport) + "_" + one.param.encoding; });

TEST_P(OverMovers, VersionsArriveAndStalenessFollows) {
  Job job;
  job.start();
  EXPECT_TRUE(job.sync->is_stale()) << "stale before the first sync";
  for (std::int64_t step = 0; step < 3; ++step) {
    if (step > 0) job.train(step);
    EXPECT_TRUE(job.sync->is_stale());
    const auto r = must(job.sync->sync_weights(step));
    ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
    EXPECT_FALSE(job.sync->is_stale());
    EXPECT_EQ(r.round.version.number, static_cast<std::uint64_t>(step + 1));
    EXPECT_TRUE(job.all_hold(step));
  }
  job.expect_clean_serving();
  EXPECT_NE(must(job.sync->verify(10)).find("\"ok\":true"), std::string::npos);
}

TEST(Agents, AMarkDuringARoundIsNotCoveredByIt) {
  Job job;
  std::atomic<bool> once{false};
  job.at("target:0.0").observer = [&](const PhaseEvent& e) {
    if (e.phase == Phase::kStaged && !once.exchange(true)) job.sync->mark_stale();
  };
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  EXPECT_TRUE(job.sync->is_stale());
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  EXPECT_FALSE(job.sync->is_stale());
}

// F05: a source that writes after hand-over.
TEST_P(OverMovers, AWriteWhileLentAbortsAtTheSourcesVote) {
  Job job;
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  std::atomic<bool> once{false};
  MemberThread& s = job.at("source:0.1");
  s.observer = [&](const PhaseEvent& e) {
    // The optimizer ignores the lease: no guard, straight into the weights.
    if (e.phase == Phase::kLend && !once.exchange(true)) s.trainer->step(job.rule, 77);
  };
  const auto r = must(job.sync->sync_weights());
  EXPECT_EQ(r.round.outcome, Outcome::kAborted);
  ASSERT_TRUE(r.round.error.has_value());
  EXPECT_TRUE(job.sync->is_stale());
  EXPECT_TRUE(job.all_hold(0)) << "nothing torn is served";
  job.expect_clean_serving();
}

TEST_P(OverMovers, ASnapshotLetsTheTrainerGoOn) {
  Options options;
  options.snapshot = true;
  Job job(options);
  for (const char* name : {"source:0.0", "source:0.1"}) {
    MemberThread& s = job.at(name);
    s.observer = [&, done = std::make_shared<std::atomic<bool>>(false)](const PhaseEvent& e) {
      if (e.phase != Phase::kLend || done->exchange(true)) return;
      EXPECT_TRUE(s.source->guard(Deadline::after_ns(0)).ok()) << "a snapshot frees the trainer at once";
      s.trainer->step(job.rule, 1);
      s.source->publish(1, "policy");
    };
  }
  job.start();
  const auto r = must(job.sync->sync_weights(0));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_TRUE(job.all_hold(0)) << "the version is what was published, not what came after";
  ASSERT_TRUE(must(job.sync->sync_weights(1)).ok());
  EXPECT_TRUE(job.all_hold(1));
}

TEST_P(OverMovers, TheGuardHoldsTheOptimizerWhileALeaseIsOut) {
  Job job;
  std::atomic<int> refused{0};
  MemberThread& s = job.at("source:0.0");
  s.observer = [&](const PhaseEvent& e) {
    if (e.phase == Phase::kLend) refused += s.source->guard(Deadline::after_ns(0)).ok() ? 0 : 1;
  };
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  EXPECT_GE(refused, 1);
  EXPECT_TRUE(s.source->guard(Deadline::after_s(2)).ok());
}

// Ranks that watch a folder do not see a new checkpoint at one moment: a round for the step that one of them has left ends
// soon, and its weights are free again, instead of waiting for what does not come.
TEST(Agents, ARoundForAStepThatARankHasLeftEndsSoon) {
  Job job;
  job.start();
  MemberThread& s = job.at("source:0.1");
  s.source->publish(1, "policy");
  const std::int64_t began = monotonic_ns();
  const auto r = must(job.sync->sync_weights(0));
  EXPECT_LT(monotonic_ns() - began, 6 * kNsPerSecond);
  EXPECT_EQ(r.round.outcome, Outcome::kAborted);
  ASSERT_TRUE(r.round.error.has_value());
  const std::string text = r.round.error->to_string();
  EXPECT_NE(text.find("step 1"), std::string::npos) << text;
  EXPECT_NE(text.find("source:0.1"), std::string::npos) << text;
  job.at("source:0.0").source->publish(1, "policy");
  EXPECT_TRUE(must(job.sync->sync_weights(1)).ok());
}

// C10: owners of one box must agree.
TEST(Agents, UnequalReplicasAreRefusedWithBothOwners) {
  Job job;
  job.start();
  // The last bytes of the norm weights: replicated over tp, different on one owner.
  MemberThread& s = job.at("source:0.1");
  for (const model::Holding& h : s.trainer->rank_layout().holdings)
    if (s.trainer->layout()->catalogue().tensors[h.tensor.value].name == "model.norm.weight")
      s.trainer->regions()[h.buffer].data[h.offset] ^= std::byte{1};
  const auto r = must(job.sync->sync_weights());
  EXPECT_EQ(r.round.outcome, Outcome::kAborted);
  ASSERT_TRUE(r.round.error.has_value());
  const std::string text = r.round.error->to_string();
  EXPECT_NE(text.find("source:0.0"), std::string::npos) << text;
  EXPECT_NE(text.find("source:0.1"), std::string::npos) << text;
}

// F13: three updates with one rank 200 ms late each time.
TEST_P(OverMovers, NoRoundEndsBeforeALateRank) {
  Options options;
  options.target = "vllm:tp=3";
  Job job(options);
  job.start();
  job.at("target:0.2").pause_ms = 200;
  for (std::int64_t step = 0; step < 3; ++step) {
    if (step > 0) job.train(step);
    const auto r = must(job.sync->sync_weights(step));
    ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
    EXPECT_TRUE(job.all_hold(step));
  }
}

// F12: alive, but silent.
TEST_P(OverMovers, ASilentMemberIsNamedWithinTheDeadline) {
  Options options;
  options.join_s = 1;
  Job job(options);
  for (auto& m : job.members)
    if (m->name.to_string() != "target:1.0") m->start();
  const std::int64_t start = monotonic_ns();
  const Status ready = job.sync->init_communicator();
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.error().code, Code::kTimeout);
  EXPECT_NE(ready.error().message.find("target:1.0"), std::string::npos) << ready.error().message;
  EXPECT_LT(monotonic_ns() - start, 5 * kNsPerSecond);
}

// C5: an agent that is re-created beside surviving live bytes.
TEST_P(OverMovers, ANewAgentBesideSurvivingBytesJoinsTheNextRound) {
  Job job;
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  MemberThread& t = job.at("target:1.0");
  t.join();
  ASSERT_TRUE(t.target->close(Deadline::after_s(2)).ok());
  job.make_agent(t, 3);
  t.start();
  EXPECT_TRUE(job.holds(t, 0)) << "the live bytes were not touched";
  ASSERT_TRUE(job.sync->init_communicator().ok());
  job.train(1);
  const auto r = must(job.sync->sync_weights(1));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_TRUE(job.all_hold(1));
}

// Tensors that the sides store through different transforms: the first version is read again, a new agent is repaired.
TEST_P(OverMovers, ValuesThroughTransformsArrive) {
  const Options cases[] = {{.config = test::kMamba, .source = "fsdp=2", .target = "vllm:tp=2"},
                           {.config = test::kDelta, .source = "megatron:tp=2", .target = "vllm:tp=1,replicas=2"}};
  for (const Options& o : cases) {
    Job job(o);
    job.start();
    for (std::int64_t step = 0; step < 2; ++step) {
      if (step > 0) job.train(step);
      const auto r = must(job.sync->sync_weights(step));
      ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
      EXPECT_TRUE(job.all_hold(step)) << o.source << " step " << step;
    }
    EXPECT_NE(must(job.sync->verify(10)).find("\"ok\":true"), std::string::npos);
    MemberThread& t = *job.members[3];
    t.join();
    job.members[3].reset();
    job.members[3] = job.make(3);  // a process that starts anew holds nothing
    job.members[3]->start();
    ASSERT_TRUE(job.sync->init_communicator().ok());
    job.train(2);
    const auto r = must(job.sync->sync_weights(2));
    ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
    EXPECT_TRUE(job.all_hold(2)) << o.source;
  }
}

// Eight heads over nine ranks: the last one holds nothing that is transformed.
TEST_P(OverMovers, ARankWithoutTransformedValuesPublishesToo) {
  Job job({.config = test::kMamba, .source = "fsdp=9", .target = "vllm:tp=1"});
  job.start();
  for (std::int64_t step = 0; step < 2; ++step) {
    if (step > 0) job.train(step);
    const auto r = must(job.sync->sync_weights(step));
    ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
    EXPECT_TRUE(job.all_hold(step)) << "step " << step;
  }
}

TEST(Agents, ARestartedCoordinatorReadsItsJournalAndGoesOn) {
  Job job;
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  job.close_synchronizer();
  job.open_synchronizer();
  EXPECT_TRUE(job.sync->is_stale()) << "nothing is known to be fresh after a restart";
  ASSERT_TRUE(job.sync->init_communicator().ok());
  job.train(1);
  const auto r = must(job.sync->sync_weights(1));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_GT(r.round.version.number, 1u) << "numbers are never reused";
  EXPECT_TRUE(job.all_hold(1));
}

void await(const std::atomic<bool>& flag) {
  const Deadline until = Deadline::after_s(10);
  while (!flag && !until.over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(flag);
}
// Holds the member's thread at `phase` of the next round until `go`.
void hold_at(MemberThread& m, Phase phase, std::atomic<bool>& reached, const std::atomic<bool>& go) {
  m.observer = [&, phase](const PhaseEvent& e) {
    if (e.phase != phase || go) return;
    reached = true;
    const Deadline until = Deadline::after_s(20);
    while (!go && !until.over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
}

// C3, journal lost: one rank of the replica has applied, the others still copy.
TEST(Agents, ALostJournalIsRebuiltAndTheCommitStands) {
  Options options;
  options.target = "vllm:tp=3";
  Job job(options);
  std::atomic<bool> applied{false}, copying{false}, go{false};
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  job.train(1);
  for (auto& m : job.members) m->join();
  job.at("target:0.0").observer = [&](const PhaseEvent& e) { applied = applied || e.phase == Phase::kApplied; };
  for (const char* name : {"target:0.1", "target:0.2"}) hold_at(job.at(name), Phase::kCopying, copying, go);
  for (auto& m : job.members) m->start();
  std::thread call([&] { [[maybe_unused]] const auto r = job.sync->sync_weights(1); });
  await(applied);
  job.lose_coordinator(call);
  go = true;
  job.open_synchronizer();
  const Status ready = job.sync->init_communicator();
  ASSERT_TRUE(ready.ok()) << ready.error().to_string() << job.sync->status();
  EXPECT_NE(job.sync->status().find("\"number\":2"), std::string::npos) << job.sync->status();
  EXPECT_TRUE(job.all_hold(1)) << "the ranks that held their stage finished the copy";
  job.train(2);
  const auto r = must(job.sync->sync_weights(2));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_GT(r.round.version.number, 2u);
  EXPECT_TRUE(job.all_hold(2));
  job.expect_clean_serving();
}

// Likewise, when a whole replica reopened and another has only voted.
TEST(Agents, ALostJournalsCommitReachesAReplicaThatHadOnlyVoted) {
  Job job;
  std::atomic<bool> reopened{false};
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  job.train(1);
  for (auto& m : job.members) m->join();
  MemberThread& late = job.at("target:1.0");
  job.at("target:0.0").observer = [&](const PhaseEvent& e) { reopened = reopened || e.phase == Phase::kReopened; };
  late.observer = [&](const PhaseEvent& e) {
    if (e.phase == Phase::kVoted) late.pause_ms = 700;  // from the end of its slice on it reads nothing
  };
  job.at("source:0.0").observer = [](const PhaseEvent& e) {
    if (e.phase == Phase::kVoted) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it sleeps
  };
  for (auto& m : job.members) m->start();
  std::thread call([&] { [[maybe_unused]] const auto r = job.sync->sync_weights(1); });
  await(reopened);
  job.lose_coordinator(call);
  late.pause_ms = 0;
  EXPECT_TRUE(job.holds(late, 0));
  job.open_synchronizer();
  const Status ready = job.sync->init_communicator();
  ASSERT_TRUE(ready.ok()) << ready.error().to_string() << job.sync->status();
  EXPECT_TRUE(job.all_hold(1));
  job.expect_clean_serving();
}

TEST(Agents, ALostJournalIsRebuiltAndTheUndecidedRoundAborts) {
  Job job;
  std::atomic<bool> voted{false}, go{false};
  job.start();
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  job.train(1);
  for (auto& m : job.members) m->join();
  hold_at(job.at("source:0.0"), Phase::kVoted, voted, go);  // the last yes, given and not sent
  for (auto& m : job.members) m->start();
  std::thread call([&] { [[maybe_unused]] const auto r = job.sync->sync_weights(1); });
  await(voted);
  job.lose_coordinator(call);
  go = true;
  job.open_synchronizer();
  const Status ready = job.sync->init_communicator();
  ASSERT_TRUE(ready.ok()) << ready.error().to_string() << job.sync->status();
  EXPECT_NE(job.sync->status().find("\"number\":1,"), std::string::npos) << job.sync->status();
  EXPECT_TRUE(job.all_hold(0));
  job.train(2);
  const auto r = must(job.sync->sync_weights(2));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_GT(r.round.version.number, 2u) << "the aborted number is burnt";
  EXPECT_TRUE(job.all_hold(2));
  job.expect_clean_serving();
}

// Two equal-sized ranks that swap their names would swap their shards under perfect digests.
TEST(Agents, AShardOfAnotherRankIsRefused) {
  Job job;
  MemberThread& t = job.at("target:1.0");
  t.name = {Role::kTarget, 0, 0};
  EXPECT_THROW(job.make_agent(t, 2), std::runtime_error);
}

// F14: two jobs, same ranks, one host.
TEST_P(OverMovers, TwoJobsOnOneHostDoNotMeet) {
  Job a, b;
  a.start();
  b.start();
  ASSERT_TRUE(must(a.sync->sync_weights()).ok());
  b.train(1);
  ASSERT_TRUE(must(b.sync->sync_weights(1)).ok());
  EXPECT_TRUE(a.all_hold(0));
  EXPECT_TRUE(b.all_hold(1));
}

std::size_t descriptors() {
  std::size_t n = 0;
  DIR* d = ::opendir("/proc/self/fd");
  while (::readdir(d) != nullptr) ++n;
  ::closedir(d);
  return n;
}

TEST_P(OverMovers, MemoryAndDescriptorsStayFlatOver200Refits) {
  Job job;
  job.start();
  const auto used = [&] {
    std::int64_t sum = 0;
    for (auto& m : job.members) sum += m->budget.used();
    return sum;
  };
  std::int64_t bytes = 0;
  std::size_t open = 0;
  for (int round = 0; round < 200; ++round) {
    const auto r = must(job.sync->sync_weights());
    ASSERT_TRUE(r.ok()) << round << ": " << (r.round.error ? r.round.error->to_string() : "");
    if (round == 9) bytes = used(), open = descriptors();
  }
  EXPECT_EQ(used(), bytes);
  EXPECT_LE(descriptors(), open + 2);
  job.expect_clean_serving();
}

}  // namespace
}  // namespace refit::rig
