// What movers share of the operating system: wake-ups, named threads, the runtime directory and its sockets.
#pragma once
#include <functional>
#include <string>
#include <thread>

#include "transport/transport.h"

namespace refit::transport {

// An eventfd: any thread raises it, one loop waits on it. *thread-safe*.
class Wake {
 public:
  static Result<Wake> make();
  void raise() const;
  void lower() const;
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

// Why a wait ended.
enum class Ready : std::uint8_t { kData, kWoken, kTimeout };
// Waits until `fd` is readable or hung up (-1: no descriptor), or `wake` is raised, or the deadline.
Ready wait_readable(int fd, const Wake& wake, Deadline deadline);

// A thread with a name (≤ 15 characters). kExhausted when the system has none left.
Result<std::thread> start_thread(const char* name, std::function<void()> body);

// kInvalid unless `dir` is a directory of ours that nobody else may enter.
Status check_private_dir(const std::string& dir);
// The path of an "ipc:///…" address. kUnsupported for tcp (it has no path, and needs keys), kInvalid for anything else.
Result<std::string> control_path(const std::string& address);
// Listens at `path` inside a private directory. Starters and sweepers take turns by a lock on the directory: a socket
// that is bound but does not listen yet looks dead.
Result<Fd> listen_in(Env& env, const std::string& path);
// Removes sockets (*.sock) in `dir` that nobody listens on. Other files stay.
void sweep_dead_sockets(const std::string& dir);

}  // namespace refit::transport
