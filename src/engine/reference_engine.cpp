#include "engine/reference_engine.h"

#include <chrono>
#include <cstring>

namespace refit::engine {

Result<std::unique_ptr<ReferenceEngine>> ReferenceEngine::make(std::shared_ptr<const model::Layout> layout, Rank rank,
                                                               memory::Budget* budget) {
  std::unique_ptr<ReferenceEngine> e(new ReferenceEngine);
  REFIT_ASSIGN(e->rank_layout_, layout->expand(rank));
  e->layout_ = std::move(layout);
  for (const model::BufferSpec& b : e->rank_layout_.buffers) {
    REFIT_ASSIGN(memory::Arena arena, memory::Arena::make(b.bytes, budget, "engine weights"));
    e->memory_.push_back(std::move(arena));
  }
  for (const memory::Arena& a : e->memory_) e->regions_.push_back({a.data(), a.bytes(), memory::Kind::kHost, nullptr});
  return e;
}

ReferenceEngine::~ReferenceEngine() { stop_serving(); }

void ReferenceEngine::start_serving() {
  if (!server_.joinable()) server_ = std::thread([this] { serve_loop(); });
}

void ReferenceEngine::stop_serving() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  open_.notify_all();
  if (server_.joinable()) server_.join();
}

ServeCounts ReferenceEngine::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// 64 places spread over all buffers: cheap, and a copy in progress changes some of them with near certainty.
Hash128 ReferenceEngine::sample(std::uint64_t prompt) const {
  Hasher hasher;
  std::uint64_t x = prompt * 0x9e3779b97f4a7c15ull + 1;
  for (const memory::Arena& a : memory_) {
    if (a.bytes() < 8) continue;
    for (int i = 0; i < 64; ++i) {
      x = x * 6364136223846793005ull + 1442695040888963407ull;
      const auto at = static_cast<std::int64_t>((x >> 16) % static_cast<std::uint64_t>(a.bytes() - 7));
      hasher.add({a.data() + at, 8});
    }
  }
  return hasher.finish();
}

Result<Hash128> ReferenceEngine::forward(std::uint64_t prompt) {
  std::unique_lock lock(mutex_);
  if (paused_) return Error(Code::kBusy, "the gate is shut");
  const WordValue before = word_->load();
  if (before.state != WordState::kApplied || before.version.number != label_.number) {
    ++counts_.refused;
    return Error(Code::kMismatch, "no complete version is installed");
  }
  ++in_forward_;
  lock.unlock();
  const Hash128 value = sample(prompt);
  lock.lock();
  --in_forward_;
  idle_.notify_all();
  CacheEntry& entry = cache_[prompt % cache_.size()];
  if (entry.version != 0 && entry.version != before.version.number) ++counts_.stale_cache;
  if (entry.version == before.version.number && entry.value != value) ++counts_.torn;
  entry = {before.version.number, value};
  ++counts_.forwards;
  return value;
}

void ReferenceEngine::serve_loop() {
  std::uint64_t prompt = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      open_.wait_for(lock, std::chrono::milliseconds(2), [&] { return stop_; });
      if (stop_) return;
      if (paused_) continue;
    }
    // Refusals are counted inside; a server goes on with the next request.
    [[maybe_unused]] const auto answer = forward(prompt++ % cache_.size());
  }
}

Status ReferenceEngine::prepare(std::span<const std::string>) { return {}; }

Status ReferenceEngine::pause(Deadline deadline) {
  std::unique_lock lock(mutex_);
  paused_ = true;
  const auto left = std::chrono::nanoseconds(deadline.left_ns());
  if (!idle_.wait_for(lock, left, [&] { return in_forward_ == 0; }))
    return Error(Code::kTimeout, "a forward pass did not end before the gate's deadline");
  return {};
}

Status ReferenceEngine::resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  open_.notify_all();
  return {};
}

Status ReferenceEngine::invalidate(CachePolicy policy) {
  const std::lock_guard lock(mutex_);
  if (policy == CachePolicy::kReset)
    for (CacheEntry& e : cache_) e = {};
  return {};
}

Version ReferenceEngine::version() const {
  const std::lock_guard lock(mutex_);
  return label_;
}

Status ReferenceEngine::set_version(const Version& version) {
  const std::lock_guard lock(mutex_);
  label_ = version;
  return {};
}

}  // namespace refit::engine
