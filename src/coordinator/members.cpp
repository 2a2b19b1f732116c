// Who is here: hello, welcome, layout epochs, liveness.
#include <algorithm>

#include "coordinator/machine.h"

namespace refit::coordinator {

void Machine::refuse(std::uint32_t connection, Error error, bool hello_again) {
  send(connection, {}, wire::Refused{std::move(error), hello_again, {}});
}

void Machine::evict_again(std::uint32_t connection, const Error& reason) {
  send(connection, {}, wire::Evict{s_.journal.membership_epoch, reason});
}

void Machine::hello(std::uint32_t connection, const wire::Envelope& e, const wire::Hello& h) {
  const auto member = s_.config.shape.slot(e.name());
  if (!member)
    return refuse(connection, Error(Code::kInvalid, "this job has no place for " + e.who()).at_peer(e.who()), false);
  // Another lineage matters only to who holds something of it; the others take ours with the Welcome.
  if (bound(h) && h.lineage != Lineage{} && h.lineage != s_.journal.lineage)
    return refuse(connection,
                  Error(Code::kMismatch,
                        "holds weights of lineage " + h.lineage.hex() + ", this job is " + s_.journal.lineage.hex())
                      .at_peer(e.who()),
                  false);
  for (std::uint32_t other = 0; other < s_.slots.size(); ++other) {
    const Slot& o = s_.slots[other];
    if (other == *member || is_source(other) != is_source(*member) || !o.present() ||
        o.hello.layout_digest == h.layout_digest)
      continue;
    return refuse(connection,
                  Error(Code::kMismatch, "layout " + h.layout_digest.hex() + " differs from " +
                                             o.hello.layout_digest.hex() + " of " + name(other))
                      .at_peer(e.who()),
                  false);
  }
  Slot& slot = s_.slots[*member];
  const bool same_process = slot.incarnation == e.incarnation;
  // Overtaken by something newer of the same process: it may say Fenced of a rank that has been repaired since.
  if (same_process && e.sequence < slot.sequence) return void(++s_.dropped.unexpected);
  if (slot.present() && !same_process)
    return refuse(connection,
                  Error(Code::kBusy, "the place of " + e.who() + " is held by another process").at_peer(e.who()), true);
  // An evicted incarnation comes back only when it has fenced itself (C16).
  const Seat seat{*member, e.incarnation};
  if (out(seat)) {
    if (h.state != wire::MemberState::kFenced && h.state != wire::MemberState::kEmpty)
      return evict_again(connection, Error(Code::kPeerLost, "evicted from the membership").at_peer(e.who()));
    std::erase_if(s_.out,
                  [&](const Seat& x) { return x == seat || (x.member == seat.member && x.incarnation.value == 0); });
  }
  if (!same_process && slot.incarnation.value != 0)
    lost(*member, Error(Code::kPeerLost, "was replaced by a new process").at_peer(e.who()));
  if (slot.present() && slot.connection != connection) s_.by_connection.erase(slot.connection);
  slot.connection = connection;
  slot.incarnation = e.incarnation;
  slot.heard_ns = s_.now_ns;
  if (!same_process) slot.inside = {}, slot.heartbeat = {}, slot.ready = false, slot.sequence = 0, slot.base = {};
  slot.hello = h;
  slot.heartbeat.state = h.state;
  slot.holds = h.last;
  slot.live = h.live;
  slot.sequence = std::max(slot.sequence, e.sequence);
  s_.by_connection[connection] = *member;
  s_.highest_number = std::max(s_.highest_number, h.last.number);
  welcome(*member);
}

void Machine::welcome(std::uint32_t member) {
  wire::Welcome w;
  w.member = member;
  w.lineage = s_.journal.lineage;
  w.digest_seed = s_.journal.digest_seed;
  w.membership_epoch = s_.journal.membership_epoch;
  if (s_.journal.newest) w.newest = s_.journal.newest->version;
  send_member(member, {}, w);
}

std::optional<std::uint32_t> Machine::sender(std::uint32_t connection, const wire::Envelope& e) {
  const auto at = s_.by_connection.find(connection);
  if (e.epoch < s_.epoch) {
    ++s_.dropped.old_epoch;
  } else if (at == s_.by_connection.end() || e.member != at->second || s_.config.shape.name(at->second) != e.name() ||
             s_.slots[at->second].incarnation != e.incarnation) {
    ++s_.dropped.old_incarnation;
  } else if (const Seat seat{at->second, e.incarnation}; out(seat)) {
    evict_again(connection, Error(Code::kPeerLost, "evicted from the membership").at_peer(e.who()));
    return std::nullopt;
  } else {
    return at->second;
  }
  refuse(connection, Error(Code::kMismatch, "unknown here: say hello").at_peer(e.who()), true);
  return std::nullopt;
}

void Machine::on(const Gone& e) {
  const auto at = s_.by_connection.find(e.connection);
  if (at != s_.by_connection.end())
    leave(at->second, Error(Code::kPeerLost, "the connection broke").at_peer(name(at->second)));
  if (s_.rebuild)
    for (auto& [member, word] : s_.rebuild->words)
      if (word.connection == e.connection) word.connection = kNoConnection;
  std::erase_if(s_.verifies, [&](const VerifyCall& call) {
    return call.connection == e.connection && call.connection != kNoConnection;
  });
}

void Machine::receive(std::uint32_t member, const wire::Envelope&, const wire::Goodbye& m) {
  leave(member, Error(Code::kPeerLost, "left: " + m.reason).at_peer(name(member)));
}

void Machine::leave(std::uint32_t member, Error reason) {
  Slot& slot = s_.slots[member];
  s_.by_connection.erase(slot.connection);
  slot.connection = kNoConnection;
  slot.gone_ns = s_.now_ns;
  slot.ready = false;
  // After the decision a rank with its stage may come back: the gate deadline and silence judge it there.
  if (s_.round && !s_.round->committed) lost(member, std::move(reason));
}

void Machine::watch_silence() {
  for (std::uint32_t member = 0; member < s_.slots.size(); ++member)
    if (s_.slots[member].present() && s_.now_ns - s_.slots[member].heard_ns > s_.config.silence_ns)
      leave(member,
            Error(Code::kPeerLost, "sent nothing for " + std::to_string(s_.config.silence_ns / 1'000'000) + " ms")
                .at_peer(name(member)));
}

void Machine::receive(std::uint32_t member, const wire::Envelope&, const wire::Ready& m) {
  Slot& slot = s_.slots[member];
  if (m.layout_epoch != s_.layout_epoch) return void(++s_.dropped.old_epoch);
  slot.ready = true;
  slot.plan = m.plan;
  slot.base = m.base;
  slot.refused.clear();
}

void Machine::receive(std::uint32_t member, const wire::Envelope&, const wire::PlanRefused& m) {
  if (m.layout_epoch != s_.layout_epoch) return void(++s_.dropped.old_epoch);
  s_.slots[member].refused = m.errors;
  for (Error& e : s_.slots[member].refused) e = std::move(e).at_peer(name(member)).at_stage("plan");
}

void Machine::receive(std::uint32_t member, const wire::Envelope& e, const wire::Heartbeat& m) {
  Slot& slot = s_.slots[member];
  // Overtaken by something newer: alive, but its word on where it stands is out of date.
  if (e.sequence < slot.sequence) return;
  slot.heartbeat = m;
  slot.inside = e.txn;
  if (Part* p = part(member, e.txn); p != nullptr && m.progress > p->progress) {
    p->progress = m.progress;
    p->progress_ns = s_.now_ns;
  }
  if (e.txn.counter > 0) settle(member, e.txn);
}

// A member says that it is inside round `inside`: tell it how that ended, if it has.
void Machine::settle(std::uint32_t member, const Txn& inside) {
  const bool ours = s_.round && s_.round->record.txn == inside;
  const bool committed = std::binary_search(s_.journal.committed.begin(), s_.journal.committed.end(), inside);
  if (ours && !committed) return;
  // So old that the journal no longer tells how it ended: a source is free either way. A target that has not been
  // evicted is inside no committed round but the newest.
  if (!committed && is_source(member) && inside <= s_.journal.forgotten)
    return send_member(member, inside, wire::End{wire::Outcome::kInDoubt, {}});
  if (!committed) return send_member(member, inside, wire::Abort{Error(Code::kCancelled, "the round was aborted")});
  // A target is driven by resend(), and one that a finished round left behind was evicted by its record.
  if (!is_source(member)) return;
  if (ours) return send_member(member, inside, wire::Committed{s_.round->version});
  send_member(member, inside, wire::End{wire::Outcome::kCommitted, s_.journal.newest->version});
}

// ---- layout epochs
// ----------------------------------------------------------------------------------------------------

// Members that could make a round now: all, or with `continue` once the join deadline is over, the complete replicas.
std::vector<std::uint32_t> Machine::viable() const {
  std::vector<std::uint32_t> seats;
  const Shape& shape = s_.config.shape;
  const bool late = s_.config.continue_on_loss && s_.call && s_.now_ns > s_.join_deadline_ns;
  for (std::uint32_t m = 0; m < shape.sources(); ++m) {
    if (!here(m)) return {};
    seats.push_back(m);
  }
  std::uint32_t replicas = 0;
  for (std::uint32_t i = 0; i < shape.target_instances; ++i) {
    const std::uint32_t first = shape.sources() + i * shape.target_ranks;
    bool complete = true;
    for (std::uint32_t m = first; m < first + shape.target_ranks; ++m)
      complete = complete && here(m) && !(late && !s_.slots[m].refused.empty());
    if (!complete && !late) return {};
    for (std::uint32_t m = first; complete && m < first + shape.target_ranks; ++m) seats.push_back(m);
    replicas += complete ? 1u : 0u;
  }
  if (replicas < std::max<std::uint32_t>(1, s_.config.continue_on_loss ? s_.config.min_targets : 1)) return {};
  return seats;
}

void Machine::configure_if_needed() {
  if ((s_.stage != Stage::kIdle && s_.stage != Stage::kJoining) || s_.round || s_.rebuild) return;
  std::vector<std::uint32_t> seats = viable();
  if (seats.empty()) return;
  Hasher h;
  for (std::uint32_t m : seats) {
    const Slot& slot = s_.slots[m];
    h.add_u64(m)
        .add_u64(slot.incarnation.value)
        .add_u64(slot.hello.layout_digest.hi)
        .add_u64(slot.hello.layout_digest.lo);
    h.add_u64(slot.hello.card.size()).add(slot.hello.card);
  }
  const Hash128 roster = h.finish();
  if (roster == s_.roster) return;
  s_.roster = roster;
  configure(std::move(seats));
}

void Machine::configure(std::vector<std::uint32_t> seats) {
  // Unique over coordinator restarts without a record of its own.
  s_.layout_epoch = LayoutEpoch(s_.epoch.value << 32 | ++s_.layout_changes);
  wire::Configure& c = s_.configure;
  c = {};
  c.layout_epoch = s_.layout_epoch;
  c.options_json = s_.config.options_json;
  for (std::uint32_t m : seats) {
    Slot& slot = s_.slots[m];
    (is_source(m) ? c.source_layout : c.target_layout) = slot.hello.layout;
    if (!is_source(m))
      c.staging_bytes =
          c.staging_bytes == 0 ? slot.hello.staging_bytes : std::min(c.staging_bytes, slot.hello.staging_bytes);
    c.roster.push_back({m, s_.config.shape.name(m), slot.incarnation, slot.hello.card});
  }
  for (Slot& slot : s_.slots) slot.ready = false, slot.refused.clear();
  s_.seated = std::move(seats);
  s_.plan = {};
  for (std::uint32_t m : s_.seated) {
    s_.slots[m].configured_ns = s_.now_ns;
    send_member(m, {}, c);
  }
}

// Why a round can't begin yet; nothing: it can.
std::optional<Error> Machine::unready() const {
  if (s_.rebuild) {
    if (s_.rebuild->blocked) return s_.rebuild->blocked;
    for (std::uint32_t m = 0; m < s_.slots.size(); ++m)
      if (!promised(m))
        return Error(Code::kTimeout, "the journal was lost, its word is waited for")
            .at_peer(name(m))
            .at_stage("rebuild");
    return Error(Code::kTimeout, "the journal is being rebuilt").at_stage("rebuild");
  }
  if (s_.round) {
    for (const Part& p : s_.round->parts)
      if (!is_source(p.member) && p.at < Progressed::kReopened)
        return Error(Code::kTimeout, "the last round is not finished").at_peer(name(p.member)).at_stage("applied");
    return Error(Code::kTimeout, "the last round is not finished").at_stage("applied");
  }
  const std::vector<std::uint32_t> seats = viable();
  if (seats.empty() || seats != s_.seated) {
    for (std::uint32_t m = 0; m < s_.slots.size(); ++m)
      if (!here(m)) return Error(Code::kPeerLost, "has not joined").at_peer(name(m)).at_stage("begin");
  }
  for (std::uint32_t m : s_.seated) {
    const Slot& slot = s_.slots[m];
    if (!slot.refused.empty()) return slot.refused.front();
    if (!slot.ready) return Error(Code::kTimeout, "has not planned").at_peer(name(m)).at_stage("plan");
    if (slot.plan != s_.slots[s_.seated.front()].plan)
      return Error(Code::kMismatch, "made plan " + slot.plan.hex() + ", " + name(s_.seated.front()) + " made " +
                                        s_.slots[s_.seated.front()].plan.hex())
          .at_peer(name(m))
          .at_stage("plan");
  }
  if (s_.seated.empty()) return Error(Code::kPeerLost, "nobody has joined").at_stage("begin");
  return std::nullopt;
}

}  // namespace refit::coordinator
