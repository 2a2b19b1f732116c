// Hosts of the ranks: their processes, memory, executors and the trainer.
#include <algorithm>
#include <cstring>

#include "sim/parts.h"

namespace refit::sim {
namespace {

wire::Bytes descriptor_of(std::uint64_t memory_epoch) {
  wire::Bytes b(8);
  std::memcpy(b.data(), &memory_epoch, 8);
  return b;
}

install::Identity identity(const coordinator::Config& config, const MemberName& name, Incarnation incarnation) {
  install::Identity self;
  self.job = config.job;
  self.name = name;
  self.incarnation = incarnation;
  self.layout_digest = {3, name.role == Role::kSource ? 1u : 2u};
  self.layout = wire::Bytes(16);
  self.staging_bytes = 1 << 20;
  self.heartbeat_ns = 50 * kMs;
  return self;
}

}  // namespace

bool World::crash_here(std::uint32_t member, const std::string& where) {
  if (!chance(crash_)) return false;
  verdict_.crash_points.insert(std::string(member < sources() ? "source@" : "target@") + where);
  crash(member);
  return true;
}

void World::crash(std::uint32_t member) {
  Process& p = process(member);
  if (!p.alive) return;
  trace(shape.name(member).to_string() + " dies");
  ++verdict_.crashes;
  // Sometimes only the agent is destroyed: the worker lives on with its bytes, word and gate.
  const bool survives = member >= sources() && draw(3) == 0;
  disconnect(member, true);
  p.alive = false;
  ++p.generation;
  if (member < sources()) {
    source[member].exposed = false;
  } else if (TargetHost& t = target[member - sources()]; survives) {
    p.alive = true;
    t.opening = {};
    t.promised_txn = {};
    return start_target(member - sources(), true);
  } else {
    t.gate_open = false;
    t.word = {};
    t.live = {};
  }
  later(static_cast<std::int64_t>(20 + draw(300)) * kMs, [this, member] {
    if (process(member).alive) return;
    if (member < sources())
      start_source(member);
    else
      start_target(member - sources(), false);
  });
}

void World::start_source(std::uint32_t s) {
  SourceHost& h = source[s];
  h.alive = true;
  ++h.generation;
  h.incarnation = Incarnation(++incarnations_);
  // Restored from a checkpoint, which may be a step behind the others.
  h.step = trainer_step_ > 1 && chance(0.3) ? trainer_step_ - 1 : trainer_step_;
  for (std::uint32_t i = 0; i < kElems; ++i) h.weights[i] = weight(h.step, i);
  h.seals.clear();
  h.sealing = {};
  h.base = {};
  h.state = agent::start_source(identity(config, shape.name(s), h.incarnation), now);
  connect(s);
  tick_member(s);
}

void World::start_target(std::uint32_t t, bool survived) {
  TargetHost& h = target[t];
  h.alive = true;
  ++h.generation;
  h.incarnation = Incarnation(++incarnations_);
  h.stopped_until = 0;
  std::optional<install::Survived> found;
  if (survived) found = install::Survived{h.word, h.label, std::nullopt, h.gate_open};
  h.shadow = {};
  h.clean = h.planned = false;
  h.old_gate.reset();
  h.old_copy.reset();
  h.state = install::start_target({identity(config, shape.name(sources() + t), h.incarnation), false}, found, now);
  connect(sources() + t);
  tick_member(sources() + t);
}

void World::tick_member(std::uint32_t member) {
  later_in(process(member), 25 * kMs, [this, member] {
    tick_member(member);
    if (member < sources())
      source_event(member, install::Tick{});
    else
      target_event(member - sources(), install::Tick{});
  });
}

// One step of the trainer on all sources, unless the guard holds one of them.
void World::train() {
  const bool held =
      std::any_of(source.begin(), source.end(), [](const SourceHost& s) { return s.alive && s.state.held; });
  if (held) return;
  ++trainer_step_;
  for (SourceHost& s : source) {
    if (!s.alive) continue;
    s.step = trainer_step_;
    ++s.counter;
    for (std::uint32_t i = 0; i < kElems; ++i) s.weights[i] = weight(s.step, i);
  }
  coord.marked_step = trainer_step_;
  stale(sync::StaleEvent::kMark);
}

// A trainer that ignores the lease but calls guard(), as it must.
void World::scribble() {
  SourceHost& s = source[draw(sources())];
  if (!s.alive) return;
  const auto phase = s.state.phase;
  s.weights[draw(kElems)] ^= 0x55u;
  ++s.counter;
  trace("the trainer writes into source memory");
  const bool matters = phase == agent::SourcePhase::kSealed || phase == agent::SourcePhase::kLending;
  for (auto& [txn, seals] : checker.seals)
    if (const auto at = seals.find(static_cast<std::uint32_t>(&s - source.data()));
        matters && txn == s.state.txn && at != seals.end())
      at->second.dirty = true;
}

// ---- sources
// ----------------------------------------------------------------------------------------------------------

void World::source_event(std::uint32_t s, agent::SourceEventKind what) {
  SourceHost& h = source[s];
  if (!h.alive) return;
  if (std::holds_alternative<install::ConnectionDown>(what)) h.connection = 0;
  std::optional<agent::SourceState> before;
  if (const auto* r = std::get_if<install::Received>(&what))
    if (const Txn& x = r->envelope.txn; x.counter > 0 && x < h.state.link.seen && x != h.state.txn) before = h.state;
  const std::uint64_t generation = h.generation;
  const auto todo = agent::step(h.state, {now, std::move(what)}, h.ignored);
  if (before && !agent::same(*before, h.state))
    checker.fail("13: a message of an old round changed " + shape.name(s).to_string());
  for (const auto& a : todo) {
    if (!h.alive || h.generation != generation) return;
    perform(s, a);
  }
}

// The rest of a preparation.
void World::seal(std::uint32_t s, const Txn& txn) {
  SourceHost& x = source[s];
  if (crash_here(s, "in seal")) return;
  const std::int64_t claimed = options.broken == Break::kStepsMixed ? trainer_step_ : x.step;
  checker.seals[txn][s] = x.seals[txn] = Seal{x.weights, x.step, x.prepared[txn], false};
  const Slice mine = source_slice(s);
  if (chance(0.01))
    return source_event(s,
                        agent::SourceTaskFailed{agent::SourceTask::kSeal, txn, Error(Code::kInvalid, "inexact cast")});
  source_event(s, agent::SealDone{txn, claimed, "policy", digest_of(x.weights, mine), {}, 8, {}});
}

void World::perform(std::uint32_t s, const agent::SourceAction& action) {
  SourceHost& h = source[s];
  auto soon = [&](agent::SourceEventKind e) {
    later_in(h, delay(), [this, s, e = std::move(e)] { source_event(s, e); });
  };
  if (const auto* send = std::get_if<install::Send>(&action)) {
    if (crash_here(s, "before " + std::string(wire::kind_name(send->envelope.message)))) return;
    if (const auto* vote = std::get_if<wire::Vote>(&send->envelope.message); vote != nullptr && vote->yes) {
      checker.yes.insert({{s, h.incarnation}, send->envelope.txn});
      if (deltas() && options.broken == Break::kBaseMovedEarly) {
        h.base = send->envelope.txn;
        h.base_values = h.seals[h.base].values;
      }
    }
    if (h.connection != 0) transmit(s, h.connection, true, send->envelope);
  } else if (const auto* plan = std::get_if<install::MakePlan>(&action)) {
    soon(install::PlanMade{plan->configure.layout_epoch, {5, 5}});
  } else if (const auto* p = std::get_if<agent::Prepare>(&action)) {
    const Txn txn = p->txn;
    later_in(h, delay(), [this, s, txn] {
      SourceHost& x = source[s];
      x.prepared[txn] = x.counter;
      if (!exchange_) return seal(s, txn);
      if (crash_here(s, "before its largest magnitude is told")) return;
      const auto most = static_cast<float>(draw(1000));
      checker.told[txn][s] = most;
      source_event(s, agent::AmaxDone{txn, {{7, 8 + std::uint64_t{s}}, {most, 1}}});
    });
  } else if (const auto* q = std::get_if<agent::Quantise>(&action)) {
    float most = 0;
    for (const auto& [other, told] : checker.told[q->txn]) most = std::max(most, told);
    if (checker.told[q->txn].size() != sources() || q->amax != std::vector<float>{most, 1})
      checker.fail("D7: " + shape.name(s).to_string() + " quantises with magnitudes that are not those of the round");
    later_in(h, delay(), [this, s, txn = q->txn] { seal(s, txn); });
  } else if (const auto* e = std::get_if<agent::Expose>(&action)) {
    h.exposed = true;
    soon(agent::Exposed{e->txn, descriptor_of(++h.memory_epoch)});
  } else if (const auto* c = std::get_if<agent::CheckSeal>(&action)) {
    const Txn txn = c->txn;
    later_in(h, delay(), [this, s, txn] {
      SourceHost& x = source[s];
      if (x.seals[txn].counter == x.counter || options.broken == Break::kSealNotChecked)
        return source_event(s, agent::SealChecked{txn});
      source_event(s, agent::SourceTaskFailed{agent::SourceTask::kCheckSeal, txn,
                                              Error(Code::kMismatch, "weights were written while lent")});
    });
  } else if (const auto* b = std::get_if<agent::MoveBase>(&action)) {
    if (!deltas()) return;
    if (crash_here(s, "before the base moves")) return;
    h.base = b->sealed ? b->txn : Txn{};  // what may have been written since can be no base
    h.base_values = h.seals[b->txn].values;
    crash_here(s, "base moved");
  } else if (std::holds_alternative<agent::Withdraw>(action)) {
    h.exposed = false;
    ++h.memory_epoch;
  } else if (const auto* o = std::get_if<install::Observe>(&action)) {
    crash_here(s, std::string(refit::to_string(o->phase)));
  }
}

// ---- targets
// ----------------------------------------------------------------------------------------------------------

void World::target_event(std::uint32_t t, install::TargetEventKind what) {
  TargetHost& h = target[t];
  if (!h.alive) return;
  if (std::holds_alternative<install::ConnectionDown>(what)) h.connection = 0;
  std::optional<install::TargetState> before;
  if (const auto* r = std::get_if<install::Received>(&what)) {
    const wire::Envelope& e = r->envelope;
    if (e.txn.counter > 0 && e.txn < h.state.link.seen && e.txn != h.state.txn) before = h.state;
    if (std::holds_alternative<wire::Gate>(e.message)) h.old_gate = e;
    if (std::holds_alternative<wire::Copy>(e.message)) h.old_copy = e;
  }
  const std::uint64_t generation = h.generation;
  const auto todo = install::step(h.state, {now, std::move(what)}, h.ignored);
  if (before && !install::same(*before, h.state))
    checker.fail("13: a message of an old round changed " + shape.name(sources() + t).to_string());
  for (const auto& a : todo) {
    if (!h.alive || h.generation != generation) return;
    perform(t, a);
  }
}

void World::vote_sent(std::uint32_t t, const Txn& txn) {
  TargetHost& h = target[t];
  const coordinator::Seat seat{sources() + t, h.incarnation};
  if (!checker.yes.insert({seat, txn}).second) return;
  h.promised = h.shadow;
  h.promised_txn = txn;
  const auto wanted = checker.reference(txn, *this);
  if (!wanted || !equal_in(h.shadow, *wanted, target_slice(t)))
    checker.fail("7: " + h.state.config.self.name.to_string() + " voted yes on other bytes than were sealed");
  if (options.broken == Break::kStageDropped && !calm) later_in(h, 2 * kMs, [this, t] { target[t].shadow = {}; });
  if (options.broken == Break::kVoteReleased && !calm)
    later_in(h, 25 * kMs, [this, t, txn] {
      wire::Envelope e;
      e.job = config.job;
      e.epoch = target[t].state.link.epoch;
      e.txn = txn;
      e.party = wire::Party::kCoordinator;
      e.message = wire::Abort{Error(Code::kTimeout, "deadline")};
      target_event(t, install::Received{e});
    });
  if (options.broken == Break::kOldTxnAccepted)
    for (auto* old : {&h.old_gate, &h.old_copy})
      if (*old && (*old)->txn != txn) {
        wire::Envelope e = **old;
        e.txn = txn;
        e.epoch = h.state.link.epoch;
        later_in(h, (old == &h.old_gate ? 1 : 12) * kMs, [this, t, e] { target_event(t, install::Received{e}); });
      }
}

// As the source decides: the round's base is its own, and this target holds it.
bool World::sends_delta(const SourceHost& s, std::uint32_t t) const {
  if (!deltas() || s.base.counter == 0) return false;
  if (options.broken == Break::kWrongBase) return true;
  return s.state.begin.base == s.base && s.state.begin.serves_delta(sources() + t);
}

// Before the first write of a round that has deltas: the shadow holds the base, or is brought to it from live.
void World::bring_base(std::uint32_t t, const Txn& base) {
  TargetHost& h = target[t];
  const Slice mine = target_slice(t);
  if (!h.clean && options.broken != Break::kShadowNotRestored)
    for (std::uint32_t i = mine.lo; i < mine.hi; ++i) h.shadow[i] = h.live[i];
  ++verdict_.deltas;
  const auto wanted = checker.reference(base, *this);
  if (!wanted || !equal_in(h.shadow, *wanted, mine) || h.state.base != base)
    checker.fail("11: " + h.state.config.self.name.to_string() + " applies a delta against " + base.to_string() +
                 " to other bytes");
}

void World::stage(std::uint32_t t, const install::StartStaging& a, std::uint32_t half) {
  TargetHost& h = target[t];
  const Slice mine = target_slice(t);
  const std::uint32_t middle = (mine.lo + mine.hi) / 2;
  auto fail = [&](Error e) { target_event(t, install::TaskFailed{install::Task::kStage, a.txn, std::move(e)}); };
  if (crash_here(sources() + t, half == 0 ? "transfer, nothing staged" : "transfer, half staged")) return;
  if (half == 0) {
    for (const wire::LendEntry& lend : a.sources) {
      const SourceHost& s = source[lend.member];
      const Slice theirs = source_slice(lend.member);
      if (theirs.hi <= mine.lo || theirs.lo >= mine.hi || !s.alive || s.state.txn != a.txn || !sends_delta(s, t))
        continue;
      if (s.base != a.base && options.broken != Break::kWrongBase)
        return fail(Error(Code::kMismatch, "a delta came against another base"));
      bring_base(t, s.base);
      break;
    }
    h.clean = false;
  }
  for (std::uint32_t i = half == 0 ? mine.lo : middle; i < (half == 0 ? middle : mine.hi); ++i)
    for (const wire::LendEntry& lend : a.sources) {
      const Slice theirs = source_slice(lend.member);
      if (i < theirs.lo || i >= theirs.hi) continue;
      const SourceHost& s = source[lend.member];
      if (!s.alive || !s.exposed || s.incarnation != lend.incarnation ||
          descriptor_of(s.memory_epoch) != lend.descriptor)
        return fail(Error(Code::kPeerLost, "the lend was withdrawn").at_peer(shape.name(lend.member).to_string()));
      if (sends_delta(s, t))
        h.shadow[i] += s.weights[i] - s.base_values[i];
      else
        h.shadow[i] = s.weights[i];
    }
  if (half == 0) {
    later_in(h, delay(), [this, t, a] { stage(t, a, 1); });
    return target_event(
        t, install::Progress{{{}, Phase::kTransfer, static_cast<std::uint64_t>(now), 1, 4, "0 from source:0.0"}});
  }
  const auto wanted = checker.reference(a.txn, *this);
  if (options.broken != Break::kStageNotCompared && (!wanted || !equal_in(h.shadow, *wanted, mine)))
    return fail(Error(Code::kMismatch, "digest of a tensor differs from the manifest"));
  target_event(t, install::TaskDone{install::Task::kStage, a.txn, digest_of(h.shadow, mine), {1, 0, 0, 0}});
}

void World::copy(std::uint32_t t, const Txn& txn, std::uint32_t half) {
  TargetHost& h = target[t];
  const Slice mine = target_slice(t);
  const std::uint32_t middle = (mine.lo + mine.hi) / 2;
  if (crash_here(sources() + t, half == 0 ? "copying, 0 bytes" : "copying, half")) return;
  for (std::uint32_t i = half == 0 ? mine.lo : middle; i < (half == 0 ? middle : mine.hi); ++i) h.live[i] = h.shadow[i];
  if (half == 0) return later_in(h, delay(), [this, t, txn] { copy(t, txn, 1); });
  if (chance(0.005)) h.live[mine.lo] ^= 1u;  // a bit flips: the digest of the destination must tell
  h.clean = h.live == h.shadow;
  target_event(t, install::TaskDone{install::Task::kCopy, txn, digest_of(h.live, mine), {0, 1, 0, 0}, deltas()});
}

void World::perform(std::uint32_t t, const install::TargetAction& action) {
  using namespace install;
  TargetHost& h = target[t];
  auto soon = [&](TargetEventKind e) { later_in(h, delay(), [this, t, e = std::move(e)] { target_event(t, e); }); };
  if (const auto* send = std::get_if<install::Send>(&action)) {
    const wire::Envelope& e = send->envelope;
    if (const auto* vote = std::get_if<wire::Vote>(&e.message); vote != nullptr && vote->yes) vote_sent(t, e.txn);
    if (crash_here(sources() + t, "before " + std::string(wire::kind_name(e.message)))) return;
    if (h.connection != 0) transmit(sources() + t, h.connection, true, e);
    if (options.broken == Break::kOpenAlone && std::holds_alternative<wire::Applied>(e.message) &&
        h.state.apply == ApplyStep::kApplied) {
      wire::Envelope open = e;
      open.party = wire::Party::kCoordinator;
      open.message = wire::Open{};
      soon(install::Received{open});
    }
  } else if (const auto* plan = std::get_if<MakePlan>(&action)) {
    soon(PlanMade{plan->configure.layout_epoch, {5, 5}, h.planned});
    h.planned = true;
  } else if (const auto* s = std::get_if<StartStaging>(&action)) {
    later_in(h, delay(), [this, t, a = *s] { stage(t, a, 0); });
  } else if (const auto* g = std::get_if<ShutGate>(&action)) {
    later_in(h, delay(), [this, t, txn = g->txn] {
      TargetHost& x = target[t];
      if (options.broken != Break::kUngatedCopy) x.gate_open = false;
      x.gate_shut_since = now;
      target_event(t, TaskDone{Task::kShutGate, txn, {}, {}});
    });
  } else if (const auto* w = std::get_if<SetWord>(&action)) {
    if (options.broken == Break::kNoCopyingWord && w->word.word == wire::Word::kCopying) return;
    h.word = w->word;
    h.label = w->version;
    if (w->word.word != wire::Word::kApplied) return;
    checker.applied.insert({{sources() + t, h.incarnation}, w->word.txn});
    std::uint64_t& last = checker.applied_number[{sources() + t, w->version.lineage}];
    if (w->version.number <= last)
      checker.fail("10: " + shape.name(sources() + t).to_string() + " applied number " +
                   std::to_string(w->version.number) + " after " + std::to_string(last));
    last = w->version.number;
  } else if (const auto* c = std::get_if<CopyShadowToLive>(&action)) {
    later_in(h, delay(), [this, t, txn = c->txn] { copy(t, txn, 0); });
  } else if (const auto* i = std::get_if<InvalidateCaches>(&action)) {
    later_in(h, delay(), [this, t, txn = i->txn] {
      if (crash_here(sources() + t, "cache flush")) return;
      if (chance(0.005))
        return target_event(t, TaskFailed{Task::kCaches, txn, Error(Code::kInternal, "engine refused to flush")});
      target[t].caches = txn;
      target_event(t, TaskDone{Task::kCaches, txn, {}, {}});
    });
  } else if (const auto* o = std::get_if<OpenGate>(&action)) {
    h.opening = o->txn;
    later_in(h, delay(), [this, t, txn = o->txn] {
      TargetHost& x = target[t];
      if (x.opening != txn) return target_event(t, TaskFailed{Task::kOpenGate, txn, Error(Code::kCancelled, "fenced")});
      x.opening = {};
      x.gate_open = true;
      target_event(t, TaskDone{Task::kOpenGate, txn, {}, {}});
    });
  } else if (std::holds_alternative<Fence>(action)) {
    h.promised_txn = {};  // Fenced is a way out of a yes
    if (options.broken == Break::kFenceIgnored) return;
    h.gate_open = false;
    h.opening = {};
  } else if (const auto* d = std::get_if<DropStage>(&action)) {
    if (!deltas()) h.shadow = {};
    if (h.promised_txn == d->txn && checker.decided.contains(d->txn)) h.promised_txn = {};
  } else if (const auto* v = std::get_if<RunVerify>(&action)) {
    soon(Verified{v->nonce, v->domain, digest_of(h.live, target_slice(t)), {0, 1, 0, 0}, {}});
  } else if (const auto* ob = std::get_if<install::Observe>(&action)) {
    crash_here(sources() + t, std::string(refit::to_string(ob->phase)));
  }
}

}  // namespace refit::sim
