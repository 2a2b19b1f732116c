#include "transport/common/bytes.h"
#include "transport/common/inproc.h"

namespace refit::transport::inproc {
namespace {
constexpr std::uint32_t kCardMagic = 0x43494652, kDescriptorMagic = 0x44494652;
constexpr std::uint32_t kMaxRegions = 1 << 16;
}  // namespace

Bytes encode(const Card& c) {
  return Writer().u32(kCardMagic).u32(c.member).hash(c.job).u64(c.incarnation.value).u64(c.mover).take();
}

Result<Card> decode_card(std::span<const std::byte> bytes) {
  Reader r(bytes);
  Card c;
  const std::uint32_t magic = r.u32();
  c.member = r.u32();
  c.job = r.hash();
  c.incarnation = Incarnation(r.u64());
  c.mover = r.u64();
  if (!r.ok() || r.left() != 0 || magic != kCardMagic)
    return Error(Code::kCorrupt, "not a card of a mover in this process");
  return c;
}

Bytes encode(const Descriptor& d) {
  Writer w;
  w.u32(kDescriptorMagic)
      .u32(d.member)
      .hash(d.id.job)
      .hash(d.id.txn.lineage)
      .u64(d.id.txn.epoch.value)
      .u64(d.id.txn.counter);
  w.u64(d.id.incarnation.value).u64(d.lender).u64(d.epoch).u32(static_cast<std::uint32_t>(d.sizes.size()));
  for (std::int64_t s : d.sizes) w.u64(static_cast<std::uint64_t>(s));
  const std::uint64_t sum = hash128(w.view()).lo;
  return w.u64(sum).take();
}

Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes) {
  const auto corrupt = [] { return Error(Code::kCorrupt, "not a descriptor of this transport"); };
  if (bytes.size() < 8) return corrupt();
  const auto body = bytes.first(bytes.size() - 8);
  if (Reader(bytes.subspan(body.size())).u64() != hash128(body).lo) return corrupt();
  Reader r(body);
  Descriptor d;
  if (r.u32() != kDescriptorMagic) return corrupt();
  d.member = r.u32();
  d.id.job = r.hash();
  d.id.txn.lineage = r.hash();
  d.id.txn.epoch = Epoch(r.u64());
  d.id.txn.counter = r.u64();
  d.id.incarnation = Incarnation(r.u64());
  d.lender = r.u64();
  d.epoch = r.u64();
  const std::uint32_t count = r.u32();
  if (!r.ok() || count > kMaxRegions || r.left() != count * std::size_t{8}) return corrupt();
  for (std::uint32_t i = 0; i < count; ++i) {
    d.sizes.push_back(narrow<std::int64_t>(r.u64()).value_or(-1));
    if (d.sizes.back() < 0) return corrupt();
  }
  return d;
}

}  // namespace refit::transport::inproc
