// Link: how any member (source or target rank) stands towards its coordinator: hello, epoch, and which of the received
// envelopes may be acted on at all. Shared by both step functions. *pure*.
#pragma once
#include <cstdint>
#include <optional>

#include "core/core.h"
#include "wire/wire.h"

namespace refit::install {

// Why envelopes were dropped. Never part of the state that rule "an old message changes nothing" speaks about.
struct Ignored {
  std::uint64_t foreign_job = 0, wrong_party = 0, old_epoch = 0, old_txn = 0, unexpected = 0;
  std::uint64_t total() const { return foreign_job + wrong_party + old_epoch + old_txn + unexpected; }
};

// What stays the same for the life of a process.
struct Identity {
  Hash128 job;
  MemberName name;
  Incarnation incarnation;
  Hash128 layout_digest;
  wire::Bytes layout, card;  // opaque, sent in Hello
  std::int64_t staging_bytes = 0;
  std::int64_t heartbeat_ns = 100'000'000;  // a Tick sends Hello or Heartbeat when this has passed
};

struct Link {
  bool connected = false, welcomed = false;
  Epoch epoch;  // highest coordinator epoch heard; lower ones are refused (C13)
  std::uint32_t member = wire::kNoMember;
  Lineage lineage;
  std::optional<std::uint64_t> digest_seed;  // from the first Welcome on
  std::uint64_t membership_epoch = 0;
  Version newest;                // newest committed version as of Welcome
  LayoutEpoch layout_epoch;      // of the last Configure
  PlanId plan;                   // set by plan_made
  bool planned = false;          // plan of layout_epoch is ready
  bool rejected = false;         // refused for good: no Hello until the next connection
  std::optional<Error> refused;  // why the coordinator did not admit us, last heard
  Txn seen;                      // highest round begun or closed here: an older or equal Begin is stale (C4)
  std::uint64_t number = 0;      // highest version number heard of
  friend bool operator==(const Link&, const Link&) = default;
};

// True when the envelope comes from the coordinator this member follows, under its epoch. Otherwise counts and drops.
bool accept(const Link& link, const Identity& self, const wire::Envelope& envelope, Ignored& ignored);
// Takes a Welcome: the coordinator epoch and the membership epoch may rise, never fall. `bound`: this process holds
// bytes or a yes of its lineage, or knows of a commit; then another lineage is refused (only a restart, as Empty, joins
// it). Who is not bound leaves its round before it takes a Welcome for which moves() holds. False: nothing changed but
// `refused`.
bool take_welcome(Link& link, const wire::Envelope& envelope, const wire::Welcome& welcome, bool bound);
// The Welcome or Refused would bring a process that is not bound from another lineage to `lineage`.
bool moves(const Link& link, const Lineage& lineage, bool bound);
// True: a promise was asked for and is given by saying Hello now, under the envelope's epoch (C3).
bool take_refused(Link& link, const wire::Envelope& envelope, const wire::Refused& refused, bool bound);
// A Configure of a newer layout epoch: true when a plan must be made now. `resend_ready` is set for a repeat.
bool take_configure(Link& link, const wire::Configure& configure, bool& resend_ready);
wire::Envelope envelope(const Link& link, const Identity& self, const Txn& txn, std::uint64_t sequence,
                        wire::Message message);
// Hello or Heartbeat is due when nothing was sent for heartbeat_ns.
bool beat_due(const Link& link, const Identity& self, std::int64_t sent_ns, std::int64_t now_ns);

}  // namespace refit::install
