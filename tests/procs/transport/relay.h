// A TCP relay of the tests between a member and its coordinator: records, holds everything back, or damages a byte.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "core/core.h"

namespace refit::procs {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}
inline Fd dial(std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in a = loopback(port);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0 ? std::move(fd) : Fd();
}
// True once the other end has closed; what it sends before is thrown away.
inline bool closes(const Fd& fd, double seconds) {
  char buffer[512];
  for (const Deadline deadline = Deadline::after_s(seconds); !deadline.over();) {
    pollfd p{fd.get(), POLLIN, 0};
    if (::poll(&p, 1, deadline.left_ms()) > 0 && ::recv(fd.get(), buffer, sizeof buffer, 0) <= 0) return true;
  }
  return false;
}

class Relay {
 public:
  explicit Relay(std::uint16_t to) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a = loopback(0);
    socklen_t size = sizeof a;
    ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&a), sizeof a);
    ::listen(listener_.get(), 16);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&a), &size);
    port_ = ntohs(a.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return "tcp://127.0.0.1:" + std::to_string(port_); }
  void hold(bool on) { hold_ = on; }             // both connections stay open, nothing passes
  void damage_next_upward() { damage_ = true; }  // one bit of the next bytes towards the coordinator
  std::vector<char> recorded_upward() {
    const std::lock_guard lock(mutex_);
    return upward_;
  }

 private:
  struct Pair {
    Fd member, hub;
  };
  void run() {
    std::vector<Pair> pairs;
    while (!stop_) {
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      for (const Pair& p : pairs) {
        const short wanted = hold_ ? 0 : POLLIN;
        polled.push_back({p.member.get(), wanted, 0});
        polled.push_back({p.hub.get(), wanted, 0});
      }
      ::poll(polled.data(), polled.size(), 5);
      if ((polled[0].revents & POLLIN) != 0)
        pairs.push_back({Fd(::accept(listener_.get(), nullptr, nullptr)), dial(to_)});
      for (std::size_t i = 1; i + 1 < polled.size() && !hold_; i += 2) {
        Pair& p = pairs[(i - 1) / 2];
        const bool up = polled[i].revents == 0 || pass(p.member, p.hub, true);
        const bool down = polled[i + 1].revents == 0 || pass(p.hub, p.member, false);
        if (!up || !down) p = {};
      }
      std::erase_if(pairs, [](const Pair& p) { return !p.member.valid(); });
    }
  }
  bool pass(const Fd& from, const Fd& to, bool upward) {
    char buffer[16384];
    const ssize_t n = ::recv(from.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) return false;
    if (upward && damage_.exchange(false)) buffer[n - 1] = static_cast<char>(buffer[n - 1] ^ 1);
    if (upward) {
      const std::lock_guard lock(mutex_);
      upward_.insert(upward_.end(), buffer, buffer + n);
    }
    return ::send(to.get(), buffer, static_cast<std::size_t>(n), MSG_NOSIGNAL) == n;
  }

  const std::uint16_t to_;
  Fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> hold_{false}, damage_{false}, stop_{false};
  std::mutex mutex_;
  std::vector<char> upward_;
  std::thread thread_;
};

}  // namespace refit::procs
