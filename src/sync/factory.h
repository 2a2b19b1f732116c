// From a configuration to a synchronizer.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sync/config.h"
#include "sync/constraints.h"
#include "sync/synchronizer.h"

namespace refit::sync {

// Lays the `refit:` keys over `base` (who is expected, where the coordinator listens: the caller's). `port_range` takes
// the place of the ports of a tcp:// address. Errors: kUnsupported naming each key that is set to something that this
// build does not do; kInvalid for keys of the network where the coordinator does not listen on one.
Result<SyncOptions> options_from(const Config& config, SyncOptions base);

// Keys that are set to something that this build does not do, by path. `refit.compare_only` is one: only the Python
// package, which reaches into engines, does it.
std::vector<std::string> unbuilt_keys(const Config& config);

// What the loop's own key names call create_weight_synchronizer, for callers that drive their engines themselves: the
// rounds alone. `control` must outlive the result. Errors: kInvalid with the rows that refuse it and their ways out;
// kUnsupported when the row's mover or synchronizer is not built, with that reason; those of options_from and
// make_synchronizer.
Result<std::unique_ptr<WeightSynchronizer>> create_weight_synchronizer(const Config& config, const Declared& declared,
                                                                       SyncOptions base,
                                                                       std::span<const std::string> movers,
                                                                       transport::Mover& control);

// A decision that refuses, as one error.
Error refusal_error(const Decision& decision);

}  // namespace refit::sync
