// A round after its commit is durable: every replica on its own way, each whole (C1).
#include <algorithm>

#include "coordinator/machine.h"

namespace refit::coordinator {

void Machine::committed() {
  Round& r = *s_.round;
  r.committed = true;
  todo_.push_back(Observe{Phase::kDecided, r.record.txn});
  for (Replica& replica : r.replicas) {
    replica.gate_deadline_ns = s_.now_ns + s_.config.gate_ns;
    if (!replica.evicted) continue;
    replica.out_told = true;
    for (const Part* p : ranks_of(replica)) s_.out.push_back({p->member, p->incarnation});
  }
  // A call that ended in doubt has returned; the round goes on by itself.
  if (s_.call && !r.reported)
    enter(Stage::kApplying);
  else
    s_.stage = s_.call ? Stage::kJoining : Stage::kIdle;
  for (Part& p : r.parts) {
    const Seat seat{p.member, p.incarnation};
    if (s_.slots[p.member].incarnation != p.incarnation) continue;
    s_.slots[p.member].base = {};  // its live bytes are about to change
    if (out(seat)) {
      evict_again(s_.slots[p.member].connection,
                  Error(Code::kPeerLost, "evicted from the membership").at_peer(name(p.member)));
    } else {
      command(p);
    }
  }
  // Who stood aside serves an older version from now on, and must know it (C17).
  for (std::uint32_t m = s_.config.shape.sources(); m < s_.slots.size(); ++m)
    if (here(m) && part(m, r.record.txn) == nullptr) welcome(m);
  // Who was replaced while the record was on its way?
  for (Replica& replica : r.replicas)
    for (const Part* p : ranks_of(replica))
      if (live(replica) && s_.slots[p->member].incarnation != p->incarnation)
        fail_replica(
            replica,
            Error(Code::kPeerLost, "was replaced by a new process").at_peer(name(p->member)).at_stage("decided"));
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Gated&) {
  Part* p = part(member, e.txn);
  if (p == nullptr || !s_.round->committed) return void(++s_.dropped.old_txn);
  progressed(*p, Progressed::kGated);
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Applied& m) {
  Part* p = part(member, e.txn);
  if (p == nullptr || !s_.round->committed) return void(++s_.dropped.old_txn);
  if (!p->applied) p->applied = m;
  s_.slots[member].base = m.retained ? e.txn : Txn{};
  progressed(*p, Progressed::kApplied);
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Reopened& m) {
  Part* p = part(member, e.txn);
  // Only an Open makes it reopen, and that was sent after every rank's Applied was heard (or by a former coordinator).
  if (p == nullptr || !s_.round->committed || (!p->applied && !s_.round->recovered)) return void(++s_.dropped.old_txn);
  if (p->applied) p->applied->pause_ns = std::max(p->applied->pause_ns, m.pause_ns);
  Slot& slot = s_.slots[member];
  slot.holds = s_.round->version;
  slot.heartbeat.state = wire::MemberState::kServing;
  if (p->applied) slot.live = p->applied->counted;
  progressed(*p, Progressed::kReopened);
}

void Machine::advance_replicas() {
  for (Replica& replica : s_.round->replicas)
    if (live(replica)) advance_replica(replica);
  const Round& r = *s_.round;
  const bool settled = std::all_of(r.replicas.begin(), r.replicas.end(), [&](const Replica& x) {
    if (!live(x)) return x.out_told;
    return std::all_of(r.parts.begin(), r.parts.end(), [&](const Part& p) {
      return is_source(p.member) || instance(p.member) != x.instance || p.at == Progressed::kReopened;
    });
  });
  const bool ending =
      std::any_of(s_.pending.begin(), s_.pending.end(), [](const Pending& p) { return p.purpose == Purpose::kEnd; });
  if (settled && !ending) append(Purpose::kEnd, {EndRecord{r.record.txn}});
}

void Machine::advance_replica(Replica& replica) {
  const std::vector<Part*> ranks = ranks_of(replica);
  auto all_at = [](const std::vector<Part*>& parts, Progressed at) {
    return std::all_of(parts.begin(), parts.end(), [&](const Part* p) { return p->at >= at; });
  };
  if (all_at(ranks, Progressed::kReopened)) return;
  if (s_.now_ns > replica.gate_deadline_ns && !s_.reading_epoch) {
    const Part* late =
        *std::min_element(ranks.begin(), ranks.end(), [](const Part* a, const Part* b) { return a->at < b->at; });
    return fail_replica(replica, Error(Code::kTimeout, "has not applied within the gate deadline")
                                     .at_peer(name(late->member))
                                     .at_stage("gated"));
  }
  for (const Part* p : ranks) {
    const Slot& slot = s_.slots[p->member];
    if (p->at >= Progressed::kReopened || slot.present() || s_.now_ns - slot.gone_ns <= s_.config.silence_ns ||
        s_.reading_epoch)
      continue;
    return fail_replica(replica,
                        Error(Code::kPeerLost, "left after the commit").at_peer(name(p->member)).at_stage("decided"));
  }
  if (!replica.copy_told && all_at(ranks, Progressed::kGated)) {
    replica.copy_told = true;
    for (Part* p : ranks) command(*p);
  }
  if (replica.open_told || !all_at(ranks, Progressed::kApplied)) return;
  wire::Digest4 sum;
  bool known = true;
  for (const Part* p : ranks) {
    known = known && p->applied;
    if (p->applied) sum += p->applied->counted;
  }
  if (known && wire::fold(sum) != s_.round->version.digest)
    return fail_replica(replica,
                        Error(Code::kMismatch, "the live bytes of replica " + std::to_string(replica.instance) +
                                                   " are not those of the version")
                            .at_peer(name(ranks.front()->member))
                            .at_stage("applied"));
  if (s_.config.barrier)
    for (const Replica& other : s_.round->replicas)
      if (live(other) && !all_at(ranks_of(other), Progressed::kGated)) return;
  replica.open_told = true;
  for (Part* p : ranks) command(*p);
}

// After the decision a replica that can't finish is fenced as a whole and leaves the membership; the next round repairs
// it. It is told only when that is journaled (C12, C16).
void Machine::fail_replica(Replica& replica, Error error) {
  Round& r = *s_.round;
  replica.failed = error;
  if (!r.error) r.error = std::move(error);
  EvictRecord evict{r.record.txn, s_.journal.membership_epoch + 1, {}};
  for (const Pending& p : s_.pending) evict.membership_epoch += p.purpose == Purpose::kEvict ? 1 : 0;
  for (const Part* p : ranks_of(replica)) evict.members.push_back({p->member, p->incarnation});
  append(Purpose::kEvict, {evict});
}

void Machine::evicted() {
  if (!s_.round) return;
  for (Replica& replica : s_.round->replicas) {
    if (!replica.failed || replica.out_told) continue;
    const std::vector<Part*> ranks = ranks_of(replica);
    const Seat first{ranks.front()->member, ranks.front()->incarnation};
    if (!std::binary_search(s_.journal.evicted.begin(), s_.journal.evicted.end(), first)) continue;
    replica.out_told = true;
    for (const Part* p : ranks) {
      s_.out.push_back({p->member, p->incarnation});
      if (s_.slots[p->member].incarnation == p->incarnation)
        evict_again(s_.slots[p->member].connection, *replica.failed);
    }
  }
}

void Machine::ended() {
  const Round& r = *s_.round;
  for (const Part& p : r.parts)
    if (is_source(p.member) && s_.slots[p.member].incarnation == p.incarnation)
      send_member(p.member, r.record.txn, wire::End{wire::Outcome::kCommitted, r.version});
  RoundResult out = result(wire::Outcome::kCommitted);
  const Txn txn = r.record.txn;
  const bool reported = r.reported || !s_.call;
  s_.round.reset();
  if (reported) {
    todo_.push_back(Finished{txn, out.all_applied});
    return;
  }
  report(std::move(out));
}

void Machine::report_incomplete(Error error) {
  RoundResult out = result(wire::Outcome::kCommittedIncomplete);
  out.error = s_.round->error ? *s_.round->error : std::move(error);
  s_.round->reported = true;
  report(std::move(out));
}

// What the call returns. A replica that failed after the commit makes it incomplete, unless `continue` allows to go on
// without it: then the journaled membership no longer has it.
RoundResult Machine::result(wire::Outcome outcome) const {
  RoundResult out;
  out.outcome = outcome;
  if (s_.journal.newest) out.version = s_.journal.newest->version;
  if (!s_.round) return out;
  const Round& r = *s_.round;
  out.txn = r.record.txn;
  out.number = r.record.number;
  out.error = r.error;
  if (outcome == wire::Outcome::kInDoubt) out.version = r.version;
  std::uint32_t whole = 0, failed = 0;
  for (const Replica& replica : r.replicas) {
    bool opened = true;
    for (const Part& p : r.parts) {
      if (is_source(p.member) || instance(p.member) != replica.instance) continue;
      opened = opened && p.at == Progressed::kReopened && live(replica);
      const bool gone = replica.evicted || (replica.failed && s_.config.continue_on_loss);
      if (gone)
        out.evicted.push_back(s_.config.shape.name(p.member));
      else if (p.at < Progressed::kReopened || replica.failed)
        out.missing.push_back(s_.config.shape.name(p.member));
      if (p.applied) {
        out.max_pause_ns = std::max(out.max_pause_ns, p.applied->pause_ns);
        out.proof.placed_live += p.applied->proof.placed_live;
        out.proof.handed_over += p.applied->proof.handed_over;
        out.proof.probed += p.applied->proof.probed;
      }
      if (p.staged) out.proof.placed_staged += p.staged->proof.placed_staged;
    }
    whole += opened ? 1u : 0u;
    failed += replica.failed ? 1u : 0u;
  }
  if (outcome != wire::Outcome::kCommitted) {
    if (outcome == wire::Outcome::kAborted) out.missing.clear();
    return out;
  }
  const std::uint32_t least = std::max<std::uint32_t>(1, s_.config.continue_on_loss ? s_.config.min_targets : 1);
  out.all_applied = whole >= least && (failed == 0 || s_.config.continue_on_loss);
  if (!out.all_applied) out.outcome = wire::Outcome::kCommittedIncomplete;
  return out;
}

void Machine::report(RoundResult out) {
  s_.call.reset();
  if (s_.stage != Stage::kStopped) s_.stage = Stage::kIdle;
  s_.last = out;
  todo_.push_back(Report{std::move(out)});
}

}  // namespace refit::coordinator
