#include "transport/loopback/factory.h"

#include "transport/common/inproc.h"
#include "transport/loopback/lane.h"

namespace refit::transport::loopback {

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) { return inproc::make(false, options, open_control); }

}  // namespace refit::transport::loopback
