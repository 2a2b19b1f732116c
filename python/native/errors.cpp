#include "native/bindings.h"

namespace refit::native {
namespace {

// The classes live in Python: refit._errors.make(code, message, line, fields, report).
void raise(const Error& e, nb::object report) {
  nb::dict fields;
  fields["peer"] = e.peer;
  fields["stage"] = e.stage;
  fields["bucket"] = e.bucket;
  fields["tensor"] = e.tensor;
  fields["need"] = e.need;
  fields["have"] = e.have;
  const nb::object made =
      nb::module_::import_("refit._errors").attr("make")(to_string(e.code), e.message, e.what(), fields, report);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const SyncError& e) {
    raise(e, nb::cast(e.report));
  } catch (const Error& e) {
    raise(e, nb::none());
  }
}
}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace refit::native
