// Runs a plan on files: raw buffers in, raw buffers out.
#pragma once
#include <string>
#include <vector>

#include "model/model.h"
#include "plan/plan.h"

namespace refit::cli {

struct ReshardReport {
  PlanId id;
  std::int64_t bytes_needed = 0, bytes_written = 0, ranks = 0, pieces = 0;
  std::vector<std::string> unwanted;
  std::vector<std::string> inexact;  // tensors whose permitted cast changed a value
};

// `out` appears complete or not at all; it may exist only as an empty directory.
Result<ReshardReport> reshard(const model::Layout& source, const std::string& source_dir, const model::Layout& target,
                              const std::string& out, const plan::Options& options);

}  // namespace refit::cli
