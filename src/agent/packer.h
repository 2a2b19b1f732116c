// Packer: a source's buckets as packed bytes, out of the memory that it lends.
#pragma once
#include "agent/lower.h"
#include "agent/planning.h"
#include "memory/memory.h"

namespace refit::agent {

// *thread-compatible*. `planned` and the memory must outlive it.
class Packer {
 public:
  Packer(const Planned& planned, std::span<const memory::RegionRef> lent, const kernel::Exec& exec);

  // The memory lies elsewhere from now on; same order and sizes.
  void rebind(std::span<const memory::RegionRef> lent);

  std::int64_t bytes(std::size_t bucket) const { return layouts_[bucket].bytes; }
  std::int64_t largest() const { return largest_; }
  // The bucket's bytes lie in the lent memory as they would be packed.
  bool lies_packed(std::size_t bucket) const { return lies_packed_[bucket]; }
  // Runs are so short, or types so different, that a copy is packed before it is sent.
  bool needs_copy(std::size_t bucket) const { return needs_copy_[bucket]; }
  // Scatter list of the bucket where it lies, pads included. Not for one that needs a copy.
  void parts(std::size_t bucket, std::vector<std::span<const std::byte>>& out) const;
  // Errors: kMismatch naming bucket and tensor for a cast that loses values without permission.
  Status pack(std::size_t bucket, std::byte* to) const;

 private:
  const Planned& planned_;
  const plan::RankPlan& plan_;
  std::vector<memory::RegionRef> lent_;
  kernel::Exec exec_;
  void find_packed();

  std::vector<PackedLayout> layouts_;
  std::vector<bool> lies_packed_, needs_copy_;
  std::int64_t largest_ = 0;
};

}  // namespace refit::agent
