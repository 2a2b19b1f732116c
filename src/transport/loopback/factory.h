// loopback: push, pull and control between movers of one process, for tests and embedded use.
#pragma once
#include "transport/transport.h"

namespace refit::transport::loopback {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::loopback
