#include "agent/source.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "agent/source_machine.h"

namespace refit::agent {

std::string_view to_string(SourceTask task) {
  static constexpr std::array<std::string_view, 3> kNames = {"seal", "expose", "check seal"};
  return kNames[static_cast<std::size_t>(task)];
}

wire::MemberState to_member_state(SourcePhase phase) {
  return static_cast<wire::MemberState>(static_cast<int>(wire::MemberState::kIdle) + static_cast<int>(phase));
}
static_assert(static_cast<int>(wire::MemberState::kIdle) + static_cast<int>(SourcePhase::kVoted) ==
              static_cast<int>(wire::MemberState::kSourceVoted));

bool same(const SourceState& a, const SourceState& b) {
  auto key = [](const SourceState& s) {
    return std::tie(s.link, s.phase, s.last, s.known, s.txn, s.begin, s.sealed, s.readers_done, s.decided, s.lent,
                    s.held, s.revoked, s.left, s.lend_deadline_ns, s.amax, s.busy, s.progress);
  };
  return key(a) == key(b);
}

SourceState start_source(install::Identity self, std::int64_t now_ns) {
  SourceState s;
  s.self = std::move(self);
  s.now_ns = now_ns;
  return s;
}

std::vector<SourceAction> step(SourceState& state, const SourceEvent& event, install::Ignored& ignored) {
  SourceMachine machine(state, ignored);
  state.now_ns = event.now_ns;
  std::visit([&](const auto& e) { machine.on(e); }, event.what);
  return machine.take();
}

// ---- events from the driver
// -------------------------------------------------------------------------------------------

void SourceMachine::on(const install::ConnectionUp&) {
  s_.link.connected = true;
  s_.link.welcomed = false;
  s_.link.rejected = false;
  hello();
}

void SourceMachine::on(const install::ConnectionDown&) {
  s_.link.connected = false;
  s_.link.welcomed = false;
}

void SourceMachine::on(const install::Tick&) {
  // The trainer is not held for ever by a coordinator that went away (L5). A yes stays given: staged targets need the
  // lend no more.
  if (in_round() && s_.now_ns > s_.lend_deadline_ns && (s_.phase != SourcePhase::kVoted || s_.held))
    revoke(Error(Code::kTimeout, s_.amax ? "other sources did not tell their largest magnitudes in time"
                                         : "the lend reached its deadline")
               .at_stage(std::string(to_string(phase_name()))));
  if (install::beat_due(s_.link, s_.self, s_.sent_ns, s_.now_ns)) beat();
}

void SourceMachine::on(const install::PlanMade& e) {
  if (e.layout_epoch != s_.link.layout_epoch || s_.link.planned) return drop();
  s_.link.planned = true;
  s_.link.plan = e.plan;
  send({}, wire::Ready{e.layout_epoch, e.plan, {}});
}

void SourceMachine::on(const install::PlanFailed& e) {
  if (e.layout_epoch != s_.link.layout_epoch || e.errors.empty()) return drop();
  wire::PlanRefused refused{e.layout_epoch, e.errors};
  if (refused.errors.size() > wire::kMaxErrors) refused.errors.resize(wire::kMaxErrors);
  send({}, std::move(refused));
}

void SourceMachine::on(const install::Progress& e) {
  if (!in_round()) return drop();
  s_.progress = e.now;
}

// ---- results of tasks
// -------------------------------------------------------------------------------------------------

bool SourceMachine::finish(SourceTask task) {
  if ((s_.busy & bit(task)) == 0) return drop(), false;
  s_.busy &= ~bit(task);
  return true;
}

void SourceMachine::on(const SealDone& e) {
  if (!finish(SourceTask::kSeal) || e.txn != s_.txn || s_.phase != SourcePhase::kPreparing) return;
  s_.sealed = {e.step, e.weight_set, e.digest, e.groups, {}, e.manifest_bytes, e.manifest_hash};
  s_.phase = SourcePhase::kSealed;
  observe(Phase::kSeal);
  s_.busy |= bit(SourceTask::kExpose);
  todo_.push_back(Expose{s_.txn});
}

void SourceMachine::on(const AmaxDone& e) {
  if (!finish(SourceTask::kSeal) || e.txn != s_.txn || s_.phase != SourcePhase::kPreparing) return;
  s_.amax = e.amax;
  send(s_.txn, *s_.amax);
}

void SourceMachine::on(const Exposed& e) {
  if (!finish(SourceTask::kExpose)) return;
  if (e.txn != s_.txn || s_.phase != SourcePhase::kSealed) return todo_.push_back(Withdraw{e.txn});
  s_.lent = true;
  s_.sealed.descriptor = e.descriptor;
  s_.phase = SourcePhase::kLending;
  observe(Phase::kLend);
  send(s_.txn, s_.sealed);
}

void SourceMachine::on(const SealChecked& e) {
  if (!finish(SourceTask::kCheckSeal) || e.txn != s_.txn || s_.phase != SourcePhase::kLending) return;
  s_.phase = SourcePhase::kVoted;
  observe(Phase::kVoted);
  send(s_.txn, wire::Vote{true, std::nullopt});
}

void SourceMachine::on(const SourceTaskFailed& e) {
  if (finish(e.task) && in_round() && e.txn == s_.txn && s_.phase != SourcePhase::kVoted) vote_no(e.error);
}

void SourceMachine::vote_no(Error error) {
  const Txn txn = s_.txn;
  s_.left = std::pair(txn, std::move(error));
  leave_round(false);
  send(txn, wire::Vote{false, s_.left->second});
}

void SourceMachine::revoke(Error why) {
  if (s_.phase != SourcePhase::kVoted) return vote_no(std::move(why));
  if (s_.lent) todo_.push_back(Withdraw{s_.txn});
  todo_.push_back(Release{s_.txn, s_.decided});
  s_.lent = s_.held = false;
  s_.revoked = std::move(why);
}

void SourceMachine::leave_round(bool committed) {
  if (s_.lent) todo_.push_back(Withdraw{s_.txn});
  if (s_.held) todo_.push_back(Release{s_.txn, committed});
  s_.phase = SourcePhase::kIdle;
  s_.txn = {};
  s_.sealed = {};
  s_.amax.reset();
  s_.progress = {};
  s_.lent = s_.held = s_.readers_done = s_.decided = false;
  s_.revoked.reset();
}

// ---- from the coordinator
// ---------------------------------------------------------------------------------------------

void SourceMachine::on(const install::Received& e) {
  if (!install::accept(s_.link, s_.self, e.envelope, ignored_)) return;
  std::visit([&](const auto& m) { receive(e.envelope, m); }, e.envelope.message);
}

void SourceMachine::receive(const wire::Envelope& e, const wire::Welcome& m) {
  if (install::moves(s_.link, m.lineage, bound()) && in_round()) leave_round(false);
  if (!install::take_welcome(s_.link, e, m, bound())) return drop();
  beat();
}

void SourceMachine::receive(const wire::Envelope& e, const wire::Refused& m) {
  if (e.epoch < s_.link.epoch) return drop();
  if (m.promise != Lineage{} && install::moves(s_.link, m.promise, bound()) && in_round()) leave_round(false);
  if (install::take_refused(s_.link, e, m, bound())) hello();
}

void SourceMachine::receive(const wire::Envelope&, const wire::Configure& m) {
  if (in_round() || s_.busy != 0) return drop();
  bool ready = false;
  if (install::take_configure(s_.link, m, ready)) {
    todo_.push_back(install::MakePlan{m});
  } else if (ready) {
    send({}, wire::Ready{s_.link.layout_epoch, s_.link.plan, {}});
  } else {
    drop();
  }
}

// Tells again what the coordinator did not hear.
bool SourceMachine::repeat(const Txn& txn) {
  if (in_round() && txn == s_.txn) {
    if (s_.phase == SourcePhase::kPreparing && s_.amax) send(txn, *s_.amax);
    if (s_.phase == SourcePhase::kLending) send(txn, s_.sealed);
    if (s_.phase == SourcePhase::kVoted) send(txn, wire::Vote{true, std::nullopt});
    return true;
  }
  if (!s_.left || s_.left->first != txn) return false;
  send(txn, wire::Vote{false, s_.left->second});
  return true;
}

void SourceMachine::receive(const wire::Envelope& e, const wire::Begin& m) {
  if (repeat(e.txn)) return;
  if (e.txn <= s_.link.seen || e.txn.epoch > s_.link.epoch) return void(++ignored_.old_txn);
  if (s_.phase == SourcePhase::kVoted) return drop();  // only its own decision frees a yes
  if (in_round()) leave_round(false);
  if (s_.busy != 0) return drop();
  if (!s_.link.planned || m.layout_epoch != s_.link.layout_epoch || m.plan != s_.link.plan) return drop();
  s_.link.seen = e.txn;
  s_.link.number = std::max(s_.link.number, m.number);
  s_.phase = SourcePhase::kPreparing;
  s_.txn = e.txn;
  s_.begin = m;
  s_.held = true;
  s_.lend_deadline_ns = s_.now_ns + m.total_ns;
  s_.left.reset();
  observe(Phase::kBegin);
  s_.busy |= bit(SourceTask::kSeal);
  todo_.push_back(Prepare{s_.txn, m});
  beat();
}

void SourceMachine::receive(const wire::Envelope& e, const wire::BlockAmaxMerged& m) {
  if (e.txn != s_.txn || s_.phase != SourcePhase::kPreparing || !s_.amax) return void(++ignored_.old_txn);
  if (m.amax.size() != s_.amax->blocks.size())
    return vote_no(Error(Code::kMismatch, "the exchange of largest magnitudes brought another number of blocks")
                       .at_stage("seal")
                       .amounts(static_cast<std::int64_t>(s_.amax->blocks.size()),
                                static_cast<std::int64_t>(m.amax.size())));
  s_.amax.reset();
  s_.busy |= bit(SourceTask::kSeal);
  todo_.push_back(Quantise{s_.txn, s_.begin, m.amax});
}

void SourceMachine::receive(const wire::Envelope& e, const wire::ReadersDone&) {
  if (s_.phase != SourcePhase::kLending || e.txn != s_.txn || s_.readers_done) {
    if (!repeat(e.txn)) ++ignored_.old_txn;
    return;
  }
  s_.readers_done = true;
  s_.busy |= bit(SourceTask::kCheckSeal);
  todo_.push_back(CheckSeal{s_.txn, s_.begin.proof});
}

void SourceMachine::receive(const wire::Envelope& e, const wire::Abort&) {
  if (in_round() && e.txn == s_.txn) {
    if (s_.decided) return drop();
    return leave_round(false);
  }
  if (e.txn <= s_.link.seen) return void(++ignored_.old_txn);
  s_.link.seen = e.txn;  // overtook its Begin, which is stale from now on
}

void SourceMachine::receive(const wire::Envelope& e, const wire::Committed& m) {
  if (s_.phase != SourcePhase::kVoted || e.txn != s_.txn || s_.decided) return void(++ignored_.old_txn);
  s_.decided = true;
  s_.last = m.version;
  s_.known = e.txn;
  observe(Phase::kDecided);
}

void SourceMachine::receive(const wire::Envelope& e, const wire::End& m) {
  if (s_.phase != SourcePhase::kVoted || e.txn != s_.txn) return void(++ignored_.old_txn);
  // In doubt: the journal no longer tells how this old round ended. The lend is free either way.
  const bool committed = m.outcome != wire::Outcome::kInDoubt;
  if (committed) {
    s_.last = m.version;
    s_.known = e.txn;
    observe(Phase::kApplied);
    todo_.push_back(MoveBase{s_.txn, s_.held});
  }
  leave_round(committed);
}

// ---- shared
// -----------------------------------------------------------------------------------------------------------

Phase SourceMachine::phase_name() const {
  static constexpr std::array<Phase, 5> kNames = {Phase::kBegin, Phase::kSeal, Phase::kLend, Phase::kTransfer,
                                                  Phase::kVoted};
  return kNames[static_cast<std::size_t>(s_.phase)];
}

void SourceMachine::send(const Txn& txn, wire::Message message) {
  const bool is_hello = std::holds_alternative<wire::Hello>(message);
  if (!s_.link.connected || (!s_.link.welcomed && !is_hello)) return;
  s_.sent_ns = s_.now_ns;
  todo_.push_back(install::Send{install::envelope(s_.link, s_.self, txn, ++s_.sent, std::move(message))});
}

void SourceMachine::hello() {
  wire::Hello h;
  h.state = to_member_state(s_.phase);
  h.lineage = s_.link.lineage;
  if (s_.phase == SourcePhase::kVoted) h.voted = s_.txn;
  h.last = s_.last;
  h.layout_digest = s_.self.layout_digest;
  h.layout = s_.self.layout;
  h.card = s_.self.card;
  h.digest_seed = s_.link.digest_seed;
  h.number = s_.link.number;
  h.seen = s_.link.seen;
  h.known = s_.known;
  if (s_.known.counter > 0) h.known_version = s_.last;
  send({}, std::move(h));
}

void SourceMachine::beat() {
  if (!s_.link.welcomed) return hello();
  wire::Heartbeat b = s_.progress;
  b.state = to_member_state(s_.phase);
  b.phase = phase_name();
  send(in_round() ? s_.txn : Txn{}, std::move(b));
}

}  // namespace refit::agent
