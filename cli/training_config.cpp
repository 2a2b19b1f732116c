#include "cli/training_config.h"

namespace refit::cli {

sync::ConfigResult load_training_config(const std::string& path, const std::vector<std::string>& sets) {
  return sync::load_config_here(path, "", sets);
}

std::vector<std::string> network_sets(const std::string& port_range, const std::string& advertise) {
  std::vector<std::string> sets;
  const bool one = port_range.find('-') == std::string::npos;
  if (!port_range.empty()) sets.push_back("refit.port_range=" + (one ? port_range + "-" + port_range : port_range));
  if (!advertise.empty()) sets.push_back("refit.advertise_address=" + advertise);
  return sets;
}

}  // namespace refit::cli
