// The inside of the staged executor.
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>

#include "install/executor.h"

namespace refit::install {

using kernel::Digest;

struct StagedExecutor::Impl {
  // Reused between buckets: after warm-up, staging a bucket allocates nothing.
  struct Scratch {
    std::vector<kernel::Job> jobs;
    std::vector<Digest> digests;
    std::vector<std::pair<std::uint64_t, Digest>> sums;  // (copy << 32 | tensor, sum)
    std::vector<std::size_t> read;
    std::vector<const std::byte*> bases;
  };

  LandingTable table;
  std::vector<memory::RegionRef> live;
  std::vector<memory::Arena> shadow;
  kernel::Exec exec;
  std::vector<kernel::DigestKeys> keys;
  std::vector<Digest> staged;   // per holding, this round
  std::vector<Digest> applied;  // per holding, of the live version
  std::vector<bool> done;       // per bucket
  kernel::LossyCasts lossy;     // of this round, without permission
  Digest counted, applied_counted;
  bool has_applied = false;
  bool filled = false;  // live gaps were written once by a full copy
  ProofCounts proof;
  std::int64_t tensors_held = 0;
  Scratch scratch;

  // Deltas. Per entry of the table: its digest as staged in this round, and in the base.
  Txn txn, base_txn, offered;  // the round in hand, the base that is kept, the base that this round may use
  std::vector<Digest> entry_staged, entry_base;
  std::vector<Hash128> id_staged, id_base;  // per bucket
  std::vector<bool> clean;                  // per bucket: the shadow holds the base
  std::vector<bool> carried;                // per tensor: digests of this round that were not computed in it
  std::vector<bool> in_place;               // per bucket: it lies in the shadow as it travels
  bool can_retain = false;
  memory::Arena packed;  // one bucket
  std::optional<codec::Workspace> work;

  const std::string& name(std::uint32_t tensor) const { return table.tensors[tensor].name; }

  kernel::Job job(std::uint32_t tensor, const LoopNest& nest, const Dims& origin) const {
    kernel::Job j;
    j.extents = nest.extents;
    j.src_strides = nest.src_strides;
    j.dst_strides = nest.dst_strides;
    j.axis = nest.axis;
    j.steps = nest.steps;
    j.origin = origin;
    j.src_dtype = nest.src_dtype;
    j.wire_dtype = nest.wire_dtype;
    j.dst_dtype = nest.dst_dtype;
    j.keys = &keys[tensor];
    return j;
  }

  // Digests (and with `to` copies) every holding of `from`; dst strides equal src strides.
  Status sweep(const std::vector<std::byte*>& from, const std::vector<std::byte*>* to,
               const std::vector<Digest>& expected, std::string_view domain) {
    scratch.jobs.clear();
    for (const HoldingRef& h : table.holdings) {
      const LoopNest& nest = table.nests[h.nest];
      kernel::Job j = job(h.tensor, nest, table.origins[h.origin]);
      j.src = from[h.buffer] + h.offset;
      j.dst_strides = nest.src_strides;
      j.dst_dtype = nest.src_dtype;
      j.dst = to ? (*to)[h.buffer] + h.offset : nullptr;
      scratch.jobs.push_back(j);
    }
    scratch.digests.assign(scratch.jobs.size(), {});
    kernel::run(exec, scratch.jobs, scratch.digests);
    for (std::size_t i = 0; i < scratch.jobs.size(); ++i)
      if (scratch.digests[i] != expected[i])
        return Error(Code::kCorrupt, std::string(domain) + " bytes do not have the digest of what was staged")
            .at_tensor(name(table.holdings[i].tensor));
    return {};
  }

  std::vector<std::byte*> shadow_bases() const {
    std::vector<std::byte*> out;
    for (const memory::Arena& a : shadow) out.push_back(a.data());
    return out;
  }
  std::vector<std::byte*> live_bases() const {
    std::vector<std::byte*> out;
    for (const memory::RegionRef& r : live) out.push_back(r.data);
    return out;
  }

  Status check_gaps() const {
    for (std::size_t b = 0; b < table.buffers.size(); ++b) {
      const auto fill = static_cast<std::byte>(table.buffers[b].fill);
      for (const auto& [lo, hi] : table.buffers[b].gaps) {
        const std::byte* first = live[b].data + lo;
        if (std::any_of(first, first + (hi - lo), [&](std::byte v) { return v != fill; }))
          return Error(Code::kCorrupt,
                       "bytes outside every holding of buffer " + std::to_string(b) + " differ from their fill");
      }
    }
    return {};
  }
  std::span<const LandingEntry> entries_of(const BucketTable& b) const {
    return {table.entries.data() + b.first_entry, b.entries};
  }
  // `digests` per entry of the bucket: adds them to holdings and count, and compares each storage of each tensor with
  // what was sealed. `kept` replaces a digest in the holding's sum.
  Status account(const BucketTable& b, std::span<const Digest> digests,
                 std::span<const std::pair<std::size_t, Digest>> kept, std::span<const TensorDigest> sealed);
  Status prepare_deltas(memory::Budget* budget);
  Status restore(std::size_t bucket);
  Status gather(std::size_t bucket);
  void patch(std::size_t bucket, const CheckedDelta& delta);
  bool lies_packed(const BucketTable& b) const;
  Status check_base(const BucketTable& b, std::size_t bucket, const Hash128& base) const;
  void write_fill() {
    for (std::size_t b = 0; b < shadow.size(); ++b)
      for (const auto& [lo, hi] : table.buffers[b].gaps)
        std::memset(shadow[b].data() + lo, table.buffers[b].fill, static_cast<std::size_t>(hi - lo));
  }
};

}  // namespace refit::install
