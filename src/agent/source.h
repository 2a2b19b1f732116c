// The source rank's step function: Idle → Preparing → Sealed → Lending → Voted → Idle. Pure; total.
//
// The seal is the source's own scan at publish; it votes yes only when, after the last read, the write counters (and on
// proof versions a second scan) still match the seal (C8). It keeps w exposed or kept until End, unless its lend
// deadline has passed: then the lend is revoked and the trainer may go on (L5).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/core.h"
#include "install/install.h"
#include "wire/wire.h"

namespace refit::agent {

enum class SourcePhase : std::uint8_t { kIdle, kPreparing, kSealed, kLending, kVoted };
wire::MemberState to_member_state(SourcePhase phase);

enum class SourceTask : std::uint8_t { kSeal, kExpose, kCheckSeal };
std::string_view to_string(SourceTask task);

struct SourceState {
  install::Identity self;
  install::Link link;
  SourcePhase phase = SourcePhase::kIdle;
  Version last;  // newest committed version this source knows of
  Txn known;     // its round
  Txn txn;
  wire::Begin begin;
  wire::Sealed sealed;           // valid from Sealed on; descriptor from Lending on
  bool readers_done = false;     // ReadersDone heard
  bool decided = false;          // Committed heard
  bool lent = false;             // memory is exposed and not withdrawn
  bool held = false;             // trainer must not write: from Prepare until Release (unless it snapshots)
  std::optional<Error> revoked;  // why the lend was taken back early
  std::optional<std::pair<Txn, Error>> left;  // a no of the last round, told again when the coordinator asks again
  std::int64_t lend_deadline_ns = 0;
  std::optional<wire::BlockAmax> amax;  // told to the coordinator and not answered yet
  std::uint32_t busy = 0;  // bit per SourceTask that has not reported yet
  wire::Heartbeat progress;
  std::int64_t now_ns = 0, sent_ns = 0;
  std::uint64_t sent = 0;  // envelopes so far
};
bool same(const SourceState& a, const SourceState& b);

// ---- events (Received, ConnectionUp, ConnectionDown, Tick, PlanMade, PlanFailed, Progress: as in install)
// -------------- The trainer published (step, weight set), everything is digested and the manifest page is written.
struct SealDone {
  Txn txn;
  std::int64_t step = -1;
  std::string weight_set;
  wire::Digest4 digest;
  std::vector<wire::GroupDigest> groups;
  std::uint64_t manifest_bytes = 0;
  Hash128 manifest_hash;
};
// In its place, where blocks are cut over sources: this rank's share of them is measured. → Quantise
struct AmaxDone {
  Txn txn;
  wire::BlockAmax amax;
};
struct Exposed {
  Txn txn;
  wire::Bytes descriptor;
};
struct SealChecked {
  Txn txn;
};  // counters (and scan) still match
struct SourceTaskFailed {
  SourceTask task;
  Txn txn;
  Error error;
};  // kCheckSeal: kMismatch when the weights were written

using SourceEventKind =
    std::variant<install::Received, install::ConnectionUp, install::ConnectionDown, install::Tick, install::PlanMade,
                 install::PlanFailed, install::Progress, SealDone, AmaxDone, Exposed, SealChecked,
                 SourceTaskFailed>;
struct SourceEvent {
  std::int64_t now_ns = 0;
  SourceEventKind what;
};

// ---- actions (Send, MakePlan, Observe: as in install)
// ------------------------------------------------------------------- → SealDone. Waits for the trainer's publish,
// prepares, snapshots when asked, scans, writes the manifest. From here the guard holds the trainer.
struct Prepare {
  Txn txn;
  wire::Begin begin;
};
// → SealDone: the rest of Prepare, with the largest magnitudes of the whole blocks.
struct Quantise {
  Txn txn;
  wire::Begin begin;
  std::vector<float> amax;
};
struct Expose {
  Txn txn;
};  // → Exposed
struct CheckSeal {
  Txn txn;
  bool rescan = false;
};  // → SealChecked
// The round is committed: its bytes are the base of the next deltas. `sealed`: the weights are still what was sealed.
struct MoveBase {
  Txn txn;
  bool sealed = false;
};
struct Withdraw {
  Txn txn;
};  // at once: the lend's memory epoch rises, readers fail
// At once: guard released, snapshot dropped. `committed` tells whether w is the newest version.
struct Release {
  Txn txn;
  bool committed = false;
};

using SourceAction = std::variant<install::Send, install::MakePlan, install::Observe, Prepare, Quantise, Expose,
                                  CheckSeal, MoveBase, Withdraw, Release>;

SourceState start_source(install::Identity self, std::int64_t now_ns);
std::vector<SourceAction> step(SourceState& state, const SourceEvent& event, install::Ignored& ignored);

}  // namespace refit::agent
