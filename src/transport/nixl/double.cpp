// nixl_host_double: the library's part, played inside one process.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "transport/nixl/api.h"

namespace refit::transport::nixl {
namespace {

constexpr int kBackendError = -2;
constexpr int kPollsPerRead = 2;
constexpr const char* kMark = "nixl_host_double ";

struct Range {
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  friend auto operator<=>(const Range&, const Range&) = default;
};
struct DoubleAgent {
  std::string name;
  std::multiset<Range> regions;
  std::set<std::string> peers;  // whose metadata is loaded
};
using RangeList = std::vector<Range>;
struct DoubleRead {
  std::string peer;
  RangeList local, remote;
  int polls = 0;
  bool stalls = false;
};
struct World {
  std::mutex mutex;
  std::map<std::string, DoubleAgent*> agents;
  std::set<DoubleRead*> reads;
  std::atomic<bool> stalls{false};
};
World& world() {
  static World w;
  return w;
}
DoubleAgent& agent_of(Handle h) { return *static_cast<DoubleAgent*>(h); }
RangeList& list_of(Handle h) { return *static_cast<RangeList*>(h); }

bool known(const std::multiset<Range>& regions, const Range& r) {
  return std::any_of(regions.begin(), regions.end(), [&](const Range& g) {
    return r.at >= g.at && r.bytes <= g.bytes && r.at - g.at <= g.bytes - r.bytes;
  });
}
bool all_known(const std::multiset<Range>& regions, const RangeList& list) {
  return std::all_of(list.begin(), list.end(), [&](const Range& r) { return known(regions, r); });
}

// The peer's regions as they are now, or null when it is gone.
DoubleAgent* find_peer(const DoubleAgent& own, const std::string& name) {
  const auto found = world().agents.find(name);
  return found == world().agents.end() || !own.peers.contains(name) ? nullptr : found->second;
}

int step(const DoubleAgent& own, DoubleRead& read) {
  if (read.stalls) return kInProgress;
  const DoubleAgent* const peer = find_peer(own, read.peer);
  if (peer == nullptr || !all_known(peer->regions, read.remote) || !all_known(own.regions, read.local))
    return kBackendError;
  if (--read.polls > 0) return kInProgress;
  if (read.polls == 0)
    for (std::size_t i = 0; i < read.local.size(); ++i)
      std::memcpy(reinterpret_cast<void*>(read.local[i].at), reinterpret_cast<const void*>(read.remote[i].at),
                  read.local[i].bytes);
  read.polls = 0;
  return kOk;
}

int made(Handle* out) {
  *out = new RangeList();
  return kOk;
}
int dropped(Handle list) {
  delete &list_of(list);
  return kOk;
}
int nothing(Handle) { return kOk; }

Api build() {
  Api a;
  a.from = "nixl_host_double";
  a.create_agent = [](const char* name, Handle* out) {
    const std::lock_guard lock(world().mutex);
    auto* const agent = new DoubleAgent{name, {}, {}};
    if (!world().agents.emplace(name, agent).second) {
      delete agent;
      return kBackendError;
    }
    *out = agent;
    return kOk;
  };
  a.destroy_agent = [](Handle agent) {
    const std::lock_guard lock(world().mutex);
    world().agents.erase(agent_of(agent).name);
    delete &agent_of(agent);
    return kOk;
  };
  a.get_plugin_params = [](Handle, const char* plugin, Handle* kinds, Handle* params) {
    *kinds = *params = nullptr;
    return std::string_view(plugin) == "UCX" ? kOk : kBackendError;
  };
  a.params_add = [](Handle, const char*, const char*) { return kOk; };
  a.destroy_params = a.destroy_mem_list = a.destroy_backend = a.destroy_opt_args = nothing;
  a.create_backend = [](Handle, const char*, Handle, Handle* out) {
    *out = nullptr;
    return kOk;
  };
  a.create_opt_args = [](Handle* out) {
    *out = nullptr;
    return kOk;
  };
  a.opt_args_add_backend = [](Handle, Handle) { return kOk; };
  a.create_reg_dlist = a.create_xfer_dlist = [](int, Handle* out) { return made(out); };
  a.destroy_reg_dlist = a.destroy_xfer_dlist = dropped;
  a.reg_dlist_add_desc = [](Handle list, std::uintptr_t at, std::size_t bytes, std::uint64_t, const void*,
                            std::size_t) {
    list_of(list).push_back({at, bytes});
    return kOk;
  };
  a.xfer_dlist_add_desc = [](Handle list, std::uintptr_t at, std::size_t bytes, std::uint64_t) {
    list_of(list).push_back({at, bytes});
    return kOk;
  };
  a.register_mem = [](Handle agent, Handle list, Handle) {
    const std::lock_guard lock(world().mutex);
    agent_of(agent).regions.insert(list_of(list).begin(), list_of(list).end());
    return kOk;
  };
  a.deregister_mem = [](Handle agent, Handle list, Handle) {
    const std::lock_guard lock(world().mutex);
    for (const Range& r : list_of(list)) {
      const auto found = agent_of(agent).regions.find(r);
      if (found == agent_of(agent).regions.end()) return kBackendError;
      agent_of(agent).regions.erase(found);
    }
    return kOk;
  };
  a.get_local_md = [](Handle agent, void** data, std::size_t* bytes) {
    const std::string text = kMark + agent_of(agent).name;
    *data = std::malloc(text.size());
    std::memcpy(*data, text.data(), text.size());
    *bytes = text.size();
    return kOk;
  };
  a.load_remote_md = [](Handle agent, const void* data, std::size_t bytes, char** name) {
    const std::lock_guard lock(world().mutex);
    std::string text(static_cast<const char*>(data), bytes);
    if (!text.starts_with(kMark)) return kBackendError;
    text.erase(0, std::string_view(kMark).size());
    agent_of(agent).peers.insert(text);
    *name = ::strdup(text.c_str());
    return kOk;
  };
  a.invalidate_remote_md = [](Handle agent, const char* name) {
    const std::lock_guard lock(world().mutex);
    return agent_of(agent).peers.erase(name) == 1 ? kOk : kBackendError;
  };
  a.create_xfer_req = [](Handle agent, int, Handle local, Handle remote, const char* peer, Handle* out, Handle) {
    const std::lock_guard lock(world().mutex);
    const RangeList &to = list_of(local), &from = list_of(remote);
    const DoubleAgent* const other = find_peer(agent_of(agent), peer);
    const bool paired = to.size() == from.size() && std::equal(to.begin(), to.end(), from.begin(),
                                                               [](auto& x, auto& y) { return x.bytes == y.bytes; });
    if (other == nullptr || !paired || !all_known(agent_of(agent).regions, to) || !all_known(other->regions, from))
      return kBackendError;
    auto* const read = new DoubleRead{peer, to, from, kPollsPerRead, world().stalls.load()};
    world().reads.insert(read);
    *out = read;
    return kOk;
  };
  a.post_xfer_req = [](Handle agent, Handle request, Handle) {
    const std::lock_guard lock(world().mutex);
    return step(agent_of(agent), *static_cast<DoubleRead*>(request));
  };
  a.get_xfer_status = [](Handle agent, Handle request) {
    const std::lock_guard lock(world().mutex);
    return step(agent_of(agent), *static_cast<DoubleRead*>(request));
  };
  a.release_xfer_req = [](Handle, Handle) { return kOk; };
  a.destroy_xfer_req = [](Handle request) {
    const std::lock_guard lock(world().mutex);
    world().reads.erase(static_cast<DoubleRead*>(request));
    delete static_cast<DoubleRead*>(request);
    return kOk;
  };
  return a;
}

}  // namespace

const Api& host_double() {
  static const Api api = build();
  return api;
}

DoubleCounts double_counts() {
  const std::lock_guard lock(world().mutex);
  DoubleCounts c{world().agents.size(), 0, world().reads.size()};
  for (const auto& [name, agent] : world().agents) c.regions += agent->regions.size();
  return c;
}

void double_stalls(bool yes) { world().stalls.store(yes); }

}  // namespace refit::transport::nixl
