#include "transport/zmq/card.h"

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
  if (!r.ok() || magic != kMagic || kind < 1 || kind > static_cast<std::uint32_t>(Kind::kFull))
    return Error(Code::kCorrupt, "not a control message");
  return static_cast<Kind>(kind);
}

}  // namespace refit::transport::zmq
