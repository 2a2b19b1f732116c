// Runs a plan on files, whatever form they have: one target rank after the other, straight from the source's mapped
// memory into the rank's own files.
#pragma once
#include <memory>
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

// The source ranks' buffers. A piece lies in one parameter, so buffers need not be in one place.
class SourceMemory {
 public:
  virtual ~SourceMemory() = default;
  virtual const std::byte* at(Rank rank, std::uint32_t buffer, std::int64_t offset) const = 0;
};

// One target rank's files while they are filled. Bytes that nothing is written to are the buffer's fill.
class RankFiles {
 public:
  virtual ~RankFiles() = default;
  virtual std::byte* at(std::uint32_t buffer, std::int64_t offset) = 0;
  virtual std::int64_t bytes() const = 0;
  virtual Status commit() = 0;
};

class TargetFiles {
 public:
  virtual ~TargetFiles() = default;
  virtual Result<std::unique_ptr<RankFiles>> open(const model::RankLayout& held, const std::string& directory) = 0;
  // After the last rank.
  virtual Status finish(const std::string&) { return {}; }
};

// `out` may exist only as an empty directory.
Status check_out(const std::string& out);

// Owners of one box are compared first. `out` appears complete or not at all.
Result<ReshardReport> move_files(const model::Layout& source, const SourceMemory& memory, const model::Layout& target,
                                 TargetFiles& files, const std::string& out, const plan::Options& options);

}  // namespace refit::cli
