// The weight synchronizer: the staleness handshake over a coordinator that lives in this process.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "coordinator/coordinator.h"
#include "plan/plan.h"
#include "sync/staleness.h"
#include "transport/transport.h"

namespace refit::sync {

enum class OnTargetLoss : std::uint8_t { kFail, kContinue };

// The keys of the `refit:` section that this lifecycle reads; names and defaults are the configuration's.
struct SyncOptions {
  Hash128 job;
  coordinator::Shape shape;     // who is expected
  std::string control_address;  // where the coordinator listens: ipc:///…, or with keys tcp://HOST:PORTS
  std::optional<transport::ControlKeys> control_keys{};  // the coordinator's own and the allow-list
  std::string advertise_address{};  // `refit.advertise_address`: a TCP listener's host as members know it
  std::string journal_path;
  plan::Options plan;  // bucket_bytes, staging_bytes, allow_cast
  // `….sparse.delta_compression.encoding`: raw (all bytes of every version), xor or overwrite (what changed).
  std::string encoding = "raw";
  std::int64_t proof_every = 10;  // `refit.proof_every`: ≥ 1
  bool barrier = false;           // `refit.commit: barrier`
  OnTargetLoss on_target_loss = OnTargetLoss::kFail;
  std::uint32_t min_targets = 1;
  double stall_timeout_s = 30;  // `refit.stall_timeout_s`
  double total_timeout_s = 600;
  double join_timeout_s = 60;
  double gate_timeout_s = 30;
  Env* env = &system_env();
  Observer observer;
};

// How one sync_weights() ended. Success means: every member of the journaled membership applied the version, caches are
// handled and gates open.
struct SyncReport {
  coordinator::RoundResult round;
  double seconds = 0;  // wall time of the call
  bool proof = false;  // a proof version: source re-scan, target re-read
  bool ok() const { return round.outcome == wire::Outcome::kCommitted && round.all_applied; }
};

// *thread-safe*.
class WeightSynchronizer {
 public:
  virtual ~WeightSynchronizer() = default;
  // Once, after the members' processes exist: waits until all have joined and planned.
  virtual Status init_communicator() = 0;
  // After every training step.
  virtual void mark_stale() = 0;
  // True before the first sync, from mark_stale() or the start of a round until every member applied a version sealed
  // at or after the last mark. A failure leaves it true.
  virtual bool is_stale() = 0;
  // Moves the newest weights. `step`: which published step, or the newest. The report tells the outcome as it is.
  virtual Result<SyncReport> sync_weights(std::optional<std::int64_t> step = std::nullopt) = 0;
  // Asks every member to prove what it holds; JSON as `refit verify --json` prints it.
  virtual Result<std::string> verify(double timeout_s) = 0;
  virtual std::string status() = 0;
  // Why the coordinator ended by itself, if it did: it was overtaken by another epoch, or its journal or lane failed.
  virtual Status health() = 0;
  virtual std::string address() = 0;  // where members connect; empty after shutdown
  // Releases everything. Safe to call twice and after a failure.
  virtual Status shutdown() = 0;
};

// `control` opens the coordinator's listening lane; it must outlive the synchronizer. Errors: kInvalid naming the
// option.
Result<std::unique_ptr<WeightSynchronizer>> make_synchronizer(SyncOptions options, transport::Mover& control);

}  // namespace refit::sync
