// The coordinator's step function: membership, layout epochs, rounds. Pure; total; actions are data.
//
// One round: begin (journaled) → sources Sealed → Lend → targets Staged and voted → ReadersDone → sources voted →
// commit journaled → per replica Gate, Copy, Open → End. Nothing about a decision is told before its record is durable;
// when an append fails the coordinator stops without telling either way and recovers by reading (C14). Presumed abort.
// All commands are repeated until answered and members answer repeats alike: the network may lose, double and reorder.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/journal.h"
#include "coordinator/roster.h"
#include "core/core.h"
#include "wire/wire.h"

namespace refit::coordinator {

struct Config {
  Hash128 job;
  Shape shape;
  Incarnation incarnation;                  // of the coordinator's process
  bool barrier = false;                     // `refit.commit`: no gate opens before all are shut
  bool continue_on_loss = false;            // `refit.on_target_loss`
  std::uint32_t min_targets = 1;            // replicas, with continue
  std::string options_json = "{}";          // opaque; every member plans with it
  std::int64_t resend_ns = 200'000'000;     // an unanswered command is repeated after this
  std::int64_t silence_ns = 5'000'000'000;  // no message for this long: the member counts as gone (L4)
  std::int64_t gap_ns = 2'000'000'000;      // a local loop gap beyond this re-arms deadlines and evicts nobody (L2)
  std::int64_t gate_ns = 30'000'000'000;    // C2
  std::int64_t margin_ns = 100'000'000;     // members get the remaining time less this (L1)
  std::int64_t join_ns = 30'000'000'000;    // how long a call waits for members to join and plan
  // A lost journal is rebuilt from the members' words: how long all are waited for, once to be heard and once to
  // promise the new epoch. Who is silent then is evicted.
  std::int64_t rebuild_ns = 10'000'000'000;
  // The journal is re-read so often: another coordinator may have it, where a lock does not reach every host (C13).
  std::int64_t look_ns = 5'000'000'000;
};

// How a call of sync_weights ended.
struct RoundResult {
  wire::Outcome outcome = wire::Outcome::kAborted;
  Txn txn;                          // counter 0: the round never began
  Version version;                  // committed version; for aborted the newest committed before (v)
  std::uint64_t number = 0;         // attempted number
  std::optional<Error> error;       // peer, stage, bucket
  std::vector<MemberName> missing;  // committed_incomplete: members that have not applied w
  std::vector<MemberName> evicted;  // with continue
  std::int64_t max_pause_ns = 0;
  wire::ProofCounts proof;  // summed over targets
  // Every member of the journaled membership applied it: is_stale may clear.
  bool all_applied = false;
};

enum class Stage : std::uint8_t {
  kOpening,  // epoch record not durable yet: nothing is accepted
  kIdle,     // between rounds
  kJoining,  // a call waits for members, plans, or the finish of the last round
  kBegin,    // begin record not durable yet
  kSealing,
  kStaging,
  kSourceVotes,
  kDeciding,  // commit record not durable yet
  kApplying,
  kStopped  // an append failed or a higher epoch exists: recover by reading
};
std::string_view to_string(Stage stage);

// Where a member stands in the round. Ascending.
enum class Progressed : std::uint8_t { kBegun, kSealed, kStaged, kVoted, kGated, kApplied, kReopened };

struct Part {
  std::uint32_t member = 0;
  Incarnation incarnation;
  Progressed at = Progressed::kBegun;
  bool yes = false;
  std::optional<wire::BlockAmax> amax;  // source, where blocks are cut over sources
  wire::Sealed sealed;                 // source
  std::optional<wire::Staged> staged;  // target
  std::optional<wire::Applied> applied;
  std::uint64_t progress = 0;
  std::int64_t progress_ns = 0;  // when it last rose
  std::int64_t sent_ns = 0;      // when the outstanding command was last sent
  friend bool operator==(const Part&, const Part&) = default;
};

struct Replica {
  std::uint32_t instance = 0;
  bool evicted = false;         // before the decision, with continue
  std::optional<Error> failed;  // after the decision: fenced, to be repaired by the next round
  bool copy_told = false, open_told = false;
  std::int64_t gate_deadline_ns = 0;
  bool out_told = false;  // its eviction is durable
  friend bool operator==(const Replica&, const Replica&) = default;
};

struct Round {
  BeginRecord record;
  wire::Begin begin;
  Version version;          // set at the decision
  wire::Digest4 digest;     // sum of the sources' numbers
  std::vector<Part> parts;  // ascending by member
  std::vector<Replica> replicas;
  std::map<Hash128, std::pair<wire::Digest4, std::uint32_t>> groups;  // replica group → digest, first owner (C10)
  // Of blocks that are cut over sources, by number: once all sources have told theirs (D7: of this round only).
  // Of each block, ascending: the largest that any source told.
  std::optional<std::vector<std::pair<std::uint64_t, float>>> amax;
  std::int64_t stage_since_ns = 0, total_deadline_ns = 0;
  bool committed = false, recovered = false;
  bool reported = false;       // the call has returned; finishing goes on
  std::optional<Error> error;  // first error
  friend bool operator==(const Round&, const Round&) = default;
};

struct BeginRound {
  std::optional<std::int64_t> step;
  bool proof = false;
  std::int64_t stall_ns = 30'000'000'000, total_ns = 600'000'000'000;
  friend bool operator==(const BeginRound&, const BeginRound&) = default;
};

struct VerifyCall {
  std::uint64_t request = 0, nonce = 0;
  std::uint32_t connection = kNoConnection;  // kNoConnection: asked by the driver itself
  wire::Domain domain = wire::Domain::kLive;
  std::int64_t deadline_ns = 0, sent_ns = 0;
  std::map<std::uint32_t, std::optional<wire::VerifyReport>> reports;  // by target member
};

struct Dropped {
  std::uint64_t foreign_job = 0, wrong_party = 0, old_epoch = 0, old_incarnation = 0, old_txn = 0, unexpected = 0;
  std::uint64_t wrong_key = 0;    // spoke as somebody whose key it does not hold
  std::uint64_t connections = 0;  // turned away by the listener, before a message
};
// A key speaks for its member and nobody else (Z1); which messages a party may send is wire's table.
bool speaks_for(const MemberName& key, const wire::Envelope& envelope);

enum class Purpose : std::uint8_t { kOpen, kBegin, kCommit, kAbort, kEvict, kEnd, kRebuild };
struct Pending {
  std::uint64_t ticket = 0;
  Purpose purpose = Purpose::kOpen;
  std::vector<Record> records;
  friend bool operator==(const Pending&, const Pending&) = default;
};

// What one member last said of itself while the journal is rebuilt.
struct Word {
  std::uint32_t connection = kNoConnection;  // kNoConnection: it has left since; its word still counts as evidence
  Incarnation incarnation;
  Epoch epoch;  // that it follows
  std::uint64_t sequence = 0;
  wire::Hello hello;
};
struct Rebuild {
  std::map<std::uint32_t, Word> words;  // by member
  std::int64_t deadline_ns = 0;
  bool asked = false;            // for promises
  bool writing = false;          // the record is on its way to the disk
  std::optional<Error> blocked;  // words that contradict each other: nothing is decided
};

struct State {
  Config config;
  Stage stage = Stage::kOpening;
  JournalState journal;              // as durable
  std::uint64_t highest_number = 0;  // journal's, begun and members' (C18)
  Epoch epoch;
  std::vector<Slot> slots;
  std::map<std::uint32_t, std::uint32_t> by_connection;  // connection → member
  LayoutEpoch layout_epoch;
  std::uint64_t layout_changes = 0;
  Hash128 roster;                     // identity of the membership that layout_epoch was made for
  std::vector<std::uint32_t> seated;  // its members, ascending
  wire::Configure configure;          // as sent
  PlanId plan;                        // of the last round begun
  std::vector<Seat> out;              // evicted incarnations that have not come back fenced or empty
  std::optional<BeginRound> call;     // a call in hand
  std::int64_t call_since_ns = 0, join_deadline_ns = 0;
  std::optional<Round> round;      // in hand, or committed and unfinished
  std::optional<Rebuild> rebuild;  // the journal was lost: until it stands again, nobody is welcomed
  std::vector<Pending> pending;    // appends that are not durable yet, in order
  std::uint64_t tickets = 0;
  std::vector<VerifyCall> verifies;
  std::uint64_t nonces = 0;
  std::optional<RoundResult> last;
  std::optional<Error> stopped;
  bool reading_epoch = false;  // after a loop gap: nothing is decided until the journal was re-read (L2)
  std::int64_t now_ns = 0, last_tick_ns = 0, looked_ns = 0;
  Dropped dropped;
};
// Everything but counters and clocks.
bool same(const State& a, const State& b);

// ---- events ---------------------------------------------------------------------------------------------------------
struct Received {
  std::uint32_t connection;
  wire::Envelope envelope;
  // Whose key the connection proved; absent where a private directory is the guard.
  std::optional<MemberName> proven{};
};
struct Gone {
  std::uint32_t connection;
};
struct Tick {};  // at least every resend_ns
struct Appended {
  std::uint64_t ticket;
};  // durable
struct AppendFailed {
  std::uint64_t ticket;
  Error error;
};
struct EpochRead {
  Epoch highest;
};  // answer to ReadEpoch
struct AskVerify {
  std::uint64_t request;
  wire::Domain domain;
  std::int64_t timeout_ns;
};  // by the driver itself
using EventKind = std::variant<Received, Gone, Tick, Appended, AppendFailed, EpochRead, BeginRound, AskVerify>;
struct Event {
  std::int64_t now_ns = 0;
  EventKind what;
};

// ---- actions --------------------------------------------------------------------------------------------------------
struct Send {
  std::uint32_t connection;
  wire::Envelope envelope;
};
// Append encode(records), sync, and feed Appended or AppendFailed back. One after another, in this order; after a
// failure nothing more is appended. `reserve_bytes` > 0: File::reserve first.
struct Append {
  std::uint64_t ticket;
  std::vector<Record> records;
  std::int64_t reserve_bytes = 0;
};
struct ReadEpoch {};  // re-read the highest epoch in the journal → EpochRead
struct Report {
  RoundResult result;
};  // the call returns this
struct Finished {
  Txn txn;
  bool all_applied;
};  // a round that was reported incomplete came to its end later
struct Verdict {
  std::uint64_t request;
  std::string json;
  bool ok;
};  // answer to AskVerify
struct Observe {
  Phase phase;
  Txn txn;
};
struct Stop {
  Error reason;
};  // close the journal; a new start recovers by reading
using Action = std::variant<Send, Append, ReadEpoch, Report, Finished, Verdict, Observe, Stop>;

struct Step {
  State state;
  std::vector<Action> todo;
};
// `recovered` is recover()'s answer (empty journal: pass a fresh lineage and seed, used only then). The first action
// appends the epoch record.
Step start(Config config, const JournalState& recovered, const Lineage& fresh_lineage, std::uint64_t fresh_seed,
           std::int64_t now_ns);
// Changes `state` in place (it holds layouts) and returns what to do, in order.
std::vector<Action> step(State& state, const Event& event);

}  // namespace refit::coordinator
