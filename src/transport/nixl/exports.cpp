#include "transport/nixl/exports.h"

namespace refit::transport::nixl {

Result<Exports::Lend> Exports::lend(std::span<const memory::RegionRef> regions) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
  if (regions.size() > kMaxRegions)
    return Error(Code::kInvalid, "a lend has at most " + std::to_string(kMaxRegions) + " regions")
        .amounts(static_cast<std::int64_t>(regions.size()), static_cast<std::int64_t>(kMaxRegions));
  if (agent_ == nullptr) {
    REFIT_ASSIGN(agent_, Agent::make(api_, name_, options_));
  }
  Result<Lend> lent = lend_locked(regions);
  if (!lent.ok()) drop_unused();
  return lent;
}

Result<Exports::Lend> Exports::lend_locked(std::span<const memory::RegionRef> regions) {
  Lend out;
  std::set<Key> used;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const memory::RegionRef& region = regions[i];
    out.regions.push_back({region.bytes == 0 ? 0 : reinterpret_cast<std::uintptr_t>(region.data), region.bytes});
    if (region.bytes == 0) continue;
    const Key key(region.data, region.bytes);
    if (const Status added = add(key); !added.ok())
      return Error(added.error().code, "region " + std::to_string(i) + ": " + added.error().message);
    used.insert(key);
  }
  const std::uint64_t epoch = next_epoch_++;
  lends_.emplace(epoch, std::move(used));
  drop_unused();
  if (metadata_.empty()) {
    auto metadata = agent_->metadata();
    if (!metadata.ok()) {
      lends_.erase(epoch);
      return std::move(metadata).error();
    }
    metadata_ = std::move(*metadata);
  }
  out.epoch = MemoryEpoch(epoch);
  out.metadata = metadata_;
  return out;
}

Status Exports::add(const Key& key) {
  if (registered_.contains(key)) return {};
  REFIT_TRY(agent_->add({key.first, static_cast<std::size_t>(key.second)}));
  registered_.insert(key);
  metadata_.clear();
  return {};
}

void Exports::drop_unused() {
  std::set<Key> used;
  for (const auto& [epoch, keys] : lends_) used.insert(keys.begin(), keys.end());
  std::erase_if(registered_, [&](const Key& key) {
    if (used.contains(key)) return false;
    agent_->drop({key.first, static_cast<std::size_t>(key.second)});
    metadata_.clear();
    return true;
  });
}

void Exports::revoke(MemoryEpoch epoch) {
  const std::lock_guard lock(mutex_);
  lends_.erase(epoch.value);
  if (options_.release_after_round && agent_ != nullptr) drop_unused();
}

bool Exports::open(MemoryEpoch epoch) const {
  const std::lock_guard lock(mutex_);
  return lends_.contains(epoch.value);
}

void Exports::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  lends_.clear();
  if (agent_ != nullptr) drop_unused();
  agent_.reset();
}

std::size_t Exports::registrations() const {
  const std::lock_guard lock(mutex_);
  return registered_.size();
}

int Exports::agents() const {
  const std::lock_guard lock(mutex_);
  return agent_ != nullptr ? 1 : 0;
}

}  // namespace refit::transport::nixl
