#include "wire/bucket.h"

#include <algorithm>
#include <string>

#include "wire/bytes.h"

namespace refit::wire {
namespace {

constexpr std::uint32_t kBucketMagic = 0x4b425452;  // "RTBK"
// Format 1 carries raw payloads only; whoever reads no other refuses the rest by its number.
constexpr std::uint16_t kRawFormat = 1, kEncodedFormat = 2;
// Magic 4, format 2, header bytes 2, job 16, txn 32, bucket 4, sender 4, incarnation 8, encoding 2, transform 2, group
// 4, base 16, payload bytes 8, logical bytes 8, payload hash 16, reserved 16, header hash 16.
constexpr std::size_t kBucketHashAt = 144;
static_assert(4 + 2 + 2 + 16 + 32 + 4 + 4 + 8 + 2 + 2 + 4 + 16 + 8 + 8 + 16 + 16 == kBucketHashAt);
static_assert(kBucketHashAt + 16 == kBucketHeaderBytes && kBucketHeaderBytes % 8 == 0);

Error bad_bucket(const std::string& what) { return Error(Code::kCorrupt, "bucket header: " + what); }

std::uint16_t format_of(Encoding encoding) { return encoding == Encoding::kRaw ? kRawFormat : kEncodedFormat; }

Status check_fields(const BucketHeader& h) {
  if (h.encoding > Encoding::kDelta)
    return bad_bucket("encoding " + std::to_string(static_cast<int>(h.encoding)) + " is not known here");
  if (h.transform != 0 || h.atomic_group != 0) return bad_bucket("a reserved field is set");
  if (h.payload_bytes > kMaxBucketBytes || h.logical_bytes > kMaxBucketBytes)
    return bad_bucket("payload of " + std::to_string(std::max(h.payload_bytes, h.logical_bytes)) +
                      " bytes is beyond any bucket");
  if ((h.encoding == Encoding::kRaw) != (h.base == Hash128{})) return bad_bucket("encoding and base identity disagree");
  if (h.encoding == Encoding::kRaw && h.logical_bytes != h.payload_bytes)
    return bad_bucket("raw payload and logical length differ");
  if (h.encoding == Encoding::kUnchanged && h.payload_bytes != 0)
    return bad_bucket("an unchanged bucket has a payload");
  if (h.encoding == Encoding::kDelta && (h.payload_bytes == 0 || h.payload_bytes >= h.logical_bytes))
    return bad_bucket("a delta is not shorter than what it stands for");
  return {};
}

}  // namespace

std::array<std::byte, kBucketHeaderBytes> encode(const BucketHeader& h) {
  std::array<std::byte, kBucketHeaderBytes> out{};
  Writer w(out);
  w.put(kBucketMagic)
      .put(format_of(h.encoding))
      .put(static_cast<std::uint16_t>(kBucketHeaderBytes))
      .put(h.job)
      .put(h.txn);
  w.put(h.bucket.value).put(h.sender).put(h.incarnation.value);
  w.put(static_cast<std::uint16_t>(h.encoding)).put(h.transform).put(h.atomic_group).put(h.base);
  w.put(h.payload_bytes).put(h.logical_bytes).put(h.payload_hash).put(Hash128{});
  w.put(hash128(std::span(out).first(kBucketHashAt)));
  return out;
}

Result<BucketHeader> decode_bucket_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kBucketHeaderBytes)
    return bad_bucket("needs " + std::to_string(kBucketHeaderBytes) + " bytes, has " + std::to_string(bytes.size()));
  Reader r(bytes);
  if (r.get<std::uint32_t>() != kBucketMagic) return bad_bucket("wrong magic");
  const auto format = r.get<std::uint16_t>();
  if (format != kRawFormat && format != kEncodedFormat)
    return Error(Code::kMismatch, "bucket header: format " + std::to_string(format) + ", this side speaks " +
                                      std::to_string(kRawFormat) + " and " + std::to_string(kEncodedFormat));
  if (r.get<std::uint16_t>() != kBucketHeaderBytes) return bad_bucket("wrong header length");
  BucketHeader h;
  h.job = r.hash();
  h.txn = r.txn();
  h.bucket = BucketId(r.get<std::uint32_t>());
  h.sender = r.get<std::uint32_t>();
  h.incarnation = Incarnation(r.get<std::uint64_t>());
  h.encoding = static_cast<Encoding>(r.get<std::uint16_t>());
  if (format_of(h.encoding) != format) return bad_bucket("format and encoding disagree");
  h.transform = r.get<std::uint16_t>();
  h.atomic_group = r.get<std::uint32_t>();
  h.base = r.hash();
  h.payload_bytes = r.get<std::uint64_t>();
  h.logical_bytes = r.get<std::uint64_t>();
  h.payload_hash = r.hash();
  if (r.hash() != Hash128{}) return bad_bucket("a reserved field is set");
  if (r.hash() != hash128(bytes.first(kBucketHashAt))) return bad_bucket("its own hash does not match");
  REFIT_TRY(check_fields(h));
  return h;
}

Result<BucketHeader> check_bucket(std::span<const std::byte> header, std::span<const std::byte> payload) {
  REFIT_ASSIGN(const BucketHeader h, decode_bucket_header(header));
  if (payload.size() != h.payload_bytes)
    return Error(Code::kCorrupt,
                 "bucket " + std::to_string(h.bucket.value) + ": payload length differs from its header")
        .amounts(static_cast<std::int64_t>(h.payload_bytes), static_cast<std::int64_t>(payload.size()));
  if (hash128(payload) != h.payload_hash)
    return Error(Code::kCorrupt, "bucket " + std::to_string(h.bucket.value) + ": payload hash does not match");
  return h;
}

}  // namespace refit::wire
