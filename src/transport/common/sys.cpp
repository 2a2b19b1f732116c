#include "transport/common/sys.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace refit::transport {
namespace {

constexpr std::size_t kLongestSocketName = 40;  // of ours, with the slash
constexpr std::int64_t kListenLockNs = 5 * kNsPerSecond;
constexpr std::int64_t kSweepLockNs =
    100'000'000;  // a sweep may be left to the next process, a caller's deadline may not
constexpr std::int64_t kDirLockPauseNs = 2'000'000;

// Exclusive turn in a directory, released when the descriptor closes.
Result<Fd> lock_dir(Env& env, const std::string& dir, Deadline deadline) {
  Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Error(Code::kInvalid, "cannot open " + dir + ": " + std::strerror(errno));
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return Error(Code::kInvalid, "cannot lock " + dir + ": " + std::strerror(errno));
    if (deadline.over()) return Error(Code::kTimeout, "another process holds the lock of " + dir);
    env.wait(Deadline::after_ns(kDirLockPauseNs).sooner(deadline));
  }
  return fd;
}

bool is_dead_socket(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  if (path.size() >= sizeof addr.sun_path) return false;
  std::memcpy(addr.sun_path, path.data(), path.size());
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe.valid() && ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&addr), sizeof addr) != 0 &&
         errno == ECONNREFUSED;
}

std::string default_runtime_dir() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"})
    if (const char* base = std::getenv(name); base != nullptr && base[0] == '/')
      return std::string(base) + "/refit-" + std::to_string(::getuid());
  return "/tmp/refit-" + std::to_string(::getuid());
}

}  // namespace

Result<Wake> Wake::make() {
  Wake wake;
  wake.fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.fd_.valid()) return Error(Code::kExhausted, std::string("eventfd: ") + std::strerror(errno));
  return wake;
}
void Wake::raise() const {
  const std::uint64_t one = 1;
  // A full counter is already raised; nothing else can fail here.
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof one);
}
void Wake::lower() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &count, sizeof count);
}

Ready wait_readable(int fd, const Wake& wake, Deadline deadline) {
  std::array<pollfd, 2> polled{pollfd{wake.fd(), POLLIN, 0}, pollfd{fd, POLLIN, 0}};
  while (true) {
    const int n = ::poll(polled.data(), polled.size(), deadline.left_ms());
    if (n > 0 && polled[0].revents != 0) return Ready::kWoken;
    if (n > 0) return Ready::kData;
    if (n == 0 && deadline.over()) return Ready::kTimeout;
  }
}

Result<std::thread> start_thread(const char* name, std::function<void()> body) {
  try {
    std::thread thread(std::move(body));
    ::pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& e) {
    return Error(Code::kExhausted, std::string("cannot start thread ") + name + ": " + e.what());
  }
}

Status check_private_dir(const std::string& dir) {
  const Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Error(Code::kInvalid, "runtime directory " + dir + ": " + std::strerror(errno));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0)
    return Error(Code::kInvalid, "runtime directory " + dir + ": " + std::strerror(errno));
  if (st.st_uid != ::geteuid())
    return Error(Code::kInvalid,
                 "runtime directory " + dir + " belongs to user " + std::to_string(st.st_uid) + ", not to us");
  if ((st.st_mode & 077) != 0)
    return Error(Code::kInvalid, "runtime directory " + dir + " is open to others: its mode must be 0700");
  return {};
}

Result<std::string> make_runtime_dir(Env& /*env*/, std::string_view hint) {
  std::string dir = hint.empty() ? default_runtime_dir() : std::string(hint);
  if (dir.front() != '/') return Error(Code::kInvalid, "runtime directory '" + dir + "' must be an absolute path");
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  if (dir.find('\0') != std::string::npos) return Error(Code::kInvalid, "runtime directory contains a NUL byte");
  const std::size_t limit = sizeof(sockaddr_un::sun_path) - 1 - kLongestSocketName;
  if (dir.size() > limit)
    return Error(Code::kInvalid, "runtime directory '" + dir + "' has " + std::to_string(dir.size()) +
                                     " bytes, at most " + std::to_string(limit) +
                                     " leave room for socket names: choose a shorter one");
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return Error(errno == ENOSPC ? Code::kExhausted : Code::kInvalid,
                 "cannot make runtime directory " + dir + ": " + std::strerror(errno));
  REFIT_TRY(check_private_dir(dir));
  return dir;
}

Result<std::string> control_path(const std::string& address) {
  constexpr std::string_view kScheme = "ipc://";
  if (address.starts_with("tcp:"))
    return Error(Code::kUnsupported, "control address '" + address +
                                         "': TCP, loopback too, needs keys: make them with refit keygen and name this "
                                         "process' own, or use ipc:// in a private directory on one host");
  if (!address.starts_with(kScheme))
    return Error(Code::kInvalid, "control address '" + address + "' must start with ipc://");
  std::string path = address.substr(kScheme.size());
  if (path.empty() || path.front() != '/')
    return Error(Code::kInvalid, "control address '" + address + "' needs an absolute path");
  constexpr std::size_t kLimit = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kLimit || path.find('\0') != std::string::npos)
    return Error(Code::kInvalid, "control socket path '" + path + "' has " + std::to_string(path.size()) +
                                     " bytes, at most " + std::to_string(kLimit) +
                                     " are allowed: choose a shorter runtime directory");
  return path;
}

Result<Fd> listen_in(Env& env, const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos || slash == 0)
    return Error(Code::kInvalid, "socket path '" + path + "' must lie in a private directory");
  const std::string dir = path.substr(0, slash);
  REFIT_TRY(check_private_dir(dir));
  REFIT_ASSIGN(const Fd turn, lock_dir(env, dir, Deadline::after_ns(kListenLockNs)));
  return env.listen(path);
}

void sweep_dead_sockets(const std::string& dir) {
  // Tidying is best effort: without the lock, or in a directory that vanished, the next process sweeps.
  const auto turn = lock_dir(system_env(), dir, Deadline::after_ns(kSweepLockNs));
  if (!turn.ok()) return;
  DIR* listing = ::opendir(dir.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string name = entry->d_name;
    if (name.ends_with(".sock") && is_dead_socket(dir + "/" + name)) ::unlink((dir + "/" + name).c_str());
  }
  ::closedir(listing);
}

}  // namespace refit::transport
