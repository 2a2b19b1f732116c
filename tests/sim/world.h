// One simulated job: the real step functions of coordinator, sources, targets and staleness, in one thread, over a
// network, a journal, memory and processes that fail as told by one seed. The same seed gives the same run.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/source.h"
#include "coordinator/coordinator.h"
#include "install/install.h"
#include "sync/staleness.h"
#include "wire/wire.h"

namespace refit::sim {

// Rules that a run can break on purpose, to prove that the checker sees it.
enum class Break : std::uint8_t {
  kNone,
  kUngatedCopy,        // the gate is reported shut while it is open
  kNoCopyingWord,      // the word is not set before byte 0
  kFenceIgnored,       // a fenced worker goes on serving
  kStaleAtDecision,    // is_stale cleared when the decision is taken
  kToldBeforeSync,     // the commit is told before its record is durable
  kVoteReleased,       // a yes is released by a deadline
  kOldTxnAccepted,     // a decision of an old round counts for the new one
  kSealNotChecked,     // the source votes yes without looking at its write counter
  kStageNotCompared,   // the target votes yes without comparing digests
  kOpenAlone,          // a rank reopens before the others of its replica applied
  kStageDropped,       // the stage is reused after the vote
  kStepsMixed,         // sources of different steps are accepted
  kJournalForgets,     // a restarted coordinator has lost its last decision
  kLostJournalBlind,   // a lost journal is rebuilt without asking who has applied what
  kBaseMovedEarly,     // a source's base moves at its vote instead of at the end of a committed round
  kWrongBase,          // deltas are sent and applied without looking at their base
  kShadowNotRestored,  // after an aborted round a delta goes on top of what that left in the shadow
};
inline constexpr int kBreaks = 18;
std::string_view to_string(Break rule);

struct Options {
  std::uint64_t seed = 1;
  Break broken = Break::kNone;
  bool trace = false;
};

// Empty: the run kept every invariant and came to rest. Else what was violated, and when.
struct Verdict {
  std::string violation;
  std::uint64_t events = 0, rounds = 0, commits = 0, aborts = 0, incomplete = 0, crashes = 0, lost_journals = 0;
  std::uint64_t deltas = 0;  // stages of a target that a delta was part of
  std::set<std::string> crash_points;
};
Verdict run(const Options& options);

}  // namespace refit::sim
