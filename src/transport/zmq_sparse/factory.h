// zmq_sparse: buckets in chunks over ZeroMQ, for small payloads such as deltas.
#pragma once
#include "transport/transport.h"

namespace refit::transport::zmq_sparse {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options);
}  // namespace refit::transport::zmq_sparse
