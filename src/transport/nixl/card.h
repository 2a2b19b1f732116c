// What nixl movers tell each other: cards, the door's questions, descriptors. Fixed little-endian layouts (README.md
// has the tables).
#pragma once
#include <array>

#include "transport/transport.h"

namespace refit::transport::nixl {

using Pass = std::array<std::byte, 16>;  // admits to a door; not a secret against who reads the network

// Who a mover is and where its door listens.
struct Card {
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  Pass pass{};
  std::uint16_t port = 0;
  std::string host, backend;
};
inline constexpr std::size_t kLongestName = 64;  // of a host, of a backend
Bytes encode(const Card& card);
Result<Card> decode_card(std::span<const std::byte> bytes);

// The first bytes of a connection, answered by a Reply.
struct Hello {
  Hash128 job;
  std::uint32_t to = 0;
  Incarnation to_incarnation;
  Pass pass{};
};
inline constexpr std::size_t kHelloBytes = 56;
Bytes encode(const Hello& hello);
Result<Hello> decode_hello(std::span<const std::byte> bytes);

// Is the lend with this memory epoch still open? Epoch 0: only whether somebody is there.
struct Question {
  std::uint64_t number = 0;
  MemoryEpoch epoch;
};
inline constexpr std::size_t kQuestionBytes = 24;
Bytes encode(const Question& question);
Result<Question> decode_question(std::span<const std::byte> bytes);

enum class Answer : std::uint32_t { kYes = 0, kNo = 1, kOther = 2 };
struct Reply {
  Answer answer = Answer::kYes;
  std::uint64_t number = 0;  // of the question; 0: of the hello
};
inline constexpr std::size_t kReplyBytes = 16;
Bytes encode(const Reply& reply);
Result<Reply> decode_reply(std::span<const std::byte> bytes);

struct LentRegion {
  std::uint64_t at = 0;  // in the source's process
  std::int64_t bytes = 0;
};
struct Descriptor {
  LaneId id;  // of the source's lane
  std::uint32_t member = 0;
  MemoryEpoch epoch;
  Bytes metadata;  // of the source's agent
  std::vector<LentRegion> regions;
};
inline constexpr std::size_t kMaxRegions = 1 << 16, kMaxMetadata = 64 << 20;
Bytes encode(const Descriptor& descriptor);
// kCorrupt unless lengths, checksum and every range hold.
Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes);

}  // namespace refit::transport::nixl
