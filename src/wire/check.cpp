// What a message must satisfy beyond its encoding. The same checks run before encoding and after decoding.
#include <cmath>
#include <string>

#include "wire/body.h"

namespace refit::wire {
namespace {

constexpr std::size_t kMaxBlob = static_cast<std::size_t>(kMaxFrameBytes) / 4;
constexpr std::size_t kMaxCard = 1u << 16;

Error bad(std::string_view field, std::string_view why) {
  return Error(Code::kCorrupt, "control message: " + std::string(field) + " " + std::string(why));
}
Status need(bool holds, std::string_view field, std::string_view why = "is out of range") {
  if (!holds) return bad(field, why);
  return {};
}
Status text(const std::string& v, std::string_view field) {
  return need(v.size() <= kMaxTextBytes, field, "is too long");
}

Status check(const Error& e) {
  REFIT_TRY(need(e.code <= Code::kInternal, "error.code"));
  for (const std::string* t : {&e.message, &e.peer, &e.stage, &e.bucket, &e.tensor}) REFIT_TRY(text(*t, "error text"));
  return {};
}
Status check(const std::vector<Error>& errors) {
  REFIT_TRY(need(errors.size() <= kMaxErrors, "errors", "are too many"));
  for (const Error& e : errors) REFIT_TRY(check(e));
  return {};
}
// Epochs, counters and version numbers: nobody reaches these by counting. A coordinator counts on from what members say
// that they have heard, so their hello ends far below what a message may carry, and nothing wraps.
constexpr std::uint64_t kMaxCounted = std::uint64_t{1} << 63, kMaxHeard = std::uint64_t{1} << 62;
Status counted(std::uint64_t v, std::string_view field, std::uint64_t most = kMaxCounted) {
  return need(v <= most, field);
}
Status check(const Txn& t, std::uint64_t most = kMaxCounted) {
  REFIT_TRY(counted(t.epoch.value, "txn.epoch", most));
  return counted(t.counter, "txn.counter", most);
}
Status check(const CommitWord& w) {
  REFIT_TRY(check(w.txn));
  REFIT_TRY(need(w.word <= Word::kApplied, "word"));
  return need((w.word == Word::kNone) == (w.txn.counter == 0), "word", "and its txn disagree");
}
Status check(const Version& v, bool required = false) {
  REFIT_TRY(need(v.step >= -1, "version.step"));
  REFIT_TRY(counted(v.number, "version.number"));
  return need(!required || v.number > 0, "version.number", "is missing");
}
Status state(MemberState s) { return need(static_cast<int>(s) < kMemberStateCount, "state"); }
Status phase(Phase p) { return need(static_cast<int>(p) < kPhaseCount, "phase"); }
Status domain(Domain d) { return need(d <= Domain::kDerived, "domain"); }

Status check(const Hello& m) {
  REFIT_TRY(state(m.state));
  REFIT_TRY(check(m.word));
  REFIT_TRY(check(m.last));
  REFIT_TRY(need(!m.voted || m.voted->counter > 0, "voted"));
  for (const Txn& t : {m.word.txn, m.voted.value_or(Txn{}), m.seen, m.known}) REFIT_TRY(check(t, kMaxHeard));
  for (const std::uint64_t n : {m.number, m.last.number, m.known_version.number})
    REFIT_TRY(counted(n, "number", kMaxHeard));
  REFIT_TRY(check(m.known_version));
  REFIT_TRY(need((m.known.counter > 0) == (m.known_version.number > 0), "known", "and its version disagree"));
  REFIT_TRY(need(m.layout.size() <= kMaxBlob, "layout", "is too large"));
  REFIT_TRY(need(m.card.size() <= kMaxCard, "card", "is too large"));
  return need(m.staging_bytes >= 0, "staging_bytes");
}
Status check(const Ready& m) { return need(m.layout_epoch.value > 0, "layout_epoch"); }
Status check(const PlanRefused& m) {
  REFIT_TRY(need(!m.errors.empty(), "errors", "are missing"));
  return check(m.errors);
}
Status check(const Heartbeat& m) {
  REFIT_TRY(state(m.state));
  REFIT_TRY(phase(m.phase));
  REFIT_TRY(need(m.bytes_done >= 0, "bytes_done"));
  REFIT_TRY(need(m.published >= -1, "published"));
  return text(m.bucket, "bucket");
}
Status check(const Sealed& m) {
  REFIT_TRY(need(m.step >= -1, "step"));
  REFIT_TRY(text(m.weight_set, "weight_set"));
  REFIT_TRY(need(m.groups.size() <= kMaxListEntries, "groups", "are too many"));
  REFIT_TRY(need(m.descriptor.size() <= kMaxCard, "descriptor", "is too large"));
  return need(m.manifest_bytes <= std::uint64_t{1} << 40, "manifest_bytes");
}
Status check(const std::vector<float>& amax) {
  REFIT_TRY(need(amax.size() <= kMaxListEntries, "amax", "has too many blocks"));
  for (float a : amax) REFIT_TRY(need(std::isfinite(a) && a >= 0, "amax"));
  return {};
}
Status check(const BlockAmax& m) {
  REFIT_TRY(need(m.blocks.size() == m.amax.size(), "amax", "and its blocks disagree"));
  for (std::size_t i = 1; i < m.blocks.size(); ++i)
    REFIT_TRY(need(m.blocks[i - 1] < m.blocks[i], "blocks", "do not ascend"));
  return check(m.amax);
}
Status check(const BlockAmaxMerged& m) { return check(m.amax); }
Status check(const Vote& m) {
  REFIT_TRY(need(m.yes == !m.error.has_value(), "vote", "and its error disagree"));
  if (m.error) return check(*m.error);
  return {};
}
Status check(const Applied& m) { return need(m.pause_ns >= 0, "pause_ns"); }
Status check(const Reopened& m) { return need(m.pause_ns >= 0, "pause_ns"); }
Status check(const Failed& m) {
  REFIT_TRY(phase(m.phase));
  return check(m.error);
}
Status check(const VerifyReport& m) {
  REFIT_TRY(domain(m.domain));
  REFIT_TRY(check(m.word));
  REFIT_TRY(check(m.version));
  return check(m.errors);
}
Status check(const Goodbye& m) { return text(m.reason, "reason"); }
Status check(const VerifyRequest& m) { return domain(m.domain); }
Status check(const Welcome& m) {
  REFIT_TRY(need(m.member != kNoMember, "member"));
  REFIT_TRY(need(m.lineage != Lineage{}, "lineage", "is missing"));
  return check(m.newest);
}
Status check(const Refused& m) { return check(m.error); }
Status check(const Configure& m) {
  REFIT_TRY(need(m.layout_epoch.value > 0, "layout_epoch"));
  REFIT_TRY(need(m.source_layout.size() <= kMaxBlob && m.target_layout.size() <= kMaxBlob, "layout", "is too large"));
  REFIT_TRY(need(m.options_json.size() <= kMaxBlob, "options", "are too long"));
  REFIT_TRY(need(m.staging_bytes >= 0, "staging_bytes"));
  REFIT_TRY(need(m.roster.size() <= kMaxListEntries, "roster", "is too long"));
  for (std::size_t i = 0; i < m.roster.size(); ++i) {
    REFIT_TRY(need(i == 0 || m.roster[i - 1].member < m.roster[i].member, "roster", "does not ascend"));
    REFIT_TRY(need(m.roster[i].name.role <= Role::kTarget, "roster.role"));
    REFIT_TRY(need(m.roster[i].card.size() <= kMaxCard, "roster.card", "is too large"));
  }
  return {};
}
Status check(const Begin& m) {
  REFIT_TRY(need(m.number > 0, "number"));
  REFIT_TRY(need(!m.step || *m.step >= -1, "step"));
  REFIT_TRY(need(m.base.counter > 0 || m.without.empty(), "without", "is listed, but there is no base"));
  REFIT_TRY(need(m.without.size() <= kMaxListEntries, "without", "is too long"));
  for (std::size_t i = 1; i < m.without.size(); ++i)
    REFIT_TRY(need(m.without[i - 1] < m.without[i], "without", "does not ascend"));
  return need(m.stall_ns > 0 && m.total_ns > 0, "deadline");
}
Status check(const Lend& m) {
  REFIT_TRY(need(m.sources.size() <= kMaxListEntries, "sources", "are too many"));
  for (std::size_t i = 0; i < m.sources.size(); ++i) {
    REFIT_TRY(need(i == 0 || m.sources[i - 1].member < m.sources[i].member, "sources", "do not ascend"));
    REFIT_TRY(need(m.sources[i].descriptor.size() <= kMaxCard, "descriptor", "is too large"));
    REFIT_TRY(need(m.sources[i].manifest_bytes <= std::uint64_t{1} << 40, "manifest_bytes"));
  }
  return {};
}
Status check(const Gate& m) {
  REFIT_TRY(check(m.version, true));
  return need(m.gate_ns > 0, "gate_ns");
}
Status check(const Abort& m) { return check(m.reason); }
Status check(const Committed& m) { return check(m.version, true); }
Status check(const End& m) {
  REFIT_TRY(need(m.outcome <= Outcome::kInDoubt, "outcome"));
  return check(m.version);
}
Status check(const Evict& m) { return check(m.reason); }
Status check(const Verify& m) { return domain(m.domain); }
Status check(const StatusReply& m) {
  return need(m.json.size() <= static_cast<std::size_t>(kMaxFrameBytes) / 2, "json", "is too long");
}
template <typename M>
requires std::is_empty_v<M> || std::is_same_v<M, Staged> || std::is_same_v<M, StatusRequest> Status check(const M&) {
  return {};
}

// Messages about one round carry its txn.
bool needs_txn(const Message& m) {
  return std::visit(
      []<typename M>(const M&) {
        return std::is_same_v<M, Sealed> || std::is_same_v<M, Staged> || std::is_same_v<M, Vote> ||
               std::is_same_v<M, Gated> || std::is_same_v<M, Applied> || std::is_same_v<M, Reopened> ||
               std::is_same_v<M, Failed> || std::is_same_v<M, Begin> || std::is_same_v<M, Lend> ||
               std::is_same_v<M, ReadersDone> || std::is_same_v<M, Gate> || std::is_same_v<M, Copy> ||
               std::is_same_v<M, Open> || std::is_same_v<M, Abort> || std::is_same_v<M, Committed> ||
               std::is_same_v<M, End> || std::is_same_v<M, BlockAmax> || std::is_same_v<M, BlockAmaxMerged>;
      },
      m);
}

}  // namespace

Status check_message(const Message& message) {
  return std::visit([](const auto& m) { return check(m); }, message);
}

Status check_envelope(const Envelope& e) {
  REFIT_TRY(need(e.party <= Party::kClient, "party"));
  REFIT_TRY(need(may_send(e.party, e.message), kind_name(e.message),
                 "may not come from a " + std::string(to_string(e.party))));
  REFIT_TRY(need(e.key_id == 0 && e.mac == Hash128{}, "key id or MAC", "is set, but no key is agreed"));
  REFIT_TRY(need(e.incarnation.value != 0, "incarnation", "is missing"));
  REFIT_TRY(counted(e.epoch.value, "epoch", std::holds_alternative<Hello>(e.message) ? kMaxHeard : kMaxCounted));
  REFIT_TRY(check(e.txn));
  const bool rank = e.party == Party::kSource || e.party == Party::kTarget;
  REFIT_TRY(need(rank || (e.instance == 0 && e.rank == 0 && e.member == kNoMember), "sender",
                 "has a rank that its party has not"));
  REFIT_TRY(need(!rank || std::holds_alternative<Hello>(e.message) || e.member != kNoMember, "member", "is missing"));
  REFIT_TRY(need(e.party != Party::kCoordinator || e.epoch.value > 0, "epoch", "is missing"));
  REFIT_TRY(need(!needs_txn(e.message) || e.txn.counter > 0, "txn", "is missing"));
  return check_message(e.message);
}

}  // namespace refit::wire
