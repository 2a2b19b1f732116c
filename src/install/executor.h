// The staged executor: bytes go to a shadow of the live buffers, are digested on the way and compared with what the
// sources sealed; the commit copies shadow to live and digests what then lies there. From then on the shadow is the
// base of the next deltas; what an aborted round left in it is copied from live again before it is used as such.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "install/landing_table.h"
#include "memory/memory.h"

namespace refit::install {

struct ProofCounts {
  std::int64_t placed_staged = 0;  // tensors digested where they lie in the shadow (fused into the copy), this round
  std::int64_t placed_live = 0;    // tensors digested where they lie in the live buffers
};

// *thread-compatible*. One object per plan; memory is taken once, nothing is allocated per round after the first.
class StagedExecutor {
 public:
  // `live` in the order of table.buffers. Errors: kMismatch when a region is smaller than its buffer; kExhausted.
  static Result<std::unique_ptr<StagedExecutor>> make(LandingTable table, std::vector<memory::RegionRef> live,
                                                      std::uint64_t digest_seed, const kernel::Exec& exec,
                                                      memory::Budget* budget);
  ~StagedExecutor();

  const LandingTable& table() const;

  // `base`: the round whose bytes deltas of this one may be made against; counter 0: none.
  void begin(const Txn& txn = {}, const Txn& base = {});
  // Copies one bucket to the shadow. `bases[k]` is the address of segment k; `sealed` the digests of its tensors, in
  // any order, exactly the set that the bucket holds. Errors: kCorrupt naming the tensor when the digest differs,
  // kMismatch when the sets differ, kInvalid for a bucket twice. A cast that loses a value without permission is told by
  // verify(), with all others of the round.
  Status stage(std::size_t bucket, std::span<const std::byte* const> bases, std::span<const TensorDigest> sealed);
  // A bucket that is what it was in the base: nothing is read; digests are carried over. Errors: kMismatch for another
  // base; as stage().
  Status stage_unchanged(std::size_t bucket, const Hash128& base, std::span<const TensorDigest> sealed);
  // A bucket as a delta against the base, from hostile bytes in private memory. Nothing is written before all of it was
  // checked and its base was found to be the one that is held. All of the bucket's bytes are digested afterwards, and
  // where it is unpacked in a buffer of its own, before. Errors: kCorrupt; kMismatch for another base; as stage().
  Status stage_delta(std::size_t bucket, const Hash128& base, std::span<const std::byte> payload,
                     std::span<const TensorDigest> sealed);
  // The applied version can be the base of deltas: each bucket can be read back in the form it travelled in.
  bool retained() const;
  // Every bucket staged exactly once, and no value lost: kMismatch lists the tensors that a cast changed. With `reread`, also digests the shadow again through the rank's own holdings.
  Status verify(bool reread);
  // Digest of the boxes that this rank counts for its replica.
  kernel::Digest counted() const;
  // Shadow → live. With `reread` the live bytes are read again through the rank's own holdings and the gaps are
  // compared with their fill; otherwise the digest is fused into the copy. Errors: kCorrupt naming the tensor.
  Status apply(bool reread);
  // Digests the live bytes against the last applied version, without writing. kMismatch when none was applied.
  Status prove_live();
  kernel::Digest applied_counted() const;  // what counted() was for the version that is applied
  std::uint64_t tensors_held() const;
  // The same plan with other member numbers (a peer was restarted): nothing else may differ.
  void replace_senders(const std::vector<BucketTable>& buckets);
  ProofCounts proof() const;
  void abort();
  std::int64_t shadow_bytes() const;

 private:
  struct Impl;
  explicit StagedExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::install
