// What `plan` and `reshard` share: layouts from files or SPECs, sizes as people write them, the options of a plan.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "model/model.h"
#include "plan/plan.h"

namespace refit::cli {

Result<std::shared_ptr<const model::Layout>> layout_file(const std::string& path);

std::string human_bytes(std::int64_t bytes);

// Of all its buffers. kInvalid past 63 bits.
Result<std::int64_t> rank_bytes(const model::RankLayout& rank);

// --bucket-bytes, --staging-bytes, --allow-cast.
struct PlanSizes {
  std::string bucket_bytes = "32MiB", staging_bytes = "256MiB";
  std::vector<std::string> allow_cast;
  void declare(CLI::App& command);
  // For plans without a live round: unwanted names are listed. Errors: kInvalid naming the option.
  Result<plan::Options> options() const;
};

}  // namespace refit::cli
