// An in-process inference engine rank with real tensors: it serves all the time, behind a gate that reads the commit
// word, and notices by itself when weights are torn or a cache outlives its version. Used by the demo and by tests.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/seam.h"

namespace refit::engine {

struct ServeCounts {
  std::uint64_t forwards = 0;     // answered
  std::uint64_t refused = 0;      // gate open but the word was not applied
  std::uint64_t torn = 0;         // same version, other bytes: must stay 0
  std::uint64_t stale_cache = 0;  // cache entry of another version: must stay 0
};

class ReferenceEngine final : public Instance, public Shard {
 public:
  static Result<std::unique_ptr<ReferenceEngine>> make(std::shared_ptr<const model::Layout> layout, Rank rank,
                                                       memory::Budget* budget);
  ~ReferenceEngine() override;

  // Starts the serving thread: each forward pass reads sampled elements of the weights under the gate.
  void start_serving();
  void stop_serving();
  ServeCounts counts() const;
  // One forward pass on the caller's thread. kBusy while paused, kMismatch while the word is not applied.
  Result<Hash128> forward(std::uint64_t prompt);

  Status prepare(std::span<const std::string> tags) override;
  Status pause(Deadline deadline) override;
  Status resume() override;
  Status invalidate(CachePolicy policy) override;
  Version version() const override;
  Status set_version(const Version& version) override;

  std::shared_ptr<const model::Layout> layout() const override { return layout_; }
  Rank rank() const override { return rank_layout_.rank; }
  std::span<const memory::RegionRef> regions() override { return regions_; }
  CommitWord* commit_word() override { return word_.get(); }
  const model::RankLayout& rank_layout() const { return rank_layout_; }

 private:
  ReferenceEngine() = default;
  Hash128 sample(std::uint64_t prompt) const;
  void serve_loop();

  std::shared_ptr<const model::Layout> layout_;
  model::RankLayout rank_layout_;
  std::vector<memory::Arena> memory_;
  std::vector<memory::RegionRef> regions_;
  std::unique_ptr<CommitWord> word_ = std::make_unique<CommitWord>();

  mutable std::mutex mutex_;  // gate, label, cache, counts
  std::condition_variable idle_, open_;
  bool paused_ = false, stop_ = false;
  int in_forward_ = 0;
  Version label_;
  struct CacheEntry {
    std::uint64_t version = 0;
    Hash128 value;
  };
  std::vector<CacheEntry> cache_ = std::vector<CacheEntry>(16);
  ServeCounts counts_;
  std::thread server_;
};

}  // namespace refit::engine
