#include "cli/training_config.h"

#include <cstdlib>

#include "files/files.h"

namespace refit::cli {

sync::ConfigResult load_training_config(const std::string& path, const std::vector<std::string>& sets) {
  const sync::ReadConfigFile read = [&](const std::string& file) -> Result<std::string> {
    if (path.empty()) return std::string();
    return files::read_text(file, sync::kMaxConfigBytes);
  };
  const sync::EnvLookup environment = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  return sync::load_config(path, sets, read, environment);
}

std::vector<std::string> network_sets(const std::string& port_range, const std::string& advertise) {
  std::vector<std::string> sets;
  const bool one = port_range.find('-') == std::string::npos;
  if (!port_range.empty()) sets.push_back("refit.port_range=" + (one ? port_range + "-" + port_range : port_range));
  if (!advertise.empty()) sets.push_back("refit.advertise_address=" + advertise);
  return sets;
}

}  // namespace refit::cli
