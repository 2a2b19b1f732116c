#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "cli/doctor/finding.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

// Stays loaded: several of these libraries do not survive being unloaded.
void* load(std::initializer_list<const char*> names, std::string& which) {
  for (const char* name : names)
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      which = name;
      return handle;
    }
  return nullptr;
}
template <typename F>
F* symbol(void* handle, const char* name) {
  return reinterpret_cast<F*>(::dlsym(handle, name));
}

std::string use_of(const char* mover) {
  const std::vector<std::string> built = transport::mover_names();
  return std::find(built.begin(), built.end(), mover) != built.end()
             ? "transport: " + std::string(mover)
             : "transport: " + std::string(mover) + ", which this build does not have";
}

Finding cuda() {
  std::string which;
  void* h = load({"libcuda.so.1"}, which);
  Finding f{"cuda", false, "no driver (libcuda.so.1)", use_of("cuda_ipc"),
            "install NVIDIA's driver, or run on hosts' memory"};
  if (h == nullptr) return f;
  auto* init = symbol<int(unsigned)>(h, "cuInit");
  auto* version = symbol<int(int*)>(h, "cuDriverGetVersion");
  auto* count = symbol<int(int*)>(h, "cuDeviceGetCount");
  int v = 0, n = 0;
  if (init == nullptr || version == nullptr || count == nullptr)
    return f.found = "libcuda.so.1 without its functions", f;
  if (const int code = init(0); code != 0)
    return f.found = fmt::format("a driver that does not start (cuInit: {})", code), f.todo = "see nvidia-smi", f;
  version(&v);
  if (count(&n) != 0 || n == 0)
    return f.found = fmt::format("driver for CUDA {}.{}, no device", v / 1000, v % 1000 / 10), f;
  f.works = true;
  f.todo.clear();
  f.found = fmt::format("driver for CUDA {}.{}, {} device{}", v / 1000, v % 1000 / 10, n, n == 1 ? "" : "s");
  return f;
}

Finding nccl() {
  std::string which;
  void* h = load({"libnccl.so.2"}, which);
  Finding f{"nccl", false, "no libnccl.so.2 in the loader's path", use_of("nccl"),
            "pip install nvidia-nccl-cu12 and put its lib in LD_LIBRARY_PATH: the engine's own version"};
  auto* version = h == nullptr ? nullptr : symbol<int(int*)>(h, "ncclGetVersion");
  int v = 0;
  if (version == nullptr || version(&v) != 0) return f;
  return {"nccl", true, fmt::format("NCCL {}.{}.{}", v / 10000, v % 10000 / 100, v % 100), f.needed, ""};
}

Finding ucx() {
  std::string which;
  void* h = load({"libucp.so.0"}, which);
  Finding f{"ucx", false, "no libucp.so.0 in the loader's path", "NIXL's network",
            "NIXL's wheel brings its own; nothing to do"};
  auto* version = h == nullptr ? nullptr : symbol<void(unsigned*, unsigned*, unsigned*)>(h, "ucp_get_version");
  if (version == nullptr) return f;
  unsigned a = 0, b = 0, c = 0;
  version(&a, &b, &c);
  f.found = fmt::format("UCX {}.{}.{}", a, b, c);
  f.works = a > 1 || b > 13;
  f.todo = f.works ? "" : "1.13 and older do not tell of a dead peer over shared memory: take a newer one";
  return f;
}

}  // namespace

Findings look_for_vendors() { return {cuda(), nccl(), ucx()}; }

}  // namespace refit::cli
