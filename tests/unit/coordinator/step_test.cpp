// The coordinator's table where the simulation can't look: status text, refusals, errors.
#include "coordinator/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/coordinator.h"

namespace refit::coordinator {
namespace {

using testing::HasSubstr;

class Coordinator : public testing::Test {
 protected:
  void SetUp() override {
    config.job = {7, 7};
    config.shape = {1, 1, 2, 1};
    config.incarnation = Incarnation(99);
    Step begun = start(config, {}, {1, 1}, 42, 0);
    state = std::move(begun.state);
    settle(begun.todo);
  }
  // Appends succeed at once; what is sent is kept.
  void settle(const std::vector<Action>& todo) {
    for (const Action& a : todo) {
      if (const auto* append = std::get_if<Append>(&a)) {
        if (hold_appends)
          held = append->ticket;
        else
          give(Appended{append->ticket});
      }
      if (const auto* send = std::get_if<Send>(&a)) sent.push_back(*send);
      if (const auto* report = std::get_if<Report>(&a)) reports.push_back(report->result);
    }
  }
  void give(EventKind e) { settle(step(state, {now, std::move(e)})); }
  wire::Envelope from(std::uint32_t member, wire::Message m, const Txn& txn = {}) {
    wire::Envelope e;
    const MemberName name = config.shape.name(member);
    e.job = config.job;
    e.epoch = state.epoch;
    e.txn = txn;
    e.party = wire::party_of(name.role);
    e.instance = name.instance;
    e.rank = name.rank;
    e.member = member;
    e.incarnation = Incarnation(100 + member);
    e.sequence = ++sequence;
    e.message = std::move(m);
    return e;
  }
  void say(std::uint32_t member, wire::Message m) {
    give(Received{member + 1, from(member, std::move(m), state.round ? state.round->record.txn : Txn{})});
  }
  void join() {
    for (std::uint32_t m = 0; m < 3; ++m) {
      wire::Hello h;
      h.layout_digest = {1, m < config.shape.sources() ? 1u : 2u};
      give(Received{m + 1, from(m, h)});
    }
    for (std::uint32_t m = 0; m < 3; ++m) give(Received{m + 1, from(m, wire::Ready{state.layout_epoch, {5, 5}})});
  }
  void to_staging() {
    join();
    give(BeginRound{});
    wire::Sealed sealed;
    sealed.step = 3;
    sealed.digest = {{1, 2, 3, 4}, 8};
    say(0, sealed);
  }
  template <typename M>
  int count(std::uint32_t member) const {
    int n = 0;
    for (const Send& s : sent) n += s.connection == member + 1 && std::holds_alternative<M>(s.envelope.message) ? 1 : 0;
    return n;
  }

  Config config;
  State state;
  std::int64_t now = 1;
  std::uint64_t sequence = 0, held = 0;
  bool hold_appends = false;
  std::vector<Send> sent;
  std::vector<RoundResult> reports;
};

class TwoSources : public Coordinator {
 protected:
  void SetUp() override {
    config.job = {7, 7};
    config.shape = {1, 2, 1, 1};
    config.incarnation = Incarnation(99);
    Step begun = start(config, {}, {1, 1}, 42, 0);
    state = std::move(begun.state);
    settle(begun.todo);
    join();
    give(BeginRound{});
  }
  std::vector<float> answer(std::uint32_t member) const {
    for (auto s = sent.rbegin(); s != sent.rend(); ++s)
      if (const auto* m = std::get_if<wire::BlockAmaxMerged>(&s->envelope.message); m && s->connection == member + 1)
        return m->amax;
    return {};
  }
};

// Blocks that are cut over sources: the largest of each, in the order asked, once all have spoken.
TEST_F(TwoSources, LargestMagnitudesAreMergedPerBlock) {
  say(0, wire::BlockAmax{{3, 5, 9}, {1, 2, 3}});
  EXPECT_EQ(count<wire::BlockAmaxMerged>(0), 0);
  // Who has told its own waits for the others: it is neither asked again nor blamed.
  sent.clear();
  now += config.resend_ns + 1;
  give(Tick{});
  EXPECT_EQ(count<wire::Begin>(0), 0);
  EXPECT_EQ(count<wire::Begin>(1), 1);
  say(0, wire::BlockAmax{{3, 5, 9}, {100, 2, 3}});  // a repeat does not change its word
  say(1, wire::BlockAmax{{5, 9, 12}, {7, 1, 4}});
  EXPECT_EQ(answer(0), (std::vector<float>{1, 7, 3}));
  EXPECT_EQ(answer(1), (std::vector<float>{7, 3, 4}));
  // Its answer was lost.
  sent.clear();
  say(1, wire::BlockAmax{{5, 9, 12}, {7, 1, 4}});
  EXPECT_EQ(answer(1), (std::vector<float>{7, 3, 4}));
  EXPECT_EQ(count<wire::BlockAmaxMerged>(0), 0);
  // A target has no say, nor has a source of another round.
  const State before = state;
  give(Received{1, from(0, wire::BlockAmax{{1}, {1}}, {state.journal.lineage, state.epoch, 77})});
  say(2, wire::BlockAmax{{1}, {1}});
  EXPECT_TRUE(same(before, state));
}

// Z1: a proven key speaks for its member and nobody else, whatever the message says of its sender.
TEST_F(Coordinator, AKeySpeaksForItsMemberOnly) {
  join();
  const MemberName keys[] = {
      {Role::kSource, 0, 0}, {Role::kTarget, 0, 0}, {Role::kTarget, 1, 0}, {Role::kClient, 0, 0}};
  for (const MemberName& key : keys)
    for (std::uint32_t m = 0; m < 3; ++m) {
      const bool own = key == config.shape.name(m);
      const State before = state;
      sent.clear();
      give(Received{m + 1, from(m, wire::Heartbeat{}), key});
      EXPECT_EQ(state.dropped.wrong_key - before.dropped.wrong_key, own ? 0u : 1u) << key.to_string() << m;
      if (!own) {
        EXPECT_TRUE(same(before, state));
        ASSERT_EQ(sent.size(), 1u);
        const auto* refused = std::get_if<wire::Refused>(&sent[0].envelope.message);
        ASSERT_NE(refused, nullptr);
        EXPECT_THAT(refused->error.message, HasSubstr("the key of " + key.to_string()));
        EXPECT_FALSE(refused->hello_again);
      }
    }
  wire::Envelope ask;
  ask.party = wire::Party::kClient;
  ask.incarnation = Incarnation(5);
  ask.message = wire::StatusRequest{3};
  sent.clear();
  give(Received{9, ask, keys[3]});
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<wire::StatusReply>(sent[0].envelope.message));
  for (int i = 0; i < 3; ++i) {
    sent.clear();
    give(Received{9, ask, keys[i]});
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_TRUE(std::holds_alternative<wire::Refused>(sent[0].envelope.message));
  }
  EXPECT_THAT(status_json(state), HasSubstr("\"wrong_key\":12"));
}

TEST_F(Coordinator, StatusTellsWhatASourceOffers) {
  join();
  EXPECT_THAT(status_json(state), HasSubstr("\"published\":null"));
  wire::Heartbeat offer;
  offer.published = 41;
  give(Received{1, from(0, offer)});
  EXPECT_THAT(status_json(state), HasSubstr("\"published\":41"));
}

// The next Begin tells whose bytes deltas may stand on.
TEST_F(Coordinator, BeginNamesTheBaseAndWhoHasAnother) {
  const auto round = [&](bool first, bool second) {
    wire::Sealed sealed;
    sealed.digest = {{1, 2, 3, 4}, 8};
    say(0, sealed);
    for (std::uint32_t t : {1u, 2u}) {
      say(t, wire::Staged{{{1, 2, 3, 4}, 8}, {}});
      say(t, wire::Vote{true, {}});
    }
    say(0, wire::Vote{true, {}});
    for (std::uint32_t t : {1u, 2u}) {
      say(t, wire::Gated{});
      say(t, wire::Applied{{{1, 2, 3, 4}, 8}, {}, 5, t == 1 ? first : second});
      say(t, wire::Reopened{9});
    }
  };
  join();
  give(BeginRound{});
  EXPECT_EQ(state.round->begin.base, Txn{});
  round(true, false);
  const Txn one = state.journal.newest->txn;
  give(BeginRound{});
  EXPECT_EQ(state.round->begin.base, one);
  EXPECT_EQ(state.round->begin.without, std::vector<std::uint32_t>{2});
  round(true, true);
  give(BeginRound{});
  EXPECT_TRUE(state.round->begin.without.empty());
  // Who says no gets complete buckets next time; with nobody left there is no base.
  wire::Sealed sealed;
  sealed.digest = {{1, 2, 3, 4}, 8};
  say(0, sealed);
  say(1, wire::Vote{false, Error(Code::kCorrupt, "x")});
  give(BeginRound{});
  EXPECT_EQ(state.round->begin.base, state.journal.newest->txn);
  EXPECT_EQ(state.round->begin.without, std::vector<std::uint32_t>{1});
  say(0, sealed);
  say(2, wire::Vote{false, Error(Code::kCorrupt, "x")});
  give(BeginRound{});
  EXPECT_EQ(state.round->begin.base, Txn{});
  EXPECT_TRUE(state.round->begin.without.empty());
  // Likewise when the no comes after another's has ended the round.
  round(true, true);
  give(BeginRound{});
  EXPECT_TRUE(state.round->begin.without.empty());
  wire::Envelope late = from(2, wire::Vote{false, Error(Code::kTimeout, "y")});
  late.txn = state.round->record.txn;
  say(0, sealed);
  say(1, wire::Vote{false, Error(Code::kTimeout, "x")});
  ASSERT_FALSE(state.round);
  give(Received{3, late});
  give(BeginRound{});
  EXPECT_EQ(state.round->begin.base, Txn{});
}

TEST_F(Coordinator, AWholeRound) {
  to_staging();
  for (std::uint32_t t : {1u, 2u}) {
    say(t, wire::Staged{{{1, 2, 3, 4}, 8}, {}});
    say(t, wire::Vote{true, {}});
  }
  EXPECT_EQ(count<wire::ReadersDone>(0), 1);
  say(0, wire::Vote{true, {}});
  EXPECT_EQ(count<wire::Committed>(0), 1);
  for (std::uint32_t t : {1u, 2u}) {
    EXPECT_EQ(count<wire::Gate>(t), 1);
    say(t, wire::Gated{});
    EXPECT_EQ(count<wire::Copy>(t), 1);
    say(t, wire::Applied{{{1, 2, 3, 4}, 8}, {}, 5});
    EXPECT_EQ(count<wire::Open>(t), 1);
    say(t, wire::Reopened{9});
  }
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].outcome, wire::Outcome::kCommitted);
  EXPECT_TRUE(reports[0].all_applied);
  EXPECT_EQ(reports[0].max_pause_ns, 9);
  EXPECT_EQ(count<wire::End>(0), 1);
  EXPECT_THAT(status_json(state), HasSubstr("\"number\":1"));
}

TEST_F(Coordinator, NothingIsToldBeforeTheDecisionIsDurable) {
  to_staging();
  for (std::uint32_t t : {1u, 2u}) {
    say(t, wire::Staged{{{1, 2, 3, 4}, 8}, {}});
    say(t, wire::Vote{true, {}});
  }
  hold_appends = true;
  sent.clear();
  say(0, wire::Vote{true, {}});
  give(Gone{1});
  now += 10;
  give(Tick{});
  EXPECT_TRUE(sent.empty());
  give(AppendFailed{held, Error(Code::kExhausted, "disk full")});
  EXPECT_TRUE(sent.empty());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].outcome, wire::Outcome::kInDoubt);
  EXPECT_EQ(state.stage, Stage::kStopped);
}

TEST_F(Coordinator, ALostTargetIsNamedWithItsBucket) {
  to_staging();
  say(1, wire::Heartbeat{wire::MemberState::kReceiving, Phase::kTransfer, 1, 3, 100, "4 from source:0.0"});
  give(Gone{2});
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].outcome, wire::Outcome::kAborted);
  EXPECT_EQ(reports[0].error->code, Code::kPeerLost);
  EXPECT_EQ(reports[0].error->peer, "target:0.0");
  EXPECT_EQ(reports[0].error->stage, "transfer");
  EXPECT_EQ(reports[0].error->bucket, "4 from source:0.0");
}

TEST_F(Coordinator, ASilentTargetIsNamedAtTheStallDeadline) {
  to_staging();
  state.config.silence_ns = 1'000'000'000'000;
  state.config.gap_ns = 1'000'000'000'000;
  now += 31'000'000'000;
  give(Tick{});
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].error->code, Code::kTimeout);
  EXPECT_THAT(reports[0].error->peer, HasSubstr("target:"));
}

TEST_F(Coordinator, AfterALoopGapNobodyIsBlamed) {
  to_staging();
  now += 31'000'000'000;
  give(Tick{});
  EXPECT_TRUE(reports.empty());
  EXPECT_TRUE(state.reading_epoch);
  give(EpochRead{Epoch(2)});
  EXPECT_EQ(state.stage, Stage::kStopped);
}

// Nobody speaks to an idle coordinator that was overtaken: it looks at its journal by itself.
TEST_F(Coordinator, AnIdleOneLooksWhetherAnotherHasTakenOver) {
  int reads = 0;
  const auto tick = [&](std::int64_t ns) {
    now += ns;
    for (const Action& a : step(state, {now, Tick{}})) reads += std::holds_alternative<ReadEpoch>(a) ? 1 : 0;
  };
  for (int i = 0; i < 99; ++i) tick(config.look_ns / 100);
  EXPECT_EQ(reads, 0);
  tick(config.look_ns / 50);
  EXPECT_EQ(reads, 1);
  EXPECT_FALSE(state.reading_epoch);  // nothing waits for the answer
  give(EpochRead{Epoch(1)});
  EXPECT_EQ(state.stage, Stage::kIdle);
  give(EpochRead{Epoch(4)});
  ASSERT_EQ(state.stage, Stage::kStopped);
  EXPECT_THAT(state.stopped->message, testing::AllOf(HasSubstr("of epoch 4"), HasSubstr("of epoch 1 ")));
}

// Which base a target holds decides what it is sent: two states that differ in it are not the same.
TEST_F(Coordinator, TheBaseOfATargetIsPartOfTheState) {
  join();
  const State before = state;
  give(Received{2, from(1, wire::Ready{state.layout_epoch, {5, 5}, {{1, 1}, Epoch(1), 3}})});
  EXPECT_FALSE(same(before, state));
}

TEST_F(Coordinator, AJournalThatForgotItsEpochEndsIt) {
  give(EpochRead{Epoch(0)});
  EXPECT_EQ(state.stage, Stage::kStopped);
}

TEST_F(Coordinator, AMemberOfAHigherEpochEndsItNamingBoth) {
  to_staging();
  wire::Envelope e = from(1, wire::Heartbeat{});
  e.epoch = Epoch(9);
  give(Received{2, e});
  ASSERT_EQ(state.stage, Stage::kStopped);
  EXPECT_EQ(state.stopped->peer, "target:0.0");
  EXPECT_THAT(state.stopped->message, testing::AllOf(HasSubstr("of epoch 9"), HasSubstr("of epoch 1 ")));
}

TEST_F(Coordinator, OwnersThatDifferAreBothNamed) {
  config.shape = {1, 2, 1, 1};
  Step begun = start(config, {}, {1, 1}, 42, 0);
  state = std::move(begun.state);
  settle(begun.todo);
  join();
  give(BeginRound{});
  wire::Sealed sealed;
  sealed.step = 3;
  sealed.groups = {{{9, 9}, {{1, 1, 1, 1}, 4}}};
  say(0, sealed);
  sealed.groups[0].digest.word[0] = 2;
  say(1, sealed);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_THAT(reports[0].error->message, testing::AllOf(HasSubstr("source:0.0"), HasSubstr("source:0.1")));
}

// The journal was compacted or rebuilt: how rounds before its newest commit ended is known no longer.
TEST_F(Coordinator, WhoIsInsideAForgottenRoundIsFreed) {
  join();
  state.journal.forgotten = {state.journal.lineage, Epoch(1), 5};
  const Txn old{state.journal.lineage, Epoch(1), 3};
  give(Received{1, from(0, wire::Heartbeat{wire::MemberState::kSourceVoted, {}, 0, 0, 0, {}}, old)});
  give(Received{2, from(1, wire::Heartbeat{wire::MemberState::kReceiving, {}, 0, 0, 0, {}}, old)});
  ASSERT_EQ(count<wire::End>(0), 1);
  EXPECT_EQ(std::get<wire::End>(sent[sent.size() - 2].envelope.message).outcome, wire::Outcome::kInDoubt);
  EXPECT_EQ(count<wire::Abort>(1), 1);
}

TEST_F(Coordinator, StrangersAreRefusedByName) {
  join();
  sent.clear();
  wire::Envelope e = from(2, wire::Hello{});
  e.instance = 7;
  give(Received{9, e});
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_THAT(std::get<wire::Refused>(sent[0].envelope.message).error.message, HasSubstr("target:7.0"));
}

TEST_F(Coordinator, VerifyNamesWhoIsMissing) {
  join();
  give(AskVerify{1, wire::Domain::kLive, 1'000'000});
  ASSERT_EQ(state.verifies.size(), 1u);
  const std::string json = verify_json(state, state.verifies[0]);
  EXPECT_THAT(json, testing::AllOf(HasSubstr("\"ok\":false"), HasSubstr("target:1.0")));
}

}  // namespace
}  // namespace refit::coordinator
