// A process of the demo: this program again with a hidden command, steered by lines over a socket pair.
#pragma once
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::cli {

// One end of a line-based conversation. *thread-compatible*.
class LineSocket {
 public:
  explicit LineSocket(Fd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  Status send(const std::string& line);
  // kTimeout when no whole line came, kPeerLost when the other end is closed.
  Result<std::string> receive(Deadline deadline);

 private:
  Fd fd_;
  std::string pending_;
};

class Child {
 public:
  // Starts this executable with `arguments`; the child finds its end of the conversation at descriptor 3.
  // With `output` that is its standard output too.
  static Result<Child> start(const std::string& name, std::vector<std::string> arguments, bool output = false);
  Child(Child&& o) noexcept;
  Child& operator=(Child&& o) noexcept;
  ~Child();  // kills what still runs

  const std::string& name() const { return name_; }
  int pid() const { return pid_; }
  LineSocket& socket() { return socket_; }
  bool running();  // reaps
  // "exit 0", "signal 9", or "running".
  std::string ending();
  bool stopped();  // by SIGSTOP
  void kill_and_reap();
  Status wait(Deadline deadline);

 private:
  Child(std::string name, int pid, Fd fd) : name_(std::move(name)), pid_(pid), socket_(std::move(fd)) {}
  std::string name_;
  int pid_ = -1, status_ = 0;
  bool reaped_ = false;
  LineSocket socket_;
};

inline constexpr int kChildSocketFd = 3;

}  // namespace refit::cli
