// The inside of the coordinator's step function: one call of step() is one Machine.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "coordinator/step.h"

namespace refit::coordinator {

// The committed round that a former coordinator left open in the journal.
Round unfinished(const Config& config, const JournalState& journal, std::int64_t now_ns);
// Its sender holds bytes or a yes of its lineage, or knows of a commit.
bool bound(const wire::Hello& h);

class Machine {
 public:
  explicit Machine(State& state) : s_(state) {}
  std::vector<Action> take() { return std::move(todo_); }

  void on(const Received& e);
  void on(const Gone& e);
  void on(const Tick& e);
  void on(const Appended& e);
  void on(const AppendFailed& e);
  void on(const EpochRead& e);
  void on(const BeginRound& e);
  void on(const AskVerify& e);
  // Takes every transition whose condition holds now. Runs after each event.
  void advance();
  void append(Purpose purpose, std::vector<RecordBody> bodies, std::int64_t reserve_bytes = 0);

 private:
  // members.cpp: who is here.
  void hello(std::uint32_t connection, const wire::Envelope& e, const wire::Hello& h);
  void welcome(std::uint32_t member);
  void refuse(std::uint32_t connection, Error error, bool hello_again);
  void evict_again(std::uint32_t connection, const Error& reason);
  void leave(std::uint32_t member, Error reason);
  std::optional<std::uint32_t> sender(std::uint32_t connection, const wire::Envelope& e);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Ready& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::PlanRefused& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Heartbeat& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Goodbye& m);
  void settle(std::uint32_t member, const Txn& inside);
  std::vector<std::uint32_t> viable() const;
  void configure_if_needed();
  void configure(std::vector<std::uint32_t> seats);
  std::optional<Error> unready() const;
  void watch_silence();

  // rebuild.cpp: the journal was lost.
  bool rebuilds(const wire::Envelope& e, const wire::Hello& h) const;
  void hear(std::uint32_t connection, const wire::Envelope& e, const wire::Hello& h);
  void forget_slots();
  std::optional<Error> contradiction() const;
  void ask_promise(std::uint32_t connection);
  void ask_promises();
  bool promised(std::uint32_t member) const;
  void advance_rebuild();
  Lineage rebuilt_lineage() const;
  SnapshotRecord rebuilt() const;
  void seat(SnapshotRecord& out) const;
  void rebuilt_durably();

  // round.cpp: from the call to the decision.
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Sealed& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::BlockAmax& m);
  void send_amax(const Part& part);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Staged& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Vote& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Failed& m);
  void begin_if_ready();
  void begun();
  void choose_base();
  void advance_round();
  void enter(Stage stage);
  bool replica_staged(Replica& replica);
  void decide();
  void lost(std::uint32_t member, Error error);
  void abort(Error error);
  void watch_deadlines();
  const Part* awaited_longest(std::int64_t stall_ns) const;
  bool awaited(const Part& part) const;
  void command(Part& part);
  void resend();

  // apply.cpp: after the decision.
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Gated& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Applied& m);
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::Reopened& m);
  void committed();
  void advance_replicas();
  void advance_replica(Replica& replica);
  void fail_replica(Replica& replica, Error error);
  void evicted();
  void ended();
  void report_incomplete(Error error);
  RoundResult result(wire::Outcome outcome) const;
  void report(RoundResult result);

  // status.cpp
  void receive(std::uint32_t member, const wire::Envelope& e, const wire::VerifyReport& m);
  void client(std::uint32_t connection, const wire::Envelope& e);
  void ask_verify(VerifyCall call);
  void advance_verifies();

  template <typename M>
  void receive(std::uint32_t, const wire::Envelope&, const M&) {
    ++s_.dropped.unexpected;
  }

  // Shared.
  void stop(Error reason);
  Error overtaken(const std::string& how) const;
  bool running() const { return s_.stage != Stage::kStopped && s_.stage != Stage::kOpening; }
  bool deciding() const { return s_.round && !s_.round->committed && s_.stage == Stage::kDeciding; }
  void send(std::uint32_t connection, const Txn& txn, wire::Message message);
  void send_member(std::uint32_t member, const Txn& txn, wire::Message message);
  std::string name(std::uint32_t member) const { return s_.config.shape.name(member).to_string(); }
  bool is_source(std::uint32_t member) const { return member < s_.config.shape.sources(); }
  std::uint32_t instance(std::uint32_t member) const { return s_.config.shape.name(member).instance; }
  Part* part(std::uint32_t member, const Txn& txn);  // null: not of this round, or another incarnation
  Replica* replica_of(std::uint32_t member);
  std::vector<Part*> ranks_of(const Replica& replica);
  bool live(const Replica& r) const { return !r.evicted && !r.failed; }
  void progressed(Part& part, Progressed at);
  bool out(const Seat& seat) const;
  bool here(std::uint32_t member) const {
    return s_.slots[member].present() && !out({member, s_.slots[member].incarnation});
  }

  State& s_;
  std::vector<Action> todo_;
};

}  // namespace refit::coordinator
