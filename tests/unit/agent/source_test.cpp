// The source's table: the straight way, aborts at each step, the seal's check, the lend deadline.
#include "agent/source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "agent/member.h"

namespace refit::agent {
namespace {

const Hash128 kJob{7, 7};
const Lineage kLineage{1, 2};
Txn txn(std::uint64_t counter) { return {kLineage, Epoch(1), counter}; }

class Source {
 public:
  Source() {
    install::Identity self;
    self.job = kJob;
    self.incarnation = Incarnation(5);
    state = start_source(self, 0);
    give(install::ConnectionUp{});
    wire::Welcome w;
    w.lineage = kLineage;
    hear({}, w);
    wire::Configure c;
    c.layout_epoch = LayoutEpoch(1);
    hear({}, c);
    give(install::PlanMade{LayoutEpoch(1), {5, 5}});
  }
  void give(SourceEventKind e) {
    todo = step(state, {now, std::move(e)}, ignored);
    all.insert(all.end(), todo.begin(), todo.end());
  }
  void hear(const Txn& t, wire::Message m) {
    wire::Envelope e;
    e.job = kJob;
    e.epoch = Epoch(1);
    e.txn = t;
    e.party = wire::Party::kCoordinator;
    e.incarnation = Incarnation(1);
    e.message = std::move(m);
    give(install::Received{e});
  }
  static constexpr int kSteps = 7;
  void advance(const Txn& t, int n) {
    const std::vector<std::function<void()>> way = {
        [&] {
          hear(t, wire::Begin{t.counter, LayoutEpoch(1), {5, 5}, {}, true, 1000, 1000});
        },
        [&] {
          give(SealDone{t, 1, "policy", {{1, 2, 3, 4}, 8}, {}, 160, {}});
        },
        [&] {
          give(Exposed{t, wire::Bytes(3)});
        },
        [&] { hear(t, wire::ReadersDone{}); },
        [&] { give(SealChecked{t}); },
        [&] {
          hear(t, wire::Committed{{kLineage, t.counter, {}, 1}});
        },
        [&] {
          hear(t, wire::End{wire::Outcome::kCommitted, {kLineage, t.counter, {}, 1}});
        }};
    for (int i = 0; i < n; ++i) way[static_cast<std::size_t>(i)]();
  }
  template <typename A>
  std::ptrdiff_t count() const {
    return std::count_if(all.begin(), all.end(), [](const SourceAction& a) { return std::holds_alternative<A>(a); });
  }

  SourceState state;
  install::Ignored ignored;
  std::int64_t now = 0;
  std::vector<SourceAction> todo, all;
};

TEST(SourceTable, StraightWay) {
  const SourcePhase phases[] = {SourcePhase::kIdle,    SourcePhase::kPreparing, SourcePhase::kSealed,
                                SourcePhase::kLending, SourcePhase::kLending,   SourcePhase::kVoted,
                                SourcePhase::kVoted,   SourcePhase::kIdle};
  for (int n = 0; n <= Source::kSteps; ++n) {
    Source s;
    s.advance(txn(1), n);
    EXPECT_EQ(s.state.phase, phases[n]) << n;
    EXPECT_EQ(s.state.held, n > 0 && n < Source::kSteps) << n;
    EXPECT_EQ(s.count<Withdraw>(), n == Source::kSteps ? 1 : 0);
  }
  Source s;
  s.advance(txn(1), Source::kSteps);
  EXPECT_EQ(s.state.last.number, 1u);
}

// Blocks that are cut over sources: measured, told until it is answered, quantised, sealed.
TEST(SourceTable, TheExchangeStandsBetweenPreparingAndTheSeal) {
  const wire::BlockAmax told{{3, 9}, {1, 2}};
  Source s;
  s.advance(txn(1), 1);
  s.give(AmaxDone{txn(1), told});
  EXPECT_EQ(s.state.phase, SourcePhase::kPreparing);
  const auto sent = [&] {
    return std::ranges::count_if(s.todo, [](const SourceAction& a) {
      const auto* send = std::get_if<install::Send>(&a);
      return send != nullptr && std::holds_alternative<wire::BlockAmax>(send->envelope.message);
    });
  };
  EXPECT_EQ(sent(), 1);
  // The coordinator asks again: the word or its answer was lost.
  s.hear(txn(1), wire::Begin{1, LayoutEpoch(1), {5, 5}, {}, true, 1000, 1000});
  EXPECT_EQ(sent(), 1);
  s.hear(txn(2), wire::BlockAmaxMerged{{1, 2}});
  EXPECT_EQ(s.count<Quantise>(), 0);
  s.hear(txn(1), wire::BlockAmaxMerged{{1, 4}});
  ASSERT_EQ(s.count<Quantise>(), 1);
  s.hear(txn(1), wire::BlockAmaxMerged{{1, 8}});  // a repeat: the first answer counts
  EXPECT_EQ(s.count<Quantise>(), 1);
  for (const SourceAction& a : s.all)
    if (const auto* q = std::get_if<Quantise>(&a)) {
      EXPECT_EQ(q->amax, (std::vector<float>{1, 4}));
    }
  s.give(SealDone{txn(1), 1, "policy", {{1, 2, 3, 4}, 8}, {}, 160, {}});
  EXPECT_EQ(s.state.phase, SourcePhase::kSealed);

  // An answer about other blocks, an abort while it is out: nothing is quantised.
  Source other;
  other.advance(txn(1), 1);
  other.give(AmaxDone{txn(1), told});
  other.hear(txn(1), wire::BlockAmaxMerged{{1}});
  EXPECT_EQ(other.state.phase, SourcePhase::kIdle);
  EXPECT_EQ(other.count<Release>(), 1);
  Source aborted;
  aborted.advance(txn(1), 1);
  aborted.give(AmaxDone{txn(1), told});
  aborted.hear(txn(1), wire::Abort{});
  aborted.hear(txn(1), wire::BlockAmaxMerged{{1, 2}});
  EXPECT_EQ(aborted.count<Quantise>() + other.count<Quantise>(), 0);
  EXPECT_FALSE(aborted.state.held);
}

TEST(SourceTable, AbortReleasesEverything) {
  for (int n = 1; n <= 5; ++n) {
    Source s;
    s.advance(txn(1), n);
    s.hear(txn(1), wire::Abort{});
    EXPECT_EQ(s.state.phase, SourcePhase::kIdle);
    EXPECT_FALSE(s.state.held);
    EXPECT_FALSE(s.state.lent);
    EXPECT_EQ(s.count<Release>(), 1);
    // A result of the aborted round comes late: an exposure is taken back, nothing else happens.
    if (n == 2) {
      s.give(Exposed{txn(1), {}});
      EXPECT_EQ(s.count<Withdraw>(), 1);
    }
  }
}

TEST(SourceTable, WrittenWhileLentIsANo) {
  Source s;
  s.advance(txn(1), 4);
  s.give(SourceTaskFailed{SourceTask::kCheckSeal, txn(1), Error(Code::kMismatch, "written")});
  EXPECT_EQ(s.state.phase, SourcePhase::kIdle);
  ASSERT_TRUE(s.state.left);
  s.all.clear();
  s.hear(txn(1), wire::ReadersDone{});
  EXPECT_EQ(s.count<install::Send>(), 1) << "the no is told again";
}

TEST(SourceTable, TheLendDeadlineFreesTheTrainerButNotTheYes) {
  Source voted;
  voted.advance(txn(1), 5);
  voted.now = 1001;
  voted.give(install::Tick{});
  EXPECT_EQ(voted.state.phase, SourcePhase::kVoted);
  EXPECT_FALSE(voted.state.held);
  EXPECT_EQ(voted.count<Withdraw>(), 1);
  voted.hear(txn(1), wire::End{wire::Outcome::kCommitted, {kLineage, 1, {}, 1}});
  EXPECT_EQ(voted.state.phase, SourcePhase::kIdle);
  EXPECT_EQ(voted.count<Release>(), 1);

  Source lending;
  lending.advance(txn(1), 3);
  lending.now = 1001;
  lending.give(install::Tick{});
  EXPECT_EQ(lending.state.phase, SourcePhase::kIdle);
  ASSERT_TRUE(lending.state.left);
  EXPECT_EQ(lending.state.left->second.code, Code::kTimeout);
}

TEST(SourceTable, AHelloTellsWhatALostJournalIsRebuiltFrom) {
  Source s;
  s.advance(txn(1), Source::kSteps);
  s.advance(txn(2), 5);
  s.all.clear();
  wire::Envelope e;
  e.job = kJob;
  e.epoch = Epoch(9);
  e.party = wire::Party::kCoordinator;
  e.message = wire::Refused{Error(Code::kBusy, "rebuilding"), true, kLineage};
  s.give(install::Received{e});
  ASSERT_EQ(s.count<install::Send>(), 1);
  const auto& sent = std::get<install::Send>(s.all.back()).envelope;
  const auto& hello = std::get<wire::Hello>(sent.message);
  EXPECT_EQ(sent.epoch, Epoch(9));
  EXPECT_EQ(hello.known, txn(1));
  EXPECT_EQ(hello.known_version.number, 1u);
  EXPECT_EQ(hello.voted, txn(2));
  EXPECT_EQ(hello.number, 2u);
}

TEST(SourceTable, ARoundWhoseEndNobodyKnowsFreesTheTrainer) {
  Source s;
  s.advance(txn(1), Source::kSteps);
  s.advance(txn(2), 6);
  s.hear(txn(2), wire::End{wire::Outcome::kInDoubt, {}});
  EXPECT_EQ(s.state.phase, SourcePhase::kIdle);
  EXPECT_FALSE(s.state.held);
  EXPECT_EQ(s.state.last.number, 2u) << "as it was told with the decision";
}

TEST(SourceTable, OldRoundsLeaveTheStateBitEqual) {
  const std::vector<wire::Message> messages = {wire::Begin{2, LayoutEpoch(1), {5, 5}, {}, false, 1, 1},
                                               wire::ReadersDone{}, wire::Abort{},
                                               wire::Committed{{kLineage, 2, {}, 1}}, wire::End{}};
  for (int n = 0; n <= Source::kSteps; ++n)
    for (const wire::Message& m : messages) {
      Source s;
      s.advance(txn(1), Source::kSteps);
      s.advance(txn(3), n);
      const SourceState before = s.state;
      s.hear(txn(n == 0 ? 1 : 2), m);
      EXPECT_TRUE(same(before, s.state)) << wire::kind_name(m) << " at " << n;
    }
}

// A seal that still runs when its round is over must hear so, whatever else is started meanwhile.
TEST(TaskProgress, StartingATaskTakesNoCancellationBack) {
  TaskProgress p;
  const std::uint64_t seal = p.start(Phase::kSeal);
  EXPECT_FALSE(p.cancelled(seal));
  p.cancel_all();
  const std::uint64_t next = p.start(Phase::kSeal);
  EXPECT_TRUE(p.cancelled(seal));
  EXPECT_FALSE(p.cancelled(next));
  p.cancel_all();
  EXPECT_TRUE(p.cancelled(next));
}

}  // namespace
}  // namespace refit::agent
