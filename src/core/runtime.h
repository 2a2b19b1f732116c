// Runtime: the threads a process lends to Refit, and the observer of phase events.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/env.h"
#include "core/ids.h"

namespace refit {

// The named steps of a round (also the STEP of `--kill ROLE:INDEX@STEP`).
enum class Phase : std::uint8_t {
  kBegin,
  kSeal,
  kLend,
  kTransfer,
  kStaged,
  kVoted,
  kDecided,
  kGated,
  kCopying,
  kApplied,
  kReopened
};
inline constexpr int kPhaseCount = 11;
std::string_view to_string(Phase phase);
bool phase_from_string(std::string_view name, Phase& out);

struct PhaseEvent {
  Phase phase;
  MemberName who;
  Txn txn;
  std::int64_t at_ns = 0;    // monotonic
  std::int64_t bytes = 0;    // done so far in this phase, where it applies
  std::int64_t buckets = 0;  // likewise
};

// Called synchronously at each step, on the thread that takes it: keep it short. Fault tests die in it.
using Observer = std::function<void(const PhaseEvent&)>;

// A fixed set of worker threads. *thread-safe*; user code never runs on its threads except the given task.
class ThreadPool {
 public:
  // `threads` ≥ 1 counts the caller: a pool of 1 starts no thread.
  explicit ThreadPool(int threads, std::string_view name = "refit-pool");
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return threads_; }
  // Runs task(i) for every i in [0, n), the caller included; returns when all are done. Not reentrant from a task.
  void parallel_for(std::int64_t n, const std::function<void(std::int64_t)>& task);

 private:
  struct Impl;
  int threads_;
  std::unique_ptr<Impl> impl_;
};

struct Runtime {
  Env* env = &system_env();
  ThreadPool* pool = nullptr;  // CPU work of kernels
  Observer observer;           // may be empty
  void observe(const PhaseEvent& e) const {
    if (observer) observer(e);
  }
};

}  // namespace refit
