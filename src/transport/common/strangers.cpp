#include "transport/common/strangers.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace refit::transport {
namespace {

struct End {
  std::string host;  // empty: not a TCP socket
  std::uint16_t port = 0;
};
End end_of(int fd, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage addr{};
  socklen_t size = sizeof addr;
  char host[NI_MAXHOST] = {}, port[8] = {};
  if (which(fd, reinterpret_cast<sockaddr*>(&addr), &size) != 0 ||
      (addr.ss_family != AF_INET && addr.ss_family != AF_INET6) ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&addr), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host, static_cast<std::uint16_t>(std::atoi(port))};
}

// The kernel's tcp_info goes on where glibc's ends; tcpi_bytes_received is at byte 128 since Linux 4.1.
struct TcpInfo {
  std::array<std::byte, 128> before;
  std::uint64_t bytes_received;
};
std::uint64_t bytes_received(int fd) {
  TcpInfo info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < sizeof info) return 0;
  return info.bytes_received;
}

}  // namespace

void Strangers::accepted(int fd, std::uint16_t own_port, std::int64_t now) {
  Stranger one{Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), {}, now, false};
  // The number may be somebody else's by now: only a connection to our own port is ours to cut.
  if (!one.hold.valid() || end_of(one.hold.get(), ::getsockname).port != own_port) return;
  one.address = end_of(one.hold.get(), ::getpeername).host;
  const auto same = std::count_if(strangers_.begin(), strangers_.end(),
                                  [&](const auto& entry) { return entry.second.address == one.address; });
  if (strangers_.size() >= most_ || static_cast<std::size_t>(same) >= most_per_address_) return cut(one);
  strangers_.insert_or_assign(fd, std::move(one));
}

bool Strangers::turn_away(int fd) {
  const auto known = strangers_.find(fd);
  return known == strangers_.end() || !std::exchange(known->second.turned_away, true);
}

void Strangers::cut(int fd, std::uint16_t own_port) {
  const Stranger one{Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), {}, 0, false};
  if (one.hold.valid() && end_of(one.hold.get(), ::getsockname).port == own_port) cut(one);
}

void Strangers::cut(const Stranger& one) {
  ++cut_;
  (void)::shutdown(one.hold.get(), SHUT_RDWR);
}

void Strangers::watch(std::int64_t now) {
  std::erase_if(strangers_, [&](const auto& entry) {
    const Stranger& one = entry.second;
    if (now - one.since_ns <= kHandshakeNs && bytes_received(one.hold.get()) <= kMaxStrangerBytes) return false;
    cut(one);
    return true;
  });
}

}  // namespace refit::transport
