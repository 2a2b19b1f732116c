// Rounds whose buckets go as deltas: who gets which, and what is left after every way in which a round can end.
#include "procs/agents/rig.h"

namespace refit::rig {
namespace {

using wire::Outcome;

class Deltas : public testing::TestWithParam<const char*> {
 protected:
  Options options() const {
    Options o;
    o.transport = GetParam();
    o.encoding = "xor";
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Transport, Deltas, testing::Values("tcp", "zmq_sparse"),
                         [](const auto& one) { return std::string(one.param); });

void version(Job& job, std::int64_t step) {
  if (step > 0) job.train(step);
  const auto r = must(job.sync->sync_weights(step));
  ASSERT_TRUE(r.ok()) << (r.round.error ? r.round.error->to_string() : "");
  EXPECT_TRUE(job.all_hold(step));
}

agent::EncodeReport encoded(Job& job) {
  agent::EncodeReport sum;
  for (auto& m : job.members)
    if (m->source) {
      const agent::EncodeReport one = m->source->report().encoded;
      sum.unchanged += one.unchanged, sum.delta += one.delta, sum.raw += one.raw;
      sum.elements += one.elements, sum.changed += one.changed;
      sum.delta_bytes += one.delta_bytes, sum.delta_changed += one.delta_changed;
      sum.bytes_useful += one.bytes_useful, sum.bytes_wire += one.bytes_wire;
    }
  return sum;
}

TEST_P(Deltas, DenseThenDeltaThenDelta) {
  Job job(options());
  job.start();
  version(job, 0);
  const agent::EncodeReport dense = encoded(job);
  EXPECT_EQ(dense.delta + dense.unchanged, 0);
  EXPECT_GE(dense.bytes_wire, dense.bytes_useful);
  for (std::int64_t step = 1; step < 3; ++step) {
    version(job, step);
    const agent::EncodeReport e = encoded(job);
    EXPECT_EQ(e.raw, 0) << "everybody holds the base";
    EXPECT_GT(e.delta, 0);
    EXPECT_EQ(e.bytes_useful, dense.bytes_useful);
    EXPECT_LT(2 * e.bytes_wire, dense.bytes_wire);
    // A tenth of the elements moves; norms and the like take part.
    EXPECT_NEAR(static_cast<double>(e.changed) / static_cast<double>(e.elements), 0.1, 0.03);
  }
  // The same weights again: headers only.
  ASSERT_TRUE(must(job.sync->sync_weights()).ok());
  EXPECT_EQ(encoded(job).delta + encoded(job).raw, 0);
  EXPECT_TRUE(job.all_hold(2));
  job.expect_clean_serving();
  EXPECT_NE(must(job.sync->verify(10)).find("\"ok\":true"), std::string::npos);
}

TEST_P(Deltas, OverwriteAndABaseInAFile) {
  Options o = options();
  o.encoding = "overwrite";
  o.baseline_dir = testing::TempDir();
  Job job(o);
  job.start();
  for (std::int64_t step = 0; step < 3; ++step) version(job, step);
  EXPECT_GT(encoded(job).delta, 0);
}

TEST_P(Deltas, AfterAnAbortTheBaseIsWhatItWas) {
  Job job(options());
  job.start();
  version(job, 0);
  version(job, 1);
  // A source that writes while its weights are lent: the round aborts after the targets have staged its deltas.
  std::atomic<bool> once{false};
  MemberThread& s = job.at("source:0.1");
  s.observer = [&](const PhaseEvent& e) {
    if (e.phase == Phase::kLend && !once.exchange(true)) s.trainer->guard();
  };
  job.train(2);
  const auto aborted = must(job.sync->sync_weights(2));
  EXPECT_EQ(aborted.round.outcome, Outcome::kAborted);
  EXPECT_TRUE(job.all_hold(1));
  version(job, 3);
  const agent::EncodeReport e = encoded(job);
  EXPECT_EQ(e.raw, 0) << "no base was lost by the abort";
  EXPECT_GT(e.delta, 0);
  job.expect_clean_serving();
}

// A target that comes back empty gets complete buckets, its neighbours deltas; from then on all get deltas.
TEST_P(Deltas, ALateJoinerGetsCompleteBuckets) {
  Job job(options());
  job.start();
  version(job, 0);
  version(job, 1);
  job.at("target:1.0").join();
  job.members[3].reset();
  job.members[3] = job.make(3);
  job.members[3]->start();
  ASSERT_TRUE(job.sync->init_communicator().ok());
  version(job, 2);
  agent::EncodeReport e = encoded(job);
  EXPECT_GT(e.raw, 0);
  EXPECT_GT(e.delta, 0);
  version(job, 3);
  EXPECT_EQ(encoded(job).raw, 0);
}

// A trainer that comes back has no base, and says nothing of another's.
TEST_P(Deltas, ARestartedSourceSendsCompleteBuckets) {
  Job job(options());
  job.start();
  version(job, 0);
  MemberThread& s = job.at("source:0.0");
  s.join();
  ASSERT_TRUE(s.source->close(Deadline::after_s(2)).ok());
  job.make_agent(s, 0);
  s.start();
  ASSERT_TRUE(job.sync->init_communicator().ok());
  version(job, 1);
  EXPECT_EQ(s.source->report().encoded.delta, 0);
  EXPECT_GT(job.at("source:0.1").source->report().encoded.delta, 0);
  version(job, 2);
  EXPECT_EQ(encoded(job).raw, 0);
}

// A coordinator that comes back with another encoding: the base of the former one is let go at the sources.
TEST_P(Deltas, ABaseDoesNotOutliveItsEncoding) {
  Job job(options());
  job.start();
  version(job, 0);
  version(job, 1);
  const auto base_bytes = [&] {
    std::int64_t sum = 0;
    for (auto& m : job.members) sum += m->source ? m->source->report().base_bytes : 0;
    return sum;
  };
  EXPECT_GT(base_bytes(), 0);
  for (const char* encoding : {"raw", "xor"}) {
    const std::int64_t step = *encoding == 'r' ? 2 : 3;
    job.restart_coordinator(encoding);
    ASSERT_TRUE(job.sync->init_communicator().ok());
    version(job, step);
    EXPECT_EQ(base_bytes() > 0, step == 3);
    EXPECT_EQ(encoded(job).delta + encoded(job).unchanged, 0);
  }
  version(job, 4);
  EXPECT_GT(encoded(job).delta, 0);
  EXPECT_EQ(encoded(job).raw, 0);
}

TEST_P(Deltas, ASnapshotIsTheBaseWhileTheTrainerGoesOn) {
  Options o = options();
  o.snapshot = true;
  Job job(o);
  job.start();
  for (std::int64_t step = 0; step < 4; ++step) version(job, step);
  EXPECT_EQ(encoded(job).raw, 0);
}

// 200 versions, of which a few rounds abort: no drift, and nothing grows.
TEST_P(Deltas, NoDriftOverManyVersions) {
  const bool slow =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
      true;
#else
      false;
#endif
  Job job(options());
  job.rule.share = 0.01;
  job.start();
  const auto used = [&] {
    std::int64_t sum = 0;
    for (auto& m : job.members) sum += m->budget.used();
    return sum;
  };
  std::int64_t bytes = 0;
  const std::int64_t versions = slow ? 50 : 200;
  for (std::int64_t step = 0; step < versions; ++step) {
    if (step > 0) job.train(step);
    const auto r = must(job.sync->sync_weights(step));
    ASSERT_TRUE(r.ok()) << step << ": " << (r.round.error ? r.round.error->to_string() : "");
    if (step == 9) bytes = used();
  }
  EXPECT_TRUE(job.all_hold(versions - 1));
  EXPECT_EQ(used(), bytes);
  EXPECT_EQ(encoded(job).raw, 0);
  job.expect_clean_serving();
}

TEST(DeltasOverMaps, AreRefusedByName) {
  Options o;
  o.encoding = "xor";
  o.transport = "shm";
  o.join_s = 5;
  Job job(o);
  for (auto& m : job.members) m->start();
  const Status ready = job.sync->init_communicator();
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.error().code, Code::kUnsupported) << ready.error().to_string();
  EXPECT_NE(ready.error().message.find("encoding"), std::string::npos);
}

TEST(DeltasOverMaps, AnUnknownEncodingIsRefused) {
  Options o;
  o.encoding = "lzma";
  EXPECT_THROW(Job{o}, std::runtime_error);
}

}  // namespace
}  // namespace refit::rig
