// Env: the outside world (clock, randomness, files, shared memory, sockets, processes) behind one small seam, so that
// simulation and fault tests can own it. Outside of movers and vendor libraries nothing else calls the OS for these.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/result.h"

namespace refit {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& o) noexcept : fd_(o.release()) {}
  Fd& operator=(Fd&& o) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// An append-only file with explicit durability. *thread-compatible*.
class File {
 public:
  virtual ~File() = default;
  // From `offset` to the end; nothing when the file ends before.
  virtual Result<std::vector<std::byte>> read_from(std::int64_t offset) = 0;
  Result<std::vector<std::byte>> read_all() { return read_from(0); }
  virtual Status append(std::span<const std::byte> bytes) = 0;
  virtual Status sync() = 0;  // durable when it returns success
  virtual Status truncate(std::int64_t bytes) = 0;
  // Makes later appends of up to `bytes` unable to fail for lack of space.
  virtual Status reserve(std::int64_t bytes) = 0;
  // Advisory exclusive lock held until the file is closed. kBusy when another process holds it.
  virtual Status lock() = 0;
};

class Env {
 public:
  virtual ~Env() = default;
  virtual std::int64_t now_ns() = 0;      // CLOCK_MONOTONIC
  virtual void wait(Deadline until) = 0;  // sleep
  virtual Status random(std::span<std::byte> out) = 0;
  virtual Result<Fd> shm(std::string_view label, std::int64_t bytes) = 0;  // fresh memfd of that size, sealable
  // Opens or creates; the directory entry is durable when it returns.
  virtual Result<std::unique_ptr<File>> file(const std::string& path) = 0;
  // Renames `from` over `to`, whole or not at all; durable when it returns. Both lie in one directory.
  virtual Status replace(const std::string& from, const std::string& to) = 0;
  // Unix stream socket. A dead process' socket file is reclaimed; any other file at the path is kept and reported.
  virtual Result<Fd> listen(const std::string& path) = 0;
  virtual Result<Fd> connect(const std::string& path, Deadline deadline) = 0;
  virtual Result<int> spawn(const std::vector<std::string>& argv) = 0;  // pid; stdin from /dev/null

  std::uint64_t random_u64();
};

// The real one. *thread-safe*.
Env& system_env();

}  // namespace refit
