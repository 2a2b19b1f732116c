// Sealing: a source's own scan of what it lends, before anyone reads it.
#pragma once
#include <map>
#include <span>
#include <vector>

#include "install/install.h"
#include "kernel/kernel.h"
#include "memory/memory.h"
#include "model/model.h"
#include "plan/plan.h"

namespace refit::agent {

struct SealedBucket {
  BucketId bucket;
  std::vector<std::pair<TensorId, kernel::Digest>> tensors;  // in order of first appearance
};

struct Seal {
  kernel::Digest counted;                          // boxes of which this rank is the lowest owner
  std::map<std::uint64_t, kernel::Digest> groups;  // replica group → all boxes shared with exactly these owners
  std::vector<SealedBucket> buckets;
};

// Digests each distinct box once, in one pass over the lent bytes. *thread-compatible*; keeps what it sealed last.
class Sealer {
 public:
  // `regions` in buffer order; they must outlive the sealer. `options` tell which casts to the wire's dtype may lose
  // values; null: they are not judged here.
  Sealer(const plan::RankPlan& plan, std::span<const memory::RegionRef> regions, std::uint64_t digest_seed,
         const kernel::Exec& exec, const plan::Options* options = nullptr);
  // The regions lie elsewhere from now on; same order and sizes.
  void rebind(std::span<const memory::RegionRef> regions) { regions_.assign(regions.begin(), regions.end()); }
  // With `groups`, boxes that only serve the comparison of replicas are scanned too. Errors: kMismatch naming the
  // tensor when this rank holds one logical box twice with different bytes, or listing the tensors that a cast to the
  // wire's dtype changes without permission.
  Result<Seal> seal(bool groups);
  // Scans again: kCorrupt naming the first tensor whose bytes changed since seal().
  Status rescan();
  // Are these packed bytes of a bucket (in the tensors' dtypes) what was sealed?
  bool packed_as_sealed(std::size_t bucket, const std::byte* packed, std::span<const install::TensorDigest> sealed);
  std::int64_t scanned_bytes() const { return scanned_bytes_; }

 private:
  struct Place {
    TensorId tensor;
    std::uint32_t geometry, buffer, origin;
    std::int64_t offset;
  };
  std::uint32_t place(const Place& p);
  Status scan(std::size_t places, std::vector<kernel::Digest>& out);
  Status judge(std::span<const kernel::Inexact> casts) const;

  const plan::RankPlan& plan_;
  std::vector<std::string> names_;
  std::vector<memory::RegionRef> regions_;
  kernel::Exec exec_;
  const plan::Options* options_ = nullptr;
  std::vector<kernel::DigestKeys> keys_;
  std::vector<std::uint32_t> key_of_tensor_;
  std::vector<Place> places_;  // those of pieces and counted boxes first
  std::size_t needed_ = 0;     // how many of them a plain seal scans
  std::vector<std::uint32_t> piece_place_, seal_place_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::int64_t>, std::uint32_t> index_;
  std::vector<kernel::Digest> last_;
  std::vector<kernel::Job> jobs_;
  std::int64_t scanned_bytes_ = 0;
};

}  // namespace refit::agent
