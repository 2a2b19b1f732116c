#include "transport/nixl/at_exit.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace refit::transport::nixl {
namespace {

struct Living {
  std::mutex mutex;
  std::map<const void*, std::pair<pid_t, std::function<void()>>> ends;
  std::set<std::string> armed;
};
Living& living() {
  static Living& l = *new Living;  // outlives every exit handler
  return l;
}

void end_all() {
  std::map<const void*, std::pair<pid_t, std::function<void()>>> ends;
  {
    const std::lock_guard lock(living().mutex);
    ends.swap(living().ends);
  }
  for (auto& [owner, end] : ends)
    if (end.first == ::getpid()) end.second();  // a forked child has none of the threads that these wait for
}

void leave(int status, void* /*unused*/) {
  {
    const std::lock_guard lock(living().mutex);
    if (living().armed.empty()) return;
  }
  end_all();
  (void)std::fflush(nullptr);
  ::_exit(status);
}
// Early, so that it runs late.
[[maybe_unused]] const int early = ::on_exit(leave, nullptr);

}  // namespace

void end_at_exit(const void* owner, std::function<void()> end) {
  const std::lock_guard lock(living().mutex);
  living().ends[owner] = {::getpid(), std::move(end)};
}

void forget_at_exit(const void* owner) {
  const std::lock_guard lock(living().mutex);
  living().ends.erase(owner);
}

void arm_at_exit(const std::string& backend) {
  {
    const std::lock_guard lock(living().mutex);
    if (!living().armed.insert(backend).second) return;
  }
  (void)std::atexit(end_all);
}

}  // namespace refit::transport::nixl
