// The target's table: the straight way, what an abort or a failure at each step leaves, and that every other event is
// dropped without a trace.
#include "install/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "install/install.h"

namespace refit::install {
namespace {

const Hash128 kJob{7, 7};
const Lineage kLineage{1, 2};
const wire::Digest4 kDigest{{1, 2, 3, 4}, 8};
Txn txn(std::uint64_t counter) { return {kLineage, Epoch(1), counter}; }
Version version(std::uint64_t number) { return {kLineage, number, {9, number}, 1}; }

class Target {
 public:
  explicit Target(std::optional<Survived> survived = {}) {
    TargetConfig config;
    config.self.job = kJob;
    config.self.name = {Role::kTarget, 0, 1};
    config.self.incarnation = Incarnation(5);
    state = start_target(config, survived, 0);
    give(ConnectionUp{});
    wire::Welcome w;
    w.member = 3;
    w.lineage = kLineage;
    hear({}, w);
    wire::Configure c;
    c.layout_epoch = LayoutEpoch(1);
    hear({}, c);
    give(PlanMade{LayoutEpoch(1), {5, 5}});
  }
  void give(TargetEventKind e) {
    todo = step(state, {now, std::move(e)}, ignored);
    all.insert(all.end(), todo.begin(), todo.end());
  }
  static wire::Envelope envelope(const Txn& t, wire::Message m) {
    wire::Envelope e;
    e.job = kJob;
    e.epoch = Epoch(1);
    e.txn = t;
    e.party = wire::Party::kCoordinator;
    e.incarnation = Incarnation(1);
    e.message = std::move(m);
    return e;
  }
  void hear(const Txn& t, wire::Message m) { give(Received{envelope(t, std::move(m))}); }
  void done(Task task, const Txn& t) { give(TaskDone{task, t, kDigest, {}}); }
  // Takes the round t up to (not including) step n of the straight way.
  static constexpr int kSteps = 10;
  void advance(const Txn& t, int n) {
    const std::vector<std::function<void()>> way = {
        [&] {
          hear(t, wire::Begin{t.counter, LayoutEpoch(1), {5, 5}, {}, false, 1000, 1000});
        },
        [&] { hear(t, wire::Lend{}); },
        [&] { done(Task::kStage, t); },
        [&] {
          hear(t, wire::Gate{version(t.counter), 100});
        },
        [&] { done(Task::kShutGate, t); },
        [&] { hear(t, wire::Copy{}); },
        [&] { done(Task::kCopy, t); },
        [&] { done(Task::kCaches, t); },
        [&] { hear(t, wire::Open{}); },
        [&] { done(Task::kOpenGate, t); }};
    for (int i = 0; i < n; ++i) way[static_cast<std::size_t>(i)]();
  }
  template <typename A>
  bool did() const {
    return std::any_of(all.begin(), all.end(), [](const TargetAction& a) { return std::holds_alternative<A>(a); });
  }
  template <typename M>
  const M* said() const {
    const M* last = nullptr;
    for (const TargetAction& a : all)
      if (const auto* s = std::get_if<Send>(&a))
        if (const auto* m = std::get_if<M>(&s->envelope.message)) last = m;
    return last;
  }

  TargetState state;
  Ignored ignored;
  std::int64_t now = 0;
  std::vector<TargetAction> todo, all;
};

TEST(TargetTable, StraightWay) {
  Target t;
  const TargetPhase phases[] = {TargetPhase::kEmpty, TargetPhase::kReceiving, TargetPhase::kReceiving,
                                TargetPhase::kVoted, TargetPhase::kApplying};
  for (int n = 0; n < 5; ++n) {
    Target x;
    x.advance(txn(1), n);
    EXPECT_EQ(x.state.phase, phases[n]) << n;
  }
  t.advance(txn(1), Target::kSteps);
  EXPECT_EQ(t.state.phase, TargetPhase::kServing);
  EXPECT_EQ(t.state.word, (wire::CommitWord{wire::Word::kApplied, txn(1)}));
  EXPECT_EQ(t.state.live, version(1));
  EXPECT_TRUE(servable(t.state));
  EXPECT_FALSE(t.state.stage_held);
  EXPECT_EQ(t.state.busy, 0u);
}

TEST(TargetTable, WordEnclosesTheCopy) {
  Target t;
  t.advance(txn(1), 6);
  ASSERT_EQ(t.todo.size(), 3u);
  EXPECT_EQ(std::get<SetWord>(t.todo[0]).word.word, wire::Word::kCopying);
  EXPECT_TRUE(std::holds_alternative<CopyShadowToLive>(t.todo[2]));
  t.done(Task::kCopy, txn(1));
  EXPECT_EQ(t.state.word.word, wire::Word::kCopying);
  t.done(Task::kCaches, txn(1));
  EXPECT_EQ(t.state.word.word, wire::Word::kApplied);
}

// Which round's bytes deltas may stand on.
TEST(TargetTable, TheBaseIsTheAppliedRoundUntilTheCopyOrANo) {
  const auto retained = [](Target& t, const Txn& x) {
    t.advance(x, 6);
    t.give(TaskDone{Task::kCopy, x, kDigest, {}, true});
    t.done(Task::kCaches, x);
    EXPECT_EQ(t.state.base, x);
    t.hear(x, wire::Open{});
    t.done(Task::kOpenGate, x);
  };
  Target t;
  retained(t, txn(1));
  EXPECT_TRUE(t.said<wire::Applied>()->retained);
  // Offered exactly where the round's base is ours and we are not among those without.
  const auto offered = [&](std::uint64_t n, const Txn& base, std::vector<std::uint32_t> without) {
    t.hear(txn(n), wire::Begin{n, LayoutEpoch(1), {5, 5}, {}, false, 1000, 1000, base, without});
    t.hear(txn(n), wire::Lend{});
    const Txn given = std::get<StartStaging>(t.todo.back()).base;
    t.hear(txn(n), wire::Abort{});
    t.done(Task::kStage, txn(n));
    return given;
  };
  EXPECT_EQ(offered(2, txn(1), {}), txn(1));
  EXPECT_EQ(offered(3, txn(1), {2, 3}), Txn{}) << "we are member 3";
  EXPECT_EQ(offered(4, txn(7), {}), Txn{});
  EXPECT_EQ(t.state.base, txn(1)) << "an abort moves nothing";
  // A replan that keeps everything keeps the base; another one does not.
  wire::Configure c;
  c.layout_epoch = LayoutEpoch(2);
  t.hear({}, c);
  t.give(PlanMade{LayoutEpoch(2), {5, 5}, true});
  EXPECT_EQ(t.said<wire::Ready>()->base, txn(1));
  c.layout_epoch = LayoutEpoch(3);
  t.hear({}, c);
  t.give(PlanMade{LayoutEpoch(3), {6, 6}, false});
  EXPECT_EQ(t.said<wire::Ready>()->base, Txn{});

  Target no;
  retained(no, txn(1));
  no.advance(txn(2), 2);
  no.give(TaskFailed{Task::kStage, txn(2), Error(Code::kCorrupt, "x")});
  EXPECT_EQ(no.state.base, Txn{});
  Target copying;
  retained(copying, txn(1));
  copying.advance(txn(2), 6);
  EXPECT_EQ(copying.state.base, Txn{});
  Target plain;
  plain.advance(txn(1), Target::kSteps);
  EXPECT_EQ(plain.state.base, Txn{}) << "not in a form that deltas can stand on";
}

TEST(TargetTable, AbortReturnsToRest) {
  for (const bool served : {false, true})
    for (int n = 1; n <= 3; ++n) {
      Target t;
      if (served) t.advance(txn(1), Target::kSteps);
      const TargetPhase rest = t.state.phase;
      t.advance(txn(2), n);
      t.hear(txn(2), wire::Abort{});
      if (n == 2) t.done(Task::kStage, txn(2));
      EXPECT_EQ(t.state.phase, rest) << n;
      EXPECT_FALSE(t.state.stage_held);
      EXPECT_EQ(servable(t.state), served);
      t.hear(txn(2), wire::Begin{2, LayoutEpoch(1), {5, 5}, {}, false, 1, 1});
      EXPECT_EQ(t.state.phase, rest) << "an aborted round does not begin again";
    }
}

TEST(TargetTable, NoDeadlineFreesAYes) {
  Target t;
  t.advance(txn(1), 3);
  t.now = 1'000'000'000'000;
  t.give(Tick{});
  t.give(ConnectionDown{});
  t.give(Tick{});
  EXPECT_EQ(t.state.phase, TargetPhase::kVoted);
  EXPECT_TRUE(t.state.stage_held);
  t.give(ConnectionUp{});
  EXPECT_EQ(t.said<wire::Hello>()->voted, txn(1));
  wire::Welcome w;
  w.member = 3;
  w.lineage = kLineage;
  t.hear({}, w);
  t.hear(txn(2), wire::Begin{2, LayoutEpoch(1), {5, 5}, {}, false, 1, 1});
  EXPECT_EQ(t.state.txn, txn(1));
}

TEST(TargetTable, TheGateDeadlineFences) {
  for (int n = 4; n <= 9; ++n) {
    Target t;
    t.advance(txn(1), n);
    t.now = 101;
    t.give(Tick{});
    EXPECT_EQ(t.state.phase, TargetPhase::kFenced) << n;
    EXPECT_TRUE(t.did<Fence>());
    EXPECT_FALSE(servable(t.state));
    ASSERT_NE(t.said<wire::Failed>(), nullptr);
    EXPECT_TRUE(t.said<wire::Failed>()->fenced);
  }
}

TEST(TargetTable, FailuresAfterTheDecisionFence) {
  const struct {
    int steps;
    Task task;
  } cases[] = {{4, Task::kShutGate}, {6, Task::kCopy}, {7, Task::kCaches}, {9, Task::kOpenGate}};
  for (const auto& c : cases) {
    Target t;
    t.advance(txn(1), c.steps);
    t.give(TaskFailed{c.task, txn(1), Error(Code::kInternal, "broken")});
    EXPECT_EQ(t.state.phase, TargetPhase::kFenced) << to_string(c.task);
    EXPECT_FALSE(t.state.stage_held);
  }
  Target t;
  t.advance(txn(1), 6);
  t.give(TaskDone{Task::kCopy, txn(1), {{9, 9, 9, 9}, 8}, {}});
  EXPECT_EQ(t.state.phase, TargetPhase::kFenced) << "live digest differs";
}

TEST(TargetTable, ANoIsToldAgain) {
  Target t;
  t.advance(txn(1), 2);
  t.give(TaskFailed{Task::kStage, txn(1), Error(Code::kMismatch, "digest").at_tensor("w")});
  EXPECT_EQ(t.state.phase, TargetPhase::kEmpty);
  t.all.clear();
  t.hear(txn(1), wire::Lend{});
  ASSERT_NE(t.said<wire::Vote>(), nullptr);
  EXPECT_EQ(t.said<wire::Vote>()->error->tensor, "w");
}

wire::Envelope promise(const Lineage& lineage, Epoch epoch) {
  wire::Envelope e = Target::envelope({}, wire::Refused{Error(Code::kBusy, "rebuilding"), true, lineage});
  e.epoch = epoch;
  return e;
}

// C3: the hello under the new epoch is the promise; from then on the old coordinator is not heard.
TEST(TargetTable, APromiseRefusesLowerEpochs) {
  Target t;
  t.advance(txn(1), Target::kSteps);
  t.advance(txn(2), 3);
  t.all.clear();
  t.give(Received{promise(kLineage, Epoch(9))});
  ASSERT_NE(t.said<wire::Hello>(), nullptr);
  EXPECT_EQ(t.said<wire::Hello>()->voted, txn(2));
  EXPECT_EQ(t.said<wire::Hello>()->known, txn(1));
  EXPECT_EQ(t.said<wire::Hello>()->known_version, version(1));
  EXPECT_EQ(t.said<wire::Hello>()->number, 2u);
  EXPECT_EQ(t.said<wire::Hello>()->digest_seed, 0u);
  EXPECT_EQ(t.state.link.epoch, Epoch(9));
  const TargetState before = t.state;
  t.hear(txn(2), wire::Gate{version(2), 100});
  t.hear(txn(2), wire::Abort{});
  EXPECT_TRUE(same(before, t.state));
  EXPECT_EQ(t.state.phase, TargetPhase::kVoted) << "the yes stands";
}

TEST(TargetTable, OnlyWhoHoldsNothingMovesToAnotherLineage) {
  const Lineage other{3, 3};
  for (int n = 0; n <= Target::kSteps; ++n) {
    Target t;
    t.advance(txn(1), n);
    const bool bound = n >= 3;
    t.give(Received{promise(other, Epoch(9))});
    EXPECT_EQ(t.state.link.epoch, bound ? Epoch(1) : Epoch(9)) << n;
    EXPECT_EQ(t.state.link.lineage, bound ? kLineage : other) << n;
    if (!bound) {
      EXPECT_EQ(t.state.phase, TargetPhase::kEmpty) << n;
    }
    wire::Welcome w;
    w.member = 3;
    w.lineage = other;
    wire::Envelope e = Target::envelope({}, w);
    e.epoch = Epoch(9);
    t.give(Received{e});
    EXPECT_EQ(t.state.link.welcomed, !bound) << n;
  }
}

TEST(TargetTable, RepairFromFenced) {
  Target t(Survived{{wire::Word::kCopying, txn(1)}, version(1), {}, false});
  EXPECT_EQ(t.state.phase, TargetPhase::kFenced);
  t.advance(txn(5), Target::kSteps);
  EXPECT_EQ(t.state.phase, TargetPhase::kServing);
  EXPECT_FALSE(t.state.fenced);
}

TEST(TargetTable, LaggingIsShut) {
  Target t(Survived{{wire::Word::kApplied, txn(1)}, version(1), {}, true});
  EXPECT_EQ(t.state.phase, TargetPhase::kServing);
  wire::Welcome w;
  w.member = 3;
  w.lineage = kLineage;
  w.newest = version(2);
  t.hear({}, w);
  EXPECT_EQ(t.state.phase, TargetPhase::kLagging);
  EXPECT_TRUE(t.did<Fence>());
  EXPECT_FALSE(servable(t.state));
}

// Rule 13 over every state of the straight way × every message of an old round, another job, epoch or party.
TEST(TargetTable, ForeignMessagesLeaveTheStateBitEqual) {
  const std::vector<wire::Message> messages = {wire::Begin{9, LayoutEpoch(1), {5, 5}, {}, false, 1, 1},
                                               wire::Lend{},
                                               wire::ReadersDone{},
                                               wire::Gate{version(9), 1},
                                               wire::Copy{},
                                               wire::Open{},
                                               wire::Abort{},
                                               wire::Committed{version(9)},
                                               wire::End{}};
  for (int n = 0; n <= Target::kSteps; ++n)
    for (const wire::Message& m : messages) {
      Target t;
      t.advance(txn(1), Target::kSteps);
      t.advance(txn(3), n);
      const TargetState before = t.state;
      auto expect_same = [&](const char* what, wire::Envelope e) {
        t.give(Received{std::move(e)});
        EXPECT_TRUE(same(before, t.state)) << what << ' ' << wire::kind_name(m) << " at " << n;
      };
      wire::Envelope e = Target::envelope(txn(n == 0 ? 1 : 2), m);
      expect_same("old txn", e);
      e.txn = txn(3);
      e.job = {8, 8};
      expect_same("foreign job", e);
      e.job = kJob;
      e.party = wire::Party::kSource;
      expect_same("wrong party", e);
      e.party = wire::Party::kCoordinator;
      e.epoch = Epoch(0);
      expect_same("old epoch", e);
      EXPECT_EQ(t.ignored.foreign_job, 1u);
      EXPECT_EQ(t.ignored.wrong_party, 1u);
      EXPECT_EQ(t.ignored.old_epoch, 1u);
    }
}

// Late results of tasks, in every state: nothing but the busy bit of that task may change.
TEST(TargetTable, TotalOverLateResults) {
  for (int n = 0; n <= Target::kSteps; ++n)
    for (int task = 0; task < 5; ++task)
      for (const bool ok : {true, false}) {
        Target t;
        t.advance(txn(1), n);
        const TargetState before = t.state;
        if ((before.busy & (1u << task)) != 0) continue;
        if (ok)
          t.done(static_cast<Task>(task), txn(1));
        else
          t.give(TaskFailed{static_cast<Task>(task), txn(1), Error(Code::kInternal, "late")});
        EXPECT_TRUE(same(before, t.state)) << n << ' ' << task;
      }
}

}  // namespace
}  // namespace refit::install
