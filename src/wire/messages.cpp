#include "wire/messages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "wire/body.h"
#include "wire/bytes.h"

namespace refit::wire {
namespace {

constexpr std::uint32_t kMessageMagic = 0x43545452;  // "RTTC"
// Magic 4, version 2, reserved 2, payload bytes 8, key id 4, reserved 4, MAC 16, hash 16.
constexpr std::size_t kMacAt = 24, kMessageHashAt = 40, kFrameHeader = 56;
static_assert(kFrameHeader % 8 == 0);
constexpr flatbuffers::uoffset_t kMaxDepth = 8, kMaxTables = 1u << 18;

constexpr std::array<std::string_view, 4> kParties = {"coordinator", "source", "target", "client"};
constexpr std::array<std::string_view, kMemberStateCount> kStates = {"Empty",     "Serving", "Receiving", "Voted",
                                                                     "Applying",  "Lagging", "Fenced",    "Idle",
                                                                     "Preparing", "Sealed",  "Lending",   "Voted"};
constexpr std::array<std::string_view, 4> kOutcomes = {"committed", "aborted", "committed_incomplete", "in_doubt"};
constexpr std::array<std::string_view, 3> kDomains = {"staged", "live", "derived"};

enum Sender : std::uint8_t { kS = 1, kT = 2, kC = 4, kK = 8 };  // source, target, coordinator, client
struct Kind {
  std::string_view name;
  std::uint8_t senders;
};
// In the order of the variant. Rule Z1: who may send what.
constexpr std::array<Kind, kMessageKinds> kKinds = {
    {{"Hello", kS | kT},     {"Ready", kS | kT},    {"PlanRefused", kS | kT},
     {"Heartbeat", kS | kT}, {"Sealed", kS},        {"Staged", kT},
     {"Vote", kS | kT},      {"Gated", kT},         {"Applied", kT},
     {"Reopened", kT},       {"Failed", kS | kT},   {"VerifyReport", kT},
     {"Goodbye", kS | kT},   {"StatusRequest", kK}, {"VerifyRequest", kK},
     {"Welcome", kC},        {"Refused", kC},       {"Configure", kC},
     {"Begin", kC},          {"Lend", kC},          {"ReadersDone", kC},
     {"Gate", kC},           {"Copy", kC},          {"Open", kC},
     {"Abort", kC},          {"Committed", kC},     {"End", kC},
     {"Evict", kC},          {"Verify", kC},        {"StatusReply", kC},
     {"BlockAmax", kS},      {"BlockAmaxMerged", kC}}};

template <typename Table, typename E>
std::string_view lookup(const Table& table, E value) {
  const auto i = static_cast<std::size_t>(value);
  return i < table.size() ? table[i] : std::string_view("?");
}

Hash128 frame_hash(std::span<const std::byte> header, std::span<const std::byte> payload) {
  Hasher h;
  h.add(header.first(kMacAt)).add(payload);
  return h.finish();
}

Error bad_message(const std::string& what) { return Error(Code::kCorrupt, "control message: " + what); }

struct Frame {
  std::uint32_t key_id = 0;
  Hash128 mac;
  std::span<const std::byte> payload;
};

Result<Frame> open_frame(std::span<const std::byte> frame) {
  if (frame.size() > static_cast<std::size_t>(kMaxFrameBytes))
    return bad_message(std::to_string(frame.size()) + " bytes are beyond the limit of " +
                       std::to_string(kMaxFrameBytes));
  Reader r(frame);
  const auto magic = r.get<std::uint32_t>();
  const auto version = r.get<std::uint16_t>();
  const auto reserved = r.get<std::uint16_t>();
  const auto bytes = r.get<std::uint64_t>();
  Frame out;
  out.key_id = r.get<std::uint32_t>();
  const auto reserved2 = r.get<std::uint32_t>();
  out.mac = r.hash();
  const Hash128 hash = r.hash();
  if (!r.ok()) return bad_message("shorter than its header");
  if (magic != kMessageMagic) return bad_message("wrong magic");
  if (version != kProtocolVersion)
    return Error(Code::kMismatch, "control message: protocol version " + std::to_string(version) +
                                      ", this side speaks " + std::to_string(kProtocolVersion));
  if (reserved != 0 || reserved2 != 0) return bad_message("a reserved field is set");
  out.payload = frame.subspan(kFrameHeader);
  if (bytes != out.payload.size()) return bad_message("its length and the bytes at hand disagree");
  if (frame_hash(frame.first(kFrameHeader), out.payload) != hash) return bad_message("its hash does not match");
  return out;
}

Result<Envelope> read_payload(std::span<const std::byte> payload) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(payload.data());
  flatbuffers::Verifier verifier(data, payload.size(), kMaxDepth, kMaxTables);
  if (payload.size() < 8 || !fb::VerifyEnvelopeBuffer(verifier)) return bad_message("malformed");
  const fb::Envelope& in = *fb::GetEnvelope(data);
  Envelope out;
  if (in.job() != nullptr) out.job = unpack(*in.job());
  if (in.txn() != nullptr) out.txn = unpack(*in.txn());
  out.epoch = Epoch(in.epoch());
  out.party = static_cast<Party>(in.party());
  out.instance = in.instance();
  out.rank = in.rank();
  out.member = in.member();
  out.incarnation = Incarnation(in.incarnation());
  out.sequence = in.sequence();
  REFIT_ASSIGN(out.message, unpack(in, payload.size()));
  return out;
}

}  // namespace

std::string_view to_string(Party party) { return lookup(kParties, party); }
Party party_of(Role role) {
  return role == Role::kSource ? Party::kSource : role == Role::kTarget ? Party::kTarget : Party::kClient;
}
std::string_view to_string(MemberState state) { return lookup(kStates, state); }
std::string_view to_string(Outcome outcome) { return lookup(kOutcomes, outcome); }
std::string_view to_string(Domain domain) { return lookup(kDomains, domain); }
std::string_view kind_name(const Message& message) { return kKinds[message.index()].name; }

bool Begin::serves_delta(std::uint32_t member) const {
  return base.counter > 0 && !std::binary_search(without.begin(), without.end(), member);
}

bool may_send(Party party, const Message& message) {
  constexpr std::array<std::uint8_t, 4> kBit = {kC, kS, kT, kK};
  const auto i = static_cast<std::size_t>(party);
  return i < kBit.size() && (kKinds[message.index()].senders & kBit[i]) != 0;
}

MemberName Envelope::name() const { return {party == Party::kTarget ? Role::kTarget : Role::kSource, instance, rank}; }
std::string Envelope::who() const {
  return party == Party::kSource || party == Party::kTarget ? name().to_string() : std::string(to_string(party));
}

Result<Bytes> encode(const Envelope& e) {
  if (Status s = check_envelope(e); !s.ok()) return Error(Code::kInvalid, s.error().message);
  flatbuffers::FlatBufferBuilder builder;
  const Packed body = pack(builder, e.message);
  const fb::Hash job = pack(e.job);
  const fb::TxnId txn = pack(e.txn);
  builder.Finish(fb::CreateEnvelope(builder, &job, e.epoch.value, &txn, static_cast<std::uint8_t>(e.party), e.instance,
                                    e.rank, e.member, e.incarnation.value, body.kind, body.body, e.sequence));
  const std::size_t payload = builder.GetSize();
  if (payload + kFrameHeader > static_cast<std::size_t>(kMaxFrameBytes))
    return Error(Code::kInvalid, std::string(kind_name(e.message)) + " message is too large")
        .amounts(static_cast<std::int64_t>(payload), kMaxFrameBytes);
  Bytes out(kFrameHeader + payload);
  Writer(out)
      .put(kMessageMagic)
      .put(kProtocolVersion)
      .put(std::uint16_t{0})
      .put(std::uint64_t{payload})
      .put(e.key_id)
      .put(std::uint32_t{0})
      .put(e.mac);
  std::memcpy(out.data() + kFrameHeader, builder.GetBufferPointer(), payload);
  const auto all = std::span<const std::byte>(out);
  Writer(std::span(out).subspan(kMessageHashAt)).put(frame_hash(all.first(kFrameHeader), all.subspan(kFrameHeader)));
  return out;
}

Result<Envelope> decode(std::span<const std::byte> frame) {
  REFIT_ASSIGN(Frame opened, open_frame(frame));
  Bytes aligned;
  if (reinterpret_cast<std::uintptr_t>(opened.payload.data()) % 8 != 0) {
    aligned.assign(opened.payload.begin(), opened.payload.end());
    opened.payload = aligned;
  }
  REFIT_ASSIGN(Envelope envelope, read_payload(opened.payload));
  envelope.key_id = opened.key_id;
  envelope.mac = opened.mac;
  REFIT_TRY(check_envelope(envelope));
  return envelope;
}

}  // namespace refit::wire
