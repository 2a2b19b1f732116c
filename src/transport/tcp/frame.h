// What tcp movers send each other: cards, the handshake, frames. Fixed little-endian layouts (README.md has the
// tables).
#pragma once
#include <array>

#include "transport/transport.h"

namespace refit::transport::tcp {

enum class Security : std::uint32_t { kNone = 0, kMac = 1 };
std::string_view to_string(Security security);
// Of `refit.security.bulk`. kUnsupported for aes_gcm, kInvalid for anything else.
Result<Security> security_from(std::string_view name);

inline constexpr std::size_t kKeyBytes = 32, kNonceBytes = 16, kTagBytes = 16;
using Key = std::array<std::byte, kKeyBytes>;
using Nonce = std::array<std::byte, kNonceBytes>;
using Tag = std::array<std::byte, kTagBytes>;

// Who a mover is and where it listens. It travels over the control plane only: the key in it admits to the listener.
struct Card {
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  Security security = Security::kMac;
  Key key{};
  std::uint16_t port = 0;
  std::string host;  // numeric
};
inline constexpr std::size_t kLongestHost = 64;
Bytes encode(const Card& card);
Result<Card> decode_card(std::span<const std::byte> bytes);

// The first bytes of a connection.
struct Hello {
  Hash128 job;
  std::uint32_t from = 0, to = 0;  // members
  Incarnation from_incarnation, to_incarnation;
  Security security = Security::kMac;
  std::uint32_t stream = 0;  // index among the connections of this pair; kProbe: only asks
  Nonce nonce{};
};
inline constexpr std::uint32_t kProbe = 0xffffffffu;
inline constexpr int kMaxStreams = 16;
inline constexpr std::size_t kHelloBytes = 80;
Bytes encode(const Hello& hello);
Result<Hello> decode_hello(std::span<const std::byte> bytes);

enum class Answer : std::uint32_t { kYes = 0, kOther = 1, kSecurity = 2, kFull = 3 };
struct Welcome {
  Answer answer = Answer::kYes;
  Nonce nonce{};
};
inline constexpr std::size_t kWelcomeBytes = 32;
Bytes encode(const Welcome& welcome);
Result<Welcome> decode_welcome(std::span<const std::byte> bytes);

// offer, data, end, beat: from the connector; grant, refuse, done, end, beat: from the listener.
enum class Type : std::uint32_t { kOffer = 1, kGrant = 2, kRefuse = 3, kData = 4, kDone = 5, kEnd = 6, kBeat = 7 };
// Why a recipient does not take a bucket.
enum class Refusal : std::uint32_t {
  kForeign = 0,
  kUnexpected = 1,
  kDuplicate = 2,
  kLarge = 3,
  kOver = 4,
  kStaging = 5
};
inline constexpr std::uint32_t kAsSender = 1, kAsRecipient = 2;  // which part of a lane has ended

struct Header {
  Type type = Type::kBeat;
  std::uint32_t length = 0;  // payload that follows: data only
  LaneId id;
  BucketId bucket;
  std::uint32_t code = 0;    // refuse: a Refusal; end: kAsSender, kAsRecipient
  std::uint64_t offset = 0;  // data: of the payload in the packed bucket
  std::uint64_t bytes = 0;   // offer, data: of the bucket
};
inline constexpr std::size_t kHeaderBytes = 88, kFrameBytes = kHeaderBytes + kTagBytes;
inline constexpr std::uint32_t kMaxChunk = 4 << 20;  // a receiver refuses more (rule L4)
Bytes encode(const Header& header);                  // with a tag of zeros behind it
// kCorrupt for anything that no sender writes: kinds, lengths and ranges are checked here.
Result<Header> decode_header(std::span<const std::byte> bytes);

}  // namespace refit::transport::tcp
