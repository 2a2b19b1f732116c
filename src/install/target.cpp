#include "install/target.h"

#include <array>
#include <tuple>

#include "install/target_machine.h"

namespace refit::install {

std::string_view to_string(Task task) {
  static constexpr std::array<std::string_view, 5> kNames = {"stage", "shut gate", "copy", "caches", "open gate"};
  return kNames[static_cast<std::size_t>(task)];
}

wire::MemberState to_member_state(TargetPhase phase) { return static_cast<wire::MemberState>(phase); }
static_assert(static_cast<int>(TargetPhase::kFenced) == static_cast<int>(wire::MemberState::kFenced));

bool servable(const TargetState& s) {
  const bool phase = s.phase == TargetPhase::kServing || s.phase == TargetPhase::kReceiving ||
                     s.phase == TargetPhase::kVoted || (s.phase == TargetPhase::kLagging && s.config.serve_lagging);
  return phase && s.gate_open && s.word.word == wire::Word::kApplied;
}

bool same(const TargetState& a, const TargetState& b) {
  auto key = [](const TargetState& s) {
    return std::tie(s.link, s.phase, s.rest, s.live, s.base, s.word, s.live_digest, s.gate_open, s.fenced, s.txn,
                    s.begin, s.lent, s.staged, s.next, s.known, s.known_version, s.apply, s.applied, s.reopened,
                    s.gate_since_ns, s.gate_deadline_ns, s.busy, s.stage_held, s.stage_txn, s.progress, s.verifying,
                    s.verifying_word, s.left);
  };
  return key(a) == key(b);
}

TargetState start_target(TargetConfig config, const std::optional<Survived>& survived, std::int64_t now_ns) {
  TargetState s;
  s.config = std::move(config);
  s.now_ns = now_ns;
  if (!survived || survived->word.word == wire::Word::kNone) return s;
  s.word = survived->word;
  s.live = survived->live;
  s.link.lineage = survived->word.txn.lineage;
  s.link.number = survived->live.number;
  // The word is set only of a committed round, and the version beside it is that round's.
  s.known = survived->word.txn;
  s.known_version = survived->live;
  if (s.word.word == wire::Word::kCopying) {
    s.phase = TargetPhase::kFenced;
    s.fenced = Error(Code::kPeerLost, "the agent died while it copied the weights of " + s.word.txn.to_string());
  } else {
    s.live_digest = survived->live_digest;
    s.gate_open = survived->gate_open;
    s.phase = survived->gate_open ? TargetPhase::kServing : TargetPhase::kLagging;
  }
  s.rest = s.phase;
  return s;
}

std::vector<TargetAction> step(TargetState& state, const TargetEvent& event, Ignored& ignored) {
  TargetMachine machine(state, ignored);
  state.now_ns = event.now_ns;
  std::visit([&](const auto& e) { machine.on(e); }, event.what);
  return machine.take();
}

// ---- events from the driver
// -------------------------------------------------------------------------------------------

void TargetMachine::on(const ConnectionUp&) {
  s_.link.connected = true;
  s_.link.welcomed = false;
  s_.link.rejected = false;
  hello();
}

void TargetMachine::on(const ConnectionDown&) {
  s_.link.connected = false;
  s_.link.welcomed = false;
}

void TargetMachine::on(const Tick&) {
  // A gate that stays shut serves nobody: give up and be repaired (C2). Before the gate, no deadline frees a yes (C3).
  if (s_.phase == TargetPhase::kApplying && s_.now_ns > s_.gate_deadline_ns)
    fence(
        Error(Code::kTimeout, "the gate was shut beyond its deadline").at_stage(std::string(to_string(phase_name()))));
  if (beat_due(s_.link, s_.config.self, s_.sent_ns, s_.now_ns)) beat();
}

void TargetMachine::on(const PlanMade& e) {
  if (e.layout_epoch != s_.link.layout_epoch || s_.link.planned) return drop();
  s_.link.planned = true;
  s_.link.plan = e.plan;
  if (!e.same) s_.base = {};
  send({}, wire::Ready{e.layout_epoch, e.plan, s_.base});
}

void TargetMachine::on(const PlanFailed& e) {
  if (e.layout_epoch != s_.link.layout_epoch || e.errors.empty()) return drop();
  wire::PlanRefused refused{e.layout_epoch, e.errors};
  if (refused.errors.size() > wire::kMaxErrors) refused.errors.resize(wire::kMaxErrors);
  send({}, std::move(refused));
}

void TargetMachine::on(const Progress& e) {
  if (!in_round()) return drop();
  s_.progress = e.now;
}

void TargetMachine::on(const Verified& e) {
  if (!s_.verifying || s_.verifying->nonce != e.nonce) return drop();
  s_.verifying.reset();
  std::vector<Error> errors = e.errors;
  if (s_.word != s_.verifying_word) errors.emplace_back(Code::kBusy, "the weights changed while they were verified");
  report_verify(e.nonce, e.domain, e.counted, e.proof, std::move(errors));
}

// ---- results of tasks
// -------------------------------------------------------------------------------------------------

bool TargetMachine::finish(Task task) {
  if ((s_.busy & bit(task)) == 0) return drop(), false;
  s_.busy &= ~bit(task);
  return true;
}

void TargetMachine::on(const TaskDone& e) {
  if (!finish(e.task)) return;
  const bool ours = e.txn == s_.txn;
  switch (e.task) {
    case Task::kStage:
      return ours && s_.phase == TargetPhase::kReceiving ? vote_yes(e) : drop_stage();
    case Task::kShutGate:
      if (ours && applying(ApplyStep::kShutting)) gated();
      return;
    case Task::kCopy:
      return ours && applying(ApplyStep::kCopying) ? copied(e) : drop_stage();
    case Task::kCaches:
      if (ours && applying(ApplyStep::kCaches)) all_applied();
      return;
    case Task::kOpenGate:
      if (ours && applying(ApplyStep::kOpening)) reopened();
      return;
  }
}

void TargetMachine::on(const TaskFailed& e) {
  if (!finish(e.task)) return;
  if (e.task == Task::kStage && s_.phase == TargetPhase::kReceiving && e.txn == s_.txn) {
    drop_stage();
    return vote_no(e.error);
  }
  if (s_.phase == TargetPhase::kApplying && e.txn == s_.txn)
    fence(Error(e.error).at_stage(std::string(to_string(phase_name()))));
  drop_stage();
}

void TargetMachine::vote_yes(const TaskDone& e) {
  s_.staged = {e.counted, e.proof};
  s_.phase = TargetPhase::kVoted;
  observe(Phase::kStaged);
  send(s_.txn, s_.staged);
  observe(Phase::kVoted);
  send(s_.txn, wire::Vote{true, std::nullopt});
}

// Whatever was wrong, the next round brings complete buckets.
void TargetMachine::vote_no(Error error) {
  const Txn txn = s_.txn;
  s_.base = {};
  s_.left = TargetState::Left{txn, false, std::move(error), phase_name()};
  leave_round(s_.rest);
  send(txn, wire::Vote{false, s_.left->error});
}

void TargetMachine::gated() {
  s_.apply = ApplyStep::kGated;
  s_.gate_open = false;
  observe(Phase::kGated);
  send(s_.txn, wire::Gated{});
}

void TargetMachine::copied(const TaskDone& e) {
  if (e.counted != s_.staged.counted) {
    fence(Error(Code::kMismatch, "the live bytes do not have the digest of the staged ones").at_stage("copying"));
    return drop_stage();
  }
  s_.apply = ApplyStep::kCaches;
  s_.applied.counted = e.counted;
  s_.applied.proof = e.proof;
  s_.applied.retained = e.retained;
  s_.busy |= bit(Task::kCaches);
  todo_.push_back(InvalidateCaches{s_.txn, s_.next});
}

void TargetMachine::all_applied() {
  s_.apply = ApplyStep::kApplied;
  s_.live = s_.next;
  s_.base = s_.applied.retained ? s_.txn : Txn{};
  s_.live_digest = s_.applied.counted;
  s_.applied.pause_ns = s_.now_ns - s_.gate_since_ns;
  set_word(wire::Word::kApplied);
  observe(Phase::kApplied);
  send(s_.txn, s_.applied);
}

void TargetMachine::reopened() {
  const Txn txn = s_.txn;
  s_.gate_open = true;
  s_.fenced.reset();
  s_.reopened.pause_ns = s_.now_ns - s_.gate_since_ns;
  observe(Phase::kReopened);
  leave_round(TargetPhase::kServing);
  drop_stage();
  send(txn, s_.reopened);
}

// ---- shared
// -----------------------------------------------------------------------------------------------------------

// The shut gate fails closed at once; what the executor still does is told to end, and its stage is dropped when it
// has.
void TargetMachine::fence(Error reason) {
  const Txn txn = in_round() ? s_.txn : Txn{};
  const Phase phase = phase_name();
  todo_.push_back(Fence{reason});
  s_.gate_open = false;
  s_.fenced = reason;
  if ((s_.busy & bit(Task::kStage)) != 0) todo_.push_back(CancelStaging{s_.stage_txn});
  leave_round(TargetPhase::kFenced);
  drop_stage();
  if (txn.counter == 0) return;
  s_.left = TargetState::Left{txn, true, std::move(reason), phase};
  send(txn, wire::Failed{phase, true, s_.left->error});
}

void TargetMachine::abort_round() {
  if ((s_.busy & bit(Task::kStage)) != 0) todo_.push_back(CancelStaging{s_.txn});
  leave_round(s_.rest);
  drop_stage();
}

void TargetMachine::leave_round(TargetPhase rest) {
  s_.phase = s_.rest = rest;
  s_.txn = {};
  s_.lent = false;
  s_.progress = {};
}

void TargetMachine::drop_stage() {
  const bool used = (s_.busy & (bit(Task::kStage) | bit(Task::kCopy))) != 0;
  if (!s_.stage_held || used || s_.phase == TargetPhase::kVoted || s_.phase == TargetPhase::kApplying) return;
  s_.stage_held = false;
  todo_.push_back(DropStage{s_.stage_txn});
}

void TargetMachine::set_word(wire::Word word) {
  s_.word = {word, s_.txn};
  todo_.push_back(SetWord{s_.word, s_.next});
}

Phase TargetMachine::phase_name() const {
  static constexpr std::array<Phase, 6> kSteps = {Phase::kDecided, Phase::kGated,   Phase::kCopying,
                                                  Phase::kCopying, Phase::kApplied, Phase::kApplied};
  if (s_.phase == TargetPhase::kApplying) return kSteps[static_cast<std::size_t>(s_.apply)];
  if (s_.phase == TargetPhase::kVoted) return Phase::kVoted;
  return s_.lent ? Phase::kTransfer : Phase::kBegin;
}

void TargetMachine::send(const Txn& txn, wire::Message message) {
  const bool hello = std::holds_alternative<wire::Hello>(message);
  // What can't be told now is asked for again by the coordinator.
  if (!s_.link.connected || (!s_.link.welcomed && !hello)) return;
  s_.sent_ns = s_.now_ns;
  todo_.push_back(Send{envelope(s_.link, s_.config.self, txn, ++s_.sent, std::move(message))});
}

void TargetMachine::hello() {
  const Identity& self = s_.config.self;
  wire::Hello h;
  h.state = to_member_state(s_.phase);
  h.lineage = s_.link.lineage;
  h.word = s_.word;
  if (s_.phase == TargetPhase::kVoted || s_.phase == TargetPhase::kApplying) h.voted = s_.txn;
  h.last = s_.live;
  h.live = s_.live_digest;
  h.layout_digest = self.layout_digest;
  h.layout = self.layout;
  h.card = self.card;
  h.staging_bytes = self.staging_bytes;
  h.digest_seed = s_.link.digest_seed;
  h.number = s_.link.number;
  h.seen = s_.link.seen;
  h.known = s_.known;
  h.known_version = s_.known_version;
  send({}, std::move(h));
}

void TargetMachine::beat() {
  if (!s_.link.welcomed) return hello();
  wire::Heartbeat b = s_.progress;
  b.state = to_member_state(s_.phase);
  b.phase = in_round() ? phase_name() : Phase::kReopened;
  send(in_round() ? s_.txn : Txn{}, std::move(b));
}

void TargetMachine::report_verify(std::uint64_t nonce, wire::Domain domain, const wire::Digest4& counted,
                                  const wire::ProofCounts& proof, std::vector<Error> errors) {
  if (errors.size() > wire::kMaxErrors) errors.resize(wire::kMaxErrors);
  send({}, wire::VerifyReport{nonce, domain, true, counted, s_.word, s_.live, proof, std::move(errors)});
}

}  // namespace refit::install
