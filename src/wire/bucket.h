// The fixed header in front of a bucket's bytes, for movers that carry packed buckets. Little-endian, 160 bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/core.h"

namespace refit::wire {

// How the payload is written. The last two are reserved numbers.
enum class Encoding : std::uint16_t { kRaw = 0, kUnchanged = 1, kDelta = 2, kQuantised = 3, kDeltaQuantised = 4 };

struct BucketHeader {
  Hash128 job;
  Txn txn;
  BucketId bucket;
  std::uint32_t sender = 0;  // member number
  Incarnation incarnation;   // of the sender
  Encoding encoding = Encoding::kRaw;
  std::uint16_t transform = 0;      // reserved: value transform; 0 = none
  std::uint32_t atomic_group = 0;   // reserved: buckets that apply together; 0 = none
  Hash128 base;                     // identity of the bytes that it is made against; zero exactly for raw
  std::uint64_t payload_bytes = 0;  // that follow this header; none: unchanged
  std::uint64_t logical_bytes = 0;  // after decoding
  Hash128 payload_hash;             // XXH3-128 of the payload
  friend bool operator==(const BucketHeader&, const BucketHeader&) = default;
};

inline constexpr std::size_t kBucketHeaderBytes = 160;
inline constexpr std::uint64_t kMaxBucketBytes = std::uint64_t{1} << 40;

std::array<std::byte, kBucketHeaderBytes> encode(const BucketHeader& header);
// Checks magic, format version, its own hash, the reserved fields and the lengths. kCorrupt names the field.
Result<BucketHeader> decode_bucket_header(std::span<const std::byte> bytes);
// decode, then the payload's length and hash. `payload` must be private memory.
Result<BucketHeader> check_bucket(std::span<const std::byte> header, std::span<const std::byte> payload);

}  // namespace refit::wire
