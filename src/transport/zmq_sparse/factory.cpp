#include "transport/zmq_sparse/factory.h"

#include "transport/zmq_sparse/hub.h"

namespace refit::transport::zmq_sparse {

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) { return PushMover<Hub>::make(options); }

}  // namespace refit::transport::zmq_sparse
