// The end of a process that has used the library. With an agent alive it crashes in the exit handlers of NIXL or UCX;
// and the destructors of the wheel's libnl-route crash where the system's is loaded beside it, with or without agents.
#pragma once
#include <functional>
#include <string>

namespace refit::transport::nixl {

// What ends the agents of `owner`, called at exit unless forgotten before. *thread-safe*.
void end_at_exit(const void* owner, std::function<void()> end);
void forget_at_exit(const void* owner);
// After an agent with this backend was made. From now on a process that calls exit() ends its agents before the
// plugin's handlers run (they run latest first, and the plugin has just brought its own), and leaves when its own exit
// handlers are through, with the status it has: destructors of shared libraries do not run.
void arm_at_exit(const std::string& backend);

}  // namespace refit::transport::nixl
