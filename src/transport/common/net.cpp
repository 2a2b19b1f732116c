#include "transport/common/net.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace refit::transport {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port, bool numeric) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) return Error(Code::kInvalid, "address '" + host + "': " + ::gai_strerror(rc));
  return Addresses(found, ::freeaddrinfo);
}

Result<std::uint16_t> port_number(std::string_view text) {
  unsigned value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value == 0 || value > 0xffff)
    return Error(Code::kInvalid, "port_range: '" + std::string(text) + "' is no port (1 to 65535)");
  return static_cast<std::uint16_t>(value);
}

Result<std::uint16_t> bound_port(int fd) {
  sockaddr_storage addr{};
  socklen_t size = sizeof addr;
  char port[8] = {};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&addr), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&addr), size, nullptr, 0, port, sizeof port, NI_NUMERICSERV) != 0)
    return Error(Code::kInternal, std::string("cannot read the port of a listener: ") + std::strerror(errno));
  return port_number(port);
}

template <typename T>
void set(int fd, int level, int option, T value) {
  // Best effort: a kernel that lacks one of them still has the heartbeats.
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

Result<Ports> parse_ports(const std::string& text) {
  if (text.empty()) return Ports{};
  const auto dash = text.find('-');
  Ports out;
  REFIT_ASSIGN(out.low, port_number(std::string_view(text).substr(0, dash)));
  out.high = out.low;
  if (dash != std::string::npos) {
    REFIT_ASSIGN(out.high, port_number(std::string_view(text).substr(dash + 1)));
  }
  if (out.high < out.low) return Error(Code::kInvalid, "port_range '" + text + "' ends before it starts");
  return out;
}

Result<Listening> listen_on(const std::string& address, const Ports& ports, std::uint64_t random,
                            const std::string& option) {
  const std::string wanted = address.empty() ? "127.0.0.1" : address;
  auto found = resolve(wanted, 0, false);
  if (!found.ok()) return Error(Code::kInvalid, option + ": " + found.error().message);
  const addrinfo& at = **found;
  char host[NI_MAXHOST] = {};
  if (::getnameinfo(at.ai_addr, at.ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return Error(Code::kInvalid, option + " '" + wanted + "' has no numeric form");
  const std::uint32_t count = ports.low == 0 ? 1 : std::uint32_t{ports.high} - ports.low + 1;
  int last = 0;
  for (std::uint32_t i = 0; i < count; ++i) {  // from a random start, so that many movers of a host spread
    const auto port = static_cast<std::uint16_t>(ports.low == 0 ? 0 : ports.low + (random + i) % count);
    REFIT_ASSIGN(const Addresses one, resolve(host, port, true));
    Fd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return Error(Code::kExhausted, std::string("socket: ") + std::strerror(errno));
    // Connections of a dead process linger at its port; a living listener still refuses.
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (::bind(fd.get(), one->ai_addr, one->ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
      REFIT_ASSIGN(const std::uint16_t got, bound_port(fd.get()));
      return Listening{std::move(fd), host, got};
    }
    last = errno;
    if (last != EADDRINUSE && last != EACCES) break;
  }
  if (last != EADDRINUSE && last != EACCES)
    return Error(Code::kInvalid, "cannot listen on " + wanted + ": " + std::strerror(last));
  return Error(Code::kExhausted, "port_range: every port from " + std::to_string(ports.low) + " to " +
                                     std::to_string(ports.high) + " on " + wanted + " is taken or forbidden");
}

Result<Fd> connect_to(const std::string& host, std::uint16_t port) {
  REFIT_ASSIGN(const Addresses at, resolve(host, port, true));
  Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Error(Code::kExhausted, std::string("socket: ") + std::strerror(errno));
  if (::connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS)
    return Error(Code::kPeerLost,
                 "cannot connect to " + host + ":" + std::to_string(port) + ": " + std::strerror(errno));
  return fd;
}

void tune(int fd, std::int64_t stall_ns) {
  const auto ms = static_cast<unsigned>(stall_ns / 1'000'000);
  const int s = static_cast<int>(stall_ns / kNsPerSecond / 4 + 1);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, s);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, s);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int pending_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace refit::transport
