// is_stale as a pure table (C11). True before the first sync; set by mark_stale() and by the start of a round; cleared
// only when every member of the journaled membership applied a txn sealed at or after the last mark.
#pragma once
#include <cstdint>

#include "core/core.h"
#include "wire/wire.h"

namespace refit::sync {

struct Staleness {
  bool stale = true;
  std::uint64_t marks = 0;         // mark_stale() calls so far
  std::uint64_t covered = 0;       // marks that the round in hand covers
  bool open = false;               // a round is in hand
  std::uint64_t late_covered = 0;  // marks that the round left unfinished covers
  bool late = false;               // a committed (or doubtful) round was left unfinished
  friend bool operator==(const Staleness&, const Staleness&) = default;
};

enum class StaleEvent : std::uint8_t {
  kMark,         // mark_stale()
  kRoundStart,   // before anything is sealed: marks from here on are not covered
  kAborted,      // outcome aborted(v)
  kIncomplete,   // committed_incomplete or in_doubt: the round may still be finished later
  kAllApplied,   // every member of the journaled membership applied the txn of the round in hand
  kLateApplied,  // likewise, of the round left unfinished (the coordinator's Finished)
};
inline constexpr int kStaleEvents = 6;

Staleness next(const Staleness& state, StaleEvent event);
inline bool is_stale(const Staleness& state) { return state.stale; }

}  // namespace refit::sync
