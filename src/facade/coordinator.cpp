#include "sync/sync.h"

#include "facade/inside.h"

namespace refit::api {
namespace {

sync::HostOptions host_options(const CoordinatorOptions& o) {
  sync::HostOptions h;
  h.parent_dir = o.runtime_dir;
  h.transport = o.transport;
  h.snapshot = o.snapshot;
  h.net = {.advertise_address = o.advertise_address, .port_range = o.port_range, .security = o.security_bulk};
  h.net.nixl.backend = o.nixl_backend;
  h.net.nixl.release_after_round = o.nixl_release;
  for (const std::string& param : o.nixl_params) {
    const std::size_t cut = param.find('=');
    h.net.nixl.params.emplace_back(param.substr(0, cut), cut == std::string::npos ? "" : param.substr(cut + 1));
  }
  h.sync.shape.source_ranks = o.source_ranks;
  h.sync.shape.target_instances = o.target_instances;
  h.sync.shape.target_ranks = o.target_ranks;
  h.sync.plan.bucket_bytes = o.bucket_bytes;
  h.sync.plan.staging_bytes = o.staging_bytes;
  h.sync.plan.allow_cast = o.allow_cast;
  h.sync.encoding = o.encoding;
  h.sync.proof_every = o.proof_every;
  h.sync.barrier = o.barrier;
  h.sync.on_target_loss = o.continue_on_loss ? sync::OnTargetLoss::kContinue : sync::OnTargetLoss::kFail;
  h.sync.min_targets = o.min_targets;
  h.sync.stall_timeout_s = o.stall_timeout_s;
  h.sync.total_timeout_s = o.total_timeout_s;
  h.sync.join_timeout_s = o.join_timeout_s;
  h.sync.gate_timeout_s = o.gate_timeout_s;
  return h;
}

SyncReport to_public(const sync::SyncReport& r) {
  SyncReport out;
  out.outcome = std::string(wire::to_string(r.round.outcome));
  out.all_applied = r.round.all_applied;
  out.attempted = r.round.number;
  out.version = api::to_public(r.round.version);
  out.seconds = r.seconds;
  out.pause_seconds = static_cast<double>(r.round.max_pause_ns) * 1e-9;
  out.proof = r.proof;
  out.tensors_staged = r.round.proof.placed_staged;
  out.tensors_live = r.round.proof.placed_live;
  if (r.round.error) out.error = r.round.error->to_string();
  for (const MemberName& m : r.round.missing) out.missing.push_back(m.to_string());
  for (const MemberName& m : r.round.evicted) out.evicted.push_back(m.to_string());
  return out;
}
}  // namespace

struct Coordinator::Impl {
  std::unique_ptr<sync::Host> host;
};

Coordinator::Coordinator(const CoordinatorOptions& o) : impl_(std::make_unique<Impl>()) {
  const std::pair<const char*, std::uint32_t> counts[] = {
      {"source_ranks", o.source_ranks}, {"target_instances", o.target_instances}, {"target_ranks", o.target_ranks}};
  for (const auto& [name, count] : counts)
    if (count < 1) throw Error(Code::kInvalid, std::string(name) + " must be at least 1");
  checked_s("stall_timeout_s", o.stall_timeout_s);
  checked_s("total_timeout_s", o.total_timeout_s);
  checked_s("join_timeout_s", o.join_timeout_s);
  checked_s("gate_timeout_s", o.gate_timeout_s);
  impl_->host = take(sync::Host::make(host_options(o)));
}
Coordinator::~Coordinator() = default;

std::string Coordinator::address() const { return impl_->host->address(); }
void Coordinator::init_communicator() { take(impl_->host->synchronizer().init_communicator()); }
void Coordinator::mark_stale() { impl_->host->synchronizer().mark_stale(); }
bool Coordinator::is_stale() { return impl_->host->synchronizer().is_stale(); }

SyncReport Coordinator::sync_weights(std::optional<std::int64_t> step) {
  const sync::SyncReport r = take(impl_->host->synchronizer().sync_weights(step));
  SyncReport report = to_public(r);
  if (r.ok()) return report;
  const InnerError why = r.round.error.value_or(
      InnerError(InnerCode::kCancelled, "the round ended as " + report.outcome + " without a reason"));
  throw SyncError(api::to_public(why), std::move(report));
}

std::string Coordinator::verify(double timeout_s) {
  return take(impl_->host->synchronizer().verify(checked_s("timeout_s", timeout_s)));
}
std::string Coordinator::status() { return impl_->host->synchronizer().status(); }
void Coordinator::shutdown() { take(impl_->host->synchronizer().shutdown()); }

}  // namespace refit::api
