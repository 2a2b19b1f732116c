// zmq: control messages with liveness over ipc sockets in a private directory.
#pragma once
#include "transport/transport.h"

namespace refit::transport::zmq {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::zmq
