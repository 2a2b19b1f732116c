#include "transport/shm/card.h"

#include "transport/common/bytes.h"

namespace refit::transport::shm {
namespace {

constexpr std::uint32_t kCardMagic = 0x43535246, kRequestMagic = 0x51535246, kReplyMagic = 0x50535246,
                        kDescriptorMagic = 0x44535246;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kDescriptorHead = 96, kRegionBytes = 32, kChecksumBytes = 8;

static_assert(slot_word(kSlots) * 8 == kControlBytes);

Error corrupt(const char* what) { return Error(Code::kCorrupt, std::string("not a shm ") + what); }

void put_identity(Writer& w, const Card& c) { w.hash(c.job).u32(c.member).u32(c.uid).u64(c.incarnation.value); }
Card get_identity(Reader& r) {
  Card c;
  c.job = r.hash();
  c.member = r.u32();
  c.uid = r.u32();
  c.incarnation = Incarnation(r.u64());
  return c;
}

// A length that fits both signed and unsigned 63 bits, or -1.
std::int64_t length(std::uint64_t v) { return narrow<std::int64_t>(v).value_or(-1); }

bool sound(const LentRegion& g) {
  if (g.file == 0) return g.bytes == 0 && g.offset == 0 && g.file_bytes == 0;
  if (g.file_bytes <= 0 || g.offset < 0 || g.bytes < 0) return false;
  return g.offset <= g.file_bytes && g.bytes <= g.file_bytes - g.offset;
}

}  // namespace

Bytes encode(const Card& card) {
  Writer w;
  w.u32(kCardMagic).u32(kVersion);
  put_identity(w, card);
  return w.take();
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kCardBytes || r.u32() != kCardMagic) return corrupt("card");
  if (r.u32() != kVersion) return Error(Code::kMismatch, "shm card of another release");
  return get_identity(r);
}

std::string socket_path(const std::string& runtime_dir, const Card& card) {
  Writer w;
  put_identity(w, card);
  return runtime_dir + "/shm-" + std::to_string(card.member) + "-" + hash128(w.view()).hex().substr(0, 16) + ".sock";
}

Bytes encode(const Request& request) {
  Writer w;
  w.u32(kRequestMagic).u32(kVersion).u32(static_cast<std::uint32_t>(request.ask)).u32(0).u64(request.file);
  put_identity(w, request.server);
  return w.take();
}

Result<Request> decode_request(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kRequestBytes || r.u32() != kRequestMagic || r.u32() != kVersion) return corrupt("request");
  const std::uint32_t ask = r.u32();
  if (ask < static_cast<std::uint32_t>(Ask::kPing) || ask > static_cast<std::uint32_t>(Ask::kFile) || r.u32() != 0)
    return corrupt("request");
  Request out;
  out.ask = static_cast<Ask>(ask);
  out.file = r.u64();
  out.server = get_identity(r);
  return out;
}

Bytes encode(const Reply& reply) {
  return Writer()
      .u32(kReplyMagic)
      .u32(static_cast<std::uint32_t>(reply.answer))
      .u64(reply.file)
      .u64(static_cast<std::uint64_t>(reply.bytes))
      .take();
}

Result<Reply> decode_reply(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kReplyBytes || r.u32() != kReplyMagic) return corrupt("reply");
  const std::uint32_t answer = r.u32();
  Reply out;
  out.file = r.u64();
  out.bytes = length(r.u64());
  if (answer > static_cast<std::uint32_t>(Answer::kExhausted) || out.bytes < 0) return corrupt("reply");
  out.answer = static_cast<Answer>(answer);
  return out;
}

Bytes encode(const Descriptor& d) {
  Writer w;
  w.u32(kDescriptorMagic)
      .u32(kVersion)
      .hash(d.id.job)
      .hash(d.id.txn.lineage)
      .u64(d.id.txn.epoch.value)
      .u64(d.id.txn.counter);
  w.u64(d.id.incarnation.value).u32(d.member).u32(d.slot).u64(d.epoch.value);
  w.u32(static_cast<std::uint32_t>(d.regions.size())).u32(0).u64(0);
  for (const LentRegion& g : d.regions)
    w.u64(g.file)
        .u64(static_cast<std::uint64_t>(g.file_bytes))
        .u64(static_cast<std::uint64_t>(g.offset))
        .u64(static_cast<std::uint64_t>(g.bytes));
  const std::uint64_t sum = hash128(w.view()).lo;
  return w.u64(sum).take();
}

Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes) {
  if (bytes.size() < kDescriptorHead + kChecksumBytes) return corrupt("descriptor: too short");
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  Reader sum(bytes.subspan(body.size()));
  Reader r(body);
  if (r.u32() != kDescriptorMagic) return corrupt("descriptor");
  if (r.u32() != kVersion) return Error(Code::kMismatch, "shm descriptor of another release");
  if (sum.u64() != hash128(body).lo) return corrupt("descriptor: checksum differs");
  Descriptor d;
  d.id.job = r.hash();
  d.id.txn.lineage = r.hash();
  d.id.txn.epoch = Epoch(r.u64());
  d.id.txn.counter = r.u64();
  d.id.incarnation = Incarnation(r.u64());
  d.member = r.u32();
  d.slot = r.u32();
  d.epoch = MemoryEpoch(r.u64());
  const std::uint32_t count = r.u32();
  const bool pads = r.u32() == 0 && r.u64() == 0;
  if (!pads || count > kMaxRegions || d.slot >= kSlots || r.left() != count * kRegionBytes)
    return corrupt("descriptor: impossible counts");
  d.regions.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    LentRegion g;
    g.file = r.u64();
    g.file_bytes = length(r.u64());
    g.offset = length(r.u64());
    g.bytes = length(r.u64());
    if (!sound(g)) return corrupt("descriptor: impossible region");
    d.regions.push_back(g);
  }
  return d;
}

std::uint64_t load_word(const std::byte* page, std::uint32_t index) {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(page) + index, __ATOMIC_SEQ_CST);
}
void store_word(std::byte* page, std::uint32_t index, std::uint64_t value) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(page) + index, value, __ATOMIC_SEQ_CST);
}

}  // namespace refit::transport::shm
