#include "transport/zmq_sparse/card.h"

#include "transport/common/bytes.h"

namespace refit::transport::zmq_sparse {
namespace {

constexpr std::uint32_t kCardMagic = 0x435a5452, kHeadMagic = 0x485a5452;  // "RTZC", "RTZH"
constexpr std::uint32_t kVersion = 1;

Error bad(const char* what) { return {Code::kCorrupt, std::string("zmq_sparse: ") + what}; }
std::span<const std::byte> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

}  // namespace

Bytes encode(const Card& c) {
  Writer w;
  w.u32(kCardMagic).u32(kVersion).hash(c.job).u32(c.member).u64(c.incarnation.value);
  w.u32(static_cast<std::uint32_t>(c.key.size())).raw(c.key);
  w.u32(static_cast<std::uint32_t>(c.endpoint.size())).raw(bytes_of(c.endpoint));
  return w.take();
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
  Reader r(bytes);
  Card c;
  if (r.u32() != kCardMagic || r.u32() != kVersion) return bad("no card of this mover");
  c.job = r.hash();
  c.member = r.u32();
  c.incarnation = Incarnation(r.u64());
  const std::uint32_t key = r.u32();
  if (!r.ok() || (key != 0 && key != kKeyBytes) || r.left() < key) return bad("card: key");
  c.key.assign(r.rest().begin(), r.rest().begin() + key);
  Reader tail(r.rest().subspan(key));
  const std::uint32_t length = tail.u32();
  if (!tail.ok() || length == 0 || length > kLongestEndpoint || tail.left() != length) return bad("card: endpoint");
  c.endpoint.assign(reinterpret_cast<const char*>(tail.rest().data()), length);
  if (!c.endpoint.starts_with("tcp://")) return bad("card: the endpoint is not tcp://");  // nothing else is dialled
  return c;
}

Bytes encode(const Head& h) {
  Writer w;
  w.u32(kHeadMagic).u32(static_cast<std::uint32_t>(h.type)).u32(h.from).u32(h.code).u64(h.process.value);
  w.hash(h.id.job).hash(h.id.txn.lineage).u64(h.id.txn.epoch.value).u64(h.id.txn.counter).u64(h.id.incarnation.value);
  w.u32(h.bucket.value).u32(0).u64(h.offset).u64(h.bytes);
  return w.take();
}

Result<Head> decode_head(std::span<const std::byte> frame) {
  Reader r(frame);
  Head h;
  if (r.u32() != kHeadMagic) return bad("frame: magic");
  const std::uint32_t type = r.u32();
  h.from = r.u32();
  h.code = r.u32();
  h.process = Incarnation(r.u64());
  h.id.job = r.hash();
  h.id.txn.lineage = r.hash();
  h.id.txn.epoch = Epoch(r.u64());
  h.id.txn.counter = r.u64();
  h.id.incarnation = Incarnation(r.u64());
  h.bucket = BucketId(r.u32());
  const std::uint32_t reserved = r.u32();
  h.offset = r.u64();
  h.bytes = r.u64();
  if (!r.ok() || reserved != 0) return bad("frame: head");
  if (type < static_cast<std::uint32_t>(Type::kOffer) || type > static_cast<std::uint32_t>(Type::kBeat))
    return bad("frame: type");
  h.type = static_cast<Type>(type);
  if ((h.type == Type::kData) != (r.left() > 0)) return bad("frame: length");
  return h;
}

}  // namespace refit::transport::zmq_sparse
