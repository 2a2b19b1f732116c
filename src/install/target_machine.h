// The inside of the target's step function: one call of step() is one TargetMachine.
#pragma once
#include <utility>
#include <vector>

#include "install/target.h"

namespace refit::install {

class TargetMachine {
 public:
  TargetMachine(TargetState& state, Ignored& ignored) : s_(state), ignored_(ignored) {}
  std::vector<TargetAction> take() { return std::move(todo_); }

  void on(const Received& e);
  void on(const ConnectionUp& e);
  void on(const ConnectionDown& e);
  void on(const Tick& e);
  void on(const PlanMade& e);
  void on(const PlanFailed& e);
  void on(const TaskDone& e);
  void on(const TaskFailed& e);
  void on(const Progress& e);
  void on(const Verified& e);

 private:
  static constexpr std::uint32_t bit(Task t) { return 1u << static_cast<unsigned>(t); }
  // Holds bytes, a yes, or knowledge of a commit of its lineage.
  bool bound() const {
    return s_.word.word != wire::Word::kNone || s_.live.number > 0 || s_.known.counter > 0 ||
           s_.phase == TargetPhase::kVoted || s_.phase == TargetPhase::kApplying;
  }
  bool in_round() const { return s_.txn.counter > 0; }
  bool applying(ApplyStep at) const { return s_.phase == TargetPhase::kApplying && s_.apply == at; }
  void drop() { ++ignored_.unexpected; }

  // From the coordinator.
  void receive(const wire::Envelope& e, const wire::Welcome& m);
  void receive(const wire::Envelope& e, const wire::Refused& m);
  void receive(const wire::Envelope& e, const wire::Configure& m);
  void receive(const wire::Envelope& e, const wire::Begin& m);
  void receive(const wire::Envelope& e, const wire::Lend& m);
  void receive(const wire::Envelope& e, const wire::Gate& m);
  void receive(const wire::Envelope& e, const wire::Copy& m);
  void receive(const wire::Envelope& e, const wire::Open& m);
  void receive(const wire::Envelope& e, const wire::Abort& m);
  void receive(const wire::Envelope& e, const wire::Evict& m);
  void receive(const wire::Envelope& e, const wire::Verify& m);
  template <typename M>
  void receive(const wire::Envelope&, const M&) {
    drop();
  }

  // Tells again what the coordinator did not hear: false when `txn` is none of ours.
  bool repeat(const Txn& txn);
  bool finish(Task task);
  void vote_yes(const TaskDone& e);
  void vote_no(Error error);
  void gated();
  void copied(const TaskDone& e);
  void all_applied();
  void reopened();
  void fence(Error reason);
  void abort_round();
  void leave_round(TargetPhase rest);
  void drop_stage();
  void set_word(wire::Word word);
  Phase phase_name() const;
  void observe(Phase phase) { todo_.push_back(Observe{phase, s_.txn}); }
  void send(const Txn& txn, wire::Message message);
  void hello();
  void beat();
  void report_verify(std::uint64_t nonce, wire::Domain domain, const wire::Digest4& counted,
                     const wire::ProofCounts& proof, std::vector<Error> errors);

  TargetState& s_;
  Ignored& ignored_;
  std::vector<TargetAction> todo_;
};

}  // namespace refit::install
