#include "transport/nixl/card.h"

#include <algorithm>

#include "transport/common/bytes.h"

namespace refit::transport::nixl {
namespace {

constexpr std::uint32_t kCardMagic = 0x4358494e, kHelloMagic = 0x4858494e, kQuestionMagic = 0x5158494e,
                        kReplyMagic = 0x5258494e, kDescriptorMagic = 0x4458494e;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHead = 112, kRegionBytes = 16, kSumBytes = 8;

Error bad(const char* what) { return Error(Code::kCorrupt, std::string("not a nixl ") + what); }

std::span<const std::byte> bytes_of(const std::string& s) { return std::as_bytes(std::span(s)); }

Pass pass_of(Reader& r) {
  Pass out;
  const Hash128 h = r.hash();
  for (std::size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<std::byte>(h.hi >> (8 * i));
    out[8 + i] = static_cast<std::byte>(h.lo >> (8 * i));
  }
  return out;
}

}  // namespace

Bytes encode(const Card& c) {
  Writer w;
  w.u32(kCardMagic).u32(kVersion).hash(c.job).u32(c.member).u32(c.port).u64(c.incarnation.value).raw(c.pass);
  w.u32(static_cast<std::uint32_t>(c.host.size())).u32(static_cast<std::uint32_t>(c.backend.size()));
  return w.raw(bytes_of(c.host)).raw(bytes_of(c.backend)).take();
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (r.u32() != kCardMagic) return bad("card");
  if (r.u32() != kVersion) return Error(Code::kMismatch, "nixl card of another release");
  Card c;
  c.job = r.hash();
  c.member = r.u32();
  const std::uint32_t port = r.u32();
  c.incarnation = Incarnation(r.u64());
  c.pass = pass_of(r);
  const std::uint32_t host = r.u32(), backend = r.u32();
  if (!r.ok() || port == 0 || port > 0xffff || host > kLongestName || backend > kLongestName ||
      r.left() != host + backend)
    return bad("card");
  c.port = static_cast<std::uint16_t>(port);
  const auto* const text = reinterpret_cast<const char*>(r.rest().data());
  c.host.assign(text, host);
  c.backend.assign(text + host, backend);
  return c;
}

Bytes encode(const Hello& h) {
  Writer w;
  w.u32(kHelloMagic).u32(kVersion).hash(h.job).u32(h.to).u32(0).u64(h.to_incarnation.value).raw(h.pass);
  return w.take();
}
Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kHelloBytes || r.u32() != kHelloMagic || r.u32() != kVersion) return bad("hello");
  Hello h;
  h.job = r.hash();
  h.to = r.u32();
  if (r.u32() != 0) return bad("hello");
  h.to_incarnation = Incarnation(r.u64());
  h.pass = pass_of(r);
  return h;
}

Bytes encode(const Question& q) { return Writer().u32(kQuestionMagic).u32(0).u64(q.number).u64(q.epoch.value).take(); }
Result<Question> decode_question(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kQuestionBytes || r.u32() != kQuestionMagic || r.u32() != 0) return bad("question");
  Question q;
  q.number = r.u64();
  q.epoch = MemoryEpoch(r.u64());
  return q;
}

Bytes encode(const Reply& reply) {
  return Writer().u32(kReplyMagic).u32(static_cast<std::uint32_t>(reply.answer)).u64(reply.number).take();
}
Result<Reply> decode_reply(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kReplyBytes || r.u32() != kReplyMagic) return bad("reply");
  const std::uint32_t answer = r.u32();
  if (answer > static_cast<std::uint32_t>(Answer::kOther)) return bad("reply");
  return Reply{static_cast<Answer>(answer), r.u64()};
}

Bytes encode(const Descriptor& d) {
  Writer w;
  w.u32(kDescriptorMagic).u32(kVersion).hash(d.id.job).hash(d.id.txn.lineage);
  w.u64(d.id.txn.epoch.value).u64(d.id.txn.counter).u64(d.id.incarnation.value).u32(d.member).u32(0);
  w.u64(d.epoch.value).u64(d.metadata.size()).u64(d.regions.size()).u64(0).u64(0);
  for (const LentRegion& g : d.regions) w.u64(g.at).u64(static_cast<std::uint64_t>(g.bytes));
  w.raw(d.metadata);
  const std::uint64_t sum = hash128(w.view()).lo;
  return w.u64(sum).take();
}

Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes) {
  if (bytes.size() < kHead + kSumBytes) return bad("descriptor: too short");
  const auto body = bytes.first(bytes.size() - kSumBytes);
  Reader sum(bytes.subspan(body.size()));
  Reader r(body);
  if (r.u32() != kDescriptorMagic) return bad("descriptor");
  if (r.u32() != kVersion) return Error(Code::kMismatch, "nixl descriptor of another release");
  if (sum.u64() != hash128(body).lo) return bad("descriptor: checksum differs");
  Descriptor d;
  d.id.job = r.hash();
  d.id.txn.lineage = r.hash();
  d.id.txn.epoch = Epoch(r.u64());
  d.id.txn.counter = r.u64();
  d.id.incarnation = Incarnation(r.u64());
  d.member = r.u32();
  const bool padded = r.u32() == 0;
  d.epoch = MemoryEpoch(r.u64());
  const std::uint64_t metadata = r.u64(), count = r.u64();
  const bool pads = r.u64() == 0 && r.u64() == 0;
  if (!padded || !pads || d.epoch.value == 0 || count > kMaxRegions || metadata > kMaxMetadata ||
      r.left() != count * kRegionBytes + metadata)
    return bad("descriptor: impossible counts");
  d.regions.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = r.u64();
    const auto length = narrow<std::int64_t>(r.u64());
    if (!length || *length < 0 || at > ~std::uint64_t{0} - static_cast<std::uint64_t>(*length) ||
        (at == 0) != (*length == 0))
      return bad("descriptor: impossible region");
    d.regions.push_back({at, *length});
  }
  d.metadata.assign(r.rest().begin(), r.rest().end());
  return d;
}

}  // namespace refit::transport::nixl
