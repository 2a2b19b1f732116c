#include <nanobind/ndarray.h>

#include "native/bindings.h"

namespace refit::native {
namespace {

// (name, address, bytes), as refit/ made it of an array that it keeps alive.
using GivenMemory = std::vector<std::pair<std::string, std::pair<std::uintptr_t, std::int64_t>>>;

MemberOptions options(const std::string& address, std::uint32_t rank, const GivenMemory& memory, int threads,
                      double join_timeout_s) {
  MemberOptions o{.address = address, .rank = rank, .memory = {}, .threads = threads, .join_timeout_s = join_timeout_s};
  for (const auto& [name, where] : memory)
    o.memory.push_back({name, reinterpret_cast<void*>(where.first), where.second});
  return o;
}

// A member's buffers as memoryviews that keep it alive.
template <typename Member>
nb::list buffers(nb::handle self) {
  nb::list out;
  for (const Memory& m : nb::cast<Member&>(self).memory()) {
    const auto bytes = static_cast<std::size_t>(m.bytes);
    const nb::ndarray<std::uint8_t, nb::memview> view(m.data, 1, &bytes, self);
    out.append(nb::make_tuple(m.buffer, nb::cast(view)));
  }
  return out;
}

// A hook's exception as an error of the closed set, so that the round's report says what it was.
[[noreturn]] void rethrow(const nb::python_error& e) {
  const nb::gil_scoped_acquire gil;
  const std::string text =
      nb::cast<std::string>(nb::str(e.type().attr("__name__"))) + ": " + nb::cast<std::string>(nb::str(e.value()));
  const std::pair<PyObject*, Code> kinds[] = {{PyExc_TimeoutError, Code::kTimeout},
                                              {PyExc_NotImplementedError, Code::kUnsupported}};
  for (const auto& [type, code] : kinds)
    if (e.matches(type)) throw Error(code, text);
  throw Error(Code::kInvalid, text);
}

template <typename... Args>
std::function<void(Args...)> hook(std::function<void(Args...)> f) {
  if (!f) return f;
  return [f = std::move(f)](Args... args) {
    try {
      f(args...);
    } catch (const nb::python_error& e) {
      rethrow(e);
    }
  };
}

using Pause = std::function<void(double)>;
using Plain = std::function<void()>;
using Installed = std::function<void(const VersionInfo&)>;

void make_publisher(Publisher* self, const Layout& layout, const std::string& address, std::uint32_t rank,
                    const GivenMemory& memory, int threads, double join_timeout_s) {
  new (self) Publisher(layout, options(address, rank, memory, threads, join_timeout_s));
}

void make_receiver(Receiver* self, const Layout& layout, const std::string& address, std::uint32_t rank,
                   const GivenMemory& memory, int threads, double join_timeout_s, const std::optional<Pause>& pause,
                   const std::optional<Plain>& resume, const std::optional<Plain>& reset_caches,
                   const std::optional<Installed>& installed) {
  EngineHooks hooks{.pause = hook(pause.value_or(Pause())),
                    .resume = hook(resume.value_or(Plain())),
                    .reset_caches = hook(reset_caches.value_or(Plain())),
                    .installed = hook(installed.value_or(Installed()))};
  const nb::gil_scoped_release waits;
  new (self) Receiver(layout, options(address, rank, memory, threads, join_timeout_s), std::move(hooks));
}
}  // namespace

void bind_members(nb::module_& m) {
  nb::class_<MemberReport>(m, "MemberReport")
      .def_ro("state", &MemberReport::state)
      .def_ro("version", &MemberReport::version)
      .def_ro("seal_s", &MemberReport::seal_s)
      .def_ro("stage_s", &MemberReport::stage_s)
      .def_ro("verify_s", &MemberReport::verify_s)
      .def_ro("copy_s", &MemberReport::copy_s)
      .def_ro("plan_s", &MemberReport::plan_s)
      .def_ro("bytes_sealed", &MemberReport::bytes_sealed)
      .def_ro("bytes_staged", &MemberReport::bytes_staged)
      .def_ro("snapshot_bytes", &MemberReport::snapshot_bytes)
      .def_ro("shadow_bytes", &MemberReport::shadow_bytes)
      .def_ro("buckets", &MemberReport::buckets)
      .def_ro("memory_used", &MemberReport::memory_used)
      .def_ro("memory_peak", &MemberReport::memory_peak);
  nb::class_<Publisher>(m, "Publisher")
      .def("__init__", &make_publisher, nb::arg("layout"), nb::arg("address"), nb::arg("rank"), nb::arg("memory"),
           nb::arg("threads"), nb::arg("join_timeout_s"), Waits())
      .def("buffers", &buffers<Publisher>)
      .def("publish", &Publisher::publish, nb::arg("step"), nb::arg("weight_set"), Waits())
      .def("guard", &Publisher::guard, nb::arg("timeout_s"), Waits())
      .def("report", &Publisher::report, Waits())
      .def("close", &Publisher::close, nb::arg("timeout_s"), Waits());
  nb::class_<Receiver>(m, "Receiver")
      .def("__init__", &make_receiver, nb::arg("layout"), nb::arg("address"), nb::arg("rank"), nb::arg("memory"),
           nb::arg("threads"), nb::arg("join_timeout_s"), nb::arg("pause").none(), nb::arg("resume").none(),
           nb::arg("reset_caches").none(), nb::arg("installed").none())
      .def("buffers", &buffers<Receiver>)
      .def("run", &Receiver::run, nb::arg("seconds"), Waits())
      .def("busy", &Receiver::busy)
      .def("version", &Receiver::version)
      .def("complete", &Receiver::complete)
      .def("report", &Receiver::report, Waits())
      .def("close", &Receiver::close, nb::arg("timeout_s"), Waits());
}

}  // namespace refit::native
