#include "transport/common/ledger.h"

namespace refit::transport {

std::uint64_t Ledger::open(std::span<const std::uint32_t> members) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t ticket = next_++;
  for (std::uint32_t m : members) {
    open_.emplace(ticket, m);
    // An abort may have come between the caller's check and this line: what is opened late is paid at once.
    if (error_ && open_.erase({ticket, m}) != 0) paid_.push_back({ticket, *error_, m});
  }
  return ticket;
}

void Ledger::open_as(std::uint64_t ticket, std::uint32_t member) {
  const std::lock_guard lock(mutex_);
  if (error_)
    paid_.push_back({ticket, *error_, member});
  else
    open_.emplace(ticket, member);
}

void Ledger::finish(std::uint64_t ticket, std::uint32_t member, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  if (open_.erase({ticket, member}) != 0) paid_.push_back({ticket, std::move(error), member});
}

bool Ledger::owes(std::uint64_t ticket, std::uint32_t member) const {
  const std::lock_guard lock(mutex_);
  return open_.contains({ticket, member});
}

void Ledger::pay_all(const Error& error) {
  for (const auto& [ticket, member] : open_) paid_.push_back({ticket, error, member});
  open_.clear();
}

Error Ledger::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  pay_all(*error_);
  return *error_;
}

void Ledger::close() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;
  if (!error_) error_ = Error(Code::kCancelled, "the lane is closed");
  pay_all(*error_);
}

Status Ledger::check() const {
  const std::lock_guard lock(mutex_);
  if (error_) return *error_;
  return {};
}

bool Ledger::failed() const {
  const std::lock_guard lock(mutex_);
  return error_.has_value();
}

std::size_t Ledger::poll(std::span<Completion> done) {
  const std::lock_guard lock(mutex_);
  std::size_t n = 0;
  for (; n < done.size() && !paid_.empty(); ++n) {
    done[n] = std::move(paid_.front());
    paid_.pop_front();
  }
  return n;
}

}  // namespace refit::transport
