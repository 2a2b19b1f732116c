// The inside of the source's step function: one call of step() is one SourceMachine.
#pragma once
#include <utility>
#include <vector>

#include "agent/source.h"

namespace refit::agent {

class SourceMachine {
 public:
  SourceMachine(SourceState& state, install::Ignored& ignored) : s_(state), ignored_(ignored) {}
  std::vector<SourceAction> take() { return std::move(todo_); }

  void on(const install::Received& e);
  void on(const install::ConnectionUp& e);
  void on(const install::ConnectionDown& e);
  void on(const install::Tick& e);
  void on(const install::PlanMade& e);
  void on(const install::PlanFailed& e);
  void on(const install::Progress& e);
  void on(const SealDone& e);
  void on(const AmaxDone& e);
  void on(const Exposed& e);
  void on(const SealChecked& e);
  void on(const SourceTaskFailed& e);

 private:
  static constexpr std::uint32_t bit(SourceTask t) { return 1u << static_cast<unsigned>(t); }
  // Has given a yes, or knows of a commit of its lineage.
  bool bound() const { return s_.known.counter > 0 || s_.phase == SourcePhase::kVoted; }
  bool in_round() const { return s_.txn.counter > 0; }
  void drop() { ++ignored_.unexpected; }

  void receive(const wire::Envelope& e, const wire::Welcome& m);
  void receive(const wire::Envelope& e, const wire::Refused& m);
  void receive(const wire::Envelope& e, const wire::Configure& m);
  void receive(const wire::Envelope& e, const wire::Begin& m);
  void receive(const wire::Envelope& e, const wire::BlockAmaxMerged& m);
  void receive(const wire::Envelope& e, const wire::ReadersDone& m);
  void receive(const wire::Envelope& e, const wire::Abort& m);
  void receive(const wire::Envelope& e, const wire::Committed& m);
  void receive(const wire::Envelope& e, const wire::End& m);
  template <typename M>
  void receive(const wire::Envelope&, const M&) {
    drop();
  }

  bool repeat(const Txn& txn);
  bool finish(SourceTask task);
  void vote_no(Error error);
  void revoke(Error why);
  void leave_round(bool committed);
  Phase phase_name() const;
  void observe(Phase phase) { todo_.push_back(install::Observe{phase, s_.txn}); }
  void send(const Txn& txn, wire::Message message);
  void hello();
  void beat();

  SourceState& s_;
  install::Ignored& ignored_;
  std::vector<SourceAction> todo_;
};

}  // namespace refit::agent
