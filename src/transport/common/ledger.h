// Ledger: what a lane owes its caller. Every opened (ticket, member) gets exactly one completion; the first error
// sticks.
#pragma once
#include <deque>
#include <mutex>
#include <optional>
#include <set>

#include "transport/transport.h"

namespace refit::transport {

// *thread-safe*.
class Ledger {
 public:
  // A fresh ticket owed to each of `members`.
  std::uint64_t open(std::span<const std::uint32_t> members);
  void open_as(std::uint64_t ticket, std::uint32_t member);
  // Pays one; unknown or already paid entries are ignored, so that two causes of an end cannot pay twice.
  void finish(std::uint64_t ticket, std::uint32_t member, std::optional<Error> error = std::nullopt);
  bool owes(std::uint64_t ticket, std::uint32_t member) const;
  // Pays all with `error`, which sticks when it is the first. Returns the error in force.
  Error fail(Error error);
  // Pays all with kCancelled; later calls are refused.
  void close();
  // The sticky error, or kCancelled when closed.
  Status check() const;
  bool failed() const;
  std::size_t poll(std::span<Completion> done);

 private:
  void pay_all(const Error& error);
  mutable std::mutex mutex_;
  std::uint64_t next_ = kExposeTicket + 1;
  std::set<std::pair<std::uint64_t, std::uint32_t>> open_;
  std::deque<Completion> paid_;
  std::optional<Error> error_;
  bool closed_ = false;
};

}  // namespace refit::transport
