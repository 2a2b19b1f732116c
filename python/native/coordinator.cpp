#include "native/bindings.h"

namespace refit::native {
namespace {

void bind_reports(nb::module_& m) {
  nb::class_<VersionInfo>(m, "VersionInfo")
      .def_ro("number", &VersionInfo::number)
      .def_ro("step", &VersionInfo::step)
      .def_ro("digest", &VersionInfo::digest)
      .def("__repr__", [](const VersionInfo& v) {
        return "VersionInfo(number=" + std::to_string(v.number) + ", step=" + std::to_string(v.step) + ", digest='" +
               v.digest + "')";
      });
  nb::class_<SyncReport>(m, "SyncReport")
      .def_ro("outcome", &SyncReport::outcome)
      .def_ro("all_applied", &SyncReport::all_applied)
      .def_ro("attempted", &SyncReport::attempted)
      .def_ro("version", &SyncReport::version)
      .def_ro("seconds", &SyncReport::seconds)
      .def_ro("pause_seconds", &SyncReport::pause_seconds)
      .def_ro("proof", &SyncReport::proof)
      .def_ro("tensors_staged", &SyncReport::tensors_staged)
      .def_ro("tensors_live", &SyncReport::tensors_live)
      .def_ro("missing", &SyncReport::missing)
      .def_ro("evicted", &SyncReport::evicted)
      .def_ro("error", &SyncReport::error)
      .def("__repr__", [](const SyncReport& r) {
        return "SyncReport(outcome='" + r.outcome + "', version=" + std::to_string(r.version.number) + ")";
      });
}
}  // namespace

void bind_coordinator(nb::module_& m) {
  bind_reports(m);
  nb::class_<CoordinatorOptions>(m, "CoordinatorOptions")
      .def(nb::init<>())
      .def_rw("source_ranks", &CoordinatorOptions::source_ranks)
      .def_rw("target_instances", &CoordinatorOptions::target_instances)
      .def_rw("target_ranks", &CoordinatorOptions::target_ranks)
      .def_rw("transport", &CoordinatorOptions::transport)
      .def_rw("encoding", &CoordinatorOptions::encoding)
      .def_rw("runtime_dir", &CoordinatorOptions::runtime_dir)
      .def_rw("bucket_bytes", &CoordinatorOptions::bucket_bytes)
      .def_rw("staging_bytes", &CoordinatorOptions::staging_bytes)
      .def_rw("proof_every", &CoordinatorOptions::proof_every)
      .def_rw("allow_cast", &CoordinatorOptions::allow_cast)
      .def_rw("snapshot", &CoordinatorOptions::snapshot)
      .def_rw("barrier", &CoordinatorOptions::barrier)
      .def_rw("continue_on_loss", &CoordinatorOptions::continue_on_loss)
      .def_rw("min_targets", &CoordinatorOptions::min_targets)
      .def_rw("security_bulk", &CoordinatorOptions::security_bulk)
      .def_rw("port_range", &CoordinatorOptions::port_range)
      .def_rw("advertise_address", &CoordinatorOptions::advertise_address)
      .def_rw("nixl_backend", &CoordinatorOptions::nixl_backend)
      .def_rw("nixl_params", &CoordinatorOptions::nixl_params)
      .def_rw("nixl_release", &CoordinatorOptions::nixl_release)
      .def_rw("stall_timeout_s", &CoordinatorOptions::stall_timeout_s)
      .def_rw("total_timeout_s", &CoordinatorOptions::total_timeout_s)
      .def_rw("join_timeout_s", &CoordinatorOptions::join_timeout_s)
      .def_rw("gate_timeout_s", &CoordinatorOptions::gate_timeout_s);
  nb::class_<Coordinator>(m, "Coordinator")
      .def(nb::init<const CoordinatorOptions&>(), nb::arg("options"), Waits())
      .def("address", &Coordinator::address)
      .def("init_communicator", &Coordinator::init_communicator, Waits())
      .def("mark_stale", &Coordinator::mark_stale, Waits())
      .def("is_stale", &Coordinator::is_stale, Waits())
      .def("sync_weights", &Coordinator::sync_weights, nb::arg("step") = nb::none(), Waits())
      .def("verify", &Coordinator::verify, nb::arg("timeout_s"), Waits())
      .def("status", &Coordinator::status, Waits())
      .def("shutdown", &Coordinator::shutdown, Waits());
}

}  // namespace refit::native
