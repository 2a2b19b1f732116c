// What `refit convert` and `refit reshard` say at their end.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "cli/mover.h"

namespace refit::cli {

// What both commands print of it: one JSON object, with `more` in it, or `line` and what is worth a warning. `unwanted`
// says whom the tensors are of no use to.
void print_report(bool json, const ReshardReport& report, double seconds, const std::string& out, nlohmann::json more,
                  const std::string& line, const std::string& unwanted);

}  // namespace refit::cli
