// The lent manifest page: what a source has sealed, written once per round beside the lent memory. Readers copy it to
// private memory, check all of it, and use only the copy (rule Z6).
//
// Layout (little-endian, all offsets 8-aligned): header 160 bytes, recipients (24 bytes each), buckets (24 bytes each),
// entries (32 bytes each). Byte by byte in schema/wire.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/core.h"
#include "wire/digest.h"

namespace refit::wire {

struct ManifestRecipient {
  Rank rank;            // recipient's rank in the target layout
  Hash128 bucket_list;  // hash of the bucket list this sender and this recipient share
  friend bool operator==(const ManifestRecipient&, const ManifestRecipient&) = default;
};
struct ManifestEntry {
  TensorId tensor;
  Digest4 digest;  // of the pieces of this tensor in this bucket
  friend bool operator==(const ManifestEntry&, const ManifestEntry&) = default;
};
struct ManifestBucket {
  BucketId bucket;
  std::uint32_t first_entry = 0, entries = 0;  // into Manifest::entries
  std::uint64_t bytes = 0;                     // useful bytes of the bucket
  friend bool operator==(const ManifestBucket&, const ManifestBucket&) = default;
};
// Invariants that parse() proves: recipients ascend by rank, buckets ascend by id, their entry ranges tile `entries`
// from 0 without hole or overlap, and tensors ascend inside a bucket.
struct Manifest {
  Hash128 job;
  Txn txn;
  std::uint32_t member = 0;
  Incarnation incarnation;
  LayoutEpoch layout_epoch;
  PlanId plan;
  std::vector<ManifestRecipient> recipients;
  std::vector<ManifestBucket> buckets;
  std::vector<ManifestEntry> entries;
  friend bool operator==(const Manifest&, const Manifest&) = default;
  const ManifestBucket* find(BucketId bucket) const;  // null when absent
  const ManifestRecipient* find(Rank rank) const;     // null when absent
  std::span<const ManifestEntry> of(const ManifestBucket& bucket) const {
    return std::span(entries).subspan(bucket.first_entry, bucket.entries);
  }
};

// Size of the page for these counts; a source reserves it once per plan.
std::uint64_t manifest_bytes(std::size_t recipients, std::size_t buckets, std::size_t entries);
// Hash over the whole page, as Sealed and Lend carry it.
struct WrittenManifest {
  std::uint64_t bytes = 0;
  Hash128 hash;
};
// Writes the page at the start of `page`. kExhausted (need, have) when it doesn't fit, kInvalid when an invariant
// fails.
Result<WrittenManifest> write_manifest(const Manifest& manifest, std::span<std::byte> page);
// `page` is the reader's private copy, exactly the announced length. Compares the hash, then checks everything.
Result<Manifest> parse_manifest(std::span<const std::byte> page, const Hash128& expected_hash);
// A parsed manifest is the one this reader was told of: job, txn, member, incarnation, layout epoch, plan.
struct ManifestIdentity {
  Hash128 job;
  Txn txn;
  std::uint32_t member = 0;
  Incarnation incarnation;
  LayoutEpoch layout_epoch;
  PlanId plan;
};
Status check_identity(const Manifest& manifest, const ManifestIdentity& expected);  // kMismatch naming the field

}  // namespace refit::wire
