// `refit reshard`: a plan run on raw buffer files, `rank<R>.<buffer>.bin` in and out.
#pragma once
#include <string>

#include "cli/mover.h"

namespace refit::cli {

Result<ReshardReport> reshard(const model::Layout& source, const std::string& source_dir, const model::Layout& target,
                              const std::string& out, const plan::Options& options);

}  // namespace refit::cli
