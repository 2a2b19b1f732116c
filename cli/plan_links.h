// Link tables of `refit plan --links`, and published cases with their times.
#pragma once
#include <string>
#include <vector>

#include "core/core.h"
#include "plan/plan.h"

namespace refit::cli {

// JSON: ranks_per_host, nic_gbps_per_rank, nic_gbps_per_host, local_gbps_per_rank (bits a second, one direction),
// efficiency, latency_us, hosts {name: Gb/s}. Strict: unknown keys are errors.
Result<plan::LinkTable> read_links(const std::string& path);

struct PublishedCase {
  std::string name, model, from, to;
  plan::LinkTable links;
  std::string published;  // seconds, as their authors give them
  std::string source;     // who says so, where
  std::string assumed;    // what is not in the source
};
const std::vector<PublishedCase>& published_cases();
Result<PublishedCase> published_case(const std::string& name);

}  // namespace refit::cli
