#include "transport/common/mailbox.h"

#include <chrono>

namespace refit::transport {
namespace {

// Past either, the loop stops reading: the peers' own queues fill, and their senders hear kExhausted.
constexpr std::size_t kInboxMessages = 8 * kControlQueueMessages;
constexpr std::int64_t kInboxBytes = 2 * kControlQueueBytes;

std::chrono::steady_clock::time_point time_point(Deadline deadline) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline.ns()));
}
std::int64_t size_of(const Bytes& bytes) { return static_cast<std::int64_t>(bytes.size()); }

}  // namespace

Status Mailbox::refuse_if_failed() const {
  if (error_) return *error_;
  return {};
}

Status Mailbox::send(std::uint32_t peer, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size > kMaxControlBytes)
    return Error(Code::kInvalid, "control message is too large").amounts(size, kMaxControlBytes);
  const std::lock_guard lock(mutex_);
  REFIT_TRY(refuse_if_failed());
  const auto it = out_.find(peer);
  if (it == out_.end())
    return Error(Code::kPeerLost, "control peer " + std::to_string(peer) + " is gone or was never there");
  Outbox& box = it->second;
  if (box.messages.size() >= kControlQueueMessages || size > kControlQueueBytes - box.bytes)
    return Error(Code::kExhausted, "the queue to control peer " + std::to_string(peer) + " is full")
        .amounts(size, kControlQueueBytes - box.bytes);
  box.messages.emplace_back(bytes.begin(), bytes.end());
  box.bytes += size;
  return {};
}

Result<ControlMessage> Mailbox::next(Deadline deadline) {
  std::unique_lock lock(mutex_);
  arrived_.wait_until(lock, time_point(deadline), [&] { return !in_.empty() || error_.has_value(); });
  // What came before the error is still worth reading.
  if (in_.empty()) {
    REFIT_TRY(refuse_if_failed());
    return Error(Code::kTimeout, "no control message came");
  }
  ControlMessage message = std::move(in_.front());
  in_.pop_front();
  in_bytes_ -= size_of(message.bytes);
  return message;
}

std::vector<Liveness> Mailbox::liveness() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void Mailbox::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  out_.clear();
  arrived_.notify_all();
}

void Mailbox::open_outbox(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  if (!error_) out_.try_emplace(peer);
}

void Mailbox::connected(std::uint32_t peer) {
  open_outbox(peer);
  const std::lock_guard lock(mutex_);
  events_.push_back({peer, PeerEvent::kConnected});
}

void Mailbox::gone(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  out_.erase(peer);
  events_.push_back({peer, PeerEvent::kGone});
}

void Mailbox::deliver(std::uint32_t peer, std::span<const std::byte> bytes, std::optional<MemberName> proven) {
  const std::lock_guard lock(mutex_);
  in_.push_back({peer, Bytes(bytes.begin(), bytes.end()), proven});
  in_bytes_ += static_cast<std::int64_t>(bytes.size());
  arrived_.notify_one();
}

bool Mailbox::inbox_full() const {
  const std::lock_guard lock(mutex_);
  return in_.size() >= kInboxMessages || in_bytes_ >= kInboxBytes;
}

std::optional<Bytes> Mailbox::take(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  const auto it = out_.find(peer);
  if (it == out_.end() || it->second.messages.empty()) return std::nullopt;
  Bytes bytes = std::move(it->second.messages.front());
  it->second.messages.pop_front();
  it->second.bytes -= size_of(bytes);
  return bytes;
}

void Mailbox::put_back(std::uint32_t peer, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const auto it = out_.find(peer);
  if (it == out_.end()) return;
  it->second.bytes += size_of(bytes);
  it->second.messages.push_front(std::move(bytes));
}

bool Mailbox::nothing_to_send() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [peer, box] : out_)
    if (!box.messages.empty()) return false;
  return true;
}

bool Mailbox::failed() const {
  const std::lock_guard lock(mutex_);
  return error_.has_value();
}

}  // namespace refit::transport
