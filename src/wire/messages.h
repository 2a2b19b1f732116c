// Control messages as plain structs, and their encoding. *pure*. Only this room sees the generated FlatBuffers code.
//
// Every message travels in an Envelope that says who sent it (party, slot, incarnation), under which coordinator epoch
// and for which round (txn). A receiver drops, and counts, what is of another job, an older epoch, another incarnation
// or another round; it never acts on it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/core.h"
#include "wire/digest.h"

namespace refit::wire {

using Bytes = std::vector<std::byte>;

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::uint32_t kNoMember = 0xffffffffu;
// Bounds that hold before anything is believed: one frame, one list, one text.
inline constexpr std::int64_t kMaxFrameBytes = 64 << 20;
inline constexpr std::uint32_t kMaxListEntries = 1u << 20;
inline constexpr std::uint32_t kMaxTextBytes = 1u << 16;
inline constexpr std::uint32_t kMaxErrors = 64;

enum class Party : std::uint8_t { kCoordinator = 0, kSource = 1, kTarget = 2, kClient = 3 };
std::string_view to_string(Party party);
Party party_of(Role role);

// State of a rank as it is reported. The first seven are a target's, the others a source's.
enum class MemberState : std::uint8_t {
  kEmpty,
  kServing,
  kReceiving,
  kVoted,
  kApplying,
  kLagging,
  kFenced,
  kIdle,
  kPreparing,
  kSealed,
  kLending,
  kSourceVoted
};
inline constexpr int kMemberStateCount = 12;
std::string_view to_string(MemberState state);

// The commit word that lies beside the live bytes (rule C5).
enum class Word : std::uint8_t { kNone = 0, kCopying = 1, kApplied = 2 };
struct CommitWord {
  Word word = Word::kNone;
  Txn txn;
  friend bool operator==(const CommitWord&, const CommitWord&) = default;
};

enum class Outcome : std::uint8_t { kCommitted = 0, kAborted = 1, kCommittedIncomplete = 2, kInDoubt = 3 };
std::string_view to_string(Outcome outcome);  // committed, aborted, committed_incomplete, in_doubt

// Where the bytes lay that a report is about (rule G2).
enum class Domain : std::uint8_t { kStaged = 0, kLive = 1, kDerived = 2 };
std::string_view to_string(Domain domain);

// Tensors proven, by how and where. Shown as `proof` in JSON.
struct ProofCounts {
  std::uint64_t placed_staged = 0, placed_live = 0, handed_over = 0, probed = 0;
  friend bool operator==(const ProofCounts&, const ProofCounts&) = default;
};

// ---- member → coordinator -------------------------------------------------------------------------------------------

// First message on a connection, repeated until Welcome or Refused. A restarted process is Empty and says so (C17).
struct Hello {
  MemberState state = MemberState::kEmpty;
  Lineage lineage;                 // zero: none yet
  CommitWord word;                 // target only
  std::optional<Txn> voted;        // yes given and not released
  Version last;                    // last applied (target) or last committed (source) version
  std::optional<Digest4> live;     // folded digest of the live bytes, where known
  Hash128 layout_digest;           // digest of `layout`; equal for all members of one role
  Bytes layout;                    // opaque here: a recipe or explicit holdings of the whole role
  Bytes card;                      // opaque: how movers find this process
  std::int64_t staging_bytes = 0;  // announced staging (target), 0 for a source
  // What a coordinator that lost its journal rebuilds it from (C3). Absent in the words of an older release.
  std::optional<std::uint64_t> digest_seed;  // of the lineage
  std::uint64_t number = 0;                  // highest version number heard of
  Txn seen;                                  // highest round begun or closed here
  Txn known;                                 // newest round known to be committed; counter 0: none
  Version known_version;                     // its version
  friend bool operator==(const Hello&, const Hello&) = default;
};
// The plan of this layout epoch is made and everything for it is in place.
struct Ready {
  LayoutEpoch layout_epoch;
  PlanId plan;
  Txn base{};  // target: the round whose bytes it holds in the form that deltas are made against; counter 0: none
  friend bool operator==(const Ready&, const Ready&) = default;
};
struct PlanRefused {
  LayoutEpoch layout_epoch;
  std::vector<Error> errors;  // 1 … kMaxErrors
  friend bool operator==(const PlanRefused&, const PlanRefused&) = default;
};
// Liveness, progress and state in one. The envelope's txn is the round the sender is inside, or none. Stall is judged
// on `progress`, which the worker raises with every verified piece of work (rule L3).
struct Heartbeat {
  MemberState state = MemberState::kEmpty;
  Phase phase = Phase::kBegin;
  std::uint64_t progress = 0, buckets_done = 0;
  std::int64_t bytes_done = 0;
  std::string bucket;           // the bucket in hand, for errors; may be empty
  std::int64_t published = -1;  // step that a source offers; -1: none, or an older release
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};
struct GroupDigest {
  Hash128 group;  // identity of a set of equal boxes with several owners
  Digest4 digest;
  friend bool operator==(const GroupDigest&, const GroupDigest&) = default;
};
// A source's weights are digested by its own scan and exposed.
struct Sealed {
  std::int64_t step = -1;
  std::string weight_set;
  Digest4 digest;                   // what this source sends, each logical box counted once by its sender
  std::vector<GroupDigest> groups;  // every replicated box it holds, folded per group (rule C10)
  Bytes descriptor;                 // opaque: how readers reach the lent memory
  std::uint64_t manifest_bytes = 0;
  Hash128 manifest_hash;
  friend bool operator==(const Sealed&, const Sealed&) = default;
};
// All that this target rank was due is staged and compared with the manifests.
struct Staged {
  Digest4 counted;  // each distinct box counted once over the ranks of the replica
  ProofCounts proof;
  friend bool operator==(const Staged&, const Staged&) = default;
};
struct Vote {
  bool yes = false;
  std::optional<Error> error;  // set exactly when the vote is no
  friend bool operator==(const Vote&, const Vote&) = default;
};
struct Gated {
  friend bool operator==(const Gated&, const Gated&) = default;
};
// Word applied(T) is set: live bytes digested, caches and derived tensors handled, gate still shut.
struct Applied {
  Digest4 counted;  // over the live bytes
  ProofCounts proof;
  std::int64_t pause_ns = 0;  // since the gate began to shut
  bool retained = false;      // what was applied can be the base of a delta
  friend bool operator==(const Applied&, const Applied&) = default;
};
struct Reopened {
  std::int64_t pause_ns = 0;
  friend bool operator==(const Reopened&, const Reopened&) = default;
};
// This rank can't go on with the round. `fenced`: nor with serving.
struct Failed {
  Phase phase = Phase::kBegin;
  bool fenced = false;
  Error error;
  friend bool operator==(const Failed&, const Failed&) = default;
};
struct VerifyReport {
  std::uint64_t nonce = 0;
  Domain domain = Domain::kLive;
  bool full = true;  // else incremental
  Digest4 counted;
  CommitWord word;
  Version version;
  ProofCounts proof;
  std::vector<Error> errors;
  friend bool operator==(const VerifyReport&, const VerifyReport&) = default;
};
// The largest finite magnitudes of a source's parts of the blocks that it shares with other sources, before any of them
// quantises. Said again until BlockAmaxMerged comes.
struct BlockAmax {
  std::vector<std::uint64_t> blocks;  // ascending; opaque here, equal numbers mean the same block
  std::vector<float> amax;            // one for each
  friend bool operator==(const BlockAmax&, const BlockAmax&) = default;
};
struct Goodbye {
  std::string reason;
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

// ---- client → coordinator -------------------------------------------------------------------------------------------

struct StatusRequest {
  std::uint64_t request = 0;
  friend bool operator==(const StatusRequest&, const StatusRequest&) = default;
};
struct VerifyRequest {
  std::uint64_t request = 0;
  Domain domain = Domain::kLive;
  friend bool operator==(const VerifyRequest&, const VerifyRequest&) = default;
};

// ---- coordinator → member or client ---------------------------------------------------------------------------------

struct Welcome {
  std::uint32_t member = 0;  // number of the slot (role, instance, rank); stable over restarts
  Lineage lineage;
  std::uint64_t digest_seed = 0;  // of the lineage
  std::uint64_t membership_epoch = 0;
  Version newest;  // newest committed; number 0: none
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
struct Refused {
  Error error;
  bool hello_again = false;  // the sender is unknown or early: say Hello (again)
  // Not zero: the coordinator rebuilds the journal of this lineage. A member of it (or of none) follows the envelope's
  // epoch from here on; its next Hello, under that epoch, is its promise to refuse lower ones (C3).
  Lineage promise;
  friend bool operator==(const Refused&, const Refused&) = default;
};
struct RosterEntry {
  std::uint32_t member = 0;
  MemberName name;
  Incarnation incarnation;
  Bytes card;
  friend bool operator==(const RosterEntry&, const RosterEntry&) = default;
};
// Make the plan of this epoch. Answered by Ready or PlanRefused.
struct Configure {
  LayoutEpoch layout_epoch;
  std::optional<PlanId> plan;  // known when a former epoch had the same layouts and options
  Bytes source_layout, target_layout;
  std::string options_json;
  std::int64_t staging_bytes = 0;  // smallest announced by any target
  std::vector<RosterEntry> roster;
  friend bool operator==(const Configure&, const Configure&) = default;
};
struct Begin {
  std::uint64_t number = 0;  // of the version; burnt if the round aborts
  LayoutEpoch layout_epoch;
  PlanId plan;
  std::optional<std::int64_t> step;         // the step to publish, when the caller named one
  bool proof = false;                       // re-scan at the source, re-read at the target
  std::int64_t stall_ns = 0, total_ns = 0;  // what is left for this member, already less a margin (rule L1)
  // Deltas may be made against the bytes of this round (counter 0: none) for all targets but those listed, which hold
  // something else and get complete buckets.
  Txn base{};
  std::vector<std::uint32_t> without{};  // ascending members
  bool serves_delta(std::uint32_t member) const;
  friend bool operator==(const Begin&, const Begin&) = default;
};
struct LendEntry {
  std::uint32_t member = 0;
  Incarnation incarnation;
  Bytes descriptor;
  std::uint64_t manifest_bytes = 0;
  Hash128 manifest_hash;
  friend bool operator==(const LendEntry&, const LendEntry&) = default;
};
// To targets: all sources are sealed; read.
struct Lend {
  std::vector<LendEntry> sources;
  friend bool operator==(const Lend&, const Lend&) = default;
};
// To sources: nobody reads any more. Check the seal once more, then vote.
struct ReadersDone {
  friend bool operator==(const ReadersDone&, const ReadersDone&) = default;
};
// To targets: the commit is journaled. Shut the gate.
struct Gate {
  Version version;
  std::int64_t gate_ns = 0;  // a gate shut for longer fences the replica (rule C2)
  friend bool operator==(const Gate&, const Gate&) = default;
};
struct Copy {  // all ranks of the replica are gated
  friend bool operator==(const Copy&, const Copy&) = default;
};
struct Open {  // all ranks of the replica applied
  friend bool operator==(const Open&, const Open&) = default;
};
// The round of the envelope's txn is aborted. Releases a yes: it is a decision.
struct Abort {
  Error reason;
  friend bool operator==(const Abort&, const Abort&) = default;
};
// To sources: the commit is journaled; v may go, w stays until End.
struct Committed {
  Version version;
  friend bool operator==(const Committed&, const Committed&) = default;
};
// Every member applied or was evicted, or the call ended with members missing.
struct End {
  Outcome outcome = Outcome::kCommitted;
  Version version;
  friend bool operator==(const End&, const End&) = default;
};
// This incarnation is out of the membership: fence (rule C16). It may take part in a later round and is repaired by it.
struct Evict {
  std::uint64_t membership_epoch = 0;
  Error reason;
  friend bool operator==(const Evict&, const Evict&) = default;
};
struct Verify {
  std::uint64_t nonce = 0;
  Domain domain = Domain::kLive;
  friend bool operator==(const Verify&, const Verify&) = default;
};
// To a source: of each of its blocks the largest magnitude that any source told.
struct BlockAmaxMerged {
  std::vector<float> amax;  // in the order of what it asked
  friend bool operator==(const BlockAmaxMerged&, const BlockAmaxMerged&) = default;
};
struct StatusReply {
  std::uint64_t request = 0;
  bool ok = true;
  std::string json;  // up to kMaxFrameBytes / 2
  friend bool operator==(const StatusReply&, const StatusReply&) = default;
};

using Message = std::variant<Hello, Ready, PlanRefused, Heartbeat, Sealed, Staged, Vote, Gated, Applied, Reopened,
                             Failed, VerifyReport, Goodbye, StatusRequest, VerifyRequest,  //
                             Welcome, Refused, Configure, Begin, Lend, ReadersDone, Gate, Copy, Open, Abort, Committed,
                             End, Evict, Verify, StatusReply, BlockAmax, BlockAmaxMerged>;
inline constexpr int kMessageKinds = static_cast<int>(std::variant_size_v<Message>);
std::string_view kind_name(const Message& message);

// Who may send what (rule Z1): the table that decode() enforces.
bool may_send(Party party, const Message& message);

struct Envelope {
  Hash128 job;
  Epoch epoch;  // coordinator epoch the sender lives under; 0 before the first Welcome
  Txn txn;      // counter 0: the message belongs to no round
  Party party = Party::kClient;
  std::uint32_t instance = 0, rank = 0;  // of a source or target
  std::uint32_t member = kNoMember;      // as agreed by Welcome
  Incarnation incarnation;               // of the sending process
  std::uint64_t sequence = 0;            // counts what this incarnation sent: an overtaken heartbeat is recognised
  std::uint32_t key_id = 0;              // reserved: 0
  Hash128 mac;                           // reserved: zero
  Message message;
  friend bool operator==(const Envelope&, const Envelope&) = default;
  MemberName name() const;  // of a source or target
  std::string who() const;  // "target:0.2", "coordinator", "client"
};

// kInvalid when a field is beyond its bound (a local mistake or an oversize layout): names the field.
Result<Bytes> encode(const Envelope& envelope);
// kCorrupt or kMismatch (protocol version) for anything that isn't exactly one well-formed message. Reads from a
// private copy when `frame` isn't aligned to 8; allocates no more than a small multiple of the frame.
Result<Envelope> decode(std::span<const std::byte> frame);

}  // namespace refit::wire
