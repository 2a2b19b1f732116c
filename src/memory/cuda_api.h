// The CUDA driver's functions that Refit uses, as a table of our own declarations: no header and no library of CUDA is
// needed to build. tests/unit/memory compares sizes and layouts with cuda.h where there is one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/core.h"

namespace refit::memory {

using CuResult = int;
using CuDevice = int;
using CuPtr = unsigned long long;  // an address on a device
using CuContext = struct CuContextBody*;
using CuStream = struct CuStreamBody*;  // null: the legacy default stream
using CuEvent = struct CuEventBody*;
using CuModule = struct CuModuleBody*;
using CuFunction = struct CuFunctionBody*;
using CuAllocation = unsigned long long;  // physical memory of the virtual memory functions

struct CuUuid {
  unsigned char bytes[16];
};
struct CuIpcHandle {
  unsigned char bytes[64];
};
struct CuLocation {
  int type = 1;  // device
  int id = 0;
};
struct CuAllocationProperties {
  int type = 1;  // pinned
  int handle_types = 0;
  CuLocation location;
  void* unused = nullptr;
  unsigned char compression = 0, gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct CuAccess {
  CuLocation location;
  int flags = 3;  // read and write
};

// Values of cuda.h that we pass or compare.
inline constexpr CuResult kCuOk = 0, kCuInvalidValue = 1, kCuOutOfMemory = 2, kCuNoDevice = 100, kCuInvalidContext = 201,
                          kCuMapFailed = 205, kCuNoBinary = 209, kCuInvalidHandle = 400, kCuNotFound = 500,
                          kCuNotReady = 600, kCuNotSupported = 801;
inline constexpr int kCuComputeMajor = 75, kCuComputeMinor = 76;           // device attributes
inline constexpr int kCuLegacyIpcCapable = 10, kCuAllowedHandleTypes = 14;  // pointer attributes
inline constexpr int kCuHandleFd = 1;
inline constexpr unsigned kCuStreamNonBlocking = 1, kCuEventNoTiming = 2, kCuEventInterprocess = 4, kCuIpcLazyPeer = 1;

struct CudaApi {
  const char* name = "";   // "cuda" or "cuda_host_double": stands in every message
  bool is_double = false;  // kernels are then functions of this process

  CuResult (*init)(unsigned) = nullptr;
  CuResult (*driver_version)(int*) = nullptr;
  CuResult (*error_name)(CuResult, const char**) = nullptr;
  CuResult (*device_count)(int*) = nullptr;
  CuResult (*device_get)(CuDevice*, int ordinal) = nullptr;
  CuResult (*device_name)(char*, int, CuDevice) = nullptr;
  CuResult (*device_uuid)(CuUuid*, CuDevice) = nullptr;
  CuResult (*device_attribute)(int*, int attribute, CuDevice) = nullptr;
  CuResult (*context_retain)(CuContext*, CuDevice) = nullptr;
  CuResult (*context_release)(CuDevice) = nullptr;
  CuResult (*context_push)(CuContext) = nullptr;
  CuResult (*context_pop)(CuContext*) = nullptr;

  CuResult (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  CuResult (*memory_alloc)(CuPtr*, std::size_t) = nullptr;
  CuResult (*memory_free)(CuPtr) = nullptr;
  CuResult (*host_alloc)(void**, std::size_t, unsigned flags) = nullptr;
  CuResult (*host_free)(void*) = nullptr;
  CuResult (*copy_async)(CuPtr dst, CuPtr src, std::size_t, CuStream) = nullptr;
  CuResult (*fill_async)(CuPtr dst, unsigned char, std::size_t, CuStream) = nullptr;

  CuResult (*stream_create)(CuStream*, unsigned flags) = nullptr;
  CuResult (*stream_destroy)(CuStream) = nullptr;
  CuResult (*stream_query)(CuStream) = nullptr;
  CuResult (*stream_synchronize)(CuStream) = nullptr;
  CuResult (*stream_wait)(CuStream, CuEvent, unsigned flags) = nullptr;
  CuResult (*event_create)(CuEvent*, unsigned flags) = nullptr;
  CuResult (*event_destroy)(CuEvent) = nullptr;
  CuResult (*event_record)(CuEvent, CuStream) = nullptr;
  CuResult (*event_query)(CuEvent) = nullptr;
  CuResult (*event_synchronize)(CuEvent) = nullptr;
  CuResult (*event_elapsed)(float* ms, CuEvent from, CuEvent to) = nullptr;

  CuResult (*module_load)(CuModule*, const void* image) = nullptr;
  CuResult (*module_unload)(CuModule) = nullptr;
  CuResult (*module_function)(CuFunction*, CuModule, const char* name) = nullptr;
  CuResult (*launch)(CuFunction, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared_bytes, CuStream, void** params, void** extra) = nullptr;

  CuResult (*address_range)(CuPtr* base, std::size_t* bytes, CuPtr) = nullptr;
  CuResult (*pointer_attribute)(void* out, int attribute, CuPtr) = nullptr;
  CuResult (*ipc_get)(CuIpcHandle*, CuPtr) = nullptr;
  CuResult (*ipc_open)(CuPtr*, CuIpcHandle, unsigned flags) = nullptr;
  CuResult (*ipc_close)(CuPtr) = nullptr;
  CuResult (*ipc_event_get)(CuIpcHandle*, CuEvent) = nullptr;
  CuResult (*ipc_event_open)(CuEvent*, CuIpcHandle) = nullptr;

  CuResult (*vmm_granularity)(std::size_t*, const CuAllocationProperties*, int option) = nullptr;
  CuResult (*vmm_reserve)(CuPtr*, std::size_t, std::size_t align, CuPtr at, unsigned long long flags) = nullptr;
  CuResult (*vmm_unreserve)(CuPtr, std::size_t) = nullptr;
  CuResult (*vmm_create)(CuAllocation*, std::size_t, const CuAllocationProperties*, unsigned long long flags) = nullptr;
  CuResult (*vmm_release)(CuAllocation) = nullptr;
  CuResult (*vmm_retain)(CuAllocation*, void* address) = nullptr;
  CuResult (*vmm_map)(CuPtr, std::size_t, std::size_t offset, CuAllocation, unsigned long long flags) = nullptr;
  CuResult (*vmm_unmap)(CuPtr, std::size_t) = nullptr;
  CuResult (*vmm_access)(CuPtr, std::size_t, const CuAccess*, std::size_t count) = nullptr;
  CuResult (*vmm_export)(void* fd, CuAllocation, int type, unsigned long long flags) = nullptr;
  CuResult (*vmm_import)(CuAllocation*, void* fd, int type) = nullptr;
};

// libcuda.so.1, loaded and initialised once. Errors: kUnsupported "no CUDA driver" (no such library), or naming the
// missing function, or what the driver said.
Result<const CudaApi*> cuda_driver();

// Plays two devices in this machine's memory: memory that other processes can open, streams that run nothing before
// somebody waits, contexts that must be current, kernels walked by the CPU. It has no event between processes.
const CudaApi& cuda_host_double();

}  // namespace refit::memory
