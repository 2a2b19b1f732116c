// Coordinator: the part of a job that decides. One process embeds it (the driver, or rank 0 of a trainer) and drives it
// as a weight synchronizer: mark_stale after a step, sync_weights before the next rollout.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "refit/error.h"

namespace refit::api {

struct CoordinatorOptions {
  std::uint32_t source_ranks = 1;      // trainer ranks
  std::uint32_t target_instances = 1;  // engine replicas
  std::uint32_t target_ranks = 1;      // ranks of one replica
  std::string transport = "shm";       // of the weights
  // Of the bytes: raw (all of every version), xor or overwrite (what changed; over movers that send, such as tcp).
  std::string encoding = "raw";
  std::string runtime_dir;  // where the job's private directory is made; empty: the user's own
  // Keys of the `refit:` section of a configuration, with its defaults.
  std::int64_t bucket_bytes = 32 << 20, staging_bytes = 256 << 20, proof_every = 10;
  std::vector<std::string> allow_cast;
  bool snapshot = false, barrier = false, continue_on_loss = false;
  std::uint32_t min_targets = 1;
  std::string security_bulk = "mac", port_range, advertise_address;
  // Of the nixl transport: backend_name, backend_init_params as "KEY=VALUE", release_after_refit.
  std::string nixl_backend = "UCX";
  std::vector<std::string> nixl_params;
  bool nixl_release = false;
  double stall_timeout_s = 30, total_timeout_s = 600, join_timeout_s = 60, gate_timeout_s = 30;
};

struct VersionInfo {
  std::uint64_t number = 0;  // 0: none
  std::int64_t step = -1;
  std::string digest;  // 32 hex digits
};

// How a round ended. `outcome`: committed, aborted, committed_incomplete or in_doubt.
struct SyncReport {
  std::string outcome;
  bool all_applied = false;     // every member applied it
  std::uint64_t attempted = 0;  // number of the version that was attempted
  VersionInfo version;          // committed; for aborted the newest committed before
  double seconds = 0, pause_seconds = 0;
  bool proof = false;                                  // a proof version: read again where it lies
  std::uint64_t tensors_staged = 0, tensors_live = 0;  // proven while staged, proven live
  std::vector<std::string> missing, evicted;           // members
  std::string error;  // first error, one line; may be set beside success where a loss was allowed
};

// A round that did not commit everywhere.
class SyncError : public Error {
 public:
  SyncError(Error error, SyncReport ended) : Error(std::move(error)), report(std::move(ended)) {}
  SyncReport report;
};

// *thread-safe*. Every wait ends by a timeout of the options.
class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // What members are told; also what `refit status ADDR` takes.
  std::string address() const;
  // Waits until all members have joined and planned. kTimeout names who is missing; a plan that a member refused is
  // thrown with its reason.
  void init_communicator();
  void mark_stale();
  bool is_stale();
  // Brings every target to the newest weights, or to those of `step`. Throws SyncError when the round did not commit
  // everywhere, Error when none could be begun.
  SyncReport sync_weights(std::optional<std::int64_t> step = std::nullopt);
  // Every member proves what it holds: JSON as `refit verify --json` prints it.
  std::string verify(double timeout_s);
  std::string status();
  // Safe to call twice and after a failure.
  void shutdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::api
