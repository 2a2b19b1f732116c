// Trace files: what processes wrote with --trace, read together on one clock.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::cli {

// How far the clock of another boot (another host) lies from the coordinator's, from the order that messages force:
// what a message caused cannot lie before what sent it.
struct ClockOffset {
  std::string boot;
  double offset_us = 0, uncertain_us = 0;  // add the offset; the truth lies within ± uncertain
};

class TraceFile {
 public:
  // Torn last lines are left out. kInvalid for what is no trace of this program, kMismatch for clocks that no complete
  // round ties together.
  static Result<TraceFile> read(const std::vector<std::string>& paths);
  Status write(const std::string& path) const;
  const std::vector<nlohmann::ordered_json>& events() const { return events_; }
  const std::vector<ClockOffset>& offsets() const { return offsets_; }

 private:
  std::vector<nlohmann::ordered_json> events_;
  std::vector<ClockOffset> offsets_;
};

// Where the time went: rounds with their phases, who was last in each, and every member's spans.
nlohmann::ordered_json summarise(const TraceFile& trace);

}  // namespace refit::cli
