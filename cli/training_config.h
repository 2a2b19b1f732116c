// Reading a training configuration from a file, as every command that takes one does.
#pragma once
#include <string>
#include <vector>

#include "sync/sync.h"

namespace refit::cli {

// `sets`: path=value assignments laid over it. Without a path they are all there is, over the defaults.
sync::ConfigResult load_training_config(const std::string& path, const std::vector<std::string>& sets);

// The flags that are keys of the `refit:` section, as assignments. A flag may give one port, the key takes a range.
std::vector<std::string> network_sets(const std::string& port_range, const std::string& advertise);

}  // namespace refit::cli
