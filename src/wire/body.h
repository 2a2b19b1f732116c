// Between message structs and FlatBuffers. For this room's sources only.
#pragma once
#include <cstdint>

#include "control_generated.h"
#include "wire/messages.h"

namespace refit::wire {

struct Packed {
  fb::Body kind = fb::Body::NONE;
  flatbuffers::Offset<void> body;
};
Packed pack(flatbuffers::FlatBufferBuilder& builder, const Message& message);
fb::Hash pack(const Hash128& hash);
fb::TxnId pack(const Txn& txn);

Hash128 unpack(const fb::Hash& hash);
Txn unpack(const fb::TxnId& txn);
// `frame_bytes` bounds what the decoded message may hold: a table that is referred to twice can't multiply memory.
Result<Message> unpack(const fb::Envelope& envelope, std::size_t frame_bytes);

// Semantic checks of a decoded or to-be-encoded message: ranges, lengths, order, required pairs. kCorrupt names the
// field.
Status check_message(const Message& message);
Status check_envelope(const Envelope& envelope);

}  // namespace refit::wire
