// A judged configuration as one JSON object: what `refit check --json` prints, and what the Python package reads.
#pragma once
#include <string>

#include "sync/config.h"
#include "sync/constraints.h"

namespace refit::sync {

// Decision and keys; under `options` the values of the `refit:` section by the names of the coordinator's options, and
// under `unbuilt` the keys that this build refuses.
std::string decision_json(const Config& config, const Decision& decision);

}  // namespace refit::sync
