// The control lane of loopback. Push and pull lanes are those of transport/common/inproc.h.
#pragma once
#include "transport/transport.h"

namespace refit::transport::loopback {
// An ipc address is only a name here: lanes of one process meet under it, no socket is made.
Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address);
}  // namespace refit::transport::loopback
