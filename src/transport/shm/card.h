// What shm movers tell each other: cards, fd requests, descriptors. Fixed little-endian layouts (README.md has the
// tables).
#pragma once
#include <vector>

#include "transport/transport.h"

namespace refit::transport::shm {

// Who a mover is. The socket's path follows from the card and the reader's own runtime directory; no path travels.
struct Card {
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  std::uint32_t uid = 0;
  friend bool operator==(const Card&, const Card&) = default;
};
inline constexpr std::size_t kCardBytes = 40;
Bytes encode(const Card& card);
Result<Card> decode_card(std::span<const std::byte> bytes);
std::string socket_path(const std::string& runtime_dir, const Card& card);

// Asks the peer's service for a descriptor (or, kPing, only whether it is there).
enum class Ask : std::uint32_t { kPing = 1, kControl = 2, kFile = 3 };
struct Request {
  Ask ask = Ask::kPing;
  std::uint64_t file = 0;
  Card server;  // who the asker believes to talk to
};
inline constexpr std::size_t kRequestBytes = 56;
Bytes encode(const Request& request);
Result<Request> decode_request(std::span<const std::byte> bytes);

enum class Answer : std::uint32_t { kYes = 0, kForeign = 1, kUnknownFile = 2, kExhausted = 3 };
struct Reply {
  Answer answer = Answer::kYes;
  std::uint64_t file = 0;
  std::int64_t bytes = 0;  // of the file that comes along
};
inline constexpr std::size_t kReplyBytes = 24;
Bytes encode(const Reply& reply);
Result<Reply> decode_reply(std::span<const std::byte> bytes);

// One lent region: [offset, offset + bytes) of a shared file of `file_bytes`.
struct LentRegion {
  std::uint64_t file = 0;  // 0: an empty region without a file
  std::int64_t file_bytes = 0, offset = 0, bytes = 0;
};
struct Descriptor {
  LaneId id;  // of the source's lane
  std::uint32_t member = 0;
  std::uint32_t slot = 0;  // of the control page
  MemoryEpoch epoch;       // what the slot must hold
  std::vector<LentRegion> regions;
};
inline constexpr std::size_t kMaxRegions = 1 << 16;
Bytes encode(const Descriptor& descriptor);
// kCorrupt unless length, checksum and every range hold.
Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes);

// The control page: a mark, then slots that hold the memory epoch of the lend that owns them.
inline constexpr std::int64_t kControlBytes = 4096;
inline constexpr std::uint64_t kControlMark = 0x31706d7474696665;
inline constexpr std::uint32_t kSlots = 504;
std::uint64_t load_word(const std::byte* page, std::uint32_t index);
void store_word(std::byte* page, std::uint32_t index, std::uint64_t value);
inline constexpr std::uint32_t slot_word(std::uint32_t slot) { return 8 + slot; }

}  // namespace refit::transport::shm
