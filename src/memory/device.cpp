#include <unistd.h>

#include <algorithm>
#include <utility>

#include "memory/device.h"

namespace refit::memory {

Status cuda_status(const CudaApi& api, CuResult r, std::string_view call) {
  if (r == kCuOk) return {};
  const char* name = nullptr;
  if (api.error_name(r, &name) != kCuOk || name == nullptr) name = "an unknown error";
  const Code code = r == kCuOutOfMemory                        ? Code::kExhausted
                    : r == kCuNotSupported || r == kCuNoBinary ? Code::kUnsupported
                                                               : Code::kInternal;
  return Error(code, std::string(api.name) + ": " + std::string(call) + ": " + name + " (" + std::to_string(r) + ")");
}

std::string to_string(const CuUuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out.push_back('-');
    out.push_back(kDigits[uuid.bytes[i] >> 4]);
    out.push_back(kDigits[uuid.bytes[i] & 15]);
  }
  return out;
}
bool operator==(const CuUuid& a, const CuUuid& b) { return std::equal(a.bytes, a.bytes + 16, b.bytes); }

// ---- Device

struct Device::State {
  const CudaApi* api = nullptr;
  int ordinal = 0, compute = 0;
  CuDevice device = 0;
  CuContext context = nullptr;
  CuUuid uuid{};
  std::string name;
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (context != nullptr) (void)api->context_release(device);
  }
};

Result<int> Device::count(const CudaApi& api) {
  int n = 0;
  REFIT_TRY(cuda_status(api, api.device_count(&n), "device count"));
  return n;
}

Result<Device> Device::open(const CudaApi& api, int ordinal) {
  REFIT_ASSIGN(const int n, count(api));
  if (ordinal < 0 || ordinal >= n)
    return Error(Code::kUnsupported, std::string(api.name) + ": there is no device " + std::to_string(ordinal) + ", " +
                                         std::to_string(n) + " are visible");
  Device out;
  out.state_ = std::make_shared<State>();
  State& s = *out.state_;
  s.api = &api;
  s.ordinal = ordinal;
  REFIT_TRY(cuda_status(api, api.device_get(&s.device, ordinal), "device"));
  char name[256] = {};
  REFIT_TRY(cuda_status(api, api.device_name(name, sizeof name - 1, s.device), "device name"));
  s.name = name;
  REFIT_TRY(cuda_status(api, api.device_uuid(&s.uuid, s.device), "device UUID"));
  int major = 0, minor = 0;
  REFIT_TRY(cuda_status(api, api.device_attribute(&major, kCuComputeMajor, s.device), "compute capability"));
  REFIT_TRY(cuda_status(api, api.device_attribute(&minor, kCuComputeMinor, s.device), "compute capability"));
  s.compute = 10 * major + minor;
  REFIT_TRY(cuda_status(api, api.context_retain(&s.context, s.device), "primary context of " + out.text()));
  return out;
}

Result<Device> Device::find(const CudaApi& api, const CuUuid& uuid) {
  REFIT_ASSIGN(const int n, count(api));
  std::string have;
  for (int i = 0; i < n; ++i) {
    CuDevice device = 0;
    CuUuid here{};
    REFIT_TRY(cuda_status(api, api.device_get(&device, i), "device"));
    REFIT_TRY(cuda_status(api, api.device_uuid(&here, device), "device UUID"));
    if (here == uuid) return open(api, i);
    have += (have.empty() ? "" : ", ") + to_string(here);
  }
  return Error(Code::kMismatch, std::string(api.name) + ": the peer's memory lies on " + to_string(uuid) +
                                    ", this process sees " + (have.empty() ? "no device" : have) +
                                    " (CUDA_VISIBLE_DEVICES)");
}

const CudaApi& Device::api() const { return *state_->api; }
int Device::ordinal() const { return state_->ordinal; }
const CuUuid& Device::uuid() const { return state_->uuid; }
const std::string& Device::name() const { return state_->name; }
int Device::compute() const { return state_->compute; }
std::string Device::text() const {
  return std::string(api().name) + ":" + std::to_string(ordinal()) + " " + name() + " " + to_string(uuid());
}
Result<std::int64_t> Device::free_bytes() const {
  std::size_t free = 0, total = 0;
  REFIT_TRY(call("memory info", api().memory_info, &free, &total));
  return static_cast<std::int64_t>(free);
}

Device::Scope::Scope(const Device& device)
    : device_(device), pushed_(device.api().context_push(device.state_->context)) {}
Device::Scope::~Scope() {
  if (pushed_ != kCuOk) return;
  CuContext popped = nullptr;
  (void)device_.api().context_pop(&popped);
}
Status Device::Scope::status(std::string_view what) const {
  if (pushed_ == kCuOk) return {};
  return cuda_status(device_.api(), pushed_, "context for " + std::string(what));
}

// ---- buffers

namespace {
Error no_room(const Device& device, Error why, std::int64_t bytes, std::string_view what) {
  const auto free = device.free_bytes();
  why.message += " for " + std::string(what) + " on " + device.text();
  return std::move(why).amounts(bytes, free.ok() ? *free : 0);
}
}  // namespace

Result<DeviceBuffer> DeviceBuffer::make(const Device& device, std::int64_t bytes, std::string_view what) {
  REFIT_CHECK(bytes >= 0);
  DeviceBuffer out;
  out.device_ = device;
  out.bytes_ = bytes;
  if (bytes == 0) return out;
  auto got = device.call("memory alloc", device.api().memory_alloc, &out.at_, static_cast<std::size_t>(bytes));
  if (!got.ok()) return no_room(device, std::move(got).error(), bytes, what);
  return out;
}
DeviceBuffer::~DeviceBuffer() {
  if (at_ != 0) (void)device_.call("memory free", device_.api().memory_free, at_);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& o) noexcept
    : device_(std::move(o.device_)), at_(std::exchange(o.at_, 0)), bytes_(std::exchange(o.bytes_, 0)) {}
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(at_, o.at_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

Result<PinnedBuffer> PinnedBuffer::make(const Device& device, std::int64_t bytes, std::string_view what) {
  REFIT_CHECK(bytes >= 0);
  PinnedBuffer out;
  out.device_ = device;
  out.bytes_ = bytes;
  if (bytes == 0) return out;
  void* at = nullptr;
  auto got = device.call("pinned alloc", device.api().host_alloc, &at, static_cast<std::size_t>(bytes), 0U);
  if (!got.ok()) return no_room(device, std::move(got).error(), bytes, what);
  out.data_ = static_cast<std::byte*>(at);
  return out;
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) (void)device_.call("pinned free", device_.api().host_free, static_cast<void*>(data_));
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& o) noexcept
    : device_(std::move(o.device_)), data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

// ---- streams and events

Result<Stream> Stream::make(const Device& device) {
  Stream out = borrow(device, nullptr);
  REFIT_TRY(device.call("stream", device.api().stream_create, &out.stream_, kCuStreamNonBlocking));
  out.owned_ = true;
  return out;
}
Stream Stream::borrow(const Device& device, CuStream stream) {
  Stream out;
  out.device_ = device;
  out.stream_ = stream;
  return out;
}
Stream::~Stream() {
  if (owned_) (void)device_.call("stream destroy", device_.api().stream_destroy, stream_);
}
Stream::Stream(Stream&& o) noexcept
    : device_(std::move(o.device_)),
      stream_(std::exchange(o.stream_, nullptr)),
      owned_(std::exchange(o.owned_, false)) {}
Stream& Stream::operator=(Stream&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(stream_, o.stream_);
  std::swap(owned_, o.owned_);
  return *this;
}

Status Stream::copy(void* dst, const void* src, std::int64_t bytes) {
  if (bytes == 0) return {};
  return device_.call("copy", device_.api().copy_async, reinterpret_cast<CuPtr>(dst), reinterpret_cast<CuPtr>(src),
                      static_cast<std::size_t>(bytes), stream_);
}
Status Stream::fill(void* dst, std::uint8_t value, std::int64_t bytes) {
  if (bytes == 0) return {};
  return device_.call("fill", device_.api().fill_async, reinterpret_cast<CuPtr>(dst), value,
                      static_cast<std::size_t>(bytes), stream_);
}

Status Stream::wait(Deadline deadline, std::string_view what) {
  const Device::Scope current(device_);
  REFIT_TRY(current.status(what));
  const CudaApi& api = device_.api();
  // A hung GPU must not hang its callers: polled, spinning first because most waits are short.
  for (int polls = 0;; ++polls) {
    const CuResult r = api.stream_query(stream_);
    if (r != kCuNotReady) return cuda_status(api, r, what);
    if (deadline.over())
      return Error(Code::kTimeout, device_.text() + " did not finish " + std::string(what) + " in time");
    if (polls > 2000) ::usleep(50);
  }
}

Result<Event> Event::make(const Device& device, bool timed) {
  Event out;
  out.device_ = device;
  REFIT_TRY(device.call("event", device.api().event_create, &out.event_, timed ? 0U : kCuEventNoTiming));
  return out;
}
Event::~Event() {
  if (event_ != nullptr) (void)device_.call("event destroy", device_.api().event_destroy, event_);
}
Event::Event(Event&& o) noexcept : device_(std::move(o.device_)), event_(std::exchange(o.event_, nullptr)) {}
Event& Event::operator=(Event&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(event_, o.event_);
  return *this;
}
Status Event::record(Stream& stream) {
  return device_.call("event record", device_.api().event_record, event_, stream.raw());
}
Status Event::hold(Stream& stream) {
  return stream.device().call("stream wait", device_.api().stream_wait, stream.raw(), event_, 0U);
}
Result<double> Event::seconds_since(const Event& earlier) const {
  float ms = 0;
  REFIT_TRY(device_.call("event elapsed", device_.api().event_elapsed, &ms, earlier.event_, event_));
  return static_cast<double>(ms) / 1000;
}

// ---- kernels

Result<Module> Module::load(const Device& device, const KernelImage& image) {
  const CudaApi& api = device.api();
  if (!api.is_double && image.fatbin.empty())
    return Error(Code::kUnsupported, "no GPU code in this build for `" + std::string(image.name) +
                                         "`: no nvcc was found when it was built (REFIT_CUDA)");
  Module out;
  out.device_ = device;
  out.kernels_ = image.kernels;
  const void* const code = api.is_double ? static_cast<const void*>(&image) : image.fatbin.data();
  REFIT_TRY(device.call("load of `" + std::string(image.name) + "` on compute capability " +
                            std::to_string(device.compute()),
                        api.module_load, &out.module_, code));
  for (const grid::Emulated& k : image.kernels) {
    CuFunction f = nullptr;
    REFIT_TRY(device.call("kernel `" + std::string(k.name) + "`", api.module_function, &f, out.module_, k.name));
    out.functions_.push_back(f);
  }
  return out;
}
Module::~Module() {
  if (module_ != nullptr) (void)device_.call("module unload", device_.api().module_unload, module_);
}
Module::Module(Module&& o) noexcept
    : device_(std::move(o.device_)),
      module_(std::exchange(o.module_, nullptr)),
      kernels_(o.kernels_),
      functions_(std::move(o.functions_)) {}
Module& Module::operator=(Module&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(module_, o.module_);
  std::swap(kernels_, o.kernels_);
  std::swap(functions_, o.functions_);
  return *this;
}

Status Module::launch_raw(Stream& stream, std::string_view kernel, std::int64_t blocks, const void* params,
                          std::size_t param_bytes) const {
  if (blocks == 0) return {};
  REFIT_CHECK(blocks > 0 && blocks <= 0x7fffffff);
  const auto at = std::find_if(kernels_.begin(), kernels_.end(), [&](const auto& k) { return k.name == kernel; });
  REFIT_CHECK(at != kernels_.end() && at->param_bytes == param_bytes);
  void* arguments[] = {const_cast<void*>(params)};
  return device_.call(kernel, device_.api().launch, functions_[static_cast<std::size_t>(at - kernels_.begin())],
                      static_cast<unsigned>(blocks), 1U, 1U, static_cast<unsigned>(at->threads), 1U, 1U, 0U,
                      stream.raw(), static_cast<void**>(arguments), static_cast<void**>(nullptr));
}

}  // namespace refit::memory
