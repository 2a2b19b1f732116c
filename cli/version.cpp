#include "cli/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernel/kernel.h"
#include "sync/sync.h"
#include "transport/transport.h"

namespace refit::cli {

extern const char* const kCommit;  // commit.cpp, written at each build (cmake/commit.cmake)

std::string version_text() {
  const Status isa = kernel::isa_status();
  const std::string chosen = isa.ok() ? kernel::chosen_isa() : isa.error().to_string();
  return fmt::format(
      "refit {}\n"
      "commit       {}\n"
      "movers       {}\n"
      "presets      {}\n"
      "ISA          {} (this machine has {})\n"
      "compiler     {}",
      REFIT_VERSION, kCommit, fmt::join(transport::mover_names(), ", "), fmt::join(sync::built_presets(), ", "), chosen,
      fmt::join(kernel::available_isas(), ", "), REFIT_COMPILER);
}

}  // namespace refit::cli
