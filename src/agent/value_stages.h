// Value stages: a source's tensors that are stored through a transform, brought to what its targets install.
#pragma once
#include <span>
#include <vector>

#include "kernel/kernel.h"
#include "memory/memory.h"
#include "plan/plan.h"

namespace refit::agent {

// *thread-compatible*. The plan must outlive it.
class ValueStages {
 public:
  ValueStages(const plan::RankPlan& plan, const plan::Options& options) : plan_(plan), options_(options) {}
  // Reads the source's buffers as they are stored, writes all of the value buffer. Errors: kMismatch listing the tensors
  // of which a stage would lose values, where no cast of theirs is allowed.
  Status run(std::span<const memory::RegionRef> stored, std::byte* values, const kernel::Exec& exec);

 private:
  Result<bool> run_one(const plan::ValueStage& stage, const std::byte* from, std::byte* to, const kernel::Exec& exec);

  const plan::RankPlan& plan_;
  const plan::Options& options_;
  std::vector<float> scratch_;
};

}  // namespace refit::agent
