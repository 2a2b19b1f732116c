#include "transport/tcp/frame.h"

#include <algorithm>

#include "transport/common/bytes.h"

namespace refit::transport::tcp {
namespace {

constexpr std::uint32_t kCardMagic = 0x43545246, kHelloMagic = 0x48545246, kWelcomeMagic = 0x57545246, kVersion = 1;

Error corrupt(const char* what) { return Error(Code::kCorrupt, std::string("not a tcp ") + what); }

template <std::size_t N>
bool take(std::span<const std::byte>& in, std::array<std::byte, N>& out) {
  if (in.size() < N) return false;
  std::copy_n(in.begin(), N, out.begin());
  in = in.subspan(N);
  return true;
}
bool security_ok(std::uint32_t v) { return v <= static_cast<std::uint32_t>(Security::kMac); }

}  // namespace

std::string_view to_string(Security security) { return security == Security::kMac ? "mac" : "none"; }

Result<Security> security_from(std::string_view name) {
  if (name == "mac") return Security::kMac;
  if (name == "none") return Security::kNone;
  if (name == "aes_gcm")
    return Error(Code::kUnsupported, "security.bulk 'aes_gcm' is not built; choose mac, or none where that is enough");
  return Error(Code::kInvalid, "security.bulk '" + std::string(name) + "' must be mac or none");
}

Bytes encode(const Card& c) {
  Writer w;
  w.u32(kCardMagic).u32(kVersion).hash(c.job).u32(c.member).u64(c.incarnation.value);
  w.u32(static_cast<std::uint32_t>(c.security)).raw(c.key).u32(c.port);
  w.u32(static_cast<std::uint32_t>(c.host.size())).raw(std::as_bytes(std::span(c.host)));
  return w.take();
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (r.u32() != kCardMagic) return corrupt("card");
  if (r.u32() != kVersion) return Error(Code::kMismatch, "tcp card of another release");
  Card c;
  c.job = r.hash();
  c.member = r.u32();
  c.incarnation = Incarnation(r.u64());
  const std::uint32_t security = r.u32();
  std::span<const std::byte> rest = r.rest();
  if (!r.ok() || !security_ok(security) || !take(rest, c.key)) return corrupt("card");
  c.security = static_cast<Security>(security);
  Reader tail(rest);
  const std::uint32_t port = tail.u32(), length = tail.u32();
  if (!tail.ok() || port == 0 || port > 0xffff || length == 0 || length > kLongestHost || tail.left() != length)
    return corrupt("card");
  c.port = static_cast<std::uint16_t>(port);
  for (std::byte b : tail.rest()) c.host.push_back(static_cast<char>(b));
  return c;
}

Bytes encode(const Hello& h) {
  Writer w;
  w.u32(kHelloMagic).u32(kVersion).hash(h.job).u32(h.from).u32(h.to);
  w.u64(h.from_incarnation.value).u64(h.to_incarnation.value);
  return w.u32(static_cast<std::uint32_t>(h.security)).u32(h.stream).raw(h.nonce).u64(0).take();
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kHelloBytes || r.u32() != kHelloMagic || r.u32() != kVersion) return corrupt("hello");
  Hello h;
  h.job = r.hash();
  h.from = r.u32();
  h.to = r.u32();
  h.from_incarnation = Incarnation(r.u64());
  h.to_incarnation = Incarnation(r.u64());
  const std::uint32_t security = r.u32();
  h.stream = r.u32();
  std::span<const std::byte> rest = r.rest();
  if (!security_ok(security) || (h.stream >= kMaxStreams && h.stream != kProbe) || !take(rest, h.nonce) ||
      std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; }))
    return corrupt("hello");
  h.security = static_cast<Security>(security);
  return h;
}

Bytes encode(const Welcome& w) {
  return Writer().u32(kWelcomeMagic).u32(kVersion).u32(static_cast<std::uint32_t>(w.answer)).u32(0).raw(w.nonce).take();
}

Result<Welcome> decode_welcome(std::span<const std::byte> bytes) {
  Reader r(bytes);
  if (bytes.size() != kWelcomeBytes || r.u32() != kWelcomeMagic || r.u32() != kVersion) return corrupt("welcome");
  const std::uint32_t answer = r.u32();
  if (answer > static_cast<std::uint32_t>(Answer::kFull) || r.u32() != 0) return corrupt("welcome");
  Welcome w{.answer = static_cast<Answer>(answer), .nonce = {}};
  std::span<const std::byte> rest = r.rest();
  (void)take(rest, w.nonce);
  return w;
}

Bytes encode(const Header& h) {
  Writer w;
  w.u32(static_cast<std::uint32_t>(h.type)).u32(h.length).hash(h.id.job).hash(h.id.txn.lineage);
  w.u64(h.id.txn.epoch.value).u64(h.id.txn.counter).u64(h.id.incarnation.value);
  return w.u32(h.bucket.value).u32(h.code).u64(h.offset).u64(h.bytes).hash({}).take();
}

Result<Header> decode_header(std::span<const std::byte> bytes) {
  Reader r(bytes);
  const std::uint32_t type = r.u32();
  if (bytes.size() != kFrameBytes || type < static_cast<std::uint32_t>(Type::kOffer) ||
      type > static_cast<std::uint32_t>(Type::kBeat))
    return corrupt("frame");
  Header h;
  h.type = static_cast<Type>(type);
  h.length = r.u32();
  h.id.job = r.hash();
  h.id.txn.lineage = r.hash();
  h.id.txn.epoch = Epoch(r.u64());
  h.id.txn.counter = r.u64();
  h.id.incarnation = Incarnation(r.u64());
  h.bucket = BucketId(r.u32());
  h.code = r.u32();
  h.offset = r.u64();
  h.bytes = r.u64();
  const bool data = h.type == Type::kData;
  if (data != (h.length > 0) || h.length > kMaxChunk || h.code > static_cast<std::uint32_t>(Refusal::kStaging) ||
      !narrow<std::int64_t>(h.bytes) || (data && (h.offset > h.bytes || h.length > h.bytes - h.offset)))
    return corrupt("frame");
  return h;
}

}  // namespace refit::transport::tcp
