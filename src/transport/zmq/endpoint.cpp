#include "transport/zmq/endpoint.h"

namespace refit::transport::zmq {

Result<Endpoint> parse_endpoint(const std::string& address, bool listen) {
  constexpr std::string_view kScheme = "tcp://";
  const auto bad = [&](const std::string& why) {
    return Error(Code::kInvalid, "control address '" + address + "': " + why + "; the form is tcp://HOST:PORT" +
                                     (listen ? ", PORT may be LOW-HIGH or 0" : ""));
  };
  if (!address.starts_with(kScheme)) return bad("it does not start with tcp://");
  std::string rest = address.substr(kScheme.size());
  Endpoint out;
  std::size_t colon = rest.rfind(':');
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string::npos || close + 1 != colon) return bad("the IPv6 number is not '[…]:PORT'");
    out.host = rest.substr(1, close - 1);
  } else {
    if (colon == std::string::npos || rest.find(':') != colon) return bad("there is not one ':' before the port");
    out.host = rest.substr(0, colon);
  }
  const std::string port = rest.substr(colon + 1);
  if (out.host.empty() || out.host.find_first_of("*;/@% \t") != std::string::npos)
    return bad("the host '" + out.host + "' is no name or number" + (listen ? " (0.0.0.0 is every interface)" : ""));
  if (port.empty() || (port == "0" && !listen)) return bad("the port is missing");
  if (port == "0") return out;
  auto ports = parse_ports(port);
  if (!ports.ok()) return bad(ports.error().message);
  out.ports = *ports;
  if (!listen && out.ports.low != out.ports.high) return bad("a range says nothing about where to connect");
  return out;
}

std::string to_address(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return "tcp://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace refit::transport::zmq
