// Addresses of control lanes over TCP.
#pragma once
#include "transport/common/net.h"

namespace refit::transport::zmq {

struct Endpoint {
  std::string host;  // without brackets
  Ports ports;       // connecting: one
};
// "tcp://HOST:PORT", "tcp://[V6]:PORT", and for a listener PORT as LOW-HIGH or 0. kInvalid otherwise.
Result<Endpoint> parse_endpoint(const std::string& address, bool listen);
std::string to_address(const std::string& host, std::uint16_t port);

}  // namespace refit::transport::zmq
