// The driver's table, filled from libcuda.so.1.
#include <dlfcn.h>

#include "memory/cuda_api.h"

namespace refit::memory {
namespace {

template <typename Fn>
Status take(void* library, const char* symbol, Fn*& out) {
  out = reinterpret_cast<Fn*>(::dlsym(library, symbol));
  if (out != nullptr) return {};
  return Error(Code::kUnsupported, std::string("cuda: this driver is too old, it lacks ") + symbol);
}

Status fill(void* library, CudaApi& a) {
#define REFIT_TAKE(field, symbol) REFIT_TRY(take(library, symbol, a.field))
  REFIT_TAKE(init, "cuInit");
  REFIT_TAKE(driver_version, "cuDriverGetVersion");
  REFIT_TAKE(error_name, "cuGetErrorName");
  REFIT_TAKE(device_count, "cuDeviceGetCount");
  REFIT_TAKE(device_get, "cuDeviceGet");
  REFIT_TAKE(device_name, "cuDeviceGetName");
  REFIT_TAKE(device_uuid, "cuDeviceGetUuid_v2");  // of the MIG instance, where there is one
  REFIT_TAKE(device_attribute, "cuDeviceGetAttribute");
  REFIT_TAKE(context_retain, "cuDevicePrimaryCtxRetain");
  REFIT_TAKE(context_release, "cuDevicePrimaryCtxRelease_v2");
  REFIT_TAKE(context_push, "cuCtxPushCurrent_v2");
  REFIT_TAKE(context_pop, "cuCtxPopCurrent_v2");
  REFIT_TAKE(memory_info, "cuMemGetInfo_v2");
  REFIT_TAKE(memory_alloc, "cuMemAlloc_v2");
  REFIT_TAKE(memory_free, "cuMemFree_v2");
  REFIT_TAKE(host_alloc, "cuMemHostAlloc");
  REFIT_TAKE(host_free, "cuMemFreeHost");
  REFIT_TAKE(copy_async, "cuMemcpyAsync");
  REFIT_TAKE(fill_async, "cuMemsetD8Async");
  REFIT_TAKE(stream_create, "cuStreamCreate");
  REFIT_TAKE(stream_destroy, "cuStreamDestroy_v2");
  REFIT_TAKE(stream_query, "cuStreamQuery");
  REFIT_TAKE(stream_synchronize, "cuStreamSynchronize");
  REFIT_TAKE(stream_wait, "cuStreamWaitEvent");
  REFIT_TAKE(event_create, "cuEventCreate");
  REFIT_TAKE(event_destroy, "cuEventDestroy_v2");
  REFIT_TAKE(event_record, "cuEventRecord");
  REFIT_TAKE(event_query, "cuEventQuery");
  REFIT_TAKE(event_synchronize, "cuEventSynchronize");
  REFIT_TAKE(event_elapsed, "cuEventElapsedTime");
  REFIT_TAKE(module_load, "cuModuleLoadData");
  REFIT_TAKE(module_unload, "cuModuleUnload");
  REFIT_TAKE(module_function, "cuModuleGetFunction");
  REFIT_TAKE(launch, "cuLaunchKernel");
  REFIT_TAKE(address_range, "cuMemGetAddressRange_v2");
  REFIT_TAKE(pointer_attribute, "cuPointerGetAttribute");
  REFIT_TAKE(ipc_get, "cuIpcGetMemHandle");
  REFIT_TAKE(ipc_open, "cuIpcOpenMemHandle_v2");
  REFIT_TAKE(ipc_close, "cuIpcCloseMemHandle");
  REFIT_TAKE(ipc_event_get, "cuIpcGetEventHandle");
  REFIT_TAKE(ipc_event_open, "cuIpcOpenEventHandle");
  REFIT_TAKE(vmm_granularity, "cuMemGetAllocationGranularity");
  REFIT_TAKE(vmm_reserve, "cuMemAddressReserve");
  REFIT_TAKE(vmm_unreserve, "cuMemAddressFree");
  REFIT_TAKE(vmm_create, "cuMemCreate");
  REFIT_TAKE(vmm_release, "cuMemRelease");
  REFIT_TAKE(vmm_retain, "cuMemRetainAllocationHandle");
  REFIT_TAKE(vmm_map, "cuMemMap");
  REFIT_TAKE(vmm_unmap, "cuMemUnmap");
  REFIT_TAKE(vmm_access, "cuMemSetAccess");
  REFIT_TAKE(vmm_export, "cuMemExportToShareableHandle");
  REFIT_TAKE(vmm_import, "cuMemImportFromShareableHandle");
#undef REFIT_TAKE
  return {};
}

Result<CudaApi> load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // never closed: drivers do not survive that
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return Error(Code::kUnsupported, std::string("no CUDA driver: ") + (why == nullptr ? "libcuda.so.1" : why));
  }
  CudaApi api;
  api.name = "cuda";
  REFIT_TRY(fill(library, api));
  if (const CuResult r = api.init(0); r != kCuOk) {
    const char* name = nullptr;
    if (api.error_name(r, &name) != kCuOk || name == nullptr) name = "an unknown error";
    return Error(Code::kUnsupported, std::string("the CUDA driver does not start: cuInit says ") + name);
  }
  return api;
}

}  // namespace

Result<const CudaApi*> cuda_driver() {
  static const Result<CudaApi> kLoaded = load();
  if (!kLoaded.ok()) return kLoaded.error();
  return &*kLoaded;
}

}  // namespace refit::memory
