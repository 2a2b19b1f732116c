#include "wire/body.h"

namespace refit::wire {
namespace {

using Fbb = flatbuffers::FlatBufferBuilder;
template <typename T>
using Off = flatbuffers::Offset<T>;

std::uint8_t u8(auto v) { return static_cast<std::uint8_t>(v); }

Off<flatbuffers::Vector<std::uint8_t>> bytes(Fbb& b, const Bytes& v) {
  return b.CreateVector(reinterpret_cast<const std::uint8_t*>(v.data()), v.size());
}
Off<flatbuffers::String> text(Fbb& b, const std::string& v) { return b.CreateString(v); }

fb::Digest pack(const Digest4& d) { return {d.word[0], d.word[1], d.word[2], d.word[3], d.count}; }
fb::VersionId pack(const Version& v) { return {wire::pack(v.lineage), v.number, wire::pack(v.digest), v.step}; }
fb::Proof pack(const ProofCounts& p) { return {p.placed_staged, p.placed_live, p.handed_over, p.probed}; }

flatbuffers::Optional<std::int64_t> optional(const std::optional<std::int64_t>& v) {
  return v ? flatbuffers::Optional<std::int64_t>(*v) : flatbuffers::Optional<std::int64_t>();
}

Off<fb::ErrorInfo> pack(Fbb& b, const Error& e) {
  const auto message = text(b, e.message), peer = text(b, e.peer), stage = text(b, e.stage);
  const auto bucket = text(b, e.bucket), tensor = text(b, e.tensor);
  return fb::CreateErrorInfo(b, u8(e.code), message, peer, stage, bucket, tensor, optional(e.need), optional(e.have));
}
Off<flatbuffers::Vector<Off<fb::ErrorInfo>>> pack(Fbb& b, const std::vector<Error>& errors) {
  std::vector<Off<fb::ErrorInfo>> all;
  for (const Error& e : errors) all.push_back(pack(b, e));
  return b.CreateVector(all);
}

Off<fb::Hello> body(Fbb& b, const Hello& m) {
  const auto layout = bytes(b, m.layout), card = bytes(b, m.card);
  const fb::Hash lineage = wire::pack(m.lineage), layout_digest = wire::pack(m.layout_digest);
  const fb::TxnId word_txn = wire::pack(m.word.txn), voted = wire::pack(m.voted.value_or(Txn{}));
  const fb::TxnId seen = wire::pack(m.seen), known = wire::pack(m.known);
  const fb::VersionId last = pack(m.last), known_version = pack(m.known_version);
  const fb::Digest live = pack(m.live.value_or(Digest4{}));
  return fb::CreateHello(
      b, u8(m.state), &lineage, u8(m.word.word), &word_txn, m.voted ? &voted : nullptr, &last, m.live ? &live : nullptr,
      &layout_digest, layout, card, m.staging_bytes,
      m.digest_seed ? flatbuffers::Optional<std::uint64_t>(*m.digest_seed) : flatbuffers::Optional<std::uint64_t>(),
      m.number, &seen, &known, &known_version);
}
Off<fb::Ready> body(Fbb& b, const Ready& m) {
  const fb::Hash plan = wire::pack(m.plan);
  const fb::TxnId base = wire::pack(m.base);
  return fb::CreateReady(b, m.layout_epoch.value, &plan, m.base.counter > 0 ? &base : nullptr);
}
Off<fb::PlanRefused> body(Fbb& b, const PlanRefused& m) {
  const auto errors = pack(b, m.errors);
  return fb::CreatePlanRefused(b, m.layout_epoch.value, errors);
}
Off<fb::Heartbeat> body(Fbb& b, const Heartbeat& m) {
  const auto bucket = text(b, m.bucket);
  return fb::CreateHeartbeat(b, u8(m.state), u8(m.phase), m.progress, m.buckets_done, m.bytes_done, bucket,
                             m.published);
}
Off<fb::Sealed> body(Fbb& b, const Sealed& m) {
  const auto set = text(b, m.weight_set);
  std::vector<fb::Group> all;
  for (const GroupDigest& g : m.groups) all.emplace_back(wire::pack(g.group), pack(g.digest));
  const auto groups = b.CreateVectorOfStructs(all);
  const auto descriptor = bytes(b, m.descriptor);
  const fb::Digest digest = pack(m.digest);
  const fb::Hash hash = wire::pack(m.manifest_hash);
  return fb::CreateSealed(b, m.step, set, &digest, groups, descriptor, m.manifest_bytes, &hash);
}
Off<fb::BlockAmax> body(Fbb& b, const BlockAmax& m) {
  const auto blocks = b.CreateVector(m.blocks);
  const auto amax = b.CreateVector(m.amax);
  return fb::CreateBlockAmax(b, blocks, amax);
}
Off<fb::BlockAmaxMerged> body(Fbb& b, const BlockAmaxMerged& m) {
  const auto amax = b.CreateVector(m.amax);
  return fb::CreateBlockAmaxMerged(b, amax);
}
Off<fb::Staged> body(Fbb& b, const Staged& m) {
  const fb::Digest counted = pack(m.counted);
  const fb::Proof proof = pack(m.proof);
  return fb::CreateStaged(b, &counted, &proof);
}
Off<fb::Vote> body(Fbb& b, const Vote& m) {
  const auto error = m.error ? pack(b, *m.error) : Off<fb::ErrorInfo>();
  return fb::CreateVote(b, m.yes, error);
}
Off<fb::Gated> body(Fbb& b, const Gated&) { return fb::CreateGated(b); }
Off<fb::Applied> body(Fbb& b, const Applied& m) {
  const fb::Digest counted = pack(m.counted);
  const fb::Proof proof = pack(m.proof);
  return fb::CreateApplied(b, &counted, &proof, m.pause_ns, m.retained);
}
Off<fb::Reopened> body(Fbb& b, const Reopened& m) { return fb::CreateReopened(b, m.pause_ns); }
Off<fb::Failed> body(Fbb& b, const Failed& m) {
  const auto error = pack(b, m.error);
  return fb::CreateFailed(b, u8(m.phase), m.fenced, error);
}
Off<fb::VerifyReport> body(Fbb& b, const VerifyReport& m) {
  const auto errors = pack(b, m.errors);
  const fb::Digest counted = pack(m.counted);
  const fb::TxnId word_txn = wire::pack(m.word.txn);
  const fb::VersionId version = pack(m.version);
  const fb::Proof proof = pack(m.proof);
  return fb::CreateVerifyReport(b, m.nonce, u8(m.domain), m.full, &counted, u8(m.word.word), &word_txn, &version,
                                &proof, errors);
}
Off<fb::Goodbye> body(Fbb& b, const Goodbye& m) {
  const auto reason = text(b, m.reason);
  return fb::CreateGoodbye(b, reason);
}
Off<fb::StatusRequest> body(Fbb& b, const StatusRequest& m) { return fb::CreateStatusRequest(b, m.request); }
Off<fb::VerifyRequest> body(Fbb& b, const VerifyRequest& m) {
  return fb::CreateVerifyRequest(b, m.request, u8(m.domain));
}

Off<fb::Welcome> body(Fbb& b, const Welcome& m) {
  const fb::Hash lineage = wire::pack(m.lineage);
  const fb::VersionId newest = pack(m.newest);
  return fb::CreateWelcome(b, m.member, &lineage, m.digest_seed, m.membership_epoch, &newest);
}
Off<fb::Refused> body(Fbb& b, const Refused& m) {
  const auto error = pack(b, m.error);
  const fb::Hash promise = wire::pack(m.promise);
  return fb::CreateRefused(b, error, m.hello_again, &promise);
}
Off<fb::Configure> body(Fbb& b, const Configure& m) {
  const auto source = bytes(b, m.source_layout), target = bytes(b, m.target_layout);
  const auto options = text(b, m.options_json);
  std::vector<Off<fb::RosterEntry>> all;
  for (const RosterEntry& e : m.roster) {
    const auto card = bytes(b, e.card);
    all.push_back(
        fb::CreateRosterEntry(b, e.member, u8(e.name.role), e.name.instance, e.name.rank, e.incarnation.value, card));
  }
  const auto roster = b.CreateVector(all);
  const fb::Hash plan = wire::pack(m.plan.value_or(PlanId{}));
  return fb::CreateConfigure(b, m.layout_epoch.value, m.plan ? &plan : nullptr, source, target, options,
                             m.staging_bytes, roster);
}
Off<fb::Begin> body(Fbb& b, const Begin& m) {
  const fb::Hash plan = wire::pack(m.plan);
  const fb::TxnId base = wire::pack(m.base);
  const auto without = m.without.empty() ? Off<flatbuffers::Vector<std::uint32_t>>() : b.CreateVector(m.without);
  return fb::CreateBegin(b, m.number, m.layout_epoch.value, &plan, optional(m.step), m.proof, m.stall_ns, m.total_ns,
                         m.base.counter > 0 ? &base : nullptr, without);
}
Off<fb::Lend> body(Fbb& b, const Lend& m) {
  std::vector<Off<fb::LendEntry>> all;
  for (const LendEntry& e : m.sources) {
    const auto descriptor = bytes(b, e.descriptor);
    const fb::Hash hash = wire::pack(e.manifest_hash);
    all.push_back(fb::CreateLendEntry(b, e.member, e.incarnation.value, descriptor, e.manifest_bytes, &hash));
  }
  const auto sources = b.CreateVector(all);
  return fb::CreateLend(b, sources);
}
Off<fb::ReadersDone> body(Fbb& b, const ReadersDone&) { return fb::CreateReadersDone(b); }
Off<fb::Gate> body(Fbb& b, const Gate& m) {
  const fb::VersionId version = pack(m.version);
  return fb::CreateGate(b, &version, m.gate_ns);
}
Off<fb::Copy> body(Fbb& b, const Copy&) { return fb::CreateCopy(b); }
Off<fb::Open> body(Fbb& b, const Open&) { return fb::CreateOpen(b); }
Off<fb::Abort> body(Fbb& b, const Abort& m) {
  const auto reason = pack(b, m.reason);
  return fb::CreateAbort(b, reason);
}
Off<fb::Committed> body(Fbb& b, const Committed& m) {
  const fb::VersionId version = pack(m.version);
  return fb::CreateCommitted(b, &version);
}
Off<fb::End> body(Fbb& b, const End& m) {
  const fb::VersionId version = pack(m.version);
  return fb::CreateEnd(b, u8(m.outcome), &version);
}
Off<fb::Evict> body(Fbb& b, const Evict& m) {
  const auto reason = pack(b, m.reason);
  return fb::CreateEvict(b, m.membership_epoch, reason);
}
Off<fb::VerifyAsk> body(Fbb& b, const Verify& m) { return fb::CreateVerifyAsk(b, m.nonce, u8(m.domain)); }
Off<fb::StatusReply> body(Fbb& b, const StatusReply& m) {
  const auto json = text(b, m.json);
  return fb::CreateStatusReply(b, m.request, m.ok, json);
}

}  // namespace

fb::Hash pack(const Hash128& h) { return {h.hi, h.lo}; }
fb::TxnId pack(const Txn& t) { return {pack(t.lineage), t.epoch.value, t.counter}; }

Packed pack(Fbb& builder, const Message& message) {
  // The union numbers the messages from 1 in the order of the variant.
  static_assert(static_cast<int>(fb::Body::MAX) == kMessageKinds);
  const auto kind = static_cast<fb::Body>(message.index() + 1);
  return {kind, std::visit([&](const auto& m) { return body(builder, m).Union(); }, message)};
}

}  // namespace refit::wire
