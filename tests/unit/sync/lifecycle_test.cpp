// The order of each lifecycle, and every position at which one may fail.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "sync/sync.h"

namespace refit::sync {
namespace {

using Names = std::vector<std::string>;

std::vector<LifecycleFacts> all_lifecycles() {
  std::vector<LifecycleFacts> out;
  for (int route = 0; route < kRoutes; ++route)
    for (const Backend b : {Backend::kVllm, Backend::kSglang, Backend::kMegatron})
      for (const bool saver : {false, true})
        for (const bool offload : {false, true}) out.push_back({static_cast<Route>(route), b, saver, offload});
  return out;
}

// Runs it; `fails` says which phases fail. Returns the phases that ran and the end state.
struct Ran {
  Names phases;
  LifecycleState end;
};
Ran run(const std::vector<PhaseRow>& table, const std::function<bool(Phase)>& fails) {
  Ran ran;
  while (const auto phase = running(table, ran.end)) {
    ran.phases.emplace_back(to_string(*phase));
    std::optional<Error> error;
    if (fails(*phase)) error = Error(Code::kTimeout, "failed in " + ran.phases.back());
    ran.end = step(table, std::move(ran.end), std::move(error));
    if (ran.phases.size() > 100) break;
  }
  return ran;
}
bool never(Phase) { return false; }

TEST(Lifecycle, OrderIsTheContract) {
  const auto order = [](LifecycleFacts f) { return run(lifecycle(f), never).phases; };
  EXPECT_EQ(order({Route::kIpc, Backend::kVllm}),
            (Names{"judge_kv_scales", "offload_before", "prepare_weights", "transfer", "check_workers",
                   "invalidate_caches", "offload_after", "prepare_kv_cache"}));
  EXPECT_EQ(order({Route::kHttp, Backend::kSglang, true}),
            (Names{"judge_kv_scales", "offload_before", "resume_weights", "transfer", "check_workers",
                   "invalidate_caches", "offload_after", "resume_kv_cache"}));
  EXPECT_EQ(
      order({Route::kHttp, Backend::kSglang, false}),
      (Names{"judge_kv_scales", "offload_before", "transfer", "check_workers", "invalidate_caches", "offload_after"}));
  for (const Route r : {Route::kCollective, Route::kReload, Route::kNcclReshard, Route::kZmqSparse, Route::kS3Sparse,
                        Route::kNixl, Route::kNixlSharded, Route::kPlugin}) {
    EXPECT_EQ(order({r, Backend::kVllm}), (Names{"judge_kv_scales", "transfer", "check_workers", "invalidate_caches"}));
    EXPECT_EQ(order({r, Backend::kVllm, false, true}), (Names{"judge_kv_scales", "offload_before", "transfer",
                                                              "check_workers", "invalidate_caches", "offload_after"}));
  }
  for (const Route r : {Route::kNativeRefit, Route::kCollective, Route::kNcclReshard})
    EXPECT_EQ(order({r, Backend::kMegatron}),
              (Names{"judge_kv_scales", "suspend", "offload_before", "prepare_weights", "transfer", "check_workers",
                     "invalidate_caches", "offload_after", "prepare_kv_cache", "resume"}));
  EXPECT_EQ(order({Route::kWakeReshard, Backend::kMegatron}),
            (Names{"judge_kv_scales", "offload_before", "wake_reshard", "check_workers", "invalidate_caches",
                   "offload_after", "prepare_kv_cache"}));
}

TEST(Lifecycle, EveryFailurePositionRunsTheCleanUpAndKeepsTheFirstError) {
  for (const LifecycleFacts& f : all_lifecycles()) {
    const std::vector<PhaseRow> table = lifecycle(f);
    Names clean_up;
    for (const PhaseRow& row : table)
      if (row.half == Half::kCleanUp) clean_up.emplace_back(to_string(row.phase));
    for (std::size_t i = 0; i < table.size(); ++i) {
      SCOPED_TRACE("route " + std::to_string(static_cast<int>(f.route)) + " fails in " +
                   std::string(to_string(table[i].phase)));
      const Ran ran = run(table, [&](Phase p) { return p == table[i].phase; });
      ASSERT_TRUE(ran.end.first);
      EXPECT_EQ(ran.end.first->stage, to_string(table[i].phase));
      EXPECT_EQ(ran.end.failed_at, table[i].phase);
      EXPECT_TRUE(ran.end.later.empty());
      Names expected;  // up to the failure, then what was not reached of the clean-up
      for (std::size_t k = 0; k <= i; ++k) expected.emplace_back(to_string(table[k].phase));
      if (table[i].half == Half::kWork) expected.insert(expected.end(), clean_up.begin(), clean_up.end());
      if (table[i].half == Half::kCleanUp)
        for (std::size_t k = i + 1; k < table.size(); ++k) expected.emplace_back(to_string(table[k].phase));
      EXPECT_EQ(ran.phases, expected);
    }
  }
}

TEST(Lifecycle, EveryPairOfFailuresKeepsTheFirstAndListsTheOther) {
  for (const LifecycleFacts& f : all_lifecycles()) {
    const std::vector<PhaseRow> table = lifecycle(f);
    for (std::size_t i = 0; i < table.size(); ++i)
      for (std::size_t k = i + 1; k < table.size(); ++k) {
        const Ran ran = run(table, [&](Phase p) { return p == table[i].phase || p == table[k].phase; });
        ASSERT_TRUE(ran.end.first);
        EXPECT_EQ(ran.end.first->stage, to_string(table[i].phase));
        const bool both = table[i].half != Half::kJudge && table[k].half == Half::kCleanUp;
        EXPECT_EQ(ran.end.later.size(), both ? 1u : 0u);
      }
  }
}

TEST(Lifecycle, WhatIsSuspendedOrOffloadedIsUndone) {
  const std::pair<Phase, Phase> undone[] = {{Phase::kSuspend, Phase::kResume},
                                            {Phase::kOffloadBefore, Phase::kOffloadAfter},
                                            {Phase::kResumeWeights, Phase::kResumeKvCache},
                                            {Phase::kPrepareWeights, Phase::kPrepareKvCache}};
  for (const LifecycleFacts& f : all_lifecycles()) {
    const std::vector<PhaseRow> table = lifecycle(f);
    for (const auto& [doing, undoing] : undone) {
      const auto half_of = [&](Phase p) -> std::optional<Half> {
        for (const PhaseRow& r : table)
          if (r.phase == p) return r.half;
        return std::nullopt;
      };
      if (half_of(doing)) {
        EXPECT_EQ(half_of(undoing), Half::kCleanUp) << to_string(doing);
      }
    }
    // Halves come in order, each phase once.
    std::set<Phase> seen;
    Half last = Half::kJudge;
    for (const PhaseRow& r : table) {
      EXPECT_TRUE(seen.insert(r.phase).second);
      EXPECT_GE(r.half, last);
      last = r.half;
    }
  }
}

TEST(Lifecycle, StepIsTotal) {
  const std::vector<PhaseRow> table = lifecycle({});
  LifecycleState s;
  for (int i = 0; i < 50; ++i) s = step(table, std::move(s), std::nullopt);
  EXPECT_EQ(s.at, table.size());
  s = step(table, std::move(s), Error(Code::kTimeout, "late"));
  EXPECT_FALSE(s.first);
  EXPECT_FALSE(running(table, s));
  EXPECT_FALSE(running({}, LifecycleState{}));
}

TEST(Lifecycle, FactsFromTheConfiguration) {
  Config c;
  EXPECT_FALSE(lifecycle_facts(c, Route::kCollective, Backend::kVllm).offload);
  c.offload_policy.value = true;
  EXPECT_TRUE(lifecycle_facts(c, Route::kCollective, Backend::kVllm).offload);
  c.enable_memory_saver.value = true;
  EXPECT_TRUE(lifecycle_facts(c, Route::kHttp, Backend::kSglang).memory_saver);
}

}  // namespace
}  // namespace refit::sync
