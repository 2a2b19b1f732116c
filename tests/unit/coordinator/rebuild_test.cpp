// The journal was lost: what the coordinator makes of the members' words (end of rule C3).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/coordinator.h"
#include "coordinator/step.h"

namespace refit::coordinator {
namespace {

using testing::HasSubstr;
using wire::MemberState;

const Lineage kLost{5, 5}, kOther{6, 6};
Txn lost(std::uint64_t counter) { return {kLost, Epoch(3), counter}; }
Version version(std::uint64_t number) { return {kLost, number, {9, number}, 1}; }

// One source (member 0), one replica of two ranks (1, 2), another of two (3, 4).
class Rebuilding : public testing::Test {
 protected:
  void SetUp() override {
    config.job = {7, 7};
    config.shape = {1, 1, 2, 2};
    config.incarnation = Incarnation(99);
    Step begun = start(config, {}, {1, 1}, 42, 0);
    state = std::move(begun.state);
    settle(begun.todo);
    for (std::uint32_t m = 0; m < config.shape.members(); ++m) {
      epoch[m] = Epoch(3);
      words[m].lineage = kLost;
      words[m].digest_seed = 77;
      words[m].number = 8;
      words[m].seen = lost(8);
      words[m].layout_digest = {1, m < 1 ? 1u : 2u};
      words[m].state = m < 1 ? MemberState::kIdle : MemberState::kServing;
    }
  }
  void applied(std::uint32_t m, std::uint64_t round) {
    words[m].known = lost(round);
    words[m].known_version = words[m].last = version(round);
    if (m > 0) words[m].word = {wire::Word::kApplied, lost(round)};
  }
  void voted(std::uint32_t m, std::uint64_t round) {
    words[m].voted = lost(round);
    words[m].state = m < 1 ? MemberState::kSourceVoted : MemberState::kVoted;
  }
  void settle(const std::vector<Action>& todo) {
    for (const Action& a : todo) {
      if (const auto* append = std::get_if<Append>(&a)) {
        for (const Record& r : append->records) written.push_back(r);
        give(Appended{append->ticket});
      }
      const auto* send = std::get_if<Send>(&a);
      if (send == nullptr) continue;
      sent.push_back(*send);
      const auto* refused = std::get_if<wire::Refused>(&send->envelope.message);
      const std::uint32_t m = send->connection - 1;
      if (refused == nullptr || refused->promise == Lineage{} || silent.contains(m)) continue;
      epoch[m] = send->envelope.epoch;  // the promise
      promises.push_back(m);
    }
  }
  void give(EventKind e) { settle(step(state, {now, std::move(e)})); }
  void hello(std::uint32_t m) {
    wire::Envelope e;
    const MemberName name = config.shape.name(m);
    e.job = config.job;
    e.epoch = epoch[m];
    e.party = wire::party_of(name.role);
    e.instance = name.instance;
    e.rank = name.rank;
    e.incarnation = Incarnation(100 + m);
    e.sequence = ++sequence;
    e.message = words[m];
    give(Received{m + 1, e});
  }
  void all_say_hello() {
    for (std::uint32_t m = 0; m < config.shape.members(); ++m)
      if (!silent.contains(m)) hello(m);
  }
  void pass_deadline() {
    now += config.rebuild_ns + 1;
    state.last_tick_ns = now;  // the loop did not stand still
    give(Tick{});
  }
  const SnapshotRecord* rebuilt() const {
    const SnapshotRecord* found = nullptr;
    for (const Record& r : written)
      if (const auto* s = std::get_if<SnapshotRecord>(&r.body)) found = s;
    return found;
  }
  bool aborted(const Txn& txn) const {
    return std::any_of(written.begin(), written.end(), [&](const Record& r) {
      const auto* a = std::get_if<AbortRecord>(&r.body);
      return a != nullptr && a->txn == txn;
    });
  }
  template <typename M>
  const M* said(std::uint32_t m) const {
    const M* last = nullptr;
    for (const Send& s : sent)
      if (s.connection == m + 1)
        if (const auto* found = std::get_if<M>(&s.envelope.message)) last = found;
    return last;
  }

  Config config;
  State state;
  std::int64_t now = 1;
  std::uint64_t sequence = 0;
  std::map<std::uint32_t, wire::Hello> words;
  std::map<std::uint32_t, Epoch> epoch;
  std::set<std::uint32_t> silent;
  std::vector<std::uint32_t> promises;
  std::vector<Record> written;
  std::vector<Send> sent;
};

TEST_F(Rebuilding, AnyoneAppliedIsACommit) {
  for (std::uint32_t m : {0u, 1u, 2u, 3u, 4u}) voted(m, 8);
  applied(1, 8);
  words[1].state = MemberState::kApplying;
  all_say_hello();
  EXPECT_EQ(promises.size(), 5u);
  EXPECT_EQ(rebuilt(), nullptr) << "nothing is decided before all have promised";
  all_say_hello();
  ASSERT_NE(rebuilt(), nullptr);
  ASSERT_TRUE(rebuilt()->newest);
  EXPECT_EQ(rebuilt()->newest->txn, lost(8));
  EXPECT_TRUE(rebuilt()->open_committed) << "members that hold their stage finish the copy";
  EXPECT_EQ(rebuilt()->open->members.size(), 5u);
  EXPECT_TRUE(rebuilt()->evicted.empty());
  EXPECT_EQ(state.journal.lineage, kLost);
  EXPECT_EQ(state.journal.digest_seed, 77u);
  EXPECT_GT(state.epoch, Epoch(3));
  EXPECT_GT(state.highest_number, 8u);
  EXPECT_EQ(said<wire::Welcome>(3), nullptr) << "told only what is durable, at the next hello";
  all_say_hello();
  ASSERT_NE(said<wire::Welcome>(3), nullptr);
  EXPECT_EQ(said<wire::Welcome>(3)->newest.number, 8u);
  now += config.resend_ns + 1;
  give(Tick{});
  EXPECT_NE(said<wire::Gate>(3), nullptr);
  EXPECT_FALSE(aborted(lost(8)));
}

TEST_F(Rebuilding, NobodyAppliedIsAnAbort) {
  for (const bool all : {true, false}) {
    SetUp();
    written.clear();
    for (std::uint32_t m : {0u, 1u, 2u, 3u, 4u}) {
      applied(m, 7);
      if (all || m != 3) voted(m, 8);
    }
    all_say_hello();
    EXPECT_FALSE(aborted(lost(8))) << "not before every promise";
    all_say_hello();
    ASSERT_NE(rebuilt(), nullptr);
    EXPECT_EQ(rebuilt()->newest->txn, lost(7));
    EXPECT_TRUE(aborted(lost(8)));
    EXPECT_FALSE(state.round);
    EXPECT_GE(state.journal.number, 8u) << "its number is burnt";
  }
}

TEST_F(Rebuilding, TheSilentAreEvictedAtTheDeadlineAndFenceThemselvesLater) {
  for (std::uint32_t m : {0u, 1u, 2u}) applied(m, 7);
  for (std::uint32_t m : {3u, 4u}) applied(m, 8);  // ahead of the others, and not heard in time
  silent = {3, 4};
  all_say_hello();
  EXPECT_TRUE(promises.empty());
  pass_deadline();
  EXPECT_EQ(promises.size(), 3u);
  all_say_hello();
  EXPECT_EQ(rebuilt(), nullptr);
  pass_deadline();
  ASSERT_NE(rebuilt(), nullptr);
  EXPECT_EQ(rebuilt()->newest->txn, lost(7));
  EXPECT_THAT(rebuilt()->evicted, testing::ElementsAre(Seat{3, Incarnation{}}, Seat{4, Incarnation{}}));
  hello(3);
  ASSERT_NE(said<wire::Evict>(3), nullptr);
  EXPECT_EQ(said<wire::Welcome>(3), nullptr);
  words[3].state = MemberState::kFenced;
  epoch[3] = state.epoch;
  hello(3);
  EXPECT_NE(said<wire::Welcome>(3), nullptr);
  EXPECT_GT(state.highest_number, (std::uint64_t{1} << 20)) << "above numbers that only the silent have heard";
}

TEST_F(Rebuilding, AReplicaThatIsNotWholeIsFencedWhole) {
  for (std::uint32_t m : {0u, 1u, 2u}) applied(m, 8);
  voted(3, 8);
  words[4] = {};  // restarted: Empty
  words[4].layout_digest = {1, 2};
  epoch[4] = {};
  all_say_hello();
  all_say_hello();
  ASSERT_NE(rebuilt(), nullptr);
  EXPECT_FALSE(rebuilt()->open) << "nobody can finish it";
  EXPECT_THAT(rebuilt()->evicted, testing::ElementsAre(Seat{3, Incarnation(103)}));
}

TEST_F(Rebuilding, ContradictionsNameBothMembersAndDecideNothing) {
  const struct {
    const char* what;
    std::function<void(wire::Hello&)> change;
  } cases[] = {{"lineages", [](wire::Hello& h) { h.lineage = kOther; }},
               {"seeds", [](wire::Hello& h) { h.digest_seed = 78; }},
               {"versions",
                [](wire::Hello& h) {
                  h.known_version.digest = {1, 1};
                }},
               {"versions", [](wire::Hello& h) { h.known.counter = 7; }}};
  for (const auto& c : cases) {
    SetUp();
    written.clear();
    sent.clear();
    for (std::uint32_t m : {0u, 1u, 2u, 3u, 4u}) applied(m, 8);
    c.change(words[2]);
    all_say_hello();
    all_say_hello();
    EXPECT_EQ(rebuilt(), nullptr) << c.what;
    ASSERT_NE(said<wire::Refused>(2), nullptr);
    EXPECT_THAT(said<wire::Refused>(2)->error.message,
                testing::AllOf(HasSubstr("source:0.0"), HasSubstr("target:0.1"), HasSubstr(c.what)));
    // The wrong one is restarted: the others' words stand.
    give(Gone{3});
    words[2] = {};
    words[2].layout_digest = {1, 2};
    epoch[2] = {};
    wire::Envelope e;
    e.job = config.job;
    e.party = wire::Party::kTarget;
    e.rank = 1;
    e.incarnation = Incarnation(500);
    e.message = words[2];
    give(Received{30, e});
    EXPECT_FALSE(state.rebuild->blocked) << c.what;
  }
}

TEST_F(Rebuilding, AJournalWithARoundIsNeverGivenUp) {
  state.journal.counter = 1;
  applied(1, 8);
  hello(1);
  EXPECT_FALSE(state.rebuild);
  ASSERT_NE(said<wire::Refused>(1), nullptr);
  EXPECT_THAT(said<wire::Refused>(1)->error.message, HasSubstr("lineage"));
}

TEST_F(Rebuilding, WhoHoldsNothingTakesAnyLineage) {
  for (std::uint32_t m : {0u, 1u, 2u, 3u, 4u}) words[m].lineage = kOther, epoch[m] = Epoch(1);
  all_say_hello();
  EXPECT_FALSE(state.rebuild);
  ASSERT_NE(said<wire::Welcome>(4), nullptr);
  EXPECT_EQ(said<wire::Welcome>(4)->lineage, state.journal.lineage);
  EXPECT_EQ(state.journal.lineage, (Lineage{1, 1}));
}

// Two hosts, each with some of the members: they ask for different epochs, and the lower one ends when it hears the other.
TEST_F(Rebuilding, TwoAtOnceAreToldApart) {
  for (std::uint32_t m = 0; m < 5; ++m) applied(m, 7);
  silent = {3, 4};
  all_say_hello();
  pass_deadline();
  const State first = state;
  config.incarnation = Incarnation(100);
  Step begun = start(config, {}, {2, 2}, 43, now);
  state = std::move(begun.state);
  settle(begun.todo);
  silent = {0, 1, 2};
  all_say_hello();
  pass_deadline();
  const Epoch second = state.epoch;
  ASSERT_GT(second, first.epoch);
  state = first;
  silent = {3, 4};
  all_say_hello();
  pass_deadline();
  ASSERT_NE(rebuilt(), nullptr);
  ASSERT_EQ(state.stage, Stage::kIdle);
  hello(3);  // it has promised the other's epoch
  ASSERT_EQ(state.stage, Stage::kStopped);
  EXPECT_THAT(state.stopped->message, testing::AllOf(HasSubstr("of epoch " + std::to_string(second.value)),
                                                     HasSubstr("of epoch " + std::to_string(first.epoch.value) + " ")));
}

}  // namespace
}  // namespace refit::coordinator
