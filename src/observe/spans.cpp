#include "observe/spans.h"

namespace refit::observe {
namespace {

// kReopened stands for the end of a coordinator's round, which the caller of sync_weights() tells.
constexpr std::array kKinds = {
    SpanKind{Side::kCoordinator, "seal", Phase::kBegin, Phase::kLend, false, "begin told, until all sources sealed"},
    SpanKind{Side::kCoordinator, "transfer", Phase::kLend, Phase::kVoted, false, "until all replicas staged"},
    SpanKind{Side::kCoordinator, "decide", Phase::kVoted, Phase::kDecided, false,
             "votes of the sources, until the decision is durable"},
    SpanKind{Side::kCoordinator, "commit", Phase::kDecided, Phase::kReopened, false, "until the call returned"},
    SpanKind{Side::kSource, "seal", Phase::kBegin, Phase::kSeal, false,
             "waits for the trainer to publish, stages, snapshot, digest of all bytes"},
    SpanKind{Side::kSource, "lend", Phase::kSeal, Phase::kLend, false, "memory lent, manifest told"},
    SpanKind{Side::kSource, "transfer", Phase::kLend, Phase::kVoted, false,
             "sends or is read, until nobody reads any more and the seal was checked"},
    SpanKind{Side::kSource, "decide", Phase::kVoted, Phase::kDecided, false, "waits for the decision"},
    SpanKind{Side::kSource, "commit", Phase::kDecided, Phase::kApplied, false, "waits until every replica applied"},
    SpanKind{Side::kTarget, "seal", Phase::kBegin, Phase::kTransfer, false, "waits for the sources to seal"},
    SpanKind{Side::kTarget, "transfer", Phase::kTransfer, Phase::kStaged, false, "receives, places and verifies"},
    SpanKind{Side::kTarget, "decide", Phase::kVoted, Phase::kDecided, false, "waits for the decision"},
    SpanKind{Side::kTarget, "drain", Phase::kDecided, Phase::kGated, false, "the gate shuts: requests end or wait"},
    SpanKind{Side::kTarget, "gated", Phase::kGated, Phase::kCopying, false,
             "waits until all ranks of the replica are gated (with commit: barrier, all replicas)"},
    SpanKind{Side::kTarget, "copy", Phase::kCopying, Phase::kApplied, false,
             "shadow to live, digest of the destination, caches"},
    SpanKind{Side::kTarget, "reopen", Phase::kApplied, Phase::kReopened, false,
             "waits until all ranks of the replica applied, and opens"},
    SpanKind{Side::kTarget, "pause", Phase::kGated, Phase::kReopened, true, "no request runs: gated to reopened"},
    SpanKind{Side::kTarget, "commit", Phase::kDecided, Phase::kReopened, true, "decision heard to reopened"},
};

std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

Hash128 id_of(const Txn& txn) {
  return Hasher().add_u64(txn.lineage.hi).add_u64(txn.lineage.lo).add_u64(txn.epoch.value).add_u64(txn.counter).finish();
}

}  // namespace

std::string_view to_string(Side side) {
  constexpr std::array<std::string_view, 3> kNames = {"coordinator", "source", "target"};
  return kNames[static_cast<std::size_t>(side)];
}
Side side_of(const MemberName& who) {
  return who.role == Role::kSource ? Side::kSource : who.role == Role::kTarget ? Side::kTarget : Side::kCoordinator;
}
std::string name_of(const MemberName& who) {
  return side_of(who) == Side::kCoordinator ? "coordinator" : who.to_string();
}
std::span<const SpanKind> span_kinds() { return kKinds; }

std::string trace_id(const Txn& txn) { return id_of(txn).hex(); }
std::string span_id(const Txn& txn, const MemberName& who) {
  const Hash128 round = id_of(txn);
  return Hasher().add_u64(round.hi).add_u64(round.lo).add_text(name_of(who)).finish().hex().substr(0, 16);
}

Spans::Seen Spans::on(const PhaseEvent& event) {
  const std::lock_guard lock(mutex_);
  Round& r = rounds_[event.who];
  if (r.txn != event.txn) {
    r = {};
    r.txn = event.txn;
  }
  const std::size_t now = index(event.phase);
  Seen out;
  out.first = r.at[now] == 0;
  r.bytes[now] = std::max(r.bytes[now], event.bytes);
  r.buckets[now] = std::max(r.buckets[now], event.buckets);
  if (!out.first) return out;
  r.at[now] = event.at_ns;
  for (const SpanKind& k : kKinds) {
    const std::size_t from = index(k.from);
    if (k.side != side_of(event.who) || k.to != event.phase || r.at[from] == 0) continue;
    out.ended.push_back({&k, event.who, event.txn, r.at[from], event.at_ns, r.bytes[from], r.buckets[from]});
  }
  return out;
}

}  // namespace refit::observe
