#include "native/bindings.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "The native part of refit. Use the classes of the package refit.";
  nb::set_leak_warnings(false);  // objects that a script keeps to its end are no news to its user
  m.attr("version") = REFIT_VERSION;
  refit::native::bind_errors(m);
  refit::native::bind_arrays(m);
  refit::native::bind_layout(m);
  refit::native::bind_plan(m);
  refit::native::bind_coordinator(m);
  refit::native::bind_decision(m);
  refit::native::bind_members(m);
}
