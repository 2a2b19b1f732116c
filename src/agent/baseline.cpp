#include "agent/baseline.h"

#include <cstring>

namespace refit::agent {
namespace {
// Deltas of one round may take so much of what they stand for; a bucket that finds no room goes complete.
constexpr std::int64_t kPayloadShare = 4;
constexpr std::int64_t kAlign = 64;  // of buckets in memory
}  // namespace

Baseline::Baseline(const Planned& planned, const Options& options)
    : plan_(planned.plan), form_(options.form), work_(options.exec) {}

Result<std::unique_ptr<Baseline>> Baseline::make(const Planned& planned, const Options& options) {
  std::unique_ptr<Baseline> b(new Baseline(planned, options));
  std::int64_t bytes = 0, largest = 0, largest_bucket = 0;
  for (const plan::Bucket& bucket : b->plan_.buckets) {
    b->starts_.push_back(bytes);
    b->sizes_.push_back(packed_layout(b->plan_, bucket, Pack::kWire).bytes);
    b->sections_.push_back(sections_of(b->plan_, bucket));
    bytes += ceil_div(b->sizes_.back(), kAlign) * kAlign;
    largest_bucket = std::max(largest_bucket, b->sizes_.back());
    REFIT_ASSIGN(const std::int64_t bound, install::sections_bound(b->sections_.back()));
    largest = std::max(largest, bound);
  }
  if (options.directory.empty()) {
    REFIT_ASSIGN(b->memory_, memory::Arena::make(bytes, options.budget, "baseline"));
  } else {
    REFIT_ASSIGN(b->memory_, memory::Arena::make_in(options.directory, bytes, "baseline"));
  }
  REFIT_ASSIGN(b->payloads_,
               memory::Arena::make(std::max(bytes / kPayloadShare, largest_bucket), options.budget, "deltas"));
  REFIT_ASSIGN(b->slot_, memory::Arena::make(largest, options.budget, "delta encoding"));
  const std::size_t n = b->plan_.buckets.size();
  b->valid_.resize(n);
  b->ids_.resize(n);
  b->next_ids_.resize(n);
  b->sealed_.resize(n);
  b->next_sealed_.resize(n);
  b->pending_.resize(n);
  return b;
}

std::span<std::byte> Baseline::held(std::size_t bucket) {
  return {memory_.data() + starts_[bucket], static_cast<std::size_t>(sizes_[bucket])};
}

void Baseline::begin(const Txn& txn, const Txn& base, const Seal& seal) {
  round_ = txn;
  asked_ = base;
  payload_end_ = 0;
  for (std::size_t i = 0; i < plan_.buckets.size(); ++i) {
    pending_[i] = {};
    std::vector<install::TensorDigest>& sealed = next_sealed_[i];
    sealed.clear();
    for (const auto& [tensor, digest] : seal.buckets[i].tensors) sealed.push_back({tensor.value, digest});
    next_ids_[i] = install::bucket_identity(txn, plan_.buckets[i].id, sealed);
  }
}

bool Baseline::serves(std::size_t bucket) const { return txn_.counter > 0 && txn_ == asked_ && valid_[bucket]; }

std::byte* Baseline::room(std::size_t bucket) { return valid_[bucket] ? nullptr : held(bucket).data(); }

Result<Baseline::Choice> Baseline::choose(std::size_t bucket, std::span<const std::byte> next) {
  const codec::Identity identity{ids_[bucket], next_ids_[bucket]};
  REFIT_ASSIGN(const install::EncodedSections coded,
               install::encode_sections(work_, form_, identity, sections_[bucket], held(bucket), next,
                                        {slot_.data(), static_cast<std::size_t>(slot_.bytes())}));
  if (coded.changed == 0) {
    pending_[bucket] = {Pending::kUnchanged, {}};
    return Choice{wire::Encoding::kUnchanged, identity.base, {}, 0};
  }
  if (coded.bytes >= sizes_[bucket] || payload_end_ + coded.bytes > payloads_.bytes())
    return Choice{wire::Encoding::kRaw, {}, {}, coded.changed};
  std::byte* const to = payloads_.data() + payload_end_;
  std::memcpy(to, slot_.data(), static_cast<std::size_t>(coded.bytes));
  payload_end_ += coded.bytes;
  const std::span<const std::byte> payload(to, static_cast<std::size_t>(coded.bytes));
  pending_[bucket] = {Pending::kDelta, payload};
  return Choice{wire::Encoding::kDelta, identity.base, payload, coded.changed};
}

Result<std::size_t> Baseline::move(const Txn& txn, const Packer* packer, Sealer& sealer) {
  if (txn != round_) return Error(Code::kInternal, "the base is moved to a round that is not in hand");
  std::size_t lost = 0;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const Pending& p = pending_[i];
    const bool was = valid_[i];
    valid_[i] = false;
    if (p.what == Pending::kDelta && was) {
      REFIT_ASSIGN(const install::CheckedDelta delta,
                   install::CheckedDelta::check(work_, sections_[i], {ids_[i], next_ids_[i]}, p.payload));
      delta.apply(work_, held(i));
      valid_[i] = true;
    } else if (p.what == Pending::kFilled || (p.what == Pending::kUnchanged && was)) {
      valid_[i] = true;
    } else if (packer != nullptr) {
      REFIT_TRY(packer->pack(i, held(i).data()));
      valid_[i] = sealer.packed_as_sealed(i, held(i).data(), next_sealed_[i]);
      lost += valid_[i] ? 0u : 1u;
    }
    pending_[i] = {};
  }
  std::swap(ids_, next_ids_);
  std::swap(sealed_, next_sealed_);
  txn_ = txn;
  return lost;
}

std::size_t Baseline::prove(Sealer& sealer) {
  std::size_t lost = 0;
  for (std::size_t i = 0; i < valid_.size(); ++i) {
    if (!valid_[i] || sealer.packed_as_sealed(i, held(i).data(), sealed_[i])) continue;
    valid_[i] = false;
    ++lost;
  }
  return lost;
}

}  // namespace refit::agent
