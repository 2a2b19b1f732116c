#include "core/env.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace refit {

Fd& Fd::operator=(Fd&& o) noexcept {
  if (this != &o) {
    reset();
    fd_ = o.release();
  }
  return *this;
}
int Fd::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}
void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::uint64_t Env::random_u64() {
  std::uint64_t v = 0;
  const Status s = random(std::as_writable_bytes(std::span(&v, 1)));
  REFIT_CHECK(s.ok());
  return v;
}

namespace {

Error os_error(std::string what, int err) {
  const Code code = err == ENOSPC || err == EMFILE || err == ENFILE || err == ENOMEM ? Code::kExhausted
                    : err == EWOULDBLOCK || err == EAGAIN                            ? Code::kBusy
                                                                                     : Code::kInvalid;
  return Error(code, what + ": " + std::strerror(err));
}

class SystemFile final : public File {
 public:
  SystemFile(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<std::vector<std::byte>> read_from(std::int64_t offset) override {
    struct stat st {};
    if (::fstat(fd_.get(), &st) != 0) return os_error("cannot stat " + path_, errno);
    std::vector<std::byte> out(static_cast<std::size_t>(std::max<std::int64_t>(0, st.st_size - offset)));
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd_.get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error("cannot read " + path_, errno);
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    out.resize(done);
    return out;
  }
  Status append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error("cannot append to " + path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }
  Status sync() override {
    if (::fdatasync(fd_.get()) != 0) return os_error("cannot sync " + path_, errno);
    return {};
  }
  Status truncate(std::int64_t bytes) override {
    if (::ftruncate(fd_.get(), bytes) != 0) return os_error("cannot truncate " + path_, errno);
    return {};
  }
  Status reserve(std::int64_t bytes) override {
    struct stat st {};
    if (::fstat(fd_.get(), &st) != 0) return os_error("cannot stat " + path_, errno);
    // KEEP_SIZE: the space is there, the file's length still tells where the journal ends.
    if (::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, st.st_size, bytes) != 0 && errno != EOPNOTSUPP)
      return os_error("cannot reserve space for " + path_, errno);
    return {};
  }
  Status lock() override {
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) return os_error("another process holds " + path_, errno);
    return {};
  }

 private:
  Fd fd_;
  std::string path_;
};

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof addr.sun_path)
    return Error(Code::kInvalid, "socket path '" + path + "' must have 1 to " +
                                     std::to_string(sizeof addr.sun_path - 1) +
                                     " bytes: choose a shorter runtime directory");
  std::memcpy(addr.sun_path, path.data(), path.size());
  return addr;
}

int try_connect(const sockaddr_un& addr, Fd& out) {
  // Without blocking: a listener that stands still and whose backlog is full answers EAGAIN instead of hanging us.
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&addr), sizeof addr) != 0) return errno;
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) return errno;
  out = std::move(fd);
  return 0;
}

Status sync_directory_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  const std::string dir = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  Fd dir_fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir_fd.valid() || ::fsync(dir_fd.get()) != 0) return os_error("cannot sync directory " + dir, errno);
  return {};
}

class SystemEnv final : public Env {
 public:
  std::int64_t now_ns() override { return monotonic_ns(); }

  void wait(Deadline until) override {
    timespec ts{until.ns() / kNsPerSecond, until.ns() % kNsPerSecond};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, nullptr) == EINTR) {
    }
  }

  Status random(std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::getrandom(out.data(), out.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return os_error("getrandom", errno);
      out = out.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  Result<Fd> shm(std::string_view label, std::int64_t bytes) override {
    Fd fd(::memfd_create(std::string(label).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return os_error("memfd_create", errno);
    if (::ftruncate(fd.get(), bytes) != 0)
      return os_error("cannot size shared memory to " + std::to_string(bytes) + " bytes", errno);
    return fd;
  }

  Result<std::unique_ptr<File>> file(const std::string& path) override {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return os_error("cannot open " + path, errno);
    REFIT_TRY(sync_directory_of(path));
    return std::unique_ptr<File>(std::make_unique<SystemFile>(std::move(fd), path));
  }

  Status replace(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return os_error("cannot rename " + from + " to " + to, errno);
    return sync_directory_of(to);
  }

  Result<Fd> listen(const std::string& path) override {
    REFIT_ASSIGN(const sockaddr_un addr, unix_address(path));
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return os_error("socket", errno);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&addr), sizeof addr) != 0) {
      if (errno != EADDRINUSE) return os_error("cannot bind " + path, errno);
      REFIT_TRY(reclaim(path, addr));
      if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&addr), sizeof addr) != 0)
        return os_error("cannot bind " + path, errno);
    }
    if (::chmod(path.c_str(), 0600) != 0) return os_error("cannot restrict " + path, errno);
    if (::listen(fd.get(), 256) != 0) return os_error("cannot listen on " + path, errno);
    return fd;
  }

  Result<Fd> connect(const std::string& path, Deadline deadline) override {
    REFIT_ASSIGN(const sockaddr_un addr, unix_address(path));
    Fd fd;
    int err = try_connect(addr, fd);
    while ((err == ENOENT || err == ECONNREFUSED || err == EAGAIN) && !deadline.over()) {
      wait(Deadline::after_ns(5'000'000).sooner(deadline));
      err = try_connect(addr, fd);
    }
    if (err == 0) return fd;
    if (err == ENOENT || err == ECONNREFUSED) return Error(Code::kPeerLost, "nobody listens on " + path);
    return os_error("cannot connect to " + path, err);
  }

  Result<int> spawn(const std::vector<std::string>& argv) override {
    if (argv.empty()) return Error(Code::kInvalid, "spawn needs a program");
    std::vector<char*> raw;
    for (const std::string& a : argv) raw.push_back(const_cast<char*>(a.c_str()));
    raw.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    pid_t pid = -1;
    const int err = ::posix_spawn(&pid, raw[0], &actions, nullptr, raw.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (err != 0) return os_error("cannot start " + argv[0], err);
    return static_cast<int>(pid);
  }

 private:
  static Status reclaim(const std::string& path, const sockaddr_un& addr) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) return os_error("cannot stat " + path, errno);
    if (!S_ISSOCK(st.st_mode)) return Error(Code::kInvalid, path + " exists and is not a socket; it is left as it is");
    Fd probe;
    const int err = try_connect(addr, probe);
    if (err == 0) return Error(Code::kBusy, "another process listens on " + path);
    if (err != ECONNREFUSED) return os_error("cannot probe " + path, err);
    if (::unlink(path.c_str()) != 0) return os_error("cannot reclaim " + path, errno);
    return {};
  }
};

}  // namespace

Env& system_env() {
  static SystemEnv env;
  return env;
}

}  // namespace refit
