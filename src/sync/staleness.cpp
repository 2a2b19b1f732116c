#include "sync/staleness.h"

namespace refit::sync {

Staleness next(const Staleness& state, StaleEvent event) {
  Staleness s = state;
  switch (event) {
    case StaleEvent::kMark:
      ++s.marks;
      s.stale = true;
      break;
    case StaleEvent::kRoundStart:
      s.stale = true;
      s.covered = s.marks;
      s.open = true;
      break;
    case StaleEvent::kAborted:
      s.open = false;
      break;
    case StaleEvent::kIncomplete:
      s.late = s.open;
      s.late_covered = s.covered;
      s.open = false;
      break;
    case StaleEvent::kLateApplied:
      // Its bytes are older than anything a round in hand will bring: that one clears, or a mark still stands.
      if (s.late && !s.open && s.late_covered == s.marks) s.stale = false;
      s.late = false;
      break;
    case StaleEvent::kAllApplied:
      // A mark during the round came, for all we know, after some source was sealed: it is not covered.
      if (s.open && s.covered == s.marks) s.stale = false;
      s.open = false;
      break;
  }
  return s;
}

}  // namespace refit::sync
