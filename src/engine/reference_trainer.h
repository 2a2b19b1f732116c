// An in-process trainer rank with real tensors in shareable memory. Used by the demo and by tests.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/seam.h"
#include "engine/training_step.h"

namespace refit::engine {

// Bytes of a whole logical tensor by name, row-major in its own dtype; empty when there is none.
using LogicalBytes = std::function<std::span<const std::byte>(const std::string& name)>;

class ReferenceTrainer final : public Shard {
 public:
  // Allocates the rank's buffers as shared regions and fills pads with a non-zero pattern, as trainers' pads hold
  // garbage.
  static Result<std::unique_ptr<ReferenceTrainer>> make(Env& env, std::shared_ptr<const model::Layout> layout,
                                                        Rank rank, memory::Budget* budget);

  // Tensors that the layout stores in f32, through a value transform or not, hold what their logical values become
  // there; a training step is one of the logical values. From a checkpoint. kMismatch naming the tensor when one is absent or has another size.
  Status load(const LogicalBytes& checkpoint);
  // From nothing: initial_values.
  void randomise(std::uint64_t seed);
  // One optimizer step: guard first, then write.
  void step(const StepRule& rule, std::int64_t step);

  // A trainer calls this before it writes; while a lease is out it blocks (see agent) or the round aborts at the vote.
  void guard() { writes_.fetch_add(1, std::memory_order_seq_cst); }

  std::shared_ptr<const model::Layout> layout() const override { return layout_; }
  Rank rank() const override { return rank_layout_.rank; }
  std::span<const memory::RegionRef> regions() override { return regions_; }
  std::uint64_t write_counter() const override { return writes_.load(std::memory_order_seq_cst); }
  const model::RankLayout& rank_layout() const { return rank_layout_; }

 private:
  ReferenceTrainer() = default;
  // f(tensor, dtype, linear, data, count): writes logical values, or changes them where they stand (`read`).
  template <typename F>
  Status each_run(bool read, F f);

  std::shared_ptr<const model::Layout> layout_;
  model::RankLayout rank_layout_;
  std::vector<memory::SharedRegion> memory_;
  std::vector<memory::RegionRef> regions_;
  std::map<std::uint32_t, std::string> values_;  // by TensorId: stored in f32, through this
  std::atomic<std::uint64_t> writes_{0};
};

}  // namespace refit::engine
