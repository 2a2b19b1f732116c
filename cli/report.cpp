#include "cli/report.h"

#include <fmt/format.h>

namespace refit::cli {

void print_report(bool json, const ReshardReport& report, double seconds, const std::string& out, nlohmann::json more,
                  const std::string& line, const std::string& unwanted) {
  if (json) {
    more.update({{"ok", true},
                 {"digest", report.id.hex()},
                 {"bytes_needed", report.bytes_needed},
                 {"bytes_written", report.bytes_written},
                 {"ranks", report.ranks},
                 {"pieces", report.pieces},
                 {"unwanted", report.unwanted},
                 {"inexact", report.inexact},
                 {"seconds", seconds},
                 {"out", out}});
    fmt::print("{}\n", more.dump());
    return;
  }
  fmt::print("{}: {}, {:.3f} s\n", out, line, seconds);
  if (!report.unwanted.empty())
    fmt::print("  {} tensors that {}, e.g. {}\n", report.unwanted.size(), unwanted, report.unwanted.front());
  for (const std::string& name : report.inexact) fmt::print("  cast changed values of {}\n", name);
}

}  // namespace refit::cli
