// nixl: pull through NIXL's agents (UCX and others), loaded at run time.
#pragma once
#include "transport/transport.h"

namespace refit::transport::nixl {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
Result<std::unique_ptr<Mover>> make_double(const MoverOptions& options);
}  // namespace refit::transport::nixl
