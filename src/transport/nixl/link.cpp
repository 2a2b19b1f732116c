#include "transport/nixl/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace refit::transport::nixl {

Status Link::connect() {
  if (state_ != State::kNone) return {};
  auto card = decode_card(peer_.card);
  if (!card.ok()) return std::move(card).error();
  if (card->member != peer_.member || card->incarnation != peer_.incarnation)
    return Error(Code::kMismatch, "the peer's card is of another member or incarnation");
  REFIT_ASSIGN(Fd fd, connect_to(card->host, card->port));
  tune(fd.get(), stall_ns_);
  card_ = std::move(*card);
  const std::lock_guard lock(mutex_);
  fd_ = std::move(fd);
  state_ = State::kConnecting;
  in_.clear();
  out_ = encode(Hello{card_.job, card_.member, card_.incarnation, card_.pass});
  return {};
}

void Link::ask(MemoryEpoch epoch, std::int64_t now, Told told) {
  const std::uint64_t number = next_++;
  open_.emplace(number, Open{now, std::move(told)});
  if (Status s = connect(); !s.ok()) return lose(std::move(s).error());
  const Bytes question = encode(Question{number, epoch});
  out_.insert(out_.end(), question.begin(), question.end());
  if (state_ == State::kReady)
    if (Status s = flush(); !s.ok()) lose(std::move(s).error());
}

pollfd Link::wanted() const {
  const bool writes = state_ == State::kConnecting || !out_.empty();
  return {fd_.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0};
}

void Link::move(short events, std::int64_t now) {
  if (state_ == State::kNone || events == 0) return;
  if (state_ == State::kConnecting) {
    if (const int why = pending_error(fd_.get()); why != 0)
      return lose(Error(Code::kPeerLost, std::string("the source's process is gone: ") + std::strerror(why)));
    if ((events & POLLOUT) == 0) return;
    state_ = State::kGreeting;
  }
  if (Status s = flush(); !s.ok()) return lose(std::move(s).error());
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0)
    if (Status s = take(now); !s.ok()) lose(std::move(s).error());
}

Status Link::flush() {
  while (!out_.empty()) {
    const ssize_t n = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (n <= 0) return Error(Code::kPeerLost, "the source's process is gone");
    out_.erase(out_.begin(), out_.begin() + n);
  }
  return {};
}

Status Link::take(std::int64_t /*now*/) {
  std::byte buffer[4096];
  while (true) {
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
    if (n <= 0) return Error(Code::kPeerLost, "the source's process is gone");
    in_.insert(in_.end(), buffer, buffer + n);
    while (in_.size() >= kReplyBytes) {
      const auto got = decode_reply(std::span(in_).first(kReplyBytes));
      if (!got.ok()) return got.error();
      in_.erase(in_.begin(), in_.begin() + kReplyBytes);
      REFIT_TRY(reply(*got));
      if (state_ == State::kNone) return {};  // who was told ended the link
    }
  }
}

Status Link::reply(const Reply& r) {
  if (state_ == State::kGreeting) {
    if (r.answer != Answer::kYes || r.number != 0)
      return Error(Code::kMismatch, "the process there is of another job or incarnation");
    state_ = State::kReady;
    return {};
  }
  const auto found = open_.find(r.number);
  if (found == open_.end()) return Error(Code::kCorrupt, "an answer that fits no question");
  const Told told = std::move(found->second.told);
  open_.erase(found);
  told(r.answer == Answer::kYes);
  return {};
}

void Link::judge(std::int64_t now, std::int64_t since) {
  std::int64_t oldest = now;
  for (const auto& [number, open] : open_) oldest = std::min(oldest, std::max(open.since_ns, since));
  if (now - oldest > stall_ns_)
    lose(Error(Code::kPeerLost, "the source has not answered for " + std::to_string(stall_ns_ / 1'000'000) + " ms"));
}

void Link::lose(Error error) {
  {
    const std::lock_guard lock(mutex_);
    fd_.reset();
    state_ = State::kNone;
  }
  const Error named = std::move(error).at_peer(peer_.name);
  for (auto& [number, open] : std::exchange(open_, {})) open.told(named);
}

bool Link::hung_up() const {
  const std::lock_guard lock(mutex_);
  if (!fd_.valid()) return true;
  pollfd polled{fd_.get(), POLLIN | POLLRDHUP, 0};
  if (::poll(&polled, 1, 0) <= 0) return false;
  return (polled.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace refit::transport::nixl
