// In which order a synchronizer drives both sides: a table of phases per row of the menu, and the step function that
// walks it. The clean-up half runs whatever failed before; the first error survives it. *pure*.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "sync/constraints.h"

namespace refit::sync {

enum class Phase : std::uint8_t {
  kJudgeKvScales,     // refused or ignored before anything changes
  kSuspend,           // generation: suspend for refit
  kOffloadBefore,     // policy.offload_before_refit
  kPrepareWeights,    // generation.prepare_for_generation(tags=["weights"])
  kResumeWeights,     // memory saver: resume the weights' memory
  kWakeReshard,       // generation.prepare_for_generation(tags=["colocated_refit"]): the transfer rides on it
  kTransfer,          // the mover's round
  kCheckWorkers,      // the result of every worker, not of the first
  kInvalidateCaches,  // KV, prefix, encoder caches; bounded; a failure fails the sync
  kOffloadAfter,      // policy.offload_after_refit
  kPrepareKvCache,    // generation.prepare_for_generation(tags=["kv_cache"])
  kResumeKvCache,     // memory saver: resume the KV cache's memory
  kResume,            // generation: resume after refit
};
inline constexpr int kPhases = 13;
std::string_view to_string(Phase phase);

enum class Half : std::uint8_t {
  kJudge,    // before anything changes: a failure here ends the sync at once, there is nothing to clean up
  kWork,     // the first failure skips the rest of this half
  kCleanUp,  // always runs, in full, once the work has begun
};

struct PhaseRow {
  Phase phase;
  Half half;
};

// What decides about the conditional phases.
struct LifecycleFacts {
  Route route = Route::kCollective;
  Backend backend = Backend::kVllm;
  bool memory_saver = false;  // policy.generation.sglang_cfg.enable_memory_saver
  bool offload = false;       // policy.offload_policy_before_refit or offload_optimizer_for_refit, non-colocated
};
std::vector<PhaseRow> lifecycle(const LifecycleFacts& facts);
// From a configuration and its decision's route.
LifecycleFacts lifecycle_facts(const Config& config, Route route, Backend backend);

struct LifecycleState {
  std::size_t at = 0;          // index of the phase that runs; the table's size when all is done
  std::optional<Error> first;  // what the sync fails with
  Phase failed_at = Phase::kJudgeKvScales;
  std::vector<Error> later;  // of clean-up phases behind the first error
};
// The phase to run now, or nullopt when the sync has ended.
std::optional<Phase> running(std::span<const PhaseRow> table, const LifecycleState& state);
// The running phase ended, with `error` or well. Total: after the end it changes nothing.
LifecycleState step(std::span<const PhaseRow> table, LifecycleState state, std::optional<Error> error);

}  // namespace refit::sync
