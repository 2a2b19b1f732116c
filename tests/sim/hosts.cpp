// The coordinator's host: its process, its journal file, and the caller of sync_weights.
#include <algorithm>

#include "sim/parts.h"

namespace refit::sim {

void World::start_coordinator() {
  if (coord.alive) return;
  if (options.broken == Break::kJournalForgets && file_.size() > 0) {
    // Cut the file before the last commit: the disk lied about what was durable.
    std::size_t at = 0, cut = file_.size();
    while (at + 16 <= file_.size()) {
      const std::size_t n = std::to_integer<std::size_t>(file_[at + 4]) | std::to_integer<std::size_t>(file_[at + 5])
                                                                              << 8;
      const auto before = coordinator::recover(std::span(file_).first(at), {}),
                 after = coordinator::recover(std::span(file_).first(at + n), {});
      if (before.ok() && after.ok() && before->committed.size() < after->committed.size()) cut = at;
      at += n;
    }
    file_.resize(cut);
  }
  auto recovered = coordinator::recover(file_, config.job);
  if (!recovered.ok()) return checker.fail("journal does not recover: " + recovered.error().to_string());
  file_.resize(static_cast<std::size_t>(recovered->valid_bytes));
  if (file_.size() > kCompactBytes && !compact(*recovered)) return;
  coord.alive = true;
  ++coord.generation;
  config.incarnation = Incarnation(++incarnations_);
  coord.stale = {};
  coord.calling = false;
  auto begun = coordinator::start(config, *recovered, {1, ++lineages_}, 41 + lineages_, now);
  coord.state = std::move(begun.state);
  trace("coordinator starts with epoch " + std::to_string(coord.state.epoch.value));
  tick_coordinator();
  for (const auto& a : begun.todo) perform(a);
}

// One snapshot instead of the whole file; the rename is the only moment that counts. False: dies on the way.
bool World::compact(coordinator::JournalState& recovered) {
  const auto dies = [&](const char* where) {
    if (!chance(std::min(1.0, 10 * crash_))) return false;
    verdict_.crash_points.insert(std::string("coordinator@compaction, ") + where);
    ++verdict_.crashes;
    later(static_cast<std::int64_t>(10 + draw(200)) * kMs, [this] { start_coordinator(); });
    return true;
  };
  const coordinator::Record record{recovered.epoch, coordinator::snapshot(recovered)};
  if (dies("before the rename")) return false;
  file_ = coordinator::encode({&record, 1});
  if (dies("after the rename")) return false;
  auto again = coordinator::recover(file_, config.job);
  if (!again.ok()) return checker.fail("a compacted journal does not recover: " + again.error().to_string()), false;
  recovered = std::move(*again);
  trace("journal compacted");
  return true;
}

void World::crash_coordinator() {
  if (!coord.alive) return;
  trace("coordinator dies");
  ++verdict_.crashes;
  coord.alive = false;
  ++coord.generation;
  // Bytes that were not synced are lost, torn, or there all the same.
  if (!appends_.empty()) {
    const auto& records = appends_.front().records;
    const wire::Bytes bytes = coordinator::encode(records);
    const auto kept = draw(3);
    if (kept == 1)
      file_.insert(file_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(draw(bytes.size())));
    if (kept == 2) {
      file_.insert(file_.end(), bytes.begin(), bytes.end());
      durable(records);
    }
    appends_.clear();
  }
  if (chance(kJournalLoss)) {
    trace("its host is lost with the journal");
    verdict_.crash_points.insert("coordinator host loss: journal gone");
    ++verdict_.lost_journals;
    file_.clear();
  }
  for (std::uint32_t m = 0; m < shape.members(); ++m) {
    Process& p = process(m);
    if (!p.alive || p.connection == 0) continue;
    p.connection = 0;
    later_in(p, delay(), [this, m] {
      if (m < sources())
        source_event(m, install::ConnectionDown{});
      else
        target_event(m - sources(), install::ConnectionDown{});
      connect(m);
    });
  }
  later(static_cast<std::int64_t>(10 + draw(200)) * kMs, [this] { start_coordinator(); });
}

void World::tick_coordinator() {
  later_in(coord, 20 * kMs, [this] {
    if (coord.calling && now - coord.call_since > 2000 * kMs + 2 * config.join_ns + 2000 * kMs)
      checker.fail("15: a call did not end by its deadline");
    tick_coordinator();
    coordinator_event(coordinator::Tick{});
  });
}

void World::coordinator_event(coordinator::EventKind what) {
  if (!coord.alive) return;
  // A message that can't be meant for this state must not change it (13).
  std::optional<coordinator::State> before;
  bool late_no = false;
  if (const auto* r = std::get_if<coordinator::Received>(&what)) {
    const wire::Envelope& e = r->envelope;
    const bool old = e.txn.counter > 0 && !std::holds_alternative<wire::Heartbeat>(e.message) &&
                     (!coord.state.round || coord.state.round->record.txn != e.txn);
    if (old) before = coord.state;
    const auto* vote = std::get_if<wire::Vote>(&e.message);
    late_no = vote != nullptr && !vote->yes;
  }
  const std::uint64_t generation = coord.generation;
  const auto todo = coordinator::step(coord.state, {now, std::move(what)});
  // A no that comes after its round has ended still says that its sender has dropped its base.
  for (std::size_t m = 0; before && late_no && m < before->slots.size(); ++m)
    before->slots[m].base = coord.state.slots[m].base;
  if (before && todo.empty() && !coordinator::same(*before, coord.state))
    checker.fail("13: a message of an old round changed the coordinator");
  for (const auto& a : todo) {
    if (!coord.alive || coord.generation != generation) return;
    const bool journal =
        std::holds_alternative<coordinator::Append>(a) || std::holds_alternative<coordinator::Report>(a);
    if (chance(journal ? crash_ : crash_ / 10)) {
      verdict_.crash_points.insert("coordinator@" + std::string(coordinator::to_string(coord.state.stage)) +
                                   (journal ? " before journal" : ""));
      return crash_coordinator();
    }
    perform(a);
  }
}

void World::perform(const coordinator::Action& action) {
  using namespace coordinator;
  if (const auto* send = std::get_if<coordinator::Send>(&action)) {
    if (std::holds_alternative<wire::Abort>(send->envelope.message)) {
      checker.abort_told.insert(send->envelope.txn);
      if (checker.committed(send->envelope.txn) && !checker.lost.contains(send->envelope.txn))
        checker.fail("4: an abort is told of a committed round");
    }
    for (std::uint32_t m = 0; m < shape.members(); ++m)
      if (process(m).connection == send->connection) return transmit(m, send->connection, false, send->envelope);
  } else if (const auto* a = std::get_if<Append>(&action)) {
    appends_.push_back(*a);
    if (options.broken == Break::kToldBeforeSync) {
      later_in(coord, 0, [this, ticket = a->ticket] { coordinator_event(Appended{ticket}); });
      later_in(coord, 30 * kMs, [this] { write_journal(); });
    } else {
      later_in(coord, delay(), [this] { write_journal(); });
    }
  } else if (std::holds_alternative<ReadEpoch>(action)) {
    later_in(coord, kMs, [this] { coordinator_event(EpochRead{recover(file_, config.job)->epoch}); });
  } else if (const auto* report = std::get_if<Report>(&action)) {
    returned(report->result);
  } else if (const auto* finished = std::get_if<Finished>(&action)) {
    if (finished->all_applied) stale(sync::StaleEvent::kLateApplied);
  } else if (std::holds_alternative<Stop>(action)) {
    trace("coordinator stops: " + std::get<Stop>(action).reason.to_string());
    crash_coordinator();
  } else if (const auto* o = std::get_if<coordinator::Observe>(&action)) {
    verdict_.crash_points.insert("coordinator passed " + std::string(refit::to_string(o->phase)));
    if (options.broken == Break::kStaleAtDecision && o->phase == Phase::kDecided) stale(sync::StaleEvent::kAllApplied);
  }
}

void World::write_journal() {
  if (appends_.empty()) return;
  const coordinator::Append a = appends_.front();
  const wire::Bytes bytes = coordinator::encode(a.records);
  if (chance(crash_)) {
    const auto kept = draw(3);
    trace("append fails");
    verdict_.crash_points.insert("append fails");
    appends_.clear();
    if (kept == 1)
      file_.insert(file_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(draw(bytes.size())));
    if (kept == 2) {
      file_.insert(file_.end(), bytes.begin(), bytes.end());
      durable(a.records);
    }
    return coordinator_event(coordinator::AppendFailed{a.ticket, Error(Code::kExhausted, "disk full")});
  }
  appends_.erase(appends_.begin());
  file_.insert(file_.end(), bytes.begin(), bytes.end());
  durable(a.records);
  if (options.broken != Break::kToldBeforeSync) coordinator_event(coordinator::Appended{a.ticket});
}

void World::durable(const std::vector<coordinator::Record>& records) {
  for (const auto& r : records) {
    checker.record(r, *this);
    const auto* rebuilt = std::get_if<coordinator::SnapshotRecord>(&r.body);
    if (rebuilt == nullptr) continue;
    verdict_.crash_points.insert(rebuilt->open_committed ? "journal rebuilt: a commit to be finished"
                                 : rebuilt->open         ? "journal rebuilt: an undecided round aborted"
                                                         : "journal rebuilt: no round open");
    if (!rebuilt->evicted.empty()) verdict_.crash_points.insert("journal rebuilt: members evicted");
  }
}

void World::stale(sync::StaleEvent e) {
  coord.stale = sync::next(coord.stale, e);
  if (sync::is_stale(coord.stale)) return;
  // 9: cleared only when every member of the journaled membership applied a round sealed at or after the last mark.
  if (checker.decided.empty()) return checker.fail("9: not stale without any round");
  const Txn newest = coord.state.journal.newest ? coord.state.journal.newest->txn : Txn{};
  for (std::uint32_t m : checker.members[newest]) {
    const auto& members = checker.begun[newest].members;
    const auto seat =
        std::find_if(members.begin(), members.end(), [&](const coordinator::Seat& x) { return x.member == m; });
    if (m >= sources() && !checker.evicted.contains(*seat) && !checker.applied.contains({*seat, newest}))
      return checker.fail("9: not stale, but " + shape.name(m).to_string() + " has not applied");
  }
  for (const auto& [s, seal] : checker.seals[newest])
    if (names_step_ && seal.step < coord.marked_step)
      checker.fail("9: not stale, but the round was sealed before the last mark");
}

void World::returned(const coordinator::RoundResult& r) {
  trace("sync returns " + std::string(wire::to_string(r.outcome)) + (r.error ? ": " + r.error->to_string() : ""));
  coord.calling = false;
  const bool committed = checker.committed(r.txn);
  switch (r.outcome) {
    case wire::Outcome::kCommitted: {
      ++verdict_.commits;
      if (!committed) checker.fail("12: committed is reported, the journal does not say so");
      // Every member of the journaled membership, as long as it lives, serves w and nothing else.
      for (const coordinator::Seat& seat : checker.begun[r.txn].members) {
        if (seat.member < sources() || checker.evicted.contains(seat)) continue;
        const TargetHost& t = target[seat.member - sources()];
        if (t.open() && t.incarnation == seat.incarnation && t.word.txn != r.txn)
          checker.fail("12: success, and a member serves another version");
        if (r.all_applied && !checker.applied.contains({seat, r.txn}))
          checker.fail("12: success before " + shape.name(seat.member).to_string() + " applied");
      }
      if (r.all_applied) stale(sync::StaleEvent::kAllApplied);
      if (calm && r.all_applied) ++good_;
      break;
    }
    case wire::Outcome::kAborted:
      ++verdict_.aborts;
      if (committed) checker.fail("12: aborted is reported, the journal says commit");
      if (r.txn.counter > 0) checker.abort_reported.insert(r.txn);
      stale(sync::StaleEvent::kAborted);
      break;
    case wire::Outcome::kCommittedIncomplete:
      ++verdict_.incomplete;
      if (r.txn.counter > 0 && !committed)
        checker.fail("12: committed_incomplete is reported, the journal does not say so");
      stale(sync::StaleEvent::kIncomplete);
      break;
    case wire::Outcome::kInDoubt:
      stale(sync::StaleEvent::kIncomplete);
      break;
  }
}

}  // namespace refit::sim
