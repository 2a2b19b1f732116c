// The part of NIXL's C interface that is used here, as a table of functions: filled from libnixl_capi.so at run time,
// or by the host double. Our own declarations; the library ships none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/core.h"

namespace refit::transport::nixl {

using Handle = void*;  // every object of the library is an opaque pointer

inline constexpr int kOk = 0, kInProgress = 1;  // anything else is an error
inline constexpr int kDram = 0;                 // memory types
inline constexpr int kReadOperation = 0;

// name, parameters; all return a status.
#define REFIT_NIXL_CALLS(X)                                                                                         \
  X(create_agent, (const char* name, Handle* agent))                                                                \
  X(destroy_agent, (Handle agent))                                                                                  \
  X(get_plugin_params, (Handle agent, const char* plugin, Handle* kinds, Handle* params))                           \
  X(params_add, (Handle params, const char* key, const char* value))                                                \
  X(destroy_params, (Handle params))                                                                                \
  X(destroy_mem_list, (Handle kinds))                                                                               \
  X(create_backend, (Handle agent, const char* plugin, Handle params, Handle* backend))                             \
  X(destroy_backend, (Handle backend))                                                                              \
  X(create_opt_args, (Handle * args))                                                                               \
  X(destroy_opt_args, (Handle args))                                                                                \
  X(opt_args_add_backend, (Handle args, Handle backend))                                                            \
  X(create_reg_dlist, (int kind, Handle* list))                                                                     \
  X(destroy_reg_dlist, (Handle list))                                                                               \
  X(reg_dlist_add_desc, (Handle list, std::uintptr_t at, std::size_t bytes, std::uint64_t device, const void* meta, \
                         std::size_t meta_bytes))                                                                   \
  X(register_mem, (Handle agent, Handle list, Handle args))                                                         \
  X(deregister_mem, (Handle agent, Handle list, Handle args))                                                       \
  X(get_local_md, (Handle agent, void** data, std::size_t* bytes))                                                  \
  X(load_remote_md, (Handle agent, const void* data, std::size_t bytes, char** name))                               \
  X(invalidate_remote_md, (Handle agent, const char* name))                                                         \
  X(create_xfer_dlist, (int kind, Handle* list))                                                                    \
  X(destroy_xfer_dlist, (Handle list))                                                                              \
  X(xfer_dlist_add_desc, (Handle list, std::uintptr_t at, std::size_t bytes, std::uint64_t device))                 \
  X(create_xfer_req,                                                                                                \
    (Handle agent, int operation, Handle local, Handle remote, const char* peer, Handle* request, Handle args))     \
  X(post_xfer_req, (Handle agent, Handle request, Handle args))                                                     \
  X(get_xfer_status, (Handle agent, Handle request))                                                                \
  X(release_xfer_req, (Handle agent, Handle request))                                                               \
  X(destroy_xfer_req, (Handle request))

struct Api {
#define REFIT_NIXL_MEMBER(name, parameters) int(*name) parameters = nullptr;
  REFIT_NIXL_CALLS(REFIT_NIXL_MEMBER)
#undef REFIT_NIXL_MEMBER
  std::string from;              // the path it was loaded from, for errors
  int agent_threads = 0;         // that the library runs for each agent
  bool crashes_at_exit = false;  // at_exit.h
};

// Loaded once per path and never unloaded: its threads and exit handlers outlive every agent. `library` empty: the
// search of README.md. kUnsupported where it is not found, saying what to install, or lacks a function.
Result<const Api*> real_api(const std::string& library);

// nixl_host_double: agents that read each other's memory inside this process, with the library's rules (a range must
// lie in a registered region, an agent that is gone fails the read, a read is done some polls after it was posted).
const Api& host_double();
// What of the double is alive, for tests.
struct DoubleCounts {
  std::size_t agents = 0, regions = 0, requests = 0;
};
DoubleCounts double_counts();
// Reads that are posted from now on never end, as those of a peer that stands still.
void double_stalls(bool yes);

}  // namespace refit::transport::nixl
