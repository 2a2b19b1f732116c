#include "sync/lifecycle.h"

#include <algorithm>

namespace refit::sync {
namespace {

enum class When : std::uint8_t { kAlways, kMemorySaver, kOffload };

struct LifecycleRow {
  Phase phase;
  Half half;
  When when = When::kAlways;
};

constexpr LifecycleRow kIpcRows[] = {
    {Phase::kJudgeKvScales, Half::kJudge},  {Phase::kOffloadBefore, Half::kWork},
    {Phase::kPrepareWeights, Half::kWork},  {Phase::kTransfer, Half::kWork},
    {Phase::kCheckWorkers, Half::kWork},    {Phase::kInvalidateCaches, Half::kWork},
    {Phase::kOffloadAfter, Half::kCleanUp}, {Phase::kPrepareKvCache, Half::kCleanUp},
};
constexpr LifecycleRow kHttpRows[] = {
    {Phase::kJudgeKvScales, Half::kJudge},
    {Phase::kOffloadBefore, Half::kWork},
    {Phase::kResumeWeights, Half::kWork, When::kMemorySaver},
    {Phase::kTransfer, Half::kWork},
    {Phase::kCheckWorkers, Half::kWork},
    {Phase::kInvalidateCaches, Half::kWork},
    {Phase::kOffloadAfter, Half::kCleanUp},
    {Phase::kResumeKvCache, Half::kCleanUp, When::kMemorySaver},
};
// Pure data movers: no phase of the engine changes; the trainer's offloading is undone before its next step.
constexpr LifecycleRow kMoverRows[] = {
    {Phase::kJudgeKvScales, Half::kJudge},   {Phase::kOffloadBefore, Half::kWork, When::kOffload},
    {Phase::kTransfer, Half::kWork},         {Phase::kCheckWorkers, Half::kWork},
    {Phase::kInvalidateCaches, Half::kWork}, {Phase::kOffloadAfter, Half::kCleanUp, When::kOffload},
};
// An engine of this kind serves without a break between refits: whatever fails, it must not stay suspended.
constexpr LifecycleRow kMegatronRows[] = {
    {Phase::kJudgeKvScales, Half::kJudge},    {Phase::kSuspend, Half::kWork},
    {Phase::kOffloadBefore, Half::kWork},     {Phase::kPrepareWeights, Half::kWork},
    {Phase::kTransfer, Half::kWork},          {Phase::kCheckWorkers, Half::kWork},
    {Phase::kInvalidateCaches, Half::kWork},  {Phase::kOffloadAfter, Half::kCleanUp},
    {Phase::kPrepareKvCache, Half::kCleanUp}, {Phase::kResume, Half::kCleanUp},
};
constexpr LifecycleRow kWakeRows[] = {
    {Phase::kJudgeKvScales, Half::kJudge},    {Phase::kOffloadBefore, Half::kWork},
    {Phase::kWakeReshard, Half::kWork},       {Phase::kCheckWorkers, Half::kWork},
    {Phase::kInvalidateCaches, Half::kWork},  {Phase::kOffloadAfter, Half::kCleanUp},
    {Phase::kPrepareKvCache, Half::kCleanUp},
};

std::span<const LifecycleRow> rows_of(Route route, Backend backend) {
  if (route == Route::kHttp) return kHttpRows;
  if (route == Route::kIpc || route == Route::kIpcMegatron) return kIpcRows;
  if (route == Route::kWakeReshard) return kWakeRows;
  return backend == Backend::kMegatron ? std::span<const LifecycleRow>(kMegatronRows) : kMoverRows;
}

}  // namespace

std::string_view to_string(Phase phase) {
  constexpr std::string_view kNames[kPhases] = {
      "judge_kv_scales",  "suspend",         "offload_before", "prepare_weights",   "resume_weights",
      "wake_reshard",     "transfer",        "check_workers",  "invalidate_caches", "offload_after",
      "prepare_kv_cache", "resume_kv_cache", "resume"};
  return kNames[static_cast<int>(phase)];
}

std::vector<PhaseRow> lifecycle(const LifecycleFacts& facts) {
  std::vector<PhaseRow> out;
  for (const LifecycleRow& row : rows_of(facts.route, facts.backend)) {
    if (row.when == When::kMemorySaver && !facts.memory_saver) continue;
    if (row.when == When::kOffload && !facts.offload) continue;
    out.push_back({row.phase, row.half});
  }
  return out;
}

LifecycleFacts lifecycle_facts(const Config& config, Route route, Backend backend) {
  return {route, backend, config.enable_memory_saver.value,
          config.offload_policy.value || config.offload_optimizer.value.value_or(false)};
}

std::optional<Phase> running(std::span<const PhaseRow> table, const LifecycleState& state) {
  if (state.at >= table.size()) return std::nullopt;
  return table[state.at].phase;
}

LifecycleState step(std::span<const PhaseRow> table, LifecycleState state, std::optional<Error> error) {
  if (state.at >= table.size()) return state;
  const PhaseRow ended = table[state.at++];
  if (!error) return state;
  Error e = std::move(*error).at_stage(std::string(to_string(ended.phase)));
  if (state.first) {
    state.later.push_back(std::move(e));
    return state;
  }
  state.first = std::move(e);
  state.failed_at = ended.phase;
  if (ended.half == Half::kJudge) state.at = table.size();
  if (ended.half == Half::kWork)
    while (state.at < table.size() && table[state.at].half != Half::kCleanUp) ++state.at;
  return state;
}

}  // namespace refit::sync
