// TCP sockets of movers: listening in a port range, connecting without waiting, the options every connection gets.
#pragma once
#include "core/core.h"

namespace refit::transport {

struct Ports {
  std::uint16_t low = 0, high = 0;  // 0: the system chooses
};
Result<Ports> parse_ports(const std::string& text);  // "LOW-HIGH", "PORT" or ""

struct Listening {
  Fd fd;
  std::string host;  // numeric
  std::uint16_t port = 0;
};
// On `address` (a name or number; empty: 127.0.0.1), which errors call `option`. A taken port is skipped; kExhausted
// when the whole range is taken.
Result<Listening> listen_on(const std::string& address, const Ports& ports, std::uint64_t random,
                            const std::string& option = "advertise_address");
// Starts a connection; it is made when the descriptor becomes writable.
Result<Fd> connect_to(const std::string& host, std::uint16_t port);
// No delay, and the kernel's own judgement of a peer that acknowledges nothing.
void tune(int fd, std::int64_t stall_ns);
int pending_error(int fd);

}  // namespace refit::transport
