// Cards and frames of the zmq_sparse mover. Fixed little-endian layouts (README.md has the tables).
#pragma once
#include "transport/transport.h"

namespace refit::transport::zmq_sparse {

inline constexpr std::size_t kKeyBytes = 32;  // of CURVE

// Who a mover is and where it listens. The public key in it admits to the listener, so it travels over the control
// plane only. Without a key: plain, which both ends must have asked for.
struct Card {
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  Bytes key;             // kKeyBytes, or none
  std::string endpoint;  // tcp://…
};
inline constexpr std::size_t kLongestEndpoint = 128;
Bytes encode(const Card& card);
Result<Card> decode_card(std::span<const std::byte> bytes);

// offer, data, beat, end: from the connector; grant, refuse, took, done, beat, end: from the listener.
enum class Type : std::uint32_t {
  kOffer = 1,
  kGrant = 2,
  kRefuse = 3,
  kData = 4,
  kTook = 5,
  kDone = 6,
  kEnd = 7,
  kBeat = 8
};
// Why a recipient does not take a bucket.
enum class Refusal : std::uint32_t { kEnded = 1, kUnexpected = 2, kTooLarge = 3, kForeign = 4, kTooMany = 5 };
inline constexpr std::uint32_t kAsSender = 1, kAsRecipient = 2;  // code of an end: which part is over
inline constexpr std::uint32_t kOnlyAsks = 1;  // code of a beat: from a connection that carries nothing else

struct Head {
  Type type = Type::kBeat;
  std::uint32_t from = 0;  // member
  Incarnation process;     // of the sender of the frame
  LaneId id;               // of the lane that the bucket was posted in; zeros in a beat
  BucketId bucket;
  std::uint32_t code = 0;
  std::uint64_t offset = 0;  // data: of the chunk; took: how much has arrived
  std::uint64_t bytes = 0;   // of the bucket
};
inline constexpr std::size_t kHeadBytes = 104;
Bytes encode(const Head& head);
// kCorrupt for anything but a whole head, of a known type, followed by bytes only where it is data.
Result<Head> decode_head(std::span<const std::byte> frame);

}  // namespace refit::transport::zmq_sparse
