// Staging: one pre-faulted arena that incoming buckets are read into. A slot lives as long as the bucket's lease.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "memory/memory.h"
#include "transport/common/sys.h"

namespace refit::transport {

// *thread-safe*. Shared by the mover and its slots, since a lease may outlive the mover.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  // `freed` is raised when a slot dies.
  Staging(std::int64_t limit, memory::Budget* budget, std::shared_ptr<const Wake> freed)
      : limit_(limit), budget_(budget), freed_(std::move(freed)) {}
  std::int64_t limit() const { return limit_; }

  class Slot {
   public:
    Slot() = default;
    Slot(std::shared_ptr<Staging> owner, std::int64_t offset, std::int64_t bytes, std::byte* data)
        : owner_(std::move(owner)), offset_(offset), bytes_(bytes), data_(data) {}
    ~Slot();
    Slot(Slot&& o) noexcept { *this = std::move(o); }
    Slot& operator=(Slot&& o) noexcept;
    std::byte* data() const { return data_; }
    std::int64_t bytes() const { return bytes_; }

   private:
    std::shared_ptr<Staging> owner_;  // slots keep the arena alive
    std::int64_t offset_ = 0, bytes_ = 0;
    std::byte* data_ = nullptr;
  };

  // Room for at least min(want, limit) bytes, taken when nothing is in use; a smaller arena that is in use stays.
  Status reserve(std::int64_t want);
  bool idle() const;  // no slot is held
  // All of it; where it lies changes with reserve() alone.
  std::span<std::byte> whole() const;
  // The lowest hole that fits: the same warm pages again. Empty when there is none now.
  std::optional<Slot> take(std::int64_t bytes);

 private:
  void give(std::int64_t offset);
  const std::int64_t limit_;
  memory::Budget* const budget_;
  const std::shared_ptr<const Wake> freed_;
  mutable std::mutex mutex_;
  memory::Arena arena_;
  std::map<std::int64_t, std::int64_t> used_;  // offset → bytes
};

}  // namespace refit::transport
