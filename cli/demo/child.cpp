#include "cli/demo/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

extern char** environ;

namespace refit::cli {

Status LineSocket::send(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::send(fd_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error(Code::kPeerLost, std::string("cannot send a line: ") + std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
  return {};
}

Result<std::string> LineSocket::receive(Deadline deadline) {
  while (true) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd p{fd_.get(), POLLIN, 0};
    const int ready = ::poll(&p, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Error(Code::kTimeout, "no line arrived");
    char buffer[4096];
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Error(Code::kPeerLost, "the other end is closed");
    pending_.append(buffer, static_cast<std::size_t>(n));
  }
}

Result<Child> Child::start(const std::string& name, std::vector<std::string> arguments, bool output) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return Error(Code::kExhausted, std::string("socketpair: ") + std::strerror(errno));
  Fd mine(pair[0]), theirs(pair[1]);
  arguments.insert(arguments.begin(), "/proc/self/exe");
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kChildSocketFd);
  if (output) ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 1);
  pid_t pid = -1;
  const int err = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (err != 0) return Error(Code::kExhausted, "cannot start " + name + ": " + std::strerror(err));
  return Child(name, pid, std::move(mine));
}

Child::Child(Child&& o) noexcept
    : name_(std::move(o.name_)),
      pid_(std::exchange(o.pid_, -1)),
      status_(o.status_),
      reaped_(o.reaped_),
      socket_(std::move(o.socket_)) {}

Child& Child::operator=(Child&& o) noexcept {
  if (this != &o) {
    this->~Child();
    new (this) Child(std::move(o));
  }
  return *this;
}

Child::~Child() {
  if (pid_ > 0 && running()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }
}

bool Child::running() {
  if (pid_ <= 0 || reaped_) return false;
  if (::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

std::string Child::ending() {
  if (running()) return "running";
  if (WIFSIGNALED(status_)) return "signal " + std::to_string(WTERMSIG(status_));
  return "exit " + std::to_string(WEXITSTATUS(status_));
}

bool Child::stopped() {
  if (!running()) return false;
  // /proc says T for a stopped process; waitpid tells a stop only once.
  std::ifstream in("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] == 'T';
}

void Child::kill_and_reap() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  reaped_ = ::waitpid(pid_, &status_, 0) == pid_;
}

Status Child::wait(Deadline deadline) {
  while (running()) {
    if (deadline.over()) return Error(Code::kTimeout, "the process did not end").at_peer(name_);
    system_env().wait(Deadline::after_ns(2'000'000).sooner(deadline));
  }
  return {};
}

}  // namespace refit::cli
