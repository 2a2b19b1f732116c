// The invariants of the round protocol, looked at after every event. Numbers are those of docs/design/install.md.
#include <algorithm>

#include "sim/parts.h"

namespace refit::sim {
namespace {

std::string who(const World& w, std::uint32_t t) { return w.shape.name(w.sources() + t).to_string(); }

}  // namespace

std::optional<Values> Checker::reference(const Txn& t, const World& world) const {
  if (const auto known = committed_values_.find(t); known != committed_values_.end()) return known->second;
  const auto at = seals.find(t);
  if (at == seals.end() || at->second.size() != world.sources()) return std::nullopt;
  Values out{};
  for (const auto& [s, seal] : at->second) {
    const Slice slice = world.source_slice(s);
    for (std::uint32_t i = slice.lo; i < slice.hi; ++i) out[i] = seal.values[i];
  }
  return out;
}

void Checker::record(const coordinator::Record& r, const World& world) {
  if (const auto* b = std::get_if<coordinator::BeginRecord>(&r.body)) {
    begun[b->txn] = *b;
    const auto [at, fresh] = by_number.try_emplace({b->txn.lineage, b->number}, b->txn);
    if (!fresh)
      fail("2: number " + std::to_string(b->number) + " is used by " + at->second.to_string() + " and " +
           b->txn.to_string());
  } else if (const auto* e = std::get_if<coordinator::EvictRecord>(&r.body)) {
    evicted.insert(e->members.begin(), e->members.end());
  } else if (const auto* c = std::get_if<coordinator::CommitRecord>(&r.body)) {
    commit(*c, world);
  } else if (const auto* a = std::get_if<coordinator::AbortRecord>(&r.body)) {
    if (const auto [at, fresh] = decided.try_emplace(a->txn, false); !fresh && at->second && !lost.contains(a->txn))
      fail("4: round " + a->txn.to_string() + " was committed and is now aborted");
  }
  if (const auto* s = std::get_if<coordinator::SnapshotRecord>(&r.body)) rebuilt(*s, world);
  if (const auto* b = std::get_if<coordinator::BeginRecord>(&r.body))
    for (const coordinator::Seat& seat : b->members) evicted.erase(seat);
}

// The end of rule C3. What the lost journal had committed and nobody who is left has heard of may be forgotten; what
// anybody has applied, or copies, may not.
void Checker::rebuilt(const coordinator::SnapshotRecord& r, const World& world) {
  const Txn newest = r.newest ? r.newest->txn : Txn{};
  if (r.newest && !committed(newest))
    fail("4: the rebuilt journal has a commit of " + newest.to_string() + ", which never was");
  for (const auto& [txn, yes_no] : decided)
    if (yes_no && txn.lineage == r.lineage && txn > newest) lost.insert(txn);
  for (const coordinator::Seat& seat : r.evicted)
    evicted.insert({seat.member, seat.incarnation.value != 0
                                     ? seat.incarnation
                                     : world.target[seat.member - world.sources()].incarnation});
  for (std::uint32_t t = 0; t < world.target.size(); ++t) {
    const TargetHost& h = world.target[t];
    if (h.alive && h.word.txn.lineage == r.lineage && h.word.txn > newest &&
        !evicted.contains({world.sources() + t, h.incarnation}))
      fail("4: the rebuilt journal forgets what " + who(world, t) + " has applied");
  }
  if (r.open && r.open_committed)
    for (const coordinator::Seat& seat : r.open->members) evicted.erase(seat);
}

void Checker::commit(const coordinator::CommitRecord& c, const World& world) {
  if (const auto [at, fresh] = decided.try_emplace(c.txn, true); !fresh && !at->second)
    fail("4: round " + c.txn.to_string() + " was aborted and is now committed");
  if (abort_told.contains(c.txn) && !world.config.continue_on_loss)
    fail("4: round " + c.txn.to_string() + " is committed after an abort was told");
  if (abort_reported.contains(c.txn))
    fail("12: round " + c.txn.to_string() + " is committed after aborted was reported");
  std::set<std::uint32_t> replicas;
  std::optional<std::int64_t> step;
  for (const coordinator::Seat& seat : begun[c.txn].members) {
    if (evicted.contains(seat)) continue;
    members[c.txn].insert(seat.member);
    if (!yes.contains({seat, c.txn}))
      fail("5: committed without the yes of " + world.shape.name(seat.member).to_string());
    if (seat.member >= world.sources()) {
      replicas.insert(world.shape.name(seat.member).instance);
      continue;
    }
    const Seal& seal = seals[c.txn][seat.member];
    if (step.value_or(seal.step) != seal.step)
      fail("8: committed seals of steps " + std::to_string(*step) + " and " + std::to_string(seal.step));
    step = seal.step;
    if (seal.dirty) fail("8: committed although the source was written while lent");
  }
  if (replicas.size() < (world.config.continue_on_loss ? world.config.min_targets : world.shape.target_instances))
    fail("5: committed with " + std::to_string(replicas.size()) + " replicas");
  const auto all = reference(c.txn, world);
  if (all) committed_values_[c.txn] = *all;
  if (!all || wire::fold(digest_of(*all, {0, kElems})) != c.version.digest)
    fail("2: the version's digest is not that of its seals");
}

// 11: what deltas are made against is committed, and its bytes are those of that round.
void Checker::source(std::uint32_t index, const World& world) {
  const SourceHost& s = world.source[index];
  if (!s.alive || s.base.counter == 0) return;
  const std::string name = world.shape.name(index).to_string();
  if (!committed(s.base)) return fail("11: the base of " + name + " is " + s.base.to_string() + ", not committed");
  const auto wanted = reference(s.base, world);
  if (wanted && !equal_in(s.base_values, *wanted, world.source_slice(index)))
    fail("11: the base of " + name + " has other bytes than " + s.base.to_string());
}

void Checker::target(std::uint32_t index, const World& world) {
  const TargetHost& t = world.target[index];
  const std::string name = who(world, index);
  if (t.word.word != wire::Word::kNone && !committed(t.word.txn))
    fail("3: " + name + " has a word of " + t.word.txn.to_string() + ", which is not committed");
  if (!t.alive) return;
  using install::TargetPhase;
  const auto phase = t.state.phase;
  if ((phase == TargetPhase::kEmpty || phase == TargetPhase::kFenced) && (install::servable(t.state) || t.open()))
    fail("10: " + name + " serves while " + std::string(wire::to_string(install::to_member_state(phase))));
  // The word speaks for the bytes whether the gate is open or not: a restarted agent believes it.
  const auto wanted = t.word.word == wire::Word::kApplied ? reference(t.word.txn, world) : std::nullopt;
  if (t.word.word == wire::Word::kApplied && (!wanted || !equal_in(t.live, *wanted, world.target_slice(index))))
    fail("1: " + name + " has word applied and other bytes than those of " + t.word.txn.to_string());
  if (t.open()) {
    if (t.caches != t.word.txn) fail("1: " + name + " serves " + t.word.txn.to_string() + " with old caches");
  }
  // 6: a yes holds its stage until the decision is known, and until it is applied.
  const coordinator::Seat seat{world.sources() + index, t.incarnation};
  if (t.promised_txn.counter > 0 && yes.contains({seat, t.promised_txn}) && !evicted.contains(seat)) {
    const auto at = decided.find(t.promised_txn);
    const bool aborted = (at != decided.end() && !at->second) || abort_told.contains(t.promised_txn);
    const bool done = t.word.word == wire::Word::kApplied && t.word.txn == t.promised_txn;
    const bool free = phase == TargetPhase::kEmpty || phase == TargetPhase::kFenced;
    if (!aborted && !done && !free && (!t.state.stage_held || t.shadow != t.promised))
      fail("6: " + name + " voted yes and lost its stage");
  }
  const bool gated = phase == TargetPhase::kApplying && t.state.gate_deadline_ns + 100 * kMs < world.now &&
                     world.now >= t.stopped_until + 100 * kMs;
  if (gated) fail("15: " + name + " is gated beyond its deadline and not fenced");
}

void Checker::replicas(const World& world) {
  std::set<Txn> versions;
  const std::uint32_t ranks = world.shape.target_ranks;
  for (std::uint32_t i = 0; i < world.shape.target_instances; ++i) {
    bool all = true;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const TargetHost& t = world.target[i * ranks + r];
      // Who is out of the membership and has not heard it serves nobody that counts (C16).
      all = all && t.open() && !evicted.contains({world.sources() + i * ranks + r, t.incarnation});
      for (std::uint32_t other = 0; t.open() && other < ranks; ++other) {
        const TargetHost& o = world.target[i * ranks + other];
        if (!o.alive || o.word.word == wire::Word::kNone || o.state.phase == install::TargetPhase::kFenced ||
            evicted.contains({world.sources() + i * ranks + other, o.incarnation}))
          continue;
        if (o.word.word == wire::Word::kCopying)
          fail("1: " + who(world, i * ranks + r) + " is open while " + who(world, i * ranks + other) + " copies");
        if (o.open() && o.word.txn != t.word.txn) fail("1: replica " + std::to_string(i) + " is open at two versions");
        if (!o.open() && o.word.txn < t.word.txn && o.incarnation != Incarnation{} &&
            applied.contains({{world.sources() + i * ranks + r, t.incarnation}, t.word.txn}) &&
            o.state.txn == t.word.txn)
          fail("1: " + who(world, i * ranks + r) + " reopened before " + who(world, i * ranks + other) + " applied");
      }
    }
    if (all) versions.insert(world.target[i * ranks].word.txn);
  }
  if (versions.size() > 2) fail("12: more than two versions are open");
}

void Checker::every_event(const World& world) {
  for (std::uint32_t s = 0; s < world.source.size(); ++s) source(s, world);
  for (std::uint32_t t = 0; t < world.target.size(); ++t) target(t, world);
  replicas(world);
}

}  // namespace refit::sim
