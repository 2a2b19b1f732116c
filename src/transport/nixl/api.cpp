#include "transport/nixl/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace refit::transport::nixl {
namespace {
namespace fs = std::filesystem;

constexpr const char* kSoname = "libnixl_capi.so";
constexpr const char* kPathVariable = "REFIT_NIXL_LIBRARY";
// NIXL's progress thread and UCX's thread for asynchronous events, counted in /proc with 1.5.1.
constexpr int kAgentThreads = 2;

// Where the wheel puts it inside a Python environment: site-packages/.nixl_cu12.mesonpy.libs/.
void add_wheels(const fs::path& prefix, std::vector<std::string>& out) {
  std::error_code ignored;
  for (const auto& python : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const auto& entry : fs::directory_iterator(python.path() / "site-packages", ignored)) {
      const std::string name = entry.path().filename().string();
      const fs::path library = entry.path() / kSoname;
      if (name.starts_with(".nixl_cu") && fs::exists(library, ignored)) out.push_back(library.string());
    }
  }
}

std::vector<std::string> candidates(const std::string& library) {
  if (!library.empty()) return {library};
  if (const char* named = std::getenv(kPathVariable); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> out;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* prefix = std::getenv(variable); prefix != nullptr && *prefix == '/') add_wheels(prefix, out);
  out.emplace_back(kSoname);
  return out;
}

Result<std::unique_ptr<Api>> load(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Error(Code::kUnsupported, why != nullptr ? why : path + ": cannot be loaded");
  }
  // The wheel for machines without the library is the same interface with nothing behind it.
  if (auto* const stub = reinterpret_cast<bool (*)()>(::dlsym(handle, "nixl_capi_is_stub")); stub != nullptr && stub())
    return Error(Code::kUnsupported, path + " is a stub without NIXL behind it");
  auto api = std::make_unique<Api>();
  api->from = path;
  api->agent_threads = kAgentThreads;
  api->crashes_at_exit = true;
#define REFIT_NIXL_LOAD(name, parameters)                                                 \
  api->name = reinterpret_cast<decltype(Api::name)>(::dlsym(handle, "nixl_capi_" #name)); \
  if (api->name == nullptr) return Error(Code::kUnsupported, path + " lacks nixl_capi_" #name);
  REFIT_NIXL_CALLS(REFIT_NIXL_LOAD)
#undef REFIT_NIXL_LOAD
  return api;
}

}  // namespace

Result<const Api*> real_api(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Api>> loaded;
  const std::lock_guard lock(mutex);
  std::string tried;
  for (const std::string& path : candidates(library)) {
    if (const auto known = loaded.find(path); known != loaded.end())
      return static_cast<const Api*>(known->second.get());
    auto api = load(path);
    if (api.ok()) return static_cast<const Api*>((loaded[path] = std::move(*api)).get());
    tried += (tried.empty() ? "" : "; ") + api.error().message;
  }
  return Error(Code::kUnsupported, "NIXL is not here (" + tried +
                                       "): pip install nixl-cu12 in the Python environment that "
                                       "VIRTUAL_ENV names, or name the library in " +
                                       std::string(kPathVariable));
}

}  // namespace refit::transport::nixl
