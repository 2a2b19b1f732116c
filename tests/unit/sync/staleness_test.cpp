#include "sync/staleness.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace refit::sync {
namespace {

using enum StaleEvent;

bool stale_after(std::initializer_list<StaleEvent> events) {
  Staleness s;
  for (StaleEvent e : events) s = next(s, e);
  return is_stale(s);
}

TEST(Staleness, Table) {
  EXPECT_TRUE(stale_after({}));
  EXPECT_TRUE(stale_after({kMark}));
  EXPECT_TRUE(stale_after({kRoundStart}));
  EXPECT_FALSE(stale_after({kRoundStart, kAllApplied}));
  EXPECT_FALSE(stale_after({kMark, kRoundStart, kAllApplied}));
  EXPECT_TRUE(stale_after({kRoundStart, kAllApplied, kMark}));
  EXPECT_TRUE(stale_after({kRoundStart, kAllApplied, kRoundStart}));
  EXPECT_TRUE(stale_after({kRoundStart, kMark, kAllApplied}));  // sealed, for all we know, before the mark
  EXPECT_TRUE(stale_after({kRoundStart, kAborted}));
  EXPECT_TRUE(stale_after({kRoundStart, kAborted, kAllApplied}));
  EXPECT_TRUE(stale_after({kRoundStart, kIncomplete}));
  EXPECT_FALSE(stale_after({kRoundStart, kIncomplete, kLateApplied}));
  EXPECT_TRUE(stale_after({kRoundStart, kIncomplete, kMark, kLateApplied}));
  EXPECT_TRUE(stale_after({kRoundStart, kIncomplete, kMark, kRoundStart, kLateApplied}));
  EXPECT_FALSE(stale_after({kRoundStart, kIncomplete, kRoundStart, kLateApplied, kAllApplied}));
  EXPECT_TRUE(stale_after({kAllApplied}));
  EXPECT_TRUE(stale_after({kLateApplied}));
}

}  // namespace
}  // namespace refit::sync
