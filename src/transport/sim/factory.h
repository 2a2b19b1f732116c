// sim: push and pull between movers of one process over a seeded, single-threaded network in virtual time.
#pragma once
#include "transport/transport.h"

namespace refit::transport::sim {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::sim
