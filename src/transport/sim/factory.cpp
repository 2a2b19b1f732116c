#include "transport/sim/factory.h"

#include "transport/common/inproc.h"

namespace refit::transport {

namespace sim {
Result<std::unique_ptr<Mover>> make(const MoverOptions& options) { return inproc::make(true, options, nullptr); }
}  // namespace sim

Status sim_faults(const Hash128& job, const SimFaults& faults) {
  const auto hub = inproc::Hub::find(true, job);
  if (hub == nullptr) return Error(Code::kInvalid, "the job has no sim mover yet, so no network");
  hub->set_faults(faults);
  return {};
}

bool sim_step(const Hash128& job) {
  const auto hub = inproc::Hub::find(true, job);
  return hub != nullptr && hub->step();
}

}  // namespace refit::transport
