#include "native/bindings.h"

namespace refit::native {
namespace {
std::vector<std::vector<std::int64_t>> links(const Plan& plan) {
  std::vector<std::vector<std::int64_t>> out;
  for (const Link& l : plan.summary().links) out.push_back({l.from, l.to, l.bytes});
  return out;
}
}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<PlanOptions>(m, "PlanOptions")
      .def(nb::init<>())
      .def_rw("bucket_bytes", &PlanOptions::bucket_bytes)
      .def_rw("staging_bytes", &PlanOptions::staging_bytes)
      .def_rw("list_unwanted", &PlanOptions::list_unwanted)
      .def_rw("allow_cast", &PlanOptions::allow_cast);
  nb::class_<Plan>(m, "Plan")
      .def_static("make", &Plan::make, nb::arg("source"), nb::arg("target"), nb::arg("options"), Waits())
      .def("explain", &Plan::explain, nb::arg("tensor"), Waits())
      .def_prop_ro("id", [](const Plan& p) { return p.summary().id; })
      .def_prop_ro("bytes_needed", [](const Plan& p) { return p.summary().bytes_needed; })
      .def_prop_ro("bytes_moved", [](const Plan& p) { return p.summary().bytes_moved; })
      .def_prop_ro("bytes_local", [](const Plan& p) { return p.summary().bytes_local; })
      .def_prop_ro("bound_bytes", [](const Plan& p) { return p.summary().bound_bytes; })
      .def_prop_ro("segments", [](const Plan& p) { return p.summary().segments; })
      .def_prop_ro("buckets", [](const Plan& p) { return p.summary().buckets; })
      .def_prop_ro("coverage", [](const Plan& p) { return p.summary().coverage; })
      .def_prop_ro("by_host", [](const Plan& p) { return p.summary().by_host; })
      .def_prop_ro("hosts", [](const Plan& p) { return p.summary().hosts; })
      .def_prop_ro("unwanted", [](const Plan& p) { return p.summary().unwanted; })
      .def_prop_ro("links", &links);
}

}  // namespace refit::native
