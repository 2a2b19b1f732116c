#include "transport/zmq/card.h"

#include <sys/un.h>

#include "transport/common/bytes.h"

namespace refit::transport::zmq {
namespace {
constexpr std::uint32_t kMagic = 0x5a524631;  // "1FRZ"; the digit is the release of this format
}  // namespace

Bytes encode(Kind kind, std::span<const std::byte> payload) {
  return Writer().u32(kMagic).u32(static_cast<std::uint32_t>(kind)).raw(payload).take();
}

Result<Kind> decode(std::span<const std::byte> message) {
  Reader r(message);
  const std::uint32_t magic = r.u32();
  const std::uint32_t kind = r.u32();
  if (!r.ok() || magic != kMagic || kind < 1 || kind > static_cast<std::uint32_t>(Kind::kBye))
    return Error(Code::kCorrupt, "not a control message");
  return static_cast<Kind>(kind);
}

Result<std::string> path_of(const std::string& address) {
  constexpr std::string_view kScheme = "ipc://";
  if (address.starts_with("tcp:"))
    return Error(Code::kUnsupported, "control address '" + address +
                                         "': a TCP listener, loopback too, needs CURVE keys, which this build does not offer; use ipc:// in a private directory");
  if (!address.starts_with(kScheme)) return Error(Code::kInvalid, "control address '" + address + "' must start with ipc://");
  std::string path = address.substr(kScheme.size());
  if (path.empty() || path.front() != '/') return Error(Code::kInvalid, "control address '" + address + "' needs an absolute path");
  constexpr std::size_t kLimit = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kLimit || path.find('\0') != std::string::npos)
    return Error(Code::kInvalid, "control socket path '" + path + "' has " + std::to_string(path.size()) + " bytes, at most " + std::to_string(kLimit) + " are allowed: choose a shorter runtime directory");
  return path;
}

}  // namespace refit::transport::zmq
