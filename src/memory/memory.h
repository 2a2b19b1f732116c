// Front header of memory: buffers, arenas, shareable regions and the budget they count against.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/core.h"
#include "memory/device.h"

namespace refit::memory {

enum class Kind : std::uint8_t { kHost, kHostShared, kDevice };
std::string_view to_string(Kind kind);

// Bytes a process may hold for Refit, allocated once, reported as used and peak. Arenas and regions charge whole pages
// and give them back when they die; a failed make() leaves `used` as it was. *thread-safe*.
class Budget {
 public:
  explicit Budget(std::int64_t limit_bytes);
  Status take(std::int64_t bytes, std::string_view what);  // kExhausted with need and have, naming `what`
  void give(std::int64_t bytes);
  std::int64_t limit() const { return limit_; }
  std::int64_t used() const { return used_.load(); }
  std::int64_t peak() const { return peak_.load(); }

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> used_{0}, peak_{0};
};

// A private, page-aligned, pre-faulted, zeroed block of host memory (huge pages advised). Never grows; 0 bytes is legal
// and maps nothing. The budget must outlive it. *thread-compatible*.
class Arena {
 public:
  static Result<Arena> make(std::int64_t bytes, Budget* budget, std::string_view what);
  // The same over a file in `directory` that has no name: its pages may leave memory, nobody else finds it, and it is
  // gone with the process. Counts against no budget. Errors: kInvalid naming the directory, kExhausted when its disk is
  // full.
  static Result<Arena> make_in(const std::string& directory, std::int64_t bytes, std::string_view what);
  Arena() = default;
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0, mapped_ = 0;
  Budget* budget_ = nullptr;
};

// Shareable host memory: a memfd of fixed size, pre-faulted, sealed against shrinking and growing. The owner maps it
// writable; `export_fd` yields a read-only descriptor (sealed FUTURE_WRITE) to pass to peers. Readers' maps keep the
// pages alive after the owner is gone. *thread-compatible*.
class SharedRegion {
 public:
  static Result<SharedRegion> make(Env& env, std::int64_t bytes, Budget* budget, std::string_view label);
  SharedRegion() = default;
  ~SharedRegion();
  SharedRegion(SharedRegion&&) noexcept;
  SharedRegion& operator=(SharedRegion&&) noexcept;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  Result<Fd> export_fd() const;

 private:
  Fd fd_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0, mapped_ = 0;
  Budget* budget_ = nullptr;
};

// A peer's region, mapped read-only after its size and seals were checked: reading it cannot raise SIGBUS. The
// descriptor is closed once mapped. *thread-compatible*.
class MappedRegion {
 public:
  // Errors: kCorrupt when the file is shorter than `bytes` or lacks the SHRINK seal.
  static Result<MappedRegion> map(Fd fd, std::int64_t bytes);
  MappedRegion() = default;
  ~MappedRegion();
  MappedRegion(MappedRegion&&) noexcept;
  MappedRegion& operator=(MappedRegion&&) noexcept;
  const std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// A span of memory with its kind: what a side lends. `shared` is set when the bytes lie in a SharedRegion.
struct RegionRef {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Kind kind = Kind::kHost;
  const SharedRegion* shared = nullptr;
};
// True when [data, data + bytes) lies inside `region`.
bool contains(const SharedRegion& region, const std::byte* data, std::int64_t bytes);

}  // namespace refit::memory
