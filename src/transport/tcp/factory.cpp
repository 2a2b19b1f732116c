#include "transport/tcp/factory.h"

#include "transport/tcp/exchange.h"

namespace refit::transport::tcp {

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) { return PushMover<Exchange>::make(options); }

}  // namespace refit::transport::tcp
