#include "native/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "The native part of refit. Use the classes of the package refit.";
  refit::native::bind_errors(m);
  refit::native::bind_arrays(m);
  refit::native::bind_layout(m);
  refit::native::bind_plan(m);
  refit::native::bind_coordinator(m);
  refit::native::bind_members(m);
}
