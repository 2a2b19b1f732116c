#include "transport/nixl/agent.h"

#include <cstdlib>
#include <utility>

#include "transport/nixl/at_exit.h"

namespace refit::transport::nixl {
namespace {

// An object of the library, destroyed by the call that belongs to it.
class Owned {
 public:
  explicit Owned(int (*destroy)(Handle)) : destroy_(destroy) {}
  ~Owned() {
    if (set_) (void)destroy_(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle* out() {
    set_ = true;
    return &handle_;
  }
  Handle get() const { return handle_; }

 private:
  int (*destroy_)(Handle);
  Handle handle_ = nullptr;
  bool set_ = false;
};

Error refused(const std::string& what, int status, Code code = Code::kExhausted) {
  return Error(code, "NIXL cannot " + what + " (status " + std::to_string(status) + ")");
}
std::uintptr_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

Status fill(const Api& api, Handle list, std::span<const std::byte> region) {
  const int rc = api.reg_dlist_add_desc(list, address(region.data()), region.size(), 0, nullptr, 0);
  if (rc != kOk) return refused("describe a region", rc);
  return {};
}

}  // namespace

Result<std::unique_ptr<Agent>> Agent::make(const Api& api, const std::string& name, const NixlOptions& options) {
  std::unique_ptr<Agent> agent(new Agent(api));
  if (const int rc = api.create_agent(name.c_str(), &agent->agent_); rc != kOk) {
    agent->agent_ = nullptr;
    return refused("start an agent", rc);
  }
  Owned kinds(api.destroy_mem_list), params(api.destroy_params);
  Handle found_kinds = nullptr, found_params = nullptr;
  const char* const backend = options.backend.c_str();
  if (const int rc = api.get_plugin_params(agent->agent_, backend, &found_kinds, &found_params); rc != kOk)
    return Error(Code::kUnsupported, "NIXL (" + api.from + ") has no plugin " + options.backend +
                                         ": backend_name must be one that it brings, such as UCX");
  *kinds.out() = found_kinds;  // only now: a refused call makes none
  *params.out() = found_params;
  for (const auto& [key, value] : options.params)
    if (const int rc = api.params_add(params.get(), key.c_str(), value.c_str()); rc != kOk)
      return refused("take backend_init_params." + key, rc, Code::kInvalid);
  if (const int rc = api.create_backend(agent->agent_, backend, params.get(), &agent->backend_); rc != kOk) {
    agent->backend_ = nullptr;
    return refused("start its backend " + options.backend, rc);
  }
  if (const int rc = api.create_opt_args(&agent->args_); rc != kOk) return refused("take arguments", rc);
  if (const int rc = api.opt_args_add_backend(agent->args_, agent->backend_); rc != kOk)
    return refused("choose its backend", rc);
  if (api.crashes_at_exit) arm_at_exit(options.backend);
  return agent;
}

Agent::~Agent() {
  if (args_ != nullptr) (void)api_.destroy_opt_args(args_);
  if (agent_ != nullptr) (void)api_.destroy_agent(agent_);
  if (backend_ != nullptr) (void)api_.destroy_backend(backend_);  // our handle of it; the backend went with the agent
}

Status Agent::add(std::span<const std::byte> region) {
  Owned list(api_.destroy_reg_dlist);
  if (const int rc = api_.create_reg_dlist(kDram, list.out()); rc != kOk) return refused("make a list", rc);
  REFIT_TRY(fill(api_, list.get(), region));
  if (const int rc = api_.register_mem(agent_, list.get(), args_); rc != kOk)
    return refused("register " + std::to_string(region.size()) + " bytes", rc);
  return {};
}

void Agent::drop(std::span<const std::byte> region) {
  Owned list(api_.destroy_reg_dlist);
  // What cannot be given back goes with the agent.
  if (api_.create_reg_dlist(kDram, list.out()) != kOk || !fill(api_, list.get(), region).ok()) return;
  (void)api_.deregister_mem(agent_, list.get(), args_);
}

Result<Bytes> Agent::metadata() const {
  void* data = nullptr;
  std::size_t bytes = 0;
  if (const int rc = api_.get_local_md(agent_, &data, &bytes); rc != kOk) return refused("describe its agent", rc);
  const auto* const first = static_cast<const std::byte*>(data);
  Bytes out(first, first + bytes);
  std::free(data);
  return out;
}

Result<std::string> Agent::load(std::span<const std::byte> metadata) {
  char* name = nullptr;
  if (const int rc = api_.load_remote_md(agent_, metadata.data(), metadata.size(), &name); rc != kOk)
    return refused("use the source's metadata", rc, Code::kUnsupported);
  std::string out(name);
  std::free(name);
  return out;
}

void Agent::forget(const std::string& peer) { (void)api_.invalidate_remote_md(agent_, peer.c_str()); }

Result<std::unique_ptr<Agent::Read>> Agent::read(const std::string& peer, std::span<const Part> parts) {
  Owned local(api_.destroy_xfer_dlist), remote(api_.destroy_xfer_dlist);
  if (const int rc = api_.create_xfer_dlist(kDram, local.out()); rc != kOk) return refused("make a list", rc);
  if (const int rc = api_.create_xfer_dlist(kDram, remote.out()); rc != kOk) return refused("make a list", rc);
  for (const Part& part : parts) {
    const auto bytes = static_cast<std::size_t>(part.bytes);
    if (api_.xfer_dlist_add_desc(local.get(), address(part.to), bytes, 0) != kOk ||
        api_.xfer_dlist_add_desc(remote.get(), part.from, bytes, 0) != kOk)
      return refused("list a run of bytes", kOk);
  }
  Handle request = nullptr;
  if (const int rc =
          api_.create_xfer_req(agent_, kReadOperation, local.get(), remote.get(), peer.c_str(), &request, args_);
      rc != kOk)
    return refused("read from the source", rc, Code::kPeerLost);
  auto read = std::make_unique<Read>(*this, request);
  read->status_ = api_.post_xfer_req(agent_, request, args_);
  return read;
}

Moving Agent::Read::look() {
  if (status_ == kInProgress) status_ = agent_.api_.get_xfer_status(agent_.agent_, request_);
  return status_ == kInProgress ? Moving::kYes : status_ == kOk ? Moving::kDone : Moving::kFailed;
}

Agent::Read::~Read() {
  if (agent_.api_.release_xfer_req(agent_.agent_, request_) == kOk) (void)agent_.api_.destroy_xfer_req(request_);
}

}  // namespace refit::transport::nixl
