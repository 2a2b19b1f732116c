// The public interface as a user sees it: nothing but its headers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <refit/refit.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A matrix of 6 x 4 bytes: two trainer ranks hold halves by rows, one engine rank holds it by columns behind a pad.
const char* const kSource = R"({"tensors":{"w":{"shape":[6,4],"dtype":"u8"}},"ranks":[
  {"rank":0,"buffers":{"b":{"bytes":12}},"holdings":[{"tensor":"w","box":[[0,3],[0,4]],"buffer":"b","offset":0,"strides":[4,1]}]},
  {"rank":1,"buffers":{"b":{"bytes":12}},"holdings":[{"tensor":"w","box":[[3,6],[0,4]],"buffer":"b","offset":0,"strides":[4,1]}]}]})";
const char* const kTarget = R"({"tensors":{"w":{"shape":[6,4],"dtype":"u8"}},"ranks":[
  {"rank":0,"buffers":{"t":{"bytes":26}},"holdings":[{"tensor":"w","box":[[0,6],[0,4]],"buffer":"t","offset":2,"strides":[1,6]}]}]})";

template <typename F>
refit::Error thrown(F f) {
  try {
    f();
  } catch (const refit::Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {refit::Code::kInternal, "nothing"};
}

// A job in this process: the engine rank serves on a thread.
class FacadeJob : public testing::Test {
 protected:
  void start(refit::EngineHooks hooks = {}) {
    refit::CoordinatorOptions o;
    o.source_ranks = 2;
    o.stall_timeout_s = 10;
    o.join_timeout_s = 20;
    o.total_timeout_s = 20;
    coordinator = std::make_unique<refit::Coordinator>(o);
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      trainers.push_back(std::make_unique<refit::Publisher>(refit::Layout::from_json(kSource), member(rank)));
    refit::MemberOptions engine = member(0);
    engine.memory = {{"t", live.data(), static_cast<std::int64_t>(live.size())}};
    receiver = std::make_unique<refit::Receiver>(refit::Layout::from_json(kTarget), engine, std::move(hooks));
    server = std::thread([this] {
      while (!stop) receiver->run(0.02);
    });
    coordinator->init_communicator();
  }
  ~FacadeJob() override {
    stop = true;
    if (server.joinable()) server.join();
  }
  refit::MemberOptions member(std::uint32_t rank) const {
    refit::MemberOptions o;
    o.address = coordinator->address();
    o.rank = rank;
    o.join_timeout_s = 10;
    return o;
  }
  static std::uint8_t value(std::int64_t step, int row, int column) {
    return static_cast<std::uint8_t>(step * 50 + row * 4 + column);
  }
  void train(std::int64_t step) {
    for (int rank = 0; rank < 2; ++rank) {
      refit::Publisher& p = *trainers[static_cast<std::size_t>(rank)];
      p.guard(10);
      auto* bytes = static_cast<std::uint8_t*>(p.memory()[0].data);
      for (int i = 0; i < 12; ++i) bytes[i] = value(step, rank * 3 + i / 4, i % 4);
      p.publish(step);
    }
    coordinator->mark_stale();
  }
  bool holds(std::int64_t step) const {
    bool same = true;
    for (int row = 0; row < 6; ++row)
      for (int column = 0; column < 4; ++column)
        same = same && live[static_cast<std::size_t>(2 + column * 6 + row)] == value(step, row, column);
    return same;
  }

  std::unique_ptr<refit::Coordinator> coordinator;
  std::vector<std::unique_ptr<refit::Publisher>> trainers;
  std::vector<std::uint8_t> live = std::vector<std::uint8_t>(26, 0xee);
  std::unique_ptr<refit::Receiver> receiver;
  std::atomic<bool> stop{false};
  std::thread server;
};

TEST(FacadeLayout, TellsWhatItHolds) {
  const auto l = refit::Layout::from_json(kTarget);
  EXPECT_EQ(l.world(), 1);
  ASSERT_EQ(l.tensors().size(), 1u);
  EXPECT_EQ(l.tensors()[0].dtype, "u8");
  const refit::RankInfo rank = l.rank(0);
  ASSERT_EQ(rank.holdings.size(), 1u);
  EXPECT_THAT(rank.holdings[0].strides, ElementsAre(1, 6));
  EXPECT_EQ(rank.holdings[0].offset, 2);
  EXPECT_EQ(refit::Layout::from_json(l.to_json()).digest(), l.digest());
  EXPECT_EQ(thrown([&] { (void)l.rank(1); }).code, refit::Code::kInvalid);
}

TEST(FacadeLayout, BadInputThrowsWithFields) {
  const refit::Error e = thrown([] {
    (void)refit::Layout::from_json(R"({"tensors":{"w":{"shape":[2],"dtype":"u8"}},
    "ranks":[{"rank":0,"buffers":{"b":{"bytes":1}},"holdings":[{"tensor":"w","box":[[0,2]],"buffer":"b","offset":0,"strides":[1]}]}]})");
  });
  EXPECT_EQ(e.code, refit::Code::kInvalid);
  EXPECT_EQ(e.tensor, "w");
  EXPECT_THAT(std::string(e.what()), HasSubstr("tensor=w"));
  EXPECT_EQ(thrown([] { (void)refit::Layout::from_model("no-such-model", "tp=2"); }).code, refit::Code::kInvalid);
}

TEST(FacadePlan, ProvesOrRefuses) {
  const auto source = refit::Layout::from_json(kSource), target = refit::Layout::from_json(kTarget);
  const auto plan = refit::Plan::make(source, target);
  EXPECT_EQ(plan.summary().coverage, 1.0);
  EXPECT_EQ(plan.summary().bytes_moved, 24);
  EXPECT_EQ(plan.summary().links.size(), 2u);
  EXPECT_THAT(plan.explain("w"), HasSubstr("w"));
  EXPECT_EQ(thrown([&] { (void)plan.explain("x"); }).code, refit::Code::kInvalid);
  std::string half = kSource;  // without rank 1: rows 3 to 6 have no source
  half = half.substr(0, half.find(",\n  {\"rank\":1")) + "]}";
  EXPECT_THAT(thrown([&] { (void)refit::Plan::make(refit::Layout::from_json(half), target); }).message, HasSubstr("w"));
}

TEST_F(FacadeJob, MovesVersionsIntoTheCallersMemory) {
  std::vector<std::string> heard;
  std::uint64_t labelled = 0;
  start({.pause = [&](double left) { heard.push_back(left > 0 ? "pause" : "late"); },
         .resume = [&] { heard.push_back("resume"); },
         .reset_caches = [&] { heard.push_back("reset"); },
         .installed = [&](const refit::VersionInfo& v) { labelled = v.number; }});
  EXPECT_FALSE(receiver->complete());
  train(1);
  const refit::SyncReport first = coordinator->sync_weights();
  EXPECT_EQ(first.outcome, "committed");
  EXPECT_TRUE(first.proof);
  EXPECT_EQ(first.version.step, 1);
  EXPECT_TRUE(holds(1));
  EXPECT_EQ(live[0], 0);  // outside of every holding: the layout's fill
  EXPECT_TRUE(receiver->complete());
  EXPECT_FALSE(coordinator->is_stale());
  train(2);
  EXPECT_TRUE(coordinator->is_stale());
  EXPECT_EQ(coordinator->sync_weights(2).version.step, 2);
  EXPECT_TRUE(holds(2));
  EXPECT_EQ(receiver->version().number, labelled);
  EXPECT_THAT(heard, ElementsAre("pause", "reset", "resume", "pause", "reset", "resume"));
  EXPECT_EQ(receiver->report().state, "Serving");
  EXPECT_THAT(coordinator->verify(10), HasSubstr("\"ok\":true"));
  for (auto& t : trainers) {
    t->close();
    EXPECT_EQ(thrown([&] { t->publish(3); }).code, refit::Code::kCancelled);
  }
}

TEST_F(FacadeJob, AHookThatThrowsFencesItsReplicaAndTheNextSyncRepairs) {
  std::atomic<bool> broken{false};
  start({.pause =
             [&](double) {
               if (broken) throw std::runtime_error("forward pass hangs");
             },
         .resume = {},
         .reset_caches = {},
         .installed = {}});
  train(1);
  coordinator->sync_weights();
  broken = true;
  train(2);
  try {
    coordinator->sync_weights();
    ADD_FAILURE() << "a failed pause committed";
  } catch (const refit::SyncError& e) {
    EXPECT_EQ(e.peer, "target:0.0");
    EXPECT_THAT(e.message, HasSubstr("'pause' failed: forward pass hangs"));
    EXPECT_NE(e.report.outcome, "committed");
  }
  EXPECT_TRUE(coordinator->is_stale());
  EXPECT_TRUE(holds(1) || holds(2));
  broken = false;
  train(3);
  EXPECT_EQ(coordinator->sync_weights().version.step, 3);
  EXPECT_TRUE(holds(3));
}

TEST_F(FacadeJob, CloseEndsARunOfAnotherThread) {
  start();
  stop = true;
  server.join();
  // Either thread may come second now and then.
  refit::Code ended = refit::Code::kBusy;
  std::thread other([&] {
    while (ended == refit::Code::kBusy) ended = thrown([&] { receiver->run(60), receiver->run(60); }).code;
  });
  EXPECT_EQ(thrown([&] {
              while (true) receiver->run(0);
            }).code,
            refit::Code::kBusy);
  receiver->close(10);
  other.join();
  EXPECT_EQ(ended, refit::Code::kCancelled);
  EXPECT_EQ(thrown([&] { receiver->run(0); }).code, refit::Code::kCancelled);
  receiver->close();
}

TEST_F(FacadeJob, TimesAreFiniteAndNotNegative) {
  start();
  for (double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, -1.0}) {
    EXPECT_THAT(thrown([&] { trainers[0]->guard(bad); }).message, HasSubstr("timeout_s must be a finite"));
    EXPECT_THAT(thrown([&] { trainers[0]->close(bad); }).message, HasSubstr("timeout_s must be a finite"));
    EXPECT_THAT(thrown([&] { receiver->close(bad); }).message, HasSubstr("timeout_s must be a finite"));
    EXPECT_THAT(thrown([&] { receiver->run(bad); }).message, HasSubstr("seconds must be a finite"));
    EXPECT_THAT(thrown([&] { (void)coordinator->verify(bad); }).message, HasSubstr("timeout_s must be a finite"));
    refit::MemberOptions o = member(0);
    o.join_timeout_s = bad;
    EXPECT_THAT(thrown([&] { refit::Publisher(refit::Layout::from_json(kSource), o); }).message,
                HasSubstr("join_timeout_s must be a finite"));
    refit::CoordinatorOptions c;
    c.gate_timeout_s = bad;
    EXPECT_THAT(thrown([&] { refit::Coordinator made(c); }).message, HasSubstr("gate_timeout_s must be a finite"));
  }
}

TEST_F(FacadeJob, WhoDoesNotFitIsRefusedInItsOwnProcess) {
  start();
  trainers.pop_back();
  std::string longer = kSource;  // source 1 with another layout than source 0's
  longer.replace(longer.find("\"bytes\":12"), 10, "\"bytes\":13");
  const refit::Error other = thrown([&] { refit::Publisher stranger(refit::Layout::from_json(longer), member(1)); });
  EXPECT_EQ(other.code, refit::Code::kMismatch) << other.what();
  const refit::Error outside = thrown([&] { refit::Receiver(refit::Layout::from_json(kSource), member(1)); });
  EXPECT_EQ(outside.code, refit::Code::kInvalid);
  EXPECT_EQ(outside.peer, "target:0.1");
  refit::MemberOptions nowhere = member(0);
  nowhere.address = "ipc:///no/such/job/control";
  EXPECT_EQ(thrown([&] { refit::Publisher(refit::Layout::from_json(kSource), nowhere); }).code, refit::Code::kPeerLost);
  refit::MemberOptions small = member(0);
  small.memory = {{"b", live.data(), 3}};
  const refit::Error e = thrown([&] { refit::Publisher(refit::Layout::from_json(kSource), small); });
  EXPECT_EQ(e.need, 12);
  EXPECT_EQ(e.have, 3);
}

TEST(FacadeDecision, AConfigurationIsJudgedAndItsPhasesAreWalked) {
  const refit::Decision d({.path = "",
                           .text = "policy: {generation: {backend: vllm, colocated: {enabled: true}}}",
                           .sets = {},
                           .algorithm = "grpo"});
  EXPECT_THAT(d.json(), HasSubstr(R"("synchronizer":"IPCWeightSynchronizer")"));
  EXPECT_THAT(d.json(), HasSubstr(R"("mover":"shm")"));
  EXPECT_EQ(d.judge_kv_scales(false), "none");
  EXPECT_EQ(d.judge_kv_scales(true), "carried");
  const auto walk = [&](const std::string& fails) {
    refit::Phases phases(d);
    std::vector<std::string> ran;
    while (const auto phase = phases.running()) {
      ran.push_back(*phase);
      phases.ended(*phase != fails);
    }
    EXPECT_EQ(phases.failed().value_or(""), fails);
    return ran;
  };
  EXPECT_THAT(walk("prepare_weights"),
              ElementsAre("judge_kv_scales", "offload_before", "prepare_weights", "offload_after", "prepare_kv_cache"));
  EXPECT_THAT(walk("judge_kv_scales"), ElementsAre("judge_kv_scales"));
  EXPECT_EQ(walk("").size(), 8u);
  const refit::Error wrong = thrown([] { refit::Decision bad({.path = "", .text = "refit: {stagin_bytes: 1}"}); });
  EXPECT_EQ(wrong.code, refit::Code::kInvalid);
  EXPECT_THAT(wrong.message, HasSubstr("refit.staging_bytes"));
  const refit::Decision nowhere({.path = "", .text = "policy: {generation: {refit_transport: pigeon}}"});
  EXPECT_EQ(thrown([&] { refit::Phases phases(nowhere); }).code, refit::Code::kInvalid);
}

}  // namespace
