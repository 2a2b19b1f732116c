// Buckets that arrive as deltas against what the shadow holds.
#include "install/staged_impl.h"

namespace refit::install {
namespace {

// Storage in which the wire's values are kept bit for bit.
bool keeps(const LoopNest& n) {
  if (n.dst_dtype == n.wire_dtype) return true;
  return n.dst_dtype == DType::kF32 && n.wire_dtype == DType::kBF16;
}

}  // namespace

Status StagedExecutor::Impl::prepare_deltas(memory::Budget* budget) {
  entry_staged.resize(table.entries.size());
  entry_base.resize(table.entries.size());
  id_staged.resize(table.buckets.size());
  id_base.resize(table.buckets.size());
  clean.resize(table.buckets.size());
  carried.resize(table.tensors.size());
  // Of every storage, the second of a segment too: digests that are carried over are compared with the seal for each.
  can_retain = std::all_of(table.entries.begin(), table.entries.end(),
                           [&](const LandingEntry& e) { return keeps(table.nests[e.nest]); });
  std::int64_t largest = 0;
  for (const BucketTable& b : table.buckets) {
    in_place.push_back(lies_packed(b));
    if (!in_place.back()) largest = std::max(largest, b.packed_bytes);
  }
  REFIT_ASSIGN(packed, memory::Arena::make(can_retain ? largest : 0, budget, "unpacked delta"));
  work.emplace(exec);
  return {};
}

// The bucket's bytes lie in the shadow as they travel.
bool StagedExecutor::Impl::lies_packed(const BucketTable& b) const {
  const std::span<const LandingEntry> entries = entries_of(b);
  if (entries.empty() || entries.size() != b.segments.size()) return false;
  const auto& first = entries[0];
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const LandingEntry& e = entries[i];
    const LoopNest& n = table.nests[e.nest];
    if (e.segment != i || table.holdings[e.holding].buffer != table.holdings[first.holding].buffer ||
        e.dst_offset - first.dst_offset != b.packed_starts[i] || n.dst_dtype != n.src_dtype ||
        n.dst_dtype != n.wire_dtype)
      return false;
    for (std::size_t k = 0; k < n.extents.size(); ++k)
      if (n.extents[k] > 1 && n.dst_strides[k] != n.src_strides[k]) return false;
  }
  return true;
}

Status StagedExecutor::Impl::check_base(const BucketTable& b, std::size_t bucket, const Hash128& base) const {
  if (offered.counter == 0)
    return Error(Code::kMismatch, "a delta came, but this rank holds no base for it")
        .at_bucket(std::to_string(b.id.value));
  if (id_base[bucket] == base) return {};
  return Error(Code::kMismatch, "a delta came against " + base.hex() + ", this rank holds " + id_base[bucket].hex())
      .at_bucket(std::to_string(b.id.value));
}

// What an aborted round left in the shadow is undone: the bucket's bytes come from live again, digested on the way.
Status StagedExecutor::Impl::restore(std::size_t bucket) {
  if (clean[bucket]) return {};
  const BucketTable& b = table.buckets[bucket];
  const std::span<const LandingEntry> entries = entries_of(b);
  scratch.jobs.clear();
  for (const LandingEntry& e : entries) {
    const LoopNest& nest = table.nests[e.nest];
    const std::uint32_t buffer = table.holdings[e.holding].buffer;
    kernel::Job j = job(e.tensor, nest, table.origins[e.origin]);
    j.src = live[buffer].data + e.dst_offset;
    j.dst = shadow[buffer].data() + e.dst_offset;
    j.src_strides = nest.dst_strides;
    j.src_dtype = nest.dst_dtype;
    scratch.jobs.push_back(j);
  }
  scratch.digests.assign(entries.size(), {});
  kernel::run(exec, scratch.jobs, scratch.digests);
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (scratch.digests[i] != entry_base[b.first_entry + i])
      return Error(Code::kCorrupt, "live bytes do not have the digest of the version that deltas are made against")
          .at_bucket(std::to_string(b.id.value))
          .at_tensor(name(entries[i].tensor));
  clean[bucket] = true;
  return {};
}

// The base of one bucket as it travelled, out of the shadow.
Status StagedExecutor::Impl::gather(std::size_t bucket) {
  const BucketTable& b = table.buckets[bucket];
  const std::span<const LandingEntry> entries = entries_of(b);
  scratch.jobs.clear();
  std::vector<std::size_t>& read = scratch.read;
  read.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const LandingEntry& e = entries[i];
    if (e.copy != 0) continue;
    const LoopNest& nest = table.nests[e.nest];
    kernel::Job j = job(e.tensor, nest, table.origins[e.origin]);
    j.src = shadow[table.holdings[e.holding].buffer].data() + e.dst_offset;
    j.dst = packed.data() + b.packed_starts[e.segment];
    j.src_strides = nest.dst_strides;
    j.dst_strides = nest.src_strides;
    j.src_dtype = nest.dst_dtype;
    j.dst_dtype = nest.src_dtype;
    scratch.jobs.push_back(j);
    read.push_back(i);
  }
  scratch.digests.assign(read.size(), {});
  kernel::run(exec, scratch.jobs, scratch.digests);
  for (std::size_t k = 0; k < read.size(); ++k)
    if (scratch.digests[k] != entry_base[b.first_entry + read[k]])
      return Error(Code::kCorrupt, "the base that is held does not have its digest")
          .at_bucket(std::to_string(b.id.value))
          .at_tensor(name(entries[read[k]].tensor));
  return {};
}

// Where the bucket lies as it travels the delta goes straight into the shadow; then all of it is digested there.
void StagedExecutor::Impl::patch(std::size_t bucket, const CheckedDelta& delta) {
  const BucketTable& b = table.buckets[bucket];
  const std::span<const LandingEntry> entries = entries_of(b);
  clean[bucket] = false;
  std::byte* const first = shadow[table.holdings[entries[0].holding].buffer].data() + entries[0].dst_offset;
  delta.apply(*work, {first, static_cast<std::size_t>(b.packed_bytes)});
  scratch.jobs.clear();
  for (const LandingEntry& e : entries) {
    const LoopNest& nest = table.nests[e.nest];
    kernel::Job j = job(e.tensor, nest, table.origins[e.origin]);
    j.src = shadow[table.holdings[e.holding].buffer].data() + e.dst_offset;
    j.src_strides = nest.dst_strides;
    scratch.jobs.push_back(j);
  }
  scratch.digests.assign(entries.size(), {});
  kernel::run(exec, scratch.jobs, scratch.digests);
}

Status StagedExecutor::stage_unchanged(std::size_t bucket, const Hash128& base, std::span<const TensorDigest> sealed) {
  Impl& s = *impl_;
  const BucketTable& b = s.table.buckets[bucket];
  if (s.done[bucket]) return Error(Code::kInvalid, "bucket arrived twice").at_bucket(std::to_string(b.id.value));
  REFIT_TRY(s.check_base(b, bucket, base));
  const bool read = !s.clean[bucket];
  REFIT_TRY(s.restore(bucket));
  REFIT_TRY(s.account(b, std::span(s.entry_base).subspan(b.first_entry, b.entries), {}, sealed));
  for (const LandingEntry& e : s.entries_of(b)) s.carried[e.tensor] = s.carried[e.tensor] || !read;
  s.id_staged[bucket] = bucket_identity(s.txn, b.id, sealed);
  s.done[bucket] = true;
  return {};
}

Status StagedExecutor::stage_delta(std::size_t bucket, const Hash128& base, std::span<const std::byte> payload,
                                   std::span<const TensorDigest> sealed) {
  Impl& s = *impl_;
  const BucketTable& b = s.table.buckets[bucket];
  if (s.done[bucket]) return Error(Code::kInvalid, "bucket arrived twice").at_bucket(std::to_string(b.id.value));
  REFIT_TRY(s.check_base(b, bucket, base));
  const codec::Identity identity{base, bucket_identity(s.txn, b.id, sealed)};
  Result<CheckedDelta> delta = CheckedDelta::check(*s.work, b.sections, identity, payload);
  if (!delta.ok()) return Error(std::move(delta).error()).at_bucket(std::to_string(b.id.value));
  REFIT_TRY(s.restore(bucket));
  if (s.in_place[bucket]) {
    s.patch(bucket, *delta);
    REFIT_TRY(s.account(b, s.scratch.digests, {}, sealed));
    s.id_staged[bucket] = identity.next;
    s.done[bucket] = true;
    return {};
  }
  REFIT_TRY(s.gather(bucket));
  delta->apply(*s.work, {s.packed.data(), static_cast<std::size_t>(b.packed_bytes)});
  std::vector<const std::byte*>& bases = s.scratch.bases;
  bases.clear();
  for (std::int64_t start : b.packed_starts) bases.push_back(s.packed.data() + start);
  return stage(bucket, bases, sealed);
}

bool StagedExecutor::retained() const { return impl_->base_txn.counter > 0; }

}  // namespace refit::install
