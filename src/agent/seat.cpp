#include "agent/seat.h"

namespace refit::agent {

Result<std::unique_ptr<Seat>> Seat::make(SeatOptions o) {
  if (o.threads < 1) return Error(Code::kInvalid, "threads must be at least 1").at_peer(o.name.to_string());
  std::unique_ptr<Seat> seat(new Seat(o));
  const transport::MoverOptions m{.runtime_dir = o.runtime_dir,
                                  .job = o.job,
                                  .member = o.member,
                                  .incarnation = Incarnation(system_env().random_u64()),
                                  .name = o.name.to_string(),
                                  .env = &system_env(),
                                  .staging_bytes = o.staging_bytes,
                                  .budget = &seat->budget_,
                                  .net = o.net};
  REFIT_ASSIGN(seat->data_, transport::make_mover(o.transport, m));
  REFIT_ASSIGN(seat->control_, transport::make_mover("zmq", m));
  AgentOptions& a = seat->agent_;
  a.runtime = {.env = &system_env(), .pool = &seat->pool_, .observer = std::move(o.observer)};
  a.job = o.job;
  a.name = o.name;
  a.control_address = o.control_address;
  a.control_keys = std::move(o.control_keys);
  a.control = seat->control_.get();
  a.data = seat->data_.get();
  a.incarnation = m.incarnation;
  a.budget = &seat->budget_;
  a.staging_bytes = o.staging_bytes;
  a.snapshot = o.snapshot;
  a.baseline_dir = o.baseline_dir;
  a.progress_bytes = o.progress_bytes;
  return seat;
}

Status Seat::close(Deadline deadline) {
  const Status data = data_->shutdown(deadline);
  const Status control = control_->shutdown(deadline);
  return data.ok() ? control : data;
}

}  // namespace refit::agent
