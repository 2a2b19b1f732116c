// What a target rank does with each message of its coordinator.
#include <algorithm>

#include "install/target_machine.h"

namespace refit::install {

void TargetMachine::on(const Received& e) {
  if (!accept(s_.link, s_.config.self, e.envelope, ignored_)) return;
  std::visit([&](const auto& m) { receive(e.envelope, m); }, e.envelope.message);
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Welcome& m) {
  if (moves(s_.link, m.lineage, bound()) && in_round()) abort_round();
  if (!take_welcome(s_.link, e, m, bound())) return drop();
  // We serve a version that others have left without us: shut, unless the operator allows it (C17).
  const bool behind = s_.live.number > 0 && s_.live.number < m.newest.number;
  if (behind && s_.phase == TargetPhase::kServing) {
    s_.phase = s_.rest = TargetPhase::kLagging;
    if (!s_.config.serve_lagging) {
      s_.gate_open = false;
      todo_.push_back(Fence{Error(Code::kMismatch, "lagging: holds version " + std::to_string(s_.live.number) +
                                                       ", the newest is " + std::to_string(m.newest.number))});
    }
  }
  beat();
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Refused& m) {
  if (e.epoch < s_.link.epoch) return drop();
  if (m.promise != Lineage{} && moves(s_.link, m.promise, bound()) && in_round()) abort_round();
  if (take_refused(s_.link, e, m, bound())) hello();
}

void TargetMachine::receive(const wire::Envelope&, const wire::Configure& m) {
  // A stage made under the old plan is still promised or being read: the coordinator asks again when that is settled.
  if (in_round() || s_.busy != 0) return drop();
  bool ready = false;
  if (take_configure(s_.link, m, ready)) {
    todo_.push_back(MakePlan{m});
  } else if (ready) {
    send({}, wire::Ready{s_.link.layout_epoch, s_.link.plan, s_.base});
  } else {
    drop();
  }
}

bool TargetMachine::repeat(const Txn& txn) {
  if (in_round() && txn == s_.txn) {
    if (s_.phase == TargetPhase::kReceiving) return true;
    if (s_.phase == TargetPhase::kVoted) {
      send(txn, s_.staged);
      send(txn, wire::Vote{true, std::nullopt});
    } else if (s_.apply == ApplyStep::kGated) {
      send(txn, wire::Gated{});
    } else if (s_.apply >= ApplyStep::kApplied) {
      send(txn, s_.applied);
    }
    return true;
  }
  if (!in_round() && s_.phase == TargetPhase::kServing && s_.word.txn == txn) {
    send(txn, s_.applied);
    send(txn, s_.reopened);
    return true;
  }
  if (!s_.left || s_.left->txn != txn) return false;
  if (s_.left->fenced) {
    send(txn, wire::Failed{s_.left->phase, true, s_.left->error});
  } else {
    send(txn, wire::Vote{false, s_.left->error});
  }
  return true;
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Begin& m) {
  if (repeat(e.txn)) return;
  if (e.txn <= s_.link.seen || e.txn.epoch > s_.link.epoch) return void(++ignored_.old_txn);
  // A yes holds against any newer round: only its own decision frees it (C3). The coordinator learns of it by
  // heartbeat.
  if (s_.phase == TargetPhase::kVoted || s_.phase == TargetPhase::kApplying) return drop();
  if (s_.phase == TargetPhase::kReceiving) abort_round();
  if (s_.busy != 0) return drop();  // the last round's work has not ended: asked again soon
  if (!s_.link.planned || m.layout_epoch != s_.link.layout_epoch || m.plan != s_.link.plan ||
      m.number <= s_.live.number)
    return drop();
  s_.link.seen = e.txn;
  s_.link.number = std::max(s_.link.number, m.number);
  s_.rest = s_.phase;
  s_.phase = TargetPhase::kReceiving;
  s_.txn = e.txn;
  s_.begin = m;
  s_.lent = false;
  s_.left.reset();
  observe(Phase::kBegin);
  beat();
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Lend& m) {
  if (s_.phase != TargetPhase::kReceiving || e.txn != s_.txn || s_.lent) {
    if (!repeat(e.txn)) ++ignored_.old_txn;
    return;
  }
  s_.lent = true;
  s_.stage_held = true;
  s_.stage_txn = e.txn;
  s_.busy |= bit(Task::kStage);
  observe(Phase::kTransfer);
  const bool delta = s_.begin.serves_delta(s_.link.member) && s_.begin.base == s_.base;
  todo_.push_back(StartStaging{e.txn, s_.begin, m.sources, delta ? s_.base : Txn{}});
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Gate& m) {
  if (s_.phase != TargetPhase::kVoted || e.txn != s_.txn) {
    if (!repeat(e.txn)) ++ignored_.old_txn;
    return;
  }
  s_.phase = TargetPhase::kApplying;
  s_.apply = ApplyStep::kShutting;
  s_.next = s_.known_version = m.version;
  s_.known = e.txn;
  s_.gate_since_ns = s_.now_ns;
  s_.gate_deadline_ns = s_.now_ns + m.gate_ns;
  observe(Phase::kDecided);
  s_.busy |= bit(Task::kShutGate);
  todo_.push_back(ShutGate{e.txn, s_.gate_deadline_ns});
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Copy&) {
  if (e.txn != s_.txn || !applying(ApplyStep::kGated)) {
    if (!repeat(e.txn)) ++ignored_.old_txn;
    return;
  }
  s_.apply = ApplyStep::kCopying;
  s_.live_digest.reset();
  s_.base = {};
  set_word(wire::Word::kCopying);
  observe(Phase::kCopying);
  s_.busy |= bit(Task::kCopy);
  todo_.push_back(CopyShadowToLive{e.txn, s_.begin.proof});
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Open&) {
  if (e.txn != s_.txn || !applying(ApplyStep::kApplied)) {
    if (!repeat(e.txn)) ++ignored_.old_txn;
    return;
  }
  s_.apply = ApplyStep::kOpening;
  s_.busy |= bit(Task::kOpenGate);
  todo_.push_back(OpenGate{e.txn, s_.live});
}

void TargetMachine::receive(const wire::Envelope& e, const wire::Abort&) {
  if (in_round() && e.txn == s_.txn) {
    if (s_.phase == TargetPhase::kApplying) return drop();  // contradicts the decision we acted on
    return abort_round();
  }
  if (e.txn <= s_.link.seen) return void(++ignored_.old_txn);
  s_.link.seen = e.txn;  // overtook its Begin, which is stale from now on
}

void TargetMachine::receive(const wire::Envelope&, const wire::Evict& m) {
  if (m.membership_epoch <= s_.link.membership_epoch) return void(++ignored_.old_epoch);
  s_.link.membership_epoch = m.membership_epoch;
  s_.link.welcomed = false;
  const bool holds_nothing =
      s_.phase == TargetPhase::kEmpty || (s_.phase == TargetPhase::kReceiving && s_.rest == TargetPhase::kEmpty);
  if (holds_nothing) {
    if (in_round()) abort_round();
  } else if (s_.phase != TargetPhase::kFenced) {
    fence(m.reason);
  }
  hello();
}

void TargetMachine::receive(const wire::Envelope&, const wire::Verify& m) {
  if (s_.verifying) return drop();
  const bool holds =
      s_.phase == TargetPhase::kServing || s_.phase == TargetPhase::kLagging || s_.phase == TargetPhase::kVoted ||
      (s_.phase == TargetPhase::kReceiving && s_.rest != TargetPhase::kEmpty && s_.rest != TargetPhase::kFenced);
  if (!holds || s_.word.word != wire::Word::kApplied) {
    const std::string state(wire::to_string(to_member_state(s_.phase)));
    return report_verify(
        m.nonce, m.domain, {}, {},
        {Error(Code::kBusy, state + ": no applied version to verify").at_peer(s_.config.self.name.to_string())});
  }
  s_.verifying = m;
  s_.verifying_word = s_.word;
  todo_.push_back(RunVerify{m.nonce, m.domain});
}

}  // namespace refit::install
