// Mailbox: the bounded queues between the callers of a control lane and whatever moves its messages.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "transport/transport.h"

namespace refit::transport {

// *thread-safe*. Callers use the first group, the loop the second.
class Mailbox {
 public:
  Status send(std::uint32_t peer, std::span<const std::byte> bytes);
  Result<ControlMessage> next(Deadline deadline);
  std::vector<Liveness> liveness();
  // First error sticks; waiters wake.
  void fail(Error error);

  void connected(std::uint32_t peer);
  void open_outbox(std::uint32_t peer);
  void gone(std::uint32_t peer);
  void deliver(std::uint32_t peer, std::span<const std::byte> bytes, std::optional<MemberName> proven = std::nullopt);
  bool inbox_full() const;
  // The oldest unsent message to `peer`, taken out; give back what the socket refused.
  std::optional<Bytes> take(std::uint32_t peer);
  void put_back(std::uint32_t peer, Bytes bytes);
  bool nothing_to_send() const;
  bool failed() const;

 private:
  struct Outbox {
    std::deque<Bytes> messages;
    std::int64_t bytes = 0;
  };
  Status refuse_if_failed() const;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint32_t, Outbox> out_;  // of living peers
  std::deque<ControlMessage> in_;
  std::int64_t in_bytes_ = 0;
  std::vector<Liveness> events_;
  std::optional<Error> error_;
};

}  // namespace refit::transport
