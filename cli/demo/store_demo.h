// refit demo --transport s3_sparse: versions through a store, to replicas that follow it.
#pragma once
#include "cli/command.h"
#include "cli/demo/demo_options.h"

namespace refit::cli {

// `copy_gbps`: the ceiling of the same run.
Status run_store_demo(Context& context, const DemoOptions& options, double copy_gbps);

}  // namespace refit::cli
