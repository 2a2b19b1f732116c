// refit._native: one file per class. Thin: what can be said in Python is said in refit/.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <refit/refit.h>

namespace refit::native {
namespace nb = nanobind;

// An array's memory, exported by its framework: alive as long as this is, whatever becomes of the array.
struct Lent {
  nb::ndarray<> array;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// Every call that may wait gives the interpreter away meanwhile.
using Waits = nb::call_guard<nb::gil_scoped_release>;

void bind_errors(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_coordinator(nb::module_& m);
void bind_decision(nb::module_& m);
void bind_members(nb::module_& m);

}  // namespace refit::native
