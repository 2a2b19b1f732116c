#include <refit/decision.h>

#include "native/bindings.h"

namespace refit::native {

void bind_decision(nb::module_& m) {
  nb::class_<Decision>(m, "Decision")
      .def(
          "__init__",
          [](Decision* self, const std::string& path, const std::string& text, const std::vector<std::string>& sets,
             const std::string& algorithm, std::int64_t max_colocated_worker_groups) {
            new (self) Decision({path, text, sets, algorithm, max_colocated_worker_groups});
          },
          nb::arg("path"), nb::arg("text"), nb::arg("sets"), nb::arg("algorithm"),
          nb::arg("max_colocated_worker_groups"), Waits())
      .def("json", &Decision::json, Waits())
      .def("judge_kv_scales", &Decision::judge_kv_scales, nb::arg("any"));
  nb::class_<Phases>(m, "Phases")
      .def(nb::init<const Decision&>(), nb::arg("decision"))
      .def("running", &Phases::running)
      .def("ended", &Phases::ended, nb::arg("well"))
      .def("failed", &Phases::failed);
}

}  // namespace refit::native
