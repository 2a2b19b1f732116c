// Our declarations of the driver's functions against cuda.h, where there is one: sizes, layouts, constants, shapes.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "memory/memory.h"

namespace refit::memory {
namespace {

static_assert(sizeof(CuUuid) == sizeof(CUuuid) && sizeof(CuIpcHandle) == sizeof(CUipcMemHandle) &&
              sizeof(CuIpcHandle) == sizeof(CUipcEventHandle));
static_assert(sizeof(CuAllocationProperties) == sizeof(CUmemAllocationProp) && sizeof(CuAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(CuAllocationProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes) &&
              offsetof(CuAllocationProperties, location) == offsetof(CUmemAllocationProp, location) &&
              offsetof(CuAllocationProperties, unused) == offsetof(CUmemAllocationProp, win32HandleMetaData) &&
              offsetof(CuAllocationProperties, compression) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(CuLocation{}.type == CU_MEM_LOCATION_TYPE_DEVICE && CuAllocationProperties{}.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
              CuAccess{}.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && kCuHandleFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kCuOk == CUDA_SUCCESS && kCuInvalidValue == CUDA_ERROR_INVALID_VALUE && kCuOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              kCuNoDevice == CUDA_ERROR_NO_DEVICE && kCuInvalidContext == CUDA_ERROR_INVALID_CONTEXT &&
              kCuMapFailed == CUDA_ERROR_MAP_FAILED && kCuNoBinary == CUDA_ERROR_NO_BINARY_FOR_GPU &&
              kCuInvalidHandle == CUDA_ERROR_INVALID_HANDLE && kCuNotFound == CUDA_ERROR_NOT_FOUND &&
              kCuNotReady == CUDA_ERROR_NOT_READY && kCuNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kCuComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
              kCuComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
              kCuLegacyIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
              kCuAllowedHandleTypes == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES &&
              kCuStreamNonBlocking == CU_STREAM_NON_BLOCKING && kCuEventNoTiming == CU_EVENT_DISABLE_TIMING &&
              kCuEventInterprocess == CU_EVENT_INTERPROCESS && kCuIpcLazyPeer == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

// The same number of parameters, each passed in the same way.
template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename... A, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<CuResult (*)(A...), CUresult(B...)>
    : std::bool_constant<((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                           std::is_class_v<A> == std::is_class_v<B>)&&...)> {};
#define REFIT_ALIKE(field, function) \
  static_assert(Alike<decltype(CudaApi::field), decltype(function)>::value, #function)
REFIT_ALIKE(init, cuInit);
REFIT_ALIKE(driver_version, cuDriverGetVersion);
REFIT_ALIKE(error_name, cuGetErrorName);
REFIT_ALIKE(device_count, cuDeviceGetCount);
REFIT_ALIKE(device_get, cuDeviceGet);
REFIT_ALIKE(device_name, cuDeviceGetName);
REFIT_ALIKE(device_uuid, cuDeviceGetUuid);
REFIT_ALIKE(device_attribute, cuDeviceGetAttribute);
REFIT_ALIKE(context_retain, cuDevicePrimaryCtxRetain);
REFIT_ALIKE(context_release, cuDevicePrimaryCtxRelease);
REFIT_ALIKE(context_push, cuCtxPushCurrent);
REFIT_ALIKE(context_pop, cuCtxPopCurrent);
REFIT_ALIKE(memory_info, cuMemGetInfo);
REFIT_ALIKE(memory_alloc, cuMemAlloc);
REFIT_ALIKE(memory_free, cuMemFree);
REFIT_ALIKE(host_alloc, cuMemHostAlloc);
REFIT_ALIKE(host_free, cuMemFreeHost);
REFIT_ALIKE(copy_async, cuMemcpyAsync);
REFIT_ALIKE(fill_async, cuMemsetD8Async);
REFIT_ALIKE(stream_create, cuStreamCreate);
REFIT_ALIKE(stream_destroy, cuStreamDestroy);
REFIT_ALIKE(stream_query, cuStreamQuery);
REFIT_ALIKE(stream_synchronize, cuStreamSynchronize);
REFIT_ALIKE(stream_wait, cuStreamWaitEvent);
REFIT_ALIKE(event_create, cuEventCreate);
REFIT_ALIKE(event_destroy, cuEventDestroy);
REFIT_ALIKE(event_record, cuEventRecord);
REFIT_ALIKE(event_query, cuEventQuery);
REFIT_ALIKE(event_synchronize, cuEventSynchronize);
REFIT_ALIKE(event_elapsed, cuEventElapsedTime);
REFIT_ALIKE(module_load, cuModuleLoadData);
REFIT_ALIKE(module_unload, cuModuleUnload);
REFIT_ALIKE(module_function, cuModuleGetFunction);
REFIT_ALIKE(launch, cuLaunchKernel);
REFIT_ALIKE(address_range, cuMemGetAddressRange);
REFIT_ALIKE(pointer_attribute, cuPointerGetAttribute);
REFIT_ALIKE(ipc_get, cuIpcGetMemHandle);
REFIT_ALIKE(ipc_open, cuIpcOpenMemHandle);
REFIT_ALIKE(ipc_close, cuIpcCloseMemHandle);
REFIT_ALIKE(ipc_event_get, cuIpcGetEventHandle);
REFIT_ALIKE(ipc_event_open, cuIpcOpenEventHandle);
REFIT_ALIKE(vmm_reserve, cuMemAddressReserve);
REFIT_ALIKE(vmm_unreserve, cuMemAddressFree);
REFIT_ALIKE(vmm_create, cuMemCreate);
REFIT_ALIKE(vmm_release, cuMemRelease);
REFIT_ALIKE(vmm_retain, cuMemRetainAllocationHandle);
REFIT_ALIKE(vmm_map, cuMemMap);
REFIT_ALIKE(vmm_unmap, cuMemUnmap);
REFIT_ALIKE(vmm_access, cuMemSetAccess);
REFIT_ALIKE(vmm_export, cuMemExportToShareableHandle);
REFIT_ALIKE(vmm_import, cuMemImportFromShareableHandle);
// Sizes only: an enumeration by value.
REFIT_ALIKE(vmm_granularity, cuMemGetAllocationGranularity);

TEST(CudaAbi, EqualsTheHeader) { SUCCEED() << "checked by the compiler"; }

}  // namespace
}  // namespace refit::memory
