// shm: pull between processes of one user on one host, through mapped memory.
#pragma once
#include "transport/transport.h"

namespace refit::transport::shm {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::shm
