#include <algorithm>
#include <cstring>

#include "install/staged_impl.h"

namespace refit::install {

StagedExecutor::StagedExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StagedExecutor::~StagedExecutor() = default;

Result<std::unique_ptr<StagedExecutor>> StagedExecutor::make(LandingTable table, std::vector<memory::RegionRef> live,
                                                             std::uint64_t digest_seed, const kernel::Exec& exec,
                                                             memory::Budget* budget) {
  auto impl = std::make_unique<Impl>();
  if (live.size() != table.buffers.size())
    return Error(Code::kMismatch, "the engine lent " + std::to_string(live.size()) + " regions, the layout has " +
                                      std::to_string(table.buffers.size()) + " buffers");
  for (std::size_t b = 0; b < live.size(); ++b) {
    if (live[b].bytes < table.buffers[b].bytes)
      return Error(Code::kMismatch, "region " + std::to_string(b) + " is smaller than its buffer")
          .amounts(table.buffers[b].bytes, live[b].bytes);
    REFIT_ASSIGN(memory::Arena arena, memory::Arena::make(table.buffers[b].bytes, budget, "shadow"));
    impl->shadow.push_back(std::move(arena));
  }
  for (const TensorRef& t : table.tensors) impl->keys.push_back(kernel::DigestKeys::make(digest_seed, t.name, t.shape));
  std::vector<bool> held(table.tensors.size());
  for (const HoldingRef& h : table.holdings) held[h.tensor] = true;
  impl->tensors_held = std::count(held.begin(), held.end(), true);
  impl->table = std::move(table);
  impl->live = std::move(live);
  impl->exec = exec;
  impl->staged.resize(impl->table.holdings.size());
  impl->applied.resize(impl->table.holdings.size());
  impl->done.resize(impl->table.buckets.size());
  impl->write_fill();
  if (impl->table.deltas) REFIT_TRY(impl->prepare_deltas(budget));
  return std::unique_ptr<StagedExecutor>(new StagedExecutor(std::move(impl)));
}

const LandingTable& StagedExecutor::table() const { return impl_->table; }

void StagedExecutor::begin(const Txn& txn, const Txn& base) {
  std::fill(impl_->staged.begin(), impl_->staged.end(), Digest{});
  std::fill(impl_->done.begin(), impl_->done.end(), false);
  impl_->counted = {};
  impl_->lossy.clear();
  impl_->proof = {};
  impl_->txn = txn;
  impl_->offered = base.counter > 0 && base == impl_->base_txn ? base : Txn{};
  std::fill(impl_->carried.begin(), impl_->carried.end(), false);
}
void StagedExecutor::abort() { begin(); }

Status StagedExecutor::stage(std::size_t bucket, std::span<const std::byte* const> bases,
                             std::span<const TensorDigest> sealed) {
  Impl& s = *impl_;
  const BucketTable& b = s.table.buckets[bucket];
  if (s.done[bucket]) return Error(Code::kInvalid, "bucket arrived twice").at_bucket(std::to_string(b.id.value));
  if (bases.size() != b.segments.size())
    return Error(Code::kMismatch, "bucket has another number of segments than the plan")
        .at_bucket(std::to_string(b.id.value));
  const std::span<const LandingEntry> entries = s.entries_of(b);
  if (s.table.deltas) s.clean[bucket] = false;
  s.scratch.jobs.clear();
  for (const LandingEntry& e : entries) {
    kernel::Job j = s.job(e.tensor, s.table.nests[e.nest], s.table.origins[e.origin]);
    j.src = bases[e.segment];
    j.dst = s.shadow[s.table.holdings[e.holding].buffer].data() + e.dst_offset;
    s.scratch.jobs.push_back(j);
  }
  s.scratch.digests.assign(entries.size(), {});
  const auto inexact = kernel::run(s.exec, s.scratch.jobs, s.scratch.digests);
  for (const kernel::Inexact& i : inexact)
    if (const std::uint32_t tensor = entries[i.job].tensor; !s.table.lossy_cast_allowed[tensor])
      s.lossy.add(s.name(tensor));

  // Storage that a permitted cast made narrower than the wire holds other values than were sent: a later re-read must
  // be compared with what lies there.
  std::vector<std::pair<std::size_t, Digest>> stored;
  for (const kernel::Inexact& i : inexact) {
    kernel::Job j = s.scratch.jobs[i.job];
    j.src = j.dst;
    j.dst = nullptr;
    j.src_strides = j.dst_strides;
    j.src_dtype = j.dst_dtype;
    Digest digest;
    kernel::run(s.exec, {&j, 1}, {&digest, 1});
    stored.emplace_back(i.job, digest);
  }

  REFIT_TRY(s.account(b, s.scratch.digests, stored, sealed));
  if (s.table.deltas) s.id_staged[bucket] = bucket_identity(s.txn, b.id, sealed);
  s.done[bucket] = true;
  return {};
}

Status StagedExecutor::Impl::account(const BucketTable& b, std::span<const Digest> digests,
                                     std::span<const std::pair<std::size_t, Digest>> kept,
                                     std::span<const TensorDigest> sealed) {
  const std::span<const LandingEntry> entries = entries_of(b);
  auto& sums = scratch.sums;
  sums.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto other = std::find_if(kept.begin(), kept.end(), [&](const auto& p) { return p.first == i; });
    const Digest& held = other == kept.end() ? digests[i] : other->second;
    staged[entries[i].holding] += held;
    if (table.deltas) entry_staged[b.first_entry + i] = held;
    if (entries[i].counted) counted += digests[i];
    sums.emplace_back(std::uint64_t{entries[i].tensor} << 32 | entries[i].copy, digests[i]);
  }
  std::sort(sums.begin(), sums.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  std::size_t groups = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (groups > 0 && sums[groups - 1].first == sums[i].first)
      sums[groups - 1].second += sums[i].second;
    else
      sums[groups++] = sums[i];
  }
  std::size_t tensors = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    const auto tensor = static_cast<std::uint32_t>(sums[g].first >> 32);
    tensors += (sums[g].first & 0xffffffffu) == 0;
    const auto due =
        std::find_if(sealed.begin(), sealed.end(), [&](const TensorDigest& d) { return d.tensor == tensor; });
    if (due == sealed.end())
      return Error(Code::kMismatch, "the sender sealed no digest for a tensor of this bucket")
          .at_bucket(std::to_string(b.id.value))
          .at_tensor(name(tensor));
    if (due->digest != sums[g].second)
      return Error(Code::kCorrupt,
                   "digest of the staged bytes is " + sums[g].second.hex() + ", sealed was " + due->digest.hex())
          .at_bucket(std::to_string(b.id.value))
          .at_tensor(name(tensor));
  }
  if (tensors != sealed.size())
    return Error(Code::kMismatch, "the sender sealed " + std::to_string(sealed.size()) +
                                      " tensors for this bucket, the plan has " + std::to_string(tensors))
        .at_bucket(std::to_string(b.id.value));
  return {};
}

Status StagedExecutor::verify(bool reread) {
  Impl& s = *impl_;
  for (std::size_t i = 0; i < s.done.size(); ++i)
    if (!s.done[i])
      return Error(Code::kMismatch, "a planned bucket was not staged")
          .at_bucket(std::to_string(s.table.buckets[i].id.value));
  if (!s.lossy.empty()) return s.lossy.error("the cast to this rank's storage").at_stage("transfer");
  if (reread) REFIT_TRY(s.sweep(s.shadow_bases(), nullptr, s.staged, "shadow"));
  s.proof.placed_staged = s.tensors_held;
  if (!reread) s.proof.placed_staged -= std::count(s.carried.begin(), s.carried.end(), true);
  return {};
}

kernel::Digest StagedExecutor::counted() const { return impl_->counted; }

Status StagedExecutor::apply(bool reread) {
  Impl& s = *impl_;
  s.has_applied = false;
  s.base_txn = {};
  if (reread || !s.filled) {
    for (std::size_t b = 0; b < s.shadow.size(); ++b)
      kernel::copy_flat(s.exec, s.live[b].data, s.shadow[b].data(), s.table.buffers[b].bytes);
    REFIT_TRY(s.sweep(s.live_bases(), nullptr, s.staged, "live"));
    REFIT_TRY(s.check_gaps());
    s.filled = true;
  } else {
    const std::vector<std::byte*> to = s.live_bases();
    REFIT_TRY(s.sweep(s.shadow_bases(), &to, s.staged, "live"));
  }
  s.applied = s.staged;
  s.applied_counted = s.counted;
  s.has_applied = true;
  s.proof.placed_live = s.tensors_held;
  if (!s.can_retain) return {};
  std::swap(s.entry_base, s.entry_staged);
  std::swap(s.id_base, s.id_staged);
  std::fill(s.clean.begin(), s.clean.end(), true);
  s.base_txn = s.txn;
  return {};
}

Status StagedExecutor::prove_live() {
  Impl& s = *impl_;
  if (!s.has_applied) return Error(Code::kMismatch, "no version is applied here, nothing can be proven");
  REFIT_TRY(s.sweep(s.live_bases(), nullptr, s.applied, "live"));
  return s.check_gaps();
}

kernel::Digest StagedExecutor::applied_counted() const { return impl_->applied_counted; }
std::uint64_t StagedExecutor::tensors_held() const { return static_cast<std::uint64_t>(impl_->tensors_held); }

void StagedExecutor::replace_senders(const std::vector<BucketTable>& buckets) {
  REFIT_CHECK(buckets.size() == impl_->table.buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) impl_->table.buckets[i].sender = buckets[i].sender;
}

ProofCounts StagedExecutor::proof() const { return impl_->proof; }

std::int64_t StagedExecutor::shadow_bytes() const {
  std::int64_t n = 0;
  for (const memory::Arena& a : impl_->shadow) n += a.bytes();
  return n;
}

}  // namespace refit::install
