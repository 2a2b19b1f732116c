// Device memory between processes: the driver's IPC handles, or descriptors of virtual memory.
#include <utility>

#include "memory/device.h"

namespace refit::memory {
namespace {

Status export_fd(const Device& device, CuPtr at, ExportedMemory& out) {
  const CudaApi& api = device.api();
  unsigned long long allowed = 0;
  REFIT_TRY(device.call("allowed handle types", api.pointer_attribute, static_cast<void*>(&allowed),
                        kCuAllowedHandleTypes, at));
  if ((allowed & kCuHandleFd) == 0)
    return Error(Code::kUnsupported,
                 std::string(api.name) +
                     ": this memory cannot be shared with other processes. It comes from an allocator of virtual "
                     "memory that did not ask for shareable pages (PyTorch: leave expandable_segments:True out of "
                     "PYTORCH_CUDA_ALLOC_CONF), or from a pool");
  CuAllocation allocation = 0;
  REFIT_TRY(device.call("allocation handle", api.vmm_retain, &allocation, reinterpret_cast<void*>(at)));
  int fd = -1;
  const auto got = device.call("export as a descriptor", api.vmm_export, static_cast<void*>(&fd), allocation,
                               kCuHandleFd, 0ULL);
  (void)device.call("release", api.vmm_release, allocation);
  if (!got.ok()) return got;
  out.fd = Fd(fd);
  out.handle.fd = true;
  return {};
}

}  // namespace

Result<ExportedMemory> export_memory(const Device& device, CuPtr at, std::int64_t bytes) {
  const CudaApi& api = device.api();
  CuPtr base = 0;
  std::size_t size = 0;
  REFIT_TRY(device.call("address range", api.address_range, &base, &size, at));
  ExportedMemory out;
  out.handle.device = device.uuid();
  out.handle.allocation_bytes = static_cast<std::int64_t>(size);
  out.handle.offset = static_cast<std::int64_t>(at - base);
  out.handle.bytes = bytes;
  if (bytes < 0 || out.handle.offset > out.handle.allocation_bytes - bytes)
    return Error(Code::kInvalid, std::string(api.name) +
                                     ": the region reaches beyond its allocation; memory that consists of several "
                                     "physical allocations is exported one by one")
        .amounts(out.handle.offset + bytes, out.handle.allocation_bytes);
  int legacy = 0;
  REFIT_TRY(device.call("IPC attribute", api.pointer_attribute, static_cast<void*>(&legacy), kCuLegacyIpcCapable, at));
  if (legacy != 0) {
    REFIT_TRY(device.call("IPC handle", api.ipc_get, &out.handle.ipc, base));
  } else {
    REFIT_TRY(export_fd(device, at, out));
  }
  return out;
}

Result<ImportedMemory> ImportedMemory::open(const CudaApi& api, const DeviceHandle& h, Fd fd) {
  if (h.offset < 0 || h.bytes < 0 || h.allocation_bytes < h.bytes || h.offset > h.allocation_bytes - h.bytes)
    return Error(Code::kCorrupt, std::string(api.name) + ": a handle that reaches beyond its allocation")
        .amounts(h.bytes, h.allocation_bytes);
  if (h.fd != fd.valid()) return Error(Code::kCorrupt, std::string(api.name) + ": handle and descriptor disagree");
  ImportedMemory out;
  REFIT_ASSIGN(out.device_, Device::find(api, h.device));
  out.offset_ = h.offset;
  out.bytes_ = h.bytes;
  const Device& device = out.device_;
  if (!h.fd) {
    const Device::Scope current(device);
    REFIT_TRY(current.status("open of an IPC handle"));
    const CuResult r = api.ipc_open(&out.base_, h.ipc, kCuIpcLazyPeer);
    if (r == kCuMapFailed || r == kCuInvalidHandle)
      return Error(Code::kPeerLost, std::string(api.name) + ": the peer's memory is gone (IPC handle)");
    REFIT_TRY(cuda_status(api, r, "open of an IPC handle (never in the process that made it)"));
    return out;
  }
  const auto size = static_cast<std::size_t>(h.allocation_bytes);
  REFIT_TRY(device.call("import of a descriptor", api.vmm_import, &out.allocation_,
                        reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())), kCuHandleFd));
  REFIT_TRY(device.call("address space", api.vmm_reserve, &out.base_, size, std::size_t{0}, CuPtr{0}, 0ULL));
  out.mapped_ = -h.allocation_bytes;  // reserved, not mapped
  REFIT_TRY(device.call("map", api.vmm_map, out.base_, size, std::size_t{0}, out.allocation_, 0ULL));
  out.mapped_ = h.allocation_bytes;
  CuAccess access;
  access.location.id = device.ordinal();
  REFIT_TRY(device.call("access", api.vmm_access, out.base_, size, static_cast<const CuAccess*>(&access),
                        std::size_t{1}));
  return out;
}

void ImportedMemory::close() {
  if (base_ == 0 && allocation_ == 0) return;
  const CudaApi& api = device_.api();
  const auto size = static_cast<std::size_t>(mapped_ < 0 ? -mapped_ : mapped_);
  if (allocation_ == 0) (void)device_.call("close of an IPC handle", api.ipc_close, base_);
  if (mapped_ > 0) (void)device_.call("unmap", api.vmm_unmap, base_, size);
  if (mapped_ != 0) (void)device_.call("address space", api.vmm_unreserve, base_, size);
  if (allocation_ != 0) (void)device_.call("release", api.vmm_release, allocation_);
  base_ = 0;
  allocation_ = 0;
  mapped_ = 0;
}
ImportedMemory::~ImportedMemory() { close(); }
ImportedMemory::ImportedMemory(ImportedMemory&& o) noexcept
    : device_(o.device_),
      base_(std::exchange(o.base_, 0)),
      offset_(o.offset_),
      bytes_(std::exchange(o.bytes_, 0)),
      mapped_(std::exchange(o.mapped_, 0)),
      allocation_(std::exchange(o.allocation_, 0)) {}
ImportedMemory& ImportedMemory::operator=(ImportedMemory&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(base_, o.base_);
  std::swap(offset_, o.offset_);
  std::swap(bytes_, o.bytes_);
  std::swap(mapped_, o.mapped_);
  std::swap(allocation_, o.allocation_);
  return *this;
}

}  // namespace refit::memory
