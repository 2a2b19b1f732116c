// tcp: push between machines over plain sockets.
#pragma once
#include "transport/transport.h"

namespace refit::transport::tcp {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::tcp
