// A round from the call to the decision.
#include <algorithm>

#include "coordinator/machine.h"

namespace refit::coordinator {

void Machine::on(const BeginRound& e) {
  if (s_.stage != Stage::kIdle) {
    RoundResult r;
    r.error = s_.stage == Stage::kStopped
                  ? *s_.stopped
                  : Error(Code::kBusy, s_.call ? "a round is in hand" : "the coordinator is opening its journal")
                        .at_peer("coordinator");
    if (s_.journal.newest) r.version = s_.journal.newest->version;
    todo_.push_back(Report{std::move(r)});
    return;
  }
  s_.call = e;
  s_.stage = Stage::kJoining;
  s_.call_since_ns = s_.now_ns;
  s_.join_deadline_ns = s_.now_ns + std::min(s_.config.join_ns, e.total_ns);
}

void Machine::begin_if_ready() {
  if (s_.stage != Stage::kJoining || s_.reading_epoch) return;
  if (const auto why = unready()) {
    const bool refused =
        std::any_of(s_.seated.begin(), s_.seated.end(), [&](std::uint32_t m) { return !s_.slots[m].refused.empty(); });
    // With `continue` the complete replicas get as long again to plan without the others.
    const std::int64_t limit = s_.join_deadline_ns + (s_.config.continue_on_loss ? s_.config.join_ns : 0);
    if (s_.now_ns <= limit && !(refused && !s_.round && !s_.config.continue_on_loss)) return;
    RoundResult r = result(s_.round ? wire::Outcome::kCommittedIncomplete : wire::Outcome::kAborted);
    r.error = *why;
    return report(std::move(r));
  }
  Round r;
  r.record.txn = {s_.journal.lineage, s_.epoch, s_.journal.counter + 1};
  r.record.number = ++s_.highest_number;
  r.record.membership_epoch = s_.journal.membership_epoch + 1;
  r.record.layout_epoch = s_.layout_epoch;
  s_.plan = r.record.plan = s_.slots[s_.seated.front()].plan;
  r.total_deadline_ns = s_.call_since_ns + s_.call->total_ns;
  for (std::uint32_t m : s_.seated) {
    r.record.members.push_back({m, s_.slots[m].incarnation});
    Part p;
    p.member = m;
    p.incarnation = s_.slots[m].incarnation;
    r.parts.push_back(p);
    if (is_source(m) || (!r.replicas.empty() && r.replicas.back().instance == instance(m))) continue;
    r.replicas.emplace_back().instance = instance(m);
  }
  s_.round = std::move(r);
  s_.stage = Stage::kBegin;
  append(Purpose::kBegin, {s_.round->record}, round_reserve_bytes(s_.seated.size()));
}

void Machine::begun() {
  if (!s_.round || s_.stage != Stage::kBegin) return;
  Round& r = *s_.round;
  todo_.push_back(Observe{Phase::kBegin, r.record.txn});
  const std::int64_t left = r.total_deadline_ns - s_.now_ns - s_.config.margin_ns;
  r.begin = {r.record.number,
             r.record.layout_epoch,
             r.record.plan,
             s_.call->step,
             s_.call->proof,
             std::max<std::int64_t>(1, s_.call->stall_ns - s_.config.margin_ns),
             std::max<std::int64_t>(1, left),
             {},
             {}};
  choose_base();
  enter(Stage::kSealing);
  for (Part& p : r.parts) command(p);
  // Who left while the record was on its way to the disk?
  for (const Part& p : std::vector<Part>(r.parts))
    if (s_.round && (!s_.slots[p.member].present() || s_.slots[p.member].incarnation != p.incarnation))
      lost(p.member, Error(Code::kPeerLost, "left before the round began").at_peer(name(p.member)));
}

// Deltas are made against the newest commit, for those who hold it; the others get complete buckets.
void Machine::choose_base() {
  Round& r = *s_.round;
  if (!s_.journal.newest) return;
  const Txn newest = s_.journal.newest->txn;
  bool anybody = false;
  for (const Part& p : r.parts) {
    if (is_source(p.member)) continue;
    if (s_.slots[p.member].base == newest)
      anybody = true;
    else
      r.begin.without.push_back(p.member);
  }
  if (anybody)
    r.begin.base = newest;
  else
    r.begin.without.clear();
}

void Machine::enter(Stage stage) {
  s_.stage = stage;
  s_.round->stage_since_ns = s_.now_ns;
  for (Part& p : s_.round->parts) p.progress_ns = s_.now_ns, p.sent_ns = 0;
}

// ---- what members say
// -------------------------------------------------------------------------------------------------

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Sealed& m) {
  Part* p = part(member, e.txn);
  if (p == nullptr || s_.stage != Stage::kSealing || !is_source(member) || p->at != Progressed::kBegun)
    return void(++s_.dropped.old_txn);
  Round& r = *s_.round;
  auto mismatch = [&](const std::string& what) {
    abort(Error(Code::kMismatch, what).at_peer(name(member)).at_stage("seal"));
  };
  if (r.begin.step && *r.begin.step != m.step)
    return mismatch("published step " + std::to_string(m.step) + " instead of " + std::to_string(*r.begin.step));
  for (const Part& other : r.parts) {
    if (!is_source(other.member) || other.at < Progressed::kSealed) continue;
    if (other.sealed.step != m.step || other.sealed.weight_set != m.weight_set)
      return mismatch("published step " + std::to_string(m.step) + " of '" + m.weight_set + "', " + name(other.member) +
                      " published step " + std::to_string(other.sealed.step) + " of '" + other.sealed.weight_set + "'");
    break;
  }
  if (!r.amax && std::ranges::any_of(r.parts, [](const Part& x) { return x.amax.has_value(); }))
    return mismatch("sealed before the exchange of largest magnitudes was over");
  for (const wire::GroupDigest& g : m.groups) {
    const auto [at, first] = r.groups.try_emplace(g.group, g.digest, member);
    if (!first && at->second.first != g.digest)
      return mismatch("owners " + name(at->second.second) + " and " + name(member) +
                      " hold different bytes of the same boxes");
  }
  p->sealed = m;
  progressed(*p, Progressed::kSealed);
}

// Told again by a source until it is answered; the first word of a source in a round is its last.
void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::BlockAmax& m) {
  Part* p = part(member, e.txn);
  if (p == nullptr || s_.stage != Stage::kSealing || !is_source(member) || p->at != Progressed::kBegun)
    return void(++s_.dropped.old_txn);
  Round& r = *s_.round;
  if (r.amax) return send_amax(*p);
  if (p->amax) return;
  if (std::ranges::any_of(r.parts, [&](const Part& x) { return is_source(x.member) && x.at >= Progressed::kSealed; }))
    return abort(
        Error(Code::kMismatch, "a source sealed without the exchange of largest magnitudes").at_stage("seal"));
  p->amax = m;
  p->progress_ns = s_.now_ns;
  const auto told = [&](const Part& other) { return !is_source(other.member) || other.amax; };
  if (!std::all_of(r.parts.begin(), r.parts.end(), told)) return;
  std::vector<std::pair<std::uint64_t, float>>& all = r.amax.emplace();
  for (Part& other : r.parts) {
    if (!is_source(other.member)) continue;
    for (std::size_t i = 0; i < other.amax->blocks.size(); ++i)
      all.emplace_back(other.amax->blocks[i], other.amax->amax[i]);
    other.amax->amax.clear();  // the blocks alone say what to answer
  }
  std::ranges::sort(all, std::greater{});  // of one block the largest first
  const auto twice = std::ranges::unique(all, {}, &std::pair<std::uint64_t, float>::first);
  all.erase(twice.begin(), twice.end());
  std::ranges::reverse(all);
  for (Part& other : r.parts) {
    if (!is_source(other.member)) continue;
    other.progress_ns = s_.now_ns;
    send_amax(other);
  }
}

void Machine::send_amax(const Part& p) {
  wire::BlockAmaxMerged merged;
  for (std::uint64_t block : p.amax->blocks)
    merged.amax.push_back(
        std::ranges::lower_bound(*s_.round->amax, block, {}, &std::pair<std::uint64_t, float>::first)->second);
  send_member(p.member, s_.round->record.txn, std::move(merged));
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Staged& m) {
  Part* p = part(member, e.txn);
  if (p == nullptr || s_.stage != Stage::kStaging || is_source(member) || p->at >= Progressed::kVoted)
    return void(++s_.dropped.old_txn);
  p->staged = m;
  progressed(*p, p->yes ? Progressed::kVoted : Progressed::kStaged);
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Vote& m) {
  Part* p = part(member, e.txn);
  // A target that votes no has dropped its base, also when another's no has ended the round before this one came.
  if (!m.yes && !is_source(member)) s_.slots[member].base = {};
  const bool open = s_.stage == Stage::kSealing || s_.stage == Stage::kStaging || s_.stage == Stage::kSourceVotes;
  if (p == nullptr || !open || p->at >= Progressed::kVoted) return void(++s_.dropped.old_txn);
  if (!m.yes) return lost(member, Error(*m.error).at_peer(name(member)).at_stage(std::string(to_string(s_.stage))));
  if (is_source(member) ? s_.stage != Stage::kSourceVotes : s_.stage != Stage::kStaging)
    return void(++s_.dropped.unexpected);
  p->yes = true;
  if (is_source(member) || p->staged) progressed(*p, Progressed::kVoted);
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Failed& m) {
  Part* p = part(member, e.txn);
  if (p == nullptr) return void(++s_.dropped.old_txn);
  Error error = Error(m.error).at_peer(name(member)).at_stage(std::string(to_string(m.phase)));
  if (!s_.round->committed) return lost(member, std::move(error));
  if (Replica* r = replica_of(member); r != nullptr && live(*r) && p->at < Progressed::kReopened)
    fail_replica(*r, std::move(error));
}

// ---- transitions
// ------------------------------------------------------------------------------------------------------

void Machine::advance_round() {
  Round& r = *s_.round;
  auto sources_at = [&](Progressed at) {
    return std::all_of(r.parts.begin(), r.parts.end(),
                       [&](const Part& p) { return !is_source(p.member) || p.at >= at; });
  };
  if (s_.stage == Stage::kSealing && sources_at(Progressed::kSealed)) {
    r.digest = {};
    for (const Part& p : r.parts)
      if (is_source(p.member)) r.digest += p.sealed.digest;
    todo_.push_back(Observe{Phase::kLend, r.record.txn});
    enter(Stage::kStaging);
    for (Part& p : r.parts)
      if (!is_source(p.member)) command(p);
  }
  if (s_.stage == Stage::kStaging) {
    bool all = true;
    for (Replica& replica : r.replicas) {
      if (live(replica) && !replica_staged(replica)) all = false;
      if (!s_.round) return;  // it aborted the round
    }
    if (!all) return;
    todo_.push_back(Observe{Phase::kVoted, r.record.txn});
    enter(Stage::kSourceVotes);
    for (Part& p : r.parts)
      if (is_source(p.member)) command(p);
  }
  if (s_.stage == Stage::kSourceVotes && sources_at(Progressed::kVoted) && !s_.reading_epoch) decide();
}

// All ranks voted; then its digest, each distinct box counted once, is the version's.
bool Machine::replica_staged(Replica& replica) {
  wire::Digest4 sum;
  for (const Part* p : ranks_of(replica)) {
    if (p->at < Progressed::kVoted) return false;
    sum += p->staged->counted;
  }
  if (sum == s_.round->digest) return true;
  const std::uint32_t first = ranks_of(replica).front()->member;
  lost(first, Error(Code::kMismatch,
                    "replica " + std::to_string(replica.instance) + " staged other values than the sources sealed")
                  .at_peer(name(first))
                  .at_stage("staged"));
  return false;
}

void Machine::decide() {
  Round& r = *s_.round;
  const auto yes = static_cast<std::uint32_t>(
      std::count_if(r.replicas.begin(), r.replicas.end(), [&](const Replica& x) { return live(x); }));
  if (yes < std::max<std::uint32_t>(1, s_.config.min_targets) && s_.config.continue_on_loss)
    return abort(Error(Code::kPeerLost, std::to_string(yes) + " replicas voted yes, `refit.min_targets` is " +
                                            std::to_string(s_.config.min_targets))
                     .at_stage("voted"));
  const Part& source = r.parts.front();
  r.version = {s_.journal.lineage, r.record.number, wire::fold(r.digest), source.sealed.step};
  std::vector<RecordBody> bodies;
  EvictRecord evict{r.record.txn, r.record.membership_epoch + 1, {}};
  for (const Seat& seat : r.record.members)
    if (!is_source(seat.member) && !live(*replica_of(seat.member))) evict.members.push_back(seat);
  if (!evict.members.empty()) bodies.push_back(evict);
  bodies.push_back(CommitRecord{r.record.txn, r.version, r.digest});
  s_.stage = Stage::kDeciding;
  append(Purpose::kCommit, std::move(bodies));
}

// A member of the round is gone, said no, or broke a rule before the decision.
void Machine::lost(std::uint32_t member, Error error) {
  if (!s_.round) return;
  Round& r = *s_.round;
  const bool in = std::any_of(r.parts.begin(), r.parts.end(), [&](const Part& p) { return p.member == member; });
  if (!in || s_.stage == Stage::kBegin) return;
  s_.slots[member].base = {};  // as a target that says no does by itself
  if (r.committed || s_.stage == Stage::kDeciding) {
    // The decision stands or is on its way to the disk; its replica is repaired by the next round.
    if (Replica* replica = is_source(member) ? nullptr : replica_of(member);
        replica != nullptr && r.committed && live(*replica)) {
      const auto p = std::find_if(r.parts.begin(), r.parts.end(), [&](const Part& x) { return x.member == member; });
      if (p->at < Progressed::kReopened) fail_replica(*replica, std::move(error));
    }
    return;
  }
  const wire::Heartbeat& beat = s_.slots[member].heartbeat;
  error = std::move(error).at_peer(name(member)).at_stage(std::string(to_string(s_.stage)));
  if (!beat.bucket.empty() && s_.slots[member].inside == r.record.txn) error = std::move(error).at_bucket(beat.bucket);
  if (is_source(member) || !s_.config.continue_on_loss) return abort(std::move(error));
  Replica* replica = replica_of(member);
  if (!live(*replica)) return;
  replica->evicted = true;
  if (!r.error) r.error = error;
  for (const Part* p : ranks_of(*replica)) send_member(p->member, r.record.txn, wire::Abort{error});
  const auto left = std::count_if(r.replicas.begin(), r.replicas.end(), [&](const Replica& x) { return live(x); });
  if (left < static_cast<std::ptrdiff_t>(std::max<std::uint32_t>(1, s_.config.min_targets))) abort(std::move(error));
}

void Machine::abort(Error error) {
  Round& r = *s_.round;
  if (!r.error) r.error = error;
  append(Purpose::kAbort, {AbortRecord{r.record.txn}});
  for (const Part& p : r.parts)
    if (s_.slots[p.member].incarnation == p.incarnation) send_member(p.member, r.record.txn, wire::Abort{error});
  RoundResult out = result(wire::Outcome::kAborted);
  out.error = r.error;
  s_.round.reset();
  report(std::move(out));
}

// ---- time
// -------------------------------------------------------------------------------------------------------------

bool Machine::awaited(const Part& p) const {
  switch (s_.stage) {
    case Stage::kSealing:
      // Who has told its amax waits for the others.
      return is_source(p.member) && p.at < Progressed::kSealed && (!p.amax || s_.round->amax);
    case Stage::kSourceVotes:
      return is_source(p.member) && p.at < Progressed::kVoted;
    case Stage::kStaging: {
      if (is_source(p.member) || p.at >= Progressed::kVoted) return false;
      const auto& all = s_.round->replicas;
      return std::any_of(all.begin(), all.end(),
                         [&](const Replica& r) { return r.instance == instance(p.member) && live(r); });
    }
    default:
      return false;
  }
}

// The awaited member that has shown no progress for longest, if that is at least `stall_ns`.
const Part* Machine::awaited_longest(std::int64_t stall_ns) const {
  const Part* worst = nullptr;
  for (const Part& p : s_.round->parts)
    if (awaited(p) && s_.now_ns - p.progress_ns >= stall_ns && (worst == nullptr || p.progress_ns < worst->progress_ns))
      worst = &p;
  return worst;
}

void Machine::watch_deadlines() {
  if (!s_.call || !s_.round || s_.stage == Stage::kJoining) return;
  Round& r = *s_.round;
  const bool over = s_.now_ns > r.total_deadline_ns;
  if (r.committed) {
    if (over)
      report_incomplete(Error(Code::kTimeout, "the call reached its deadline after the commit").at_stage("applied"));
    return;
  }
  if (s_.stage == Stage::kDeciding || s_.stage == Stage::kBegin) {
    if (!over) return;
    // Not known whether the record is durable: the call ends, the round does not.
    RoundResult out = result(s_.stage == Stage::kDeciding ? wire::Outcome::kInDoubt : wire::Outcome::kAborted);
    out.error = Error(Code::kTimeout, "the journal did not answer").at_peer("coordinator").at_stage("journal");
    if (s_.stage == Stage::kBegin) return stop(*out.error);
    r.reported = true;
    const Stage keep = s_.stage;
    report(std::move(out));
    s_.stage = keep;
    return;
  }
  if (const Part* late = over ? awaited_longest(0) : awaited_longest(s_.call->stall_ns)) {
    const wire::Heartbeat beat = s_.slots[late->member].heartbeat;
    Error error(Code::kTimeout, over ? "the round reached its deadline"
                                     : "no progress within the stall deadline of " +
                                           std::to_string(s_.call->stall_ns / 1'000'000) + " ms, " +
                                           std::to_string(beat.buckets_done) + " buckets done");
    lost(late->member, std::move(error));
  }
}

// What the member must hear next, if we wait for it.
void Machine::command(Part& p) {
  const Round& r = *s_.round;
  const Txn& txn = r.record.txn;
  p.sent_ns = s_.now_ns;
  const bool inside = s_.slots[p.member].inside == txn;
  if (s_.slots[p.member].incarnation != p.incarnation || out({p.member, p.incarnation})) return;
  if (!r.committed) {
    if (s_.stage == Stage::kSealing) return send_member(p.member, txn, r.begin);
    if (s_.stage == Stage::kSourceVotes) return send_member(p.member, txn, wire::ReadersDone{});
    if (s_.stage != Stage::kStaging) return;
    if (!inside) send_member(p.member, txn, r.begin);
    wire::Lend lend;
    for (const Part& s : r.parts)
      if (is_source(s.member))
        lend.sources.push_back(
            {s.member, s.incarnation, s.sealed.descriptor, s.sealed.manifest_bytes, s.sealed.manifest_hash});
    return send_member(p.member, txn, std::move(lend));
  }
  if (is_source(p.member)) return send_member(p.member, txn, wire::Committed{r.version});
  const Replica& replica = *replica_of(p.member);
  if (p.at >= Progressed::kApplied && replica.open_told) return send_member(p.member, txn, wire::Open{});
  if (p.at == Progressed::kGated && replica.copy_told) return send_member(p.member, txn, wire::Copy{});
  if (p.at < Progressed::kGated)
    send_member(p.member, txn, wire::Gate{r.version, std::max<std::int64_t>(1, replica.gate_deadline_ns - s_.now_ns)});
}

void Machine::resend() {
  if (s_.stage == Stage::kIdle || s_.stage == Stage::kJoining)
    for (std::uint32_t m : s_.seated) {
      Slot& slot = s_.slots[m];
      if (slot.ready || !slot.refused.empty() || !here(m) || s_.now_ns - slot.configured_ns < s_.config.resend_ns ||
          s_.round)
        continue;
      slot.configured_ns = s_.now_ns;
      send_member(m, {}, s_.configure);
    }
  if (!s_.round || s_.stage == Stage::kBegin || s_.stage == Stage::kDeciding) return;
  for (Part& p : s_.round->parts) {
    if (s_.now_ns - p.sent_ns < s_.config.resend_ns) continue;
    const Replica* replica = is_source(p.member) ? nullptr : replica_of(p.member);
    const bool post = s_.round->committed && replica != nullptr && live(*replica) && p.at < Progressed::kReopened;
    const bool uninformed = s_.stage == Stage::kSealing && !is_source(p.member) &&
                            s_.slots[p.member].inside != s_.round->record.txn && live(*replica);
    if (post || uninformed || (!s_.round->committed && awaited(p))) command(p);
  }
}

}  // namespace refit::coordinator
