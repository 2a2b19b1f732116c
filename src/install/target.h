// The target rank's step function: State × Event → State, actions. Pure: no I/O, clock, thread; total (an event that
// doesn't fit leaves the state bit-equal and is counted). The driver performs the actions in the order given, on its
// own threads where they take long, and feeds exactly one Done or Failed back per task, also for a cancelled one.
//
// A rank votes yes when everything it was due is staged in the shadow and equal to what the sources sealed. From then
// on only a decision (Gate or Abort of that txn), a higher epoch's abort, or the end of the process frees the stage: no
// deadline does (C3). The live bytes change only between SetWord(copying) and SetWord(applied), with the gate shut
// (C5).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/core.h"
#include "install/link.h"
#include "wire/wire.h"

namespace refit::install {

enum class TargetPhase : std::uint8_t { kEmpty, kServing, kReceiving, kVoted, kApplying, kLagging, kFenced };
wire::MemberState to_member_state(TargetPhase phase);

// Inside Applying, in this order.
enum class ApplyStep : std::uint8_t { kShutting, kGated, kCopying, kCaches, kApplied, kOpening };

// Long work of the executor. At most one of each kind is outstanding.
enum class Task : std::uint8_t { kStage, kShutGate, kCopy, kCaches, kOpenGate };
std::string_view to_string(Task task);

struct TargetConfig {
  Identity self;
  bool serve_lagging = false;
};

struct TargetState {
  TargetConfig config;
  Link link;
  TargetPhase phase = TargetPhase::kEmpty;
  TargetPhase rest = TargetPhase::kEmpty;  // where an abort returns to: Empty, Serving, Lagging or Fenced
  Version live;                            // what the live bytes hold; number 0: nothing
  // The round whose bytes this rank holds in the form that deltas are made against; counter 0: none. Between rounds
  // they lie in the live memory; the executor brings them back to the shadow when a round was aborted.
  Txn base;
  wire::CommitWord word;  // mirror of the word beside the live bytes
  std::optional<wire::Digest4> live_digest;
  bool gate_open = false;
  std::optional<Error> fenced;  // set exactly in Fenced (or when it rests there)

  // The round in hand: Receiving, Voted, Applying.
  Txn txn;
  wire::Begin begin;
  bool lent = false;    // Lend taken, staging started
  wire::Staged staged;  // valid from Voted on
  Version next;         // from Gate on
  // Newest round that this rank knows to be committed, with its version: what a lost journal is rebuilt from (C3).
  Txn known;
  Version known_version;
  ApplyStep apply = ApplyStep::kShutting;
  wire::Applied applied;  // valid from kApplied on; kept for repeats after reopening
  wire::Reopened reopened;
  std::int64_t gate_since_ns = 0, gate_deadline_ns = 0;

  std::uint32_t busy = 0;                 // bit per Task that has not reported yet
  bool stage_held = false;                // the shadow holds bytes of `txn` (or of an aborted one while busy)
  Txn stage_txn;                          // whose bytes the shadow holds
  wire::Heartbeat progress;               // last reported by the executor
  std::optional<wire::Verify> verifying;  // in hand
  wire::CommitWord verifying_word;        // as it was when the verification began
  // How this rank left its last round early; told again when the coordinator asks again.
  struct Left {
    Txn txn;
    bool fenced = false;
    Error error;
    Phase phase = Phase::kBegin;
    friend bool operator==(const Left&, const Left&) = default;
  };
  std::optional<Left> left;
  std::int64_t now_ns = 0, sent_ns = 0;
  std::uint64_t sent = 0;  // envelopes so far
};
// Everything but the clock, for "an old message leaves the state bit-equal".
bool same(const TargetState& a, const TargetState& b);

// What an agent that was re-created beside surviving live bytes found there (C5). A new process found nothing.
struct Survived {
  wire::CommitWord word;
  Version live;
  std::optional<wire::Digest4> live_digest;
  bool gate_open = false;
};

// ---- events ---------------------------------------------------------------------------------------------------------
struct Received {
  wire::Envelope envelope;
};
struct ConnectionUp {};
struct ConnectionDown {};
struct Tick {};
// `same`: the plan and all that was proven under it stayed.
struct PlanMade {
  LayoutEpoch layout_epoch;
  PlanId plan;
  bool same = false;
};
struct PlanFailed {
  LayoutEpoch layout_epoch;
  std::vector<Error> errors;
};
// kStage: counted digest of the staged bytes; kCopy: of the live bytes after the copy, and whether they can be the base
// of deltas; others: empty.
struct TaskDone {
  Task task;
  Txn txn;
  wire::Digest4 counted;
  wire::ProofCounts proof;
  bool retained = false;
};
struct TaskFailed {
  Task task;
  Txn txn;
  Error error;
};
struct Progress {
  wire::Heartbeat now;
};  // `state` is ignored
struct Verified {
  std::uint64_t nonce;
  wire::Domain domain;
  wire::Digest4 counted;
  wire::ProofCounts proof;
  std::vector<Error> errors;
};

using TargetEventKind = std::variant<Received, ConnectionUp, ConnectionDown, Tick, PlanMade, PlanFailed, TaskDone,
                                     TaskFailed, Progress, Verified>;
struct TargetEvent {
  std::int64_t now_ns = 0;
  TargetEventKind what;
};

// ---- actions --------------------------------------------------------------------------------------------------------
struct Send {
  wire::Envelope envelope;
};  // to the coordinator; may be lost, repeats are the protocol's
struct MakePlan {
  wire::Configure configure;
};  // → PlanMade | PlanFailed
struct StartStaging {
  Txn txn;
  wire::Begin begin;
  std::vector<wire::LendEntry> sources;
  Txn base{};  // deltas may be made against it; counter 0: only complete buckets
};             // → kStage
struct CancelStaging {
  Txn txn;
};  // ask the running kStage task to end soon; it still reports
struct ShutGate {
  Txn txn;
  std::int64_t deadline_ns;
};  // → kShutGate, when no request runs on the live bytes
struct SetWord {
  wire::CommitWord word;
  Version version;
};  // at once, before the next action; release order
struct CopyShadowToLive {
  Txn txn;
  bool proof;
};  // → kCopy, with the digest of the destination
struct InvalidateCaches {
  Txn txn;
  Version version;
};  // → kCaches: caches, derived tensors, label, stream order (C21)
struct OpenGate {
  Txn txn;
  Version version;
};  // → kOpenGate; the gate itself reads the word and fails closed
struct Fence {
  Error reason;
};  // at once: the gate shuts; an OpenGate in flight fails
struct DropStage {
  Txn txn;
};  // at once: the shadow is free
struct RunVerify {
  std::uint64_t nonce;
  wire::Domain domain;
};  // → Verified
struct Observe {
  Phase phase;
  Txn txn;
};  // tell the observer; fault tests die in it

using TargetAction = std::variant<Send, MakePlan, StartStaging, CancelStaging, ShutGate, SetWord, CopyShadowToLive,
                                  InvalidateCaches, OpenGate, Fence, DropStage, RunVerify, Observe>;

// A fresh process (`survived` absent) is Empty; word copying → Fenced; applied → Serving when its gate is still open,
// else Lagging.
TargetState start_target(TargetConfig config, const std::optional<Survived>& survived, std::int64_t now_ns);
// Changes `state` in place (it may hold megabytes of layout) and returns what to do, in order.
std::vector<TargetAction> step(TargetState& state, const TargetEvent& event, Ignored& ignored);
// May the worker run requests now, as far as this rank is concerned?
bool servable(const TargetState& state);

}  // namespace refit::install
