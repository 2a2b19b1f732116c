// `--log json`: what happens in rounds, one JSON object a line on stderr. Ids have OpenTelemetry's form, and are the
// same in every process of a job.
#pragma once
#include "observe/observe.h"
#include "sync/sync.h"

namespace refit::cli {

void log_phase(const PhaseEvent& event, const observe::Spans::Seen& seen);
void log_round(const sync::SyncReport& report);

}  // namespace refit::cli
