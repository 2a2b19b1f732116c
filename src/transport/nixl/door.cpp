#include "transport/nixl/door.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace refit::transport::nixl {
namespace {

constexpr std::size_t kMostVisitors = 4096;
constexpr std::size_t kMostUnknown = 256;  // that have not greeted yet
constexpr std::int64_t kRestNs = 200'000'000;
constexpr std::int64_t kHelloNs = 10 * kNsPerSecond;

bool send_all(int fd, const Bytes& bytes) {
  // A few bytes to a reader that waits for them: one that does not drain them is cut off.
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(const MoverOptions& o) {
  auto door = std::make_unique<Door>();
  REFIT_ASSIGN(const Ports ports, parse_ports(o.net.port_range));
  REFIT_ASSIGN(Listening at, listen_on(o.net.advertise_address, ports, o.env->random_u64()));
  door->listener_ = std::move(at.fd);
  door->stall_ns_ = o.net.stall_ns;
  Card& card = door->card_;
  card.job = o.job;
  card.member = o.member;
  card.incarnation = o.incarnation;
  card.port = at.port;
  card.host = std::move(at.host);
  card.backend = o.net.nixl.backend;
  for (std::size_t i = 0; i < card.pass.size(); i += 8) {
    const std::uint64_t r = o.env->random_u64();
    for (std::size_t b = 0; b < 8; ++b) card.pass[i + b] = static_cast<std::byte>(r >> (8 * b));
  }
  return door;
}

void Door::add_to(std::vector<pollfd>& polled, std::int64_t now) const {
  polled.push_back({now < rests_until_ns_ ? -1 : listener_.get(), POLLIN, 0});
  for (const Visitor& v : visitors_) polled.push_back({v.fd.get(), POLLIN, 0});
}

void Door::serve(std::span<const pollfd> polled, const Exports& exports, std::int64_t now) {
  std::size_t i = 1;
  for (auto v = visitors_.begin(); v != visitors_.end(); ++i) {
    const bool moved = i < polled.size() && polled[i].revents != 0;
    const bool keep = (!moved || serve(*v, exports)) && (v->known || now - v->since_ns < kHelloNs);
    v = keep ? std::next(v) : visitors_.erase(v);
  }
  if (!polled.empty() && polled[0].revents != 0) accept_all(now);
}

void Door::close() {
  listener_.reset();
  visitors_.clear();
}

void Door::accept_all(std::int64_t now) {
  while (true) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors or memory: the listener stays readable, and the loop would spin.
      if (errno != EAGAIN) rests_until_ns_ = now + kRestNs;
      return;
    }
    if (visitors_.size() >= kMostVisitors) {
      foreign_.fetch_add(1);
      continue;
    }
    const auto unknown = [](const Visitor& v) { return !v.known; };
    if (std::count_if(visitors_.begin(), visitors_.end(), unknown) >= static_cast<std::ptrdiff_t>(kMostUnknown)) {
      visitors_.erase(std::find_if(visitors_.begin(), visitors_.end(), unknown));
      foreign_.fetch_add(1);
    }
    tune(fd.get(), stall_ns_);
    visitors_.push_back({std::move(fd), now, false, {}});
  }
}

bool Door::serve(Visitor& v, const Exports& exports) {
  std::byte buffer[1024];
  while (true) {
    const ssize_t n = ::recv(v.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    v.have.insert(v.have.end(), buffer, buffer + n);
    for (std::size_t need = v.known ? kQuestionBytes : kHelloBytes; v.have.size() >= need;
         need = v.known ? kQuestionBytes : kHelloBytes) {
      if (!answer(v, std::span(v.have).first(need), exports)) return false;
      v.have.erase(v.have.begin(), v.have.begin() + static_cast<std::ptrdiff_t>(need));
    }
  }
}

bool Door::answer(Visitor& v, std::span<const std::byte> message, const Exports& exports) {
  if (!v.known) {
    const auto hello = decode_hello(message);
    if (!hello.ok()) {
      bad_.fetch_add(1);
      return false;
    }
    v.known = hello->job == card_.job && hello->to == card_.member && hello->to_incarnation == card_.incarnation &&
              hello->pass == card_.pass;
    if (!v.known) foreign_.fetch_add(1);
    return send_all(v.fd.get(), encode(Reply{v.known ? Answer::kYes : Answer::kOther, 0})) && v.known;
  }
  const auto question = decode_question(message);
  if (!question.ok()) {
    bad_.fetch_add(1);
    return false;
  }
  const bool yes = question->epoch.value == 0 || exports.open(question->epoch);
  return send_all(v.fd.get(), encode(Reply{yes ? Answer::kYes : Answer::kNo, question->number}));
}

}  // namespace refit::transport::nixl
