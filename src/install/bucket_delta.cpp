#include "install/bucket_delta.h"

namespace refit::install {
namespace {

constexpr std::int64_t kTableEntry = 4;  // of a message's table of frame sizes

template <typename Bytes>
Bytes part_of(Bytes bytes, const Section& s) {
  return bytes.subspan(static_cast<std::size_t>(s.at), static_cast<std::size_t>(s.shape.bytes()));
}

Error other(const std::string& what) { return {Code::kMismatch, "delta: " + what}; }

}  // namespace

Hash128 bucket_identity(const Txn& txn, BucketId bucket, std::span<const TensorDigest> sealed) {
  Hasher h;
  h.add_u64(txn.lineage.hi).add_u64(txn.lineage.lo).add_u64(txn.epoch.value).add_u64(txn.counter);
  h.add_u64(bucket.value).add_u64(sealed.size());
  for (const TensorDigest& t : sealed) {
    h.add_u64(t.tensor);
    for (std::uint32_t w : t.digest.word) h.add_u64(w);
    h.add_u64(t.digest.count);
  }
  return h.finish();
}

Result<std::int64_t> sections_bound(std::span<const Section> sections) {
  std::int64_t sum = 0;
  for (const Section& s : sections) {
    REFIT_ASSIGN(const std::int64_t one, codec::message_bound(s.shape));
    sum += one;
  }
  return sum;
}

Result<EncodedSections> encode_sections(codec::Workspace& work, codec::Form form, const codec::Identity& identity,
                                        std::span<const Section> sections, std::span<const std::byte> base,
                                        std::span<const std::byte> next, std::span<std::byte> out) {
  EncodedSections total;
  for (const Section& s : sections) {
    const auto rest = out.subspan(static_cast<std::size_t>(total.bytes));
    REFIT_ASSIGN(const std::int64_t n,
                 codec::encode(work, s.shape, form, identity, part_of(base, s), part_of(next, s), rest));
    total.bytes += n;
    total.changed += codec::census_of_own(rest.first(static_cast<std::size_t>(n))).changed;
  }
  return total;
}

Result<CheckedDelta> CheckedDelta::check(codec::Workspace& work, std::span<const Section> sections,
                                         const codec::Identity& identity, std::span<const std::byte> payload) {
  CheckedDelta out;
  for (const Section& s : sections) {
    REFIT_ASSIGN(const codec::Header h, codec::read_header(payload));
    if (h.shape.width != s.shape.width || h.shape.elements != s.shape.elements)
      return other("it stands for " + std::to_string(h.shape.elements) + " elements of " +
                   std::to_string(h.shape.width) + " bytes, the plan has " + std::to_string(s.shape.elements) + " of " +
                   std::to_string(s.shape.width));
    const std::int64_t bytes = codec::kHeaderBytes + kTableEntry * h.frames + h.payload_bytes;
    if (bytes > static_cast<std::int64_t>(payload.size()))
      return Error(Code::kCorrupt, "delta: the payload ends inside a section")
          .amounts(bytes, static_cast<std::int64_t>(payload.size()));
    REFIT_ASSIGN(codec::Delta delta, codec::check(work, payload.first(static_cast<std::size_t>(bytes))));
    if (h.identity.base != identity.base)
      return other("made against " + h.identity.base.hex() + ", held is " + identity.base.hex());
    if (h.identity.next != identity.next)
      return other("leads to " + h.identity.next.hex() + ", sealed is " + identity.next.hex());
    out.parts_.push_back({s, std::move(delta)});
    payload = payload.subspan(static_cast<std::size_t>(bytes));
  }
  if (!payload.empty()) return Error(Code::kCorrupt, "delta: bytes behind the last section");
  return out;
}

void CheckedDelta::apply(codec::Workspace& work, std::span<std::byte> packed) const {
  for (const Part& p : parts_) codec::apply(work, p.delta, part_of(packed, p.section));
}

void CheckedDelta::undo(codec::Workspace& work, std::span<std::byte> packed) const {
  for (const Part& p : parts_) codec::undo(work, p.delta, part_of(packed, p.section));
}

}  // namespace refit::install
