#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "cli/doctor/finding.h"
#include "cli/layouts.h"
#include "memory/memory.h"

namespace refit::cli {
namespace {

constexpr rlim_t kDescriptors = 4096;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string limit_text(rlim_t v) {
  return v == RLIM_INFINITY ? "unlimited" : human_bytes(static_cast<std::int64_t>(v));
}

Finding shared_memory(Env& env, std::int64_t bytes) {
  memory::Budget budget(2 * bytes);
  const auto region = memory::SharedRegion::make(env, bytes, &budget, "doctor");
  std::string found = human_bytes(bytes) + " of shared memory made and touched";
  struct statvfs s {};
  if (::statvfs("/dev/shm", &s) == 0)
    found += fmt::format("; /dev/shm {} of {} free", human_bytes(static_cast<std::int64_t>(s.f_bavail * s.f_frsize)),
                         human_bytes(static_cast<std::int64_t>(s.f_blocks * s.f_frsize)));
  return finding("shared-memory", region.ok() ? Status{} : Status(region.error()), found,
                 "transport: shm, snapshots (memfd; torch and NCCL use /dev/shm)",
                 "raise the container's memory limit; in Kubernetes mount an emptyDir with medium: Memory at /dev/shm");
}

Finding memlock() {
  rlimit r{};
  ::getrlimit(RLIMIT_MEMLOCK, &r);
  const bool enough = r.rlim_cur == RLIM_INFINITY;
  return {"memlock", enough, "limit " + limit_text(r.rlim_cur), "unlimited, where RDMA registers memory (NIXL, UCX)",
          enough ? "" : "ulimit -l unlimited (docker: --ulimit memlock=-1); shm, tcp and zmq do without"};
}

Finding descriptors() {
  rlimit r{};
  ::getrlimit(RLIMIT_NOFILE, &r);
  const bool enough = r.rlim_cur >= kDescriptors;
  return {"descriptors", enough, fmt::format("limit {}", r.rlim_cur),
          fmt::format("{}: a coordinator with many members, tcp with many peers", kDescriptors),
          enough ? "" : fmt::format("ulimit -n {}", kDescriptors)};
}

// A child reads its parent's memory, as one rank of a host would another's that is no child of it.
Finding peer_memory(const std::string& root) {
  static const std::uint64_t secret = 0x5eed5eed5eed5eed;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    std::uint64_t copy = 0;
    const iovec mine{&copy, sizeof copy}, theirs{const_cast<std::uint64_t*>(&secret), sizeof secret};
    ::_exit(::process_vm_readv(parent, &mine, 1, &theirs, 1, 0) == sizeof copy && copy == secret ? 0 : 1);
  }
  int status = 0;
  const bool works =
      child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const std::string scope = first_line(root + "/proc/sys/kernel/yama/ptrace_scope");
  return {"peer-memory", works,
          std::string(works ? "processes may read each other's memory" : "refused by the kernel") +
              (scope.empty() ? "" : ", ptrace_scope " + scope),
          "UCX (cma) and CUDA IPC over descriptors; Refit's shm passes descriptors and does without",
          works ? "" : "kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE; in Kubernetes shareProcessNamespace"};
}

Finding huge_pages(const std::string& root) {
  const std::string mode = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const bool on = mode.find("[always]") != std::string::npos || mode.find("[madvise]") != std::string::npos;
  return {"hugepages", on, mode.empty() ? "this kernel says nothing of transparent huge pages" : mode,
          "arenas ask for huge pages: fewer page faults on first touch",
          on ? "" : "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; it works without, slower"};
}

struct Interface {
  std::vector<std::string> addresses;
  bool up = false, loopback = false;
};

std::string address_text(const sockaddr* a) {
  char text[INET6_ADDRSTRLEN] = {};
  if (a->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(a)->sin_addr, text, sizeof text);
  else if (a->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr))
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr, text, sizeof text);
  return text;
}

std::map<std::string, Interface> interfaces() {
  std::map<std::string, Interface> out;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return out;
  for (const ifaddrs* a = all; a != nullptr; a = a->ifa_next) {
    Interface& i = out[a->ifa_name];
    i.up = (a->ifa_flags & IFF_UP) != 0;
    i.loopback = (a->ifa_flags & IFF_LOOPBACK) != 0;
    if (a->ifa_addr == nullptr) continue;
    if (std::string text = address_text(a->ifa_addr); !text.empty()) i.addresses.push_back(std::move(text));
  }
  ::freeifaddrs(all);
  return out;
}

Finding network(const HostQuestions& q) {
  std::string found;
  bool reachable = false, mine = false;
  for (const auto& [name, i] : interfaces()) {
    for (const std::string& a : i.addresses) mine = mine || a == q.advertise;
    if (!i.up || i.loopback || i.addresses.empty()) continue;
    reachable = true;
    const std::string speed = first_line(q.root + "/sys/class/net/" + name + "/speed");
    found += (found.empty() ? "" : "; ") + name;
    if (!speed.empty() && speed[0] != '-') found += " " + speed + " Mb/s";
    for (const std::string& a : i.addresses) found += " " + a;
  }
  if (found.empty()) found = "loopback only";
  if (q.advertise.empty())
    return {"network", reachable, found, "tcp between hosts: an address for refit.advertise_address",
            reachable ? "" : "jobs on this host alone; nothing to do for those"};
  return {
      "network", mine, found, "refit.advertise_address " + q.advertise + " on this host",
      mine ? "" : "give an address of this host (with address translation in between, listening there does not work)"};
}

}  // namespace

Findings look_at_host(Env& env, const HostQuestions& q) {
  return {
      shared_memory(env, q.shm_bytes), memlock(), descriptors(), peer_memory(q.root), huge_pages(q.root), network(q)};
}

}  // namespace refit::cli
