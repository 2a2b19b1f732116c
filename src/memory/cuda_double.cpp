// cuda_host_double: the driver's functions played in host memory. Stricter than a driver where that finds mistakes: a
// call without a current context fails, queued work runs only when somebody waits or polls.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "memory/device.h"

namespace refit::memory {

// Handles of the table point at these.
struct CuStreamBody {
  std::deque<std::function<void()>> queue;
};
struct CuEventBody {
  CuStreamBody* stream = nullptr;
  std::uint64_t recorded = 0, reached = 0;  // generations of record
  std::int64_t at_ns = 0;
};
struct CuModuleBody {
  const KernelImage* image;
  std::deque<struct CuFunctionBody> functions;
};
struct CuFunctionBody {
  const grid::Emulated* kernel;
};

namespace {

constexpr int kDevices = 2;
constexpr std::size_t kPage = std::size_t{2} << 20;

enum class Origin : std::uint8_t { kAllocated, kOpened, kReserved };
struct Range {
  std::size_t bytes = 0, reserved = 0;
  int fd = -1;
  Origin origin = Origin::kAllocated;
  CuAllocation allocation = 0;  // mapped there
  bool readable = false;
};
struct Physical {
  std::size_t bytes = 0;
  int fd = -1, handle_types = 0, references = 1;
};

// All state of the double. Kernels and copies run under the lock: it has one execution unit.
struct World {
  std::recursive_mutex mutex;
  std::map<CuPtr, Range> ranges;
  std::map<CuAllocation, Physical> physical;
  CuAllocation next_allocation = 1;
  std::set<CuStreamBody*> streams;
  std::set<CuEventBody*> events;
  std::map<void*, std::size_t> pinned;
  CuStreamBody default_stream;

  CuStreamBody* stream(CuStream s) { return s == nullptr ? &default_stream : streams.count(s) != 0 ? s : nullptr; }
  std::map<CuPtr, Range>::iterator find(CuPtr at) {
    auto it = ranges.upper_bound(at);
    if (it == ranges.begin()) return ranges.end();
    --it;
    return at < it->first + it->second.bytes ? it : ranges.end();
  }
};
World& world() {
  static World* const kWorld = new World;  // streams may be drained by destructors of statics
  return *kWorld;
}
thread_local int current_contexts = 0;

#define REFIT_DOUBLE_ENTER                          \
  World& w = world();                               \
  const std::lock_guard<std::recursive_mutex> lock(w.mutex); \
  if (current_contexts == 0) return kCuInvalidContext

void drain(CuStreamBody& s) {
  while (!s.queue.empty()) {
    const auto work = std::move(s.queue.front());
    s.queue.pop_front();
    work();
  }
}
void drain_until(CuEventBody& e, std::uint64_t generation) {
  while (e.reached < generation && e.stream != nullptr && !e.stream->queue.empty()) {
    const auto work = std::move(e.stream->queue.front());
    e.stream->queue.pop_front();
    work();
  }
}
void drain_all(World& w) {
  drain(w.default_stream);
  for (CuStreamBody* s : w.streams) drain(*s);
}

void* at_address(CuPtr at) { return reinterpret_cast<void*>(at); }
CuPtr address_of(void* at) { return reinterpret_cast<CuPtr>(at); }
std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

int memory_file(std::size_t bytes) {
  const int fd = ::memfd_create("cuda_host_double", MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return ::close(fd), -1;
  return fd;
}

// ---- devices and contexts

CuResult init(unsigned) { return kCuOk; }
CuResult driver_version(int* out) { return *out = 0, kCuOk; }
CuResult error_name(CuResult r, const char** out) {
  static const std::map<CuResult, const char*> kNames = {{kCuInvalidValue, "invalid value"},
                                                         {kCuOutOfMemory, "out of memory"},
                                                         {kCuNoDevice, "no device"},
                                                         {kCuInvalidContext, "invalid context"},
                                                         {kCuMapFailed, "map failed"},
                                                         {kCuInvalidHandle, "invalid handle"},
                                                         {kCuNotFound, "not found"},
                                                         {kCuNotReady, "not ready"},
                                                         {kCuNotSupported, "not supported"}};
  const auto it = kNames.find(r);
  *out = it == kNames.end() ? nullptr : it->second;
  return it == kNames.end() ? kCuInvalidValue : kCuOk;
}
CuResult device_count(int* n) { return *n = kDevices, kCuOk; }
CuResult device_get(CuDevice* out, int ordinal) {
  if (ordinal < 0 || ordinal >= kDevices) return kCuInvalidValue;
  return *out = ordinal, kCuOk;
}
CuResult device_name(char* out, int n, CuDevice) { return std::strncpy(out, "cuda_host_double", static_cast<std::size_t>(n)), kCuOk; }
CuResult device_uuid(CuUuid* out, CuDevice d) {
  std::memset(out->bytes, 0, 16);
  std::memcpy(out->bytes, "hostdouble", 10);
  out->bytes[15] = static_cast<unsigned char>(d);
  return kCuOk;
}
CuResult device_attribute(int* out, int, CuDevice) { return *out = 0, kCuOk; }
CuResult context_retain(CuContext* out, CuDevice d) {
  static char tokens[kDevices];
  return *out = reinterpret_cast<CuContext>(&tokens[d]), kCuOk;
}
CuResult context_release(CuDevice) { return kCuOk; }
CuResult context_push(CuContext) { return ++current_contexts, kCuOk; }
CuResult context_pop(CuContext*) { return current_contexts == 0 ? kCuInvalidContext : (--current_contexts, kCuOk); }

// ---- memory

CuResult memory_info(std::size_t* free, std::size_t* total) {
  REFIT_DOUBLE_ENTER;
  *free = *total = static_cast<std::size_t>(::sysconf(_SC_AVPHYS_PAGES)) * 4096;
  (void)w;
  return kCuOk;
}
CuResult memory_alloc(CuPtr* out, std::size_t bytes) {
  REFIT_DOUBLE_ENTER;
  if (bytes == 0) return kCuInvalidValue;
  Range r;
  r.bytes = bytes;
  r.reserved = whole_pages(bytes);
  if (bytes > std::size_t{1} << 46) return kCuOutOfMemory;
  r.fd = memory_file(r.reserved);
  if (r.fd < 0) return kCuOutOfMemory;
  void* const at = ::mmap(nullptr, r.reserved, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
  if (at == MAP_FAILED) return ::close(r.fd), kCuOutOfMemory;
  r.readable = true;
  w.ranges[*out = address_of(at)] = r;
  return kCuOk;
}
CuResult drop_range(World& w, CuPtr at, Origin origin) {
  const auto it = w.ranges.find(at);
  if (it == w.ranges.end() || it->second.origin != origin) return kCuInvalidValue;
  drain_all(w);
  ::munmap(at_address(at), it->second.reserved);
  if (it->second.fd >= 0) ::close(it->second.fd);
  w.ranges.erase(it);
  return kCuOk;
}
CuResult memory_free(CuPtr at) {
  REFIT_DOUBLE_ENTER;
  return drop_range(w, at, Origin::kAllocated);
}
CuResult host_alloc(void** out, std::size_t bytes, unsigned) {
  REFIT_DOUBLE_ENTER;
  *out = ::operator new(bytes, std::align_val_t{4096}, std::nothrow);
  if (*out == nullptr) return kCuOutOfMemory;
  w.pinned[*out] = bytes;
  return kCuOk;
}
CuResult host_free(void* at) {
  REFIT_DOUBLE_ENTER;
  if (w.pinned.erase(at) == 0) return kCuInvalidValue;
  drain_all(w);
  ::operator delete(at, std::align_val_t{4096});
  return kCuOk;
}
CuResult copy_async(CuPtr dst, CuPtr src, std::size_t bytes, CuStream s) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr) return kCuInvalidHandle;
  stream->queue.emplace_back([=] { std::memmove(at_address(dst), at_address(src), bytes); });
  return kCuOk;
}
CuResult fill_async(CuPtr dst, unsigned char value, std::size_t bytes, CuStream s) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr) return kCuInvalidHandle;
  stream->queue.emplace_back([=] { std::memset(at_address(dst), value, bytes); });
  return kCuOk;
}

// ---- streams and events

CuResult stream_create(CuStream* out, unsigned) {
  REFIT_DOUBLE_ENTER;
  return w.streams.insert(*out = new CuStreamBody), kCuOk;
}
CuResult stream_destroy(CuStream s) {
  REFIT_DOUBLE_ENTER;
  if (w.streams.count(s) == 0) return kCuInvalidHandle;
  drain(*s);
  for (CuEventBody* e : w.events)
    if (e->stream == s) e->stream = nullptr;
  w.streams.erase(s);
  delete s;
  return kCuOk;
}
// Polls run the work too, but the first after new work answers "not ready": nobody may count on an idle stream.
CuResult stream_query(CuStream s) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr) return kCuInvalidHandle;
  if (stream->queue.empty()) return kCuOk;
  drain(*stream);
  return kCuNotReady;
}
CuResult stream_synchronize(CuStream s) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr) return kCuInvalidHandle;
  return drain(*stream), kCuOk;
}
CuResult stream_wait(CuStream s, CuEvent e, unsigned) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr || w.events.count(e) == 0) return kCuInvalidHandle;
  stream->queue.emplace_back([e, generation = e->recorded] { drain_until(*e, generation); });
  return kCuOk;
}
CuResult event_create(CuEvent* out, unsigned flags) {
  REFIT_DOUBLE_ENTER;
  if ((flags & kCuEventInterprocess) != 0) return kCuNotSupported;
  return w.events.insert(*out = new CuEventBody), kCuOk;
}
CuResult event_destroy(CuEvent e) {
  REFIT_DOUBLE_ENTER;
  if (w.events.count(e) == 0) return kCuInvalidHandle;
  drain_all(w);  // queued work may name it
  w.events.erase(e);
  delete e;
  return kCuOk;
}
CuResult event_record(CuEvent e, CuStream s) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr || w.events.count(e) == 0) return kCuInvalidHandle;
  e->stream = stream;
  stream->queue.emplace_back([e, generation = ++e->recorded] {
    e->reached = generation;
    e->at_ns = monotonic_ns();
  });
  return kCuOk;
}
CuResult event_synchronize(CuEvent e) {
  REFIT_DOUBLE_ENTER;
  if (w.events.count(e) == 0) return kCuInvalidHandle;
  return drain_until(*e, e->recorded), kCuOk;
}
CuResult event_query(CuEvent e) {
  REFIT_DOUBLE_ENTER;
  if (w.events.count(e) == 0) return kCuInvalidHandle;
  if (e->reached == e->recorded) return kCuOk;
  drain_until(*e, e->recorded);
  return kCuNotReady;
}
CuResult event_elapsed(float* ms, CuEvent from, CuEvent to) {
  REFIT_DOUBLE_ENTER;
  if (from->reached != from->recorded || to->reached != to->recorded) return kCuNotReady;
  *ms = static_cast<float>(static_cast<double>(to->at_ns - from->at_ns) * 1e-6);
  return w.events.count(from) == 0 ? kCuInvalidHandle : kCuOk;
}

// ---- kernels

CuResult module_load(CuModule* out, const void* image) {
  REFIT_DOUBLE_ENTER;
  *out = new CuModuleBody{static_cast<const KernelImage*>(image), {}};
  for (const grid::Emulated& k : (*out)->image->kernels) (*out)->functions.push_back({&k});
  (void)w;
  return kCuOk;
}
CuResult module_unload(CuModule m) {
  REFIT_DOUBLE_ENTER;
  drain_all(w);
  delete m;
  return kCuOk;
}
CuResult module_function(CuFunction* out, CuModule m, const char* name) {
  for (CuFunctionBody& f : m->functions)
    if (std::strcmp(f.kernel->name, name) == 0) return *out = &f, kCuOk;
  return kCuNotFound;
}
CuResult launch(CuFunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
                CuStream s, void** params, void**) {
  REFIT_DOUBLE_ENTER;
  CuStreamBody* const stream = w.stream(s);
  if (stream == nullptr) return kCuInvalidHandle;
  if (gx == 0 || gy != 1 || gz != 1 || bx != static_cast<unsigned>(f->kernel->threads) || by != 1 || bz != 1)
    return kCuInvalidValue;
  const auto* const bytes = static_cast<const std::byte*>(params[0]);
  // Aligned as any parameter of a kernel would be.
  auto copy = std::make_shared<std::vector<std::max_align_t>>(f->kernel->param_bytes / sizeof(std::max_align_t) + 1);
  std::memcpy(copy->data(), bytes, f->kernel->param_bytes);
  stream->queue.emplace_back([copy, gx, run = f->kernel->run] { run(gx, copy->data()); });
  return kCuOk;
}

// ---- between processes

CuResult address_range(CuPtr* base, std::size_t* bytes, CuPtr at) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.find(at);
  if (it == w.ranges.end()) return kCuNotFound;
  *base = it->first;
  *bytes = it->second.bytes;
  return kCuOk;
}
CuResult pointer_attribute(void* out, int attribute, CuPtr at) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.find(at);
  if (it == w.ranges.end()) return kCuInvalidValue;
  int value = 0;
  if (attribute == kCuLegacyIpcCapable) value = it->second.origin == Origin::kAllocated ? 1 : 0;
  else if (attribute != kCuAllowedHandleTypes) return kCuInvalidValue;
  else if (it->second.allocation != 0) value = w.physical.at(it->second.allocation).handle_types;
  std::memcpy(out, &value, sizeof value);
  return kCuOk;
}

// Process, descriptor and file of an allocation, in the 64 bytes of a handle.
struct Ticket {
  char magic[16];
  std::int64_t pid, fd, bytes;
  std::uint64_t inode;
};
static_assert(sizeof(Ticket) <= sizeof(CuIpcHandle));

CuResult ipc_get(CuIpcHandle* out, CuPtr at) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.find(at);
  if (it == w.ranges.end() || it->second.origin != Origin::kAllocated) return kCuInvalidValue;
  struct stat st {};
  if (::fstat(it->second.fd, &st) != 0) return kCuInvalidValue;
  Ticket t{{}, ::getpid(), it->second.fd, static_cast<std::int64_t>(it->second.bytes), st.st_ino};
  std::memcpy(t.magic, "hostdouble", 10);
  std::memset(out->bytes, 0, sizeof out->bytes);
  std::memcpy(out->bytes, &t, sizeof t);
  return kCuOk;
}
CuResult ipc_open(CuPtr* out, CuIpcHandle handle, unsigned) {
  REFIT_DOUBLE_ENTER;
  Ticket t;
  std::memcpy(&t, handle.bytes, sizeof t);
  if (std::strncmp(t.magic, "hostdouble", sizeof t.magic) != 0 || t.bytes <= 0) return kCuInvalidValue;
  if (t.pid == ::getpid()) return kCuInvalidContext;  // as the driver does
  const std::string path = "/proc/" + std::to_string(t.pid) + "/fd/" + std::to_string(t.fd);
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat st {};
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || st.st_ino != t.inode || st.st_size < t.bytes) return kCuMapFailed;
  Range r;
  r.bytes = static_cast<std::size_t>(t.bytes);
  r.reserved = whole_pages(r.bytes);
  r.origin = Origin::kOpened;
  void* const at = ::mmap(nullptr, r.reserved, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return kCuMapFailed;
  r.readable = true;
  w.ranges[*out = address_of(at)] = r;
  return kCuOk;
}
CuResult ipc_close(CuPtr at) {
  REFIT_DOUBLE_ENTER;
  return drop_range(w, at, Origin::kOpened);
}
CuResult ipc_event_get(CuIpcHandle*, CuEvent) { return kCuNotSupported; }
CuResult ipc_event_open(CuEvent*, CuIpcHandle) { return kCuNotSupported; }

// ---- virtual memory

CuResult vmm_granularity(std::size_t* out, const CuAllocationProperties*, int) { return *out = kPage, kCuOk; }
CuResult vmm_reserve(CuPtr* out, std::size_t bytes, std::size_t, CuPtr, unsigned long long) {
  REFIT_DOUBLE_ENTER;
  if (bytes == 0 || bytes % kPage != 0) return kCuInvalidValue;
  void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return kCuOutOfMemory;
  Range r;
  r.bytes = r.reserved = bytes;
  r.origin = Origin::kReserved;
  w.ranges[*out = address_of(at)] = r;
  return kCuOk;
}
CuResult vmm_unreserve(CuPtr at, std::size_t bytes) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.ranges.find(at);
  if (it == w.ranges.end() || it->second.bytes != bytes || it->second.allocation != 0) return kCuInvalidValue;
  return drop_range(w, at, Origin::kReserved);
}
CuResult vmm_create(CuAllocation* out, std::size_t bytes, const CuAllocationProperties* p, unsigned long long) {
  REFIT_DOUBLE_ENTER;
  if (bytes == 0 || bytes % kPage != 0) return kCuInvalidValue;
  const int fd = memory_file(bytes);
  if (fd < 0) return kCuOutOfMemory;
  w.physical[*out = w.next_allocation++] = {bytes, fd, p->handle_types, 1};
  return kCuOk;
}
CuResult vmm_release(CuAllocation a) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.physical.find(a);
  if (it == w.physical.end()) return kCuInvalidValue;
  if (--it->second.references > 0) return kCuOk;
  ::close(it->second.fd);
  w.physical.erase(it);
  return kCuOk;
}
CuResult vmm_retain(CuAllocation* out, void* at) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.find(address_of(at));
  if (it == w.ranges.end() || it->second.allocation == 0) return kCuInvalidValue;
  ++w.physical.at(*out = it->second.allocation).references;
  return kCuOk;
}
// One allocation fills a whole reservation: all that the double needs.
CuResult vmm_map(CuPtr at, std::size_t bytes, std::size_t offset, CuAllocation a, unsigned long long) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.ranges.find(at);
  const auto p = w.physical.find(a);
  if (it == w.ranges.end() || p == w.physical.end() || offset != 0 || it->second.bytes != bytes ||
      p->second.bytes != bytes || it->second.allocation != 0)
    return kCuInvalidValue;
  if (::mmap(at_address(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->second.fd, 0) == MAP_FAILED) return kCuMapFailed;
  ++p->second.references;
  it->second.allocation = a;
  return kCuOk;
}
CuResult vmm_unmap(CuPtr at, std::size_t bytes) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.ranges.find(at);
  if (it == w.ranges.end() || it->second.allocation == 0) return kCuInvalidValue;
  drain_all(w);
  ::mmap(at_address(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return vmm_release(std::exchange(it->second.allocation, 0));
}
CuResult vmm_access(CuPtr at, std::size_t bytes, const CuAccess*, std::size_t) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.ranges.find(at);
  if (it == w.ranges.end() || it->second.allocation == 0) return kCuInvalidValue;
  it->second.readable = true;
  return ::mprotect(at_address(at), bytes, PROT_READ | PROT_WRITE) == 0 ? kCuOk : kCuInvalidValue;
}
CuResult vmm_export(void* out, CuAllocation a, int type, unsigned long long) {
  REFIT_DOUBLE_ENTER;
  const auto it = w.physical.find(a);
  if (it == w.physical.end() || (it->second.handle_types & type) == 0) return kCuInvalidValue;
  const int fd = ::fcntl(it->second.fd, F_DUPFD_CLOEXEC, 0);
  std::memcpy(out, &fd, sizeof fd);
  return fd < 0 ? kCuOutOfMemory : kCuOk;
}
CuResult vmm_import(CuAllocation* out, void* os, int) {
  REFIT_DOUBLE_ENTER;
  const int fd = ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(os)), F_DUPFD_CLOEXEC, 0);
  struct stat st {};
  if (fd < 0 || ::fstat(fd, &st) != 0) return kCuInvalidValue;
  w.physical[*out = w.next_allocation++] = {static_cast<std::size_t>(st.st_size), fd, kCuHandleFd, 1};
  return kCuOk;
}

}  // namespace

const CudaApi& cuda_host_double() {
#define REFIT_SAME(f) .f = f
  static const CudaApi kApi{.name = "cuda_host_double",
                            .is_double = true,
                            REFIT_SAME(init), REFIT_SAME(driver_version), REFIT_SAME(error_name),
                            REFIT_SAME(device_count), REFIT_SAME(device_get), REFIT_SAME(device_name),
                            REFIT_SAME(device_uuid), REFIT_SAME(device_attribute), REFIT_SAME(context_retain),
                            REFIT_SAME(context_release), REFIT_SAME(context_push), REFIT_SAME(context_pop),
                            REFIT_SAME(memory_info), REFIT_SAME(memory_alloc), REFIT_SAME(memory_free),
                            REFIT_SAME(host_alloc), REFIT_SAME(host_free), REFIT_SAME(copy_async),
                            REFIT_SAME(fill_async), REFIT_SAME(stream_create), REFIT_SAME(stream_destroy),
                            REFIT_SAME(stream_query), REFIT_SAME(stream_synchronize), REFIT_SAME(stream_wait),
                            REFIT_SAME(event_create), REFIT_SAME(event_destroy), REFIT_SAME(event_record),
                            REFIT_SAME(event_query), REFIT_SAME(event_synchronize), REFIT_SAME(event_elapsed),
                            REFIT_SAME(module_load), REFIT_SAME(module_unload), REFIT_SAME(module_function),
                            REFIT_SAME(launch), REFIT_SAME(address_range), REFIT_SAME(pointer_attribute),
                            REFIT_SAME(ipc_get), REFIT_SAME(ipc_open), REFIT_SAME(ipc_close),
                            REFIT_SAME(ipc_event_get), REFIT_SAME(ipc_event_open), REFIT_SAME(vmm_granularity),
                            REFIT_SAME(vmm_reserve), REFIT_SAME(vmm_unreserve), REFIT_SAME(vmm_create),
                            REFIT_SAME(vmm_release), REFIT_SAME(vmm_retain), REFIT_SAME(vmm_map),
                            REFIT_SAME(vmm_unmap), REFIT_SAME(vmm_access), REFIT_SAME(vmm_export),
                            REFIT_SAME(vmm_import)};
#undef REFIT_SAME
  return kApi;
}
#undef REFIT_DOUBLE_ENTER

}  // namespace refit::memory
