// What the control lanes of zmq exchange beside the caller's bytes: eight bytes of head per message.
#pragma once
#include "transport/transport.h"

namespace refit::transport::zmq {

enum class Kind : std::uint32_t {
  kHello = 1,    // member: I am here (repeated until welcomed)
  kWelcome = 2,  // coordinator: you are a peer now
  kData = 3,
  kPing = 4,  // either, when it has nothing else to say
  kBye = 5,   // either: closing, or you are no peer of mine (any more)
  kFull = 6,  // coordinator: no room for another peer under your key, or (a byte follows) at all
};
inline constexpr std::size_t kHeadBytes = 8;
Bytes encode(Kind kind, std::span<const std::byte> payload = {});
// The kind of a message; the payload follows the head. kCorrupt for anything that no release of ours sends.
Result<Kind> decode(std::span<const std::byte> message);

}  // namespace refit::transport::zmq
