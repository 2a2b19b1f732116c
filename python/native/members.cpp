#include <memory>
#include <utility>

#include "native/bindings.h"

namespace refit::native {
namespace {

// (buffer, Lent), as refit/ made it.
using GivenMemory = std::vector<std::pair<std::string, nb::object>>;

std::vector<Memory> memory_of(const GivenMemory& given) {
  std::vector<Memory> out;
  for (const auto& [name, object] : given) {
    const Lent& lent = nb::cast<const Lent&>(object);
    out.push_back({name, lent.data, lent.bytes});
  }
  return out;
}

MemberOptions options(const std::string& address, std::uint32_t rank, const GivenMemory& memory, int threads,
                      double join_timeout_s) {
  return {.address = address,
          .rank = rank,
          .memory = memory_of(memory),
          .threads = threads,
          .join_timeout_s = join_timeout_s};
}

// A member and what was lent to it, which goes after the member's threads have ended.
template <typename Member>
struct Held {
  GivenMemory lent;
  std::unique_ptr<Member> member;
};
using HeldPublisher = Held<Publisher>;
using HeldReceiver = Held<Receiver>;

// A member's buffers as memoryviews that keep their memory alive: what was lent, or the member.
template <typename Member>
nb::list buffers(nb::handle self) {
  const auto& held = nb::cast<const Held<Member>&>(self);
  nb::list out;
  for (const Memory& m : held.member->memory()) {
    const auto bytes = static_cast<std::size_t>(m.bytes);
    nb::handle owner = self;
    for (const auto& [name, object] : held.lent)
      if (name == m.buffer) owner = object;
    const nb::ndarray<std::uint8_t, nb::memview> view(m.data, 1, &bytes, owner);
    out.append(nb::make_tuple(m.buffer, nb::cast(view)));
  }
  return out;
}

void rebind(HeldPublisher& self, GivenMemory memory, double timeout_s) {
  const std::vector<Memory> regions = memory_of(memory);
  {
    const nb::gil_scoped_release waits;
    self.member->rebind(regions, timeout_s);
  }
  self.lent = std::move(memory);
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

void make_publisher(HeldPublisher* self, const Layout& layout, const std::string& address, std::uint32_t rank,
                    GivenMemory memory, int threads, double join_timeout_s) {
  const MemberOptions o = options(address, rank, memory, threads, join_timeout_s);
  std::unique_ptr<Publisher> member;
  {
    const nb::gil_scoped_release waits;
    member = std::make_unique<Publisher>(layout, o);
  }
  new (self) HeldPublisher{std::move(memory), std::move(member)};
}

void make_receiver(HeldReceiver* self, const Layout& layout, const std::string& address, std::uint32_t rank,
                   GivenMemory memory, int threads, double join_timeout_s, const std::optional<Pause>& pause,
                   const std::optional<Plain>& resume, const std::optional<Plain>& reset_caches,
                   const std::optional<Installed>& installed) {
  EngineHooks hooks{.pause = hook(pause.value_or(Pause())),
                    .resume = hook(resume.value_or(Plain())),
                    .reset_caches = hook(reset_caches.value_or(Plain())),
                    .installed = hook(installed.value_or(Installed()))};
  const MemberOptions o = options(address, rank, memory, threads, join_timeout_s);
  std::unique_ptr<Receiver> member;
  {
    const nb::gil_scoped_release waits;
    member = std::make_unique<Receiver>(layout, o, std::move(hooks));
  }
  new (self) HeldReceiver{std::move(memory), std::move(member)};
}

// A member's method as one of what holds it.
template <auto method, typename Member, typename R, typename... Args>
auto forward(R (Member::*)(Args...)) {
  return [](Held<Member>& self, Args... args) { return (self.member.get()->*method)(std::forward<Args>(args)...); };
}
template <auto method, typename Member, typename R, typename... Args>
auto forward(R (Member::*)(Args...) const) {
  return [](const Held<Member>& self, Args... args) { return (*self.member.*method)(std::forward<Args>(args)...); };
}
template <auto method>
auto forward() {
  return forward<method>(method);
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
      .def_ro("buckets_unchanged", &MemberReport::buckets_unchanged)
      .def_ro("buckets_delta", &MemberReport::buckets_delta)
      .def_ro("buckets_raw", &MemberReport::buckets_raw)
      .def_ro("bytes_wire", &MemberReport::bytes_wire)
      .def_ro("shadow_bytes", &MemberReport::shadow_bytes)
      .def_ro("buckets", &MemberReport::buckets)
      .def_ro("memory_used", &MemberReport::memory_used)
      .def_ro("memory_peak", &MemberReport::memory_peak);
  nb::class_<HeldPublisher>(m, "Publisher")
      .def("__init__", &make_publisher, nb::arg("layout"), nb::arg("address"), nb::arg("rank"), nb::arg("memory"),
           nb::arg("threads"), nb::arg("join_timeout_s"))
      .def("buffers", &buffers<Publisher>)
      .def("rebind", &rebind, nb::arg("memory"), nb::arg("timeout_s"))
      .def("forget", [](HeldPublisher& self) { self.lent.clear(); })
      .def("publish", forward<&Publisher::publish>(), nb::arg("step"), nb::arg("weight_set"), Waits())
      .def("guard", forward<&Publisher::guard>(), nb::arg("timeout_s"), Waits())
      .def("report", forward<&Publisher::report>(), Waits())
      .def("close", forward<&Publisher::close>(), nb::arg("timeout_s"), Waits());
  nb::class_<HeldReceiver>(m, "Receiver")
      .def("__init__", &make_receiver, nb::arg("layout"), nb::arg("address"), nb::arg("rank"), nb::arg("memory"),
           nb::arg("threads"), nb::arg("join_timeout_s"), nb::arg("pause").none(), nb::arg("resume").none(),
           nb::arg("reset_caches").none(), nb::arg("installed").none())
      .def("buffers", &buffers<Receiver>)
      .def("run", forward<&Receiver::run>(), nb::arg("seconds"), Waits())
      .def("busy", forward<&Receiver::busy>())
      .def("version", forward<&Receiver::version>())
      .def("complete", forward<&Receiver::complete>())
      .def("report", forward<&Receiver::report>(), Waits())
      .def("close", forward<&Receiver::close>(), nb::arg("timeout_s"), Waits());
}

}  // namespace refit::native
