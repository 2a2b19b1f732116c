#include <algorithm>
#include <array>

#include "transport/loopback/factory.h"
#include "transport/nixl/factory.h"
#include "transport/shm/factory.h"
#include "transport/sim/factory.h"
#include "transport/tcp/factory.h"
#include "transport/transport.h"
#include "transport/zmq/factory.h"
#include "transport/zmq_sparse/factory.h"

namespace refit::transport {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Mover>> (*make)(const MoverOptions&);
  bool maps = false;
};
// One line a mover.
constexpr std::array kMovers = {
    Entry{"loopback", loopback::make}, Entry{"sim", sim::make}, Entry{"shm", shm::make, true},
    Entry{"zmq", zmq::make},           Entry{"tcp", tcp::make}, Entry{"zmq_sparse", zmq_sparse::make},
    Entry{"nixl", nixl::make},         Entry{"nixl_host_double", nixl::make_double},
};

}  // namespace

bool mover_maps(std::string_view name) {
  return std::any_of(kMovers.begin(), kMovers.end(), [&](const Entry& e) { return e.name == name && e.maps; });
}

std::vector<std::string> mover_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kMovers) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<Mover>> make_mover(std::string_view name, const MoverOptions& options) {
  for (const Entry& entry : kMovers)
    if (entry.name == name) return entry.make(options);
  std::string built;
  for (const Entry& entry : kMovers) built += (built.empty() ? "" : ", ") + std::string(entry.name);
  return Error(Code::kUnsupported, "transport '" + std::string(name) + "' is not built here; built are " + built);
}

}  // namespace refit::transport
