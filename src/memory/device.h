// Device memory, streams, events and kernels over a table of driver functions, the real one or the host double.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/cuda_api.h"

namespace refit::memory {

// Turns a driver's code into an error that names the table, the call and the code. *pure*.
Status cuda_status(const CudaApi& api, CuResult r, std::string_view call);

// One device and its primary context (the one that torch uses too), retained while any copy lives: buffers, streams and
// modules made from it hold copies. *thread-safe*: every call makes the context current for itself.
class Device {
 public:
  // Errors: kUnsupported where there is no such device.
  static Result<Device> open(const CudaApi& api, int ordinal);
  // By the UUID that a peer named: ordinals differ between processes. Errors: kMismatch naming both sides' devices.
  static Result<Device> find(const CudaApi& api, const CuUuid& uuid);
  static Result<int> count(const CudaApi& api);
  Device() = default;

  const CudaApi& api() const;
  int ordinal() const;
  const CuUuid& uuid() const;
  const std::string& name() const;
  int compute() const;  // 90 for 9.0
  std::string text() const;  // "cuda:0 NAME GPU-uuid"
  Result<std::int64_t> free_bytes() const;

  // Current on this thread while it lives; nests. Where the driver refuses (as it does while the process ends) nothing is
  // current, and status says so.
  class Scope {
   public:
    explicit Scope(const Device& device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Status status(std::string_view what) const;  // `what` needs the context

   private:
    const Device& device_;
    CuResult pushed_;
  };
  // A call with the context current.
  template <typename Fn, typename... Args>
  Status call(std::string_view what, Fn fn, Args... args) const {
    const Scope current(*this);
    REFIT_TRY(current.status(what));
    return cuda_status(api(), fn(args...), what);
  }

 private:
  struct State;
  std::shared_ptr<State> state_;
};
std::string to_string(const CuUuid& uuid);
bool operator==(const CuUuid& a, const CuUuid& b);

// Memory on a device, or pinned on the host; 0 bytes are legal. *thread-compatible*. Freed with the object, which waits
// for nothing: the owner knows that streams are done with it.
class DeviceBuffer {
 public:
  // Errors: kExhausted with need and have, naming `what`.
  static Result<DeviceBuffer> make(const Device& device, std::int64_t bytes, std::string_view what);
  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&&) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) noexcept;
  CuPtr at() const { return at_; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }  // an address for kernels, not for this process
  std::int64_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }

 private:
  Device device_;
  CuPtr at_ = 0;
  std::int64_t bytes_ = 0;
};

class PinnedBuffer {
 public:
  static Result<PinnedBuffer> make(const Device& device, std::int64_t bytes, std::string_view what);
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&&) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&&) noexcept;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  Device device_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// A stream of our own, or the caller's, which stays his. Every operation is queued and returns at once; only
// synchronize waits. *thread-compatible*.
class Stream {
 public:
  static Result<Stream> make(const Device& device);
  static Stream borrow(const Device& device, CuStream stream);
  Stream() = default;
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  const Device& device() const { return device_; }
  CuStream raw() const { return stream_; }
  // Host memory must be pinned and stay as it is until the copy ran.
  Status copy(void* dst, const void* src, std::int64_t bytes);
  Status fill(void* dst, std::uint8_t value, std::int64_t bytes);
  // Polls: kTimeout naming what was waited for. Deadlines apply to the GPU as to any peer.
  Status wait(Deadline deadline, std::string_view what);

 private:
  Device device_;
  CuStream stream_ = nullptr;
  bool owned_ = false;
};

// *thread-compatible*.
class Event {
 public:
  // `timed`: for Event::seconds, and not for other processes.
  static Result<Event> make(const Device& device, bool timed = false);
  Event() = default;
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  CuEvent raw() const { return event_; }
  Status record(Stream& stream);
  Status hold(Stream& stream);  // later work of `stream` runs behind what was recorded
  Result<double> seconds_since(const Event& earlier) const;  // both ran

 private:
  Device device_;
  CuEvent event_ = nullptr;
};

// Kernels as they travel in the library: code for GPUs (empty where no nvcc was found at build time) and the functions
// that the host double runs.
struct KernelImage {
  std::string_view name;
  std::span<const std::byte> fatbin;
  std::span<const grid::Emulated> kernels;
};

// The code that cmake/device_code.cmake built for a room, in the room's device_image.cpp; empty without nvcc.
#if defined(REFIT_DEVICE_CODE_FILE)
#define REFIT_DEVICE_CODE(room)                                                                                \
  asm(".pushsection .rodata, \"a\"\n.balign 64\nrefit_" #room "_code:\n.incbin \"" REFIT_DEVICE_CODE_FILE             \
      "\"\nrefit_" #room "_code_end:\n.popsection");                                                            \
  extern "C" __attribute__((visibility("hidden"))) const std::byte refit_##room##_code[], refit_##room##_code_end[]; \
  static std::span<const std::byte> device_code() { return {refit_##room##_code, refit_##room##_code_end}; }
#else
#define REFIT_DEVICE_CODE(room) \
  static std::span<const std::byte> device_code() { return {}; }
#endif

// A loaded image. Launches queue and return; the parameters are copied. *thread-safe* once loaded.
class Module {
 public:
  // Errors: kUnsupported where the image has no code for this device, or none at all.
  static Result<Module> load(const Device& device, const KernelImage& image);
  Module() = default;
  ~Module();
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;

  template <typename Kernel>
  Status launch(Stream& stream, std::int64_t blocks, const typename Kernel::Params& params) const {
    return launch_raw(stream, Kernel::kName, blocks, &params, sizeof params);
  }

 private:
  Status launch_raw(Stream& stream, std::string_view kernel, std::int64_t blocks, const void* params,
                    std::size_t param_bytes) const;
  Device device_;
  CuModule module_ = nullptr;
  std::span<const grid::Emulated> kernels_;
  std::vector<CuFunction> functions_;  // as kernels_
};

// Memory of a device as another process can open it: plain fields, no pointers. `fd` says that a descriptor travels
// beside them (memory of the virtual memory functions, such as torch's expandable segments).
struct DeviceHandle {
  CuUuid device{};
  bool fd = false;
  CuIpcHandle ipc{};
  std::int64_t allocation_bytes = 0;  // of the whole allocation
  std::int64_t offset = 0, bytes = 0;  // the lent part in it
};
struct ExportedMemory {
  DeviceHandle handle;
  Fd fd;  // valid where handle.fd
};
// One handle a region; the same allocation gives the same handle. Errors: kUnsupported for memory that the driver
// cannot share, naming the allocator's setting.
Result<ExportedMemory> export_memory(const Device& device, CuPtr at, std::int64_t bytes);

// A peer's memory, mapped until it is dropped. Its owner must not free it before. *thread-compatible*.
class ImportedMemory {
 public:
  // Opens on the device of that UUID. Errors: kMismatch (no such device here), kCorrupt (offsets beyond the allocation,
  // or a descriptor where none belongs), kPeerLost (the owner is gone).
  static Result<ImportedMemory> open(const CudaApi& api, const DeviceHandle& handle, Fd fd);
  ImportedMemory() = default;
  ~ImportedMemory();
  ImportedMemory(ImportedMemory&&) noexcept;
  ImportedMemory& operator=(ImportedMemory&&) noexcept;
  CuPtr at() const { return base_ + static_cast<CuPtr>(offset_); }
  std::byte* data() const { return reinterpret_cast<std::byte*>(at()); }
  std::int64_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }

 private:
  void close();
  Device device_;
  CuPtr base_ = 0;
  std::int64_t offset_ = 0, bytes_ = 0, mapped_ = 0;  // mapped_: where virtual memory was mapped
  CuAllocation allocation_ = 0;
};

}  // namespace refit::memory
