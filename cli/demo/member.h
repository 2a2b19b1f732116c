// One trainer or rollout process of the demo.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/watch/watch.h"
#include "core/core.h"

namespace refit::cli {

struct MemberOptions {
  std::string model, source_spec, target_spec, transport = "shm";
  Role role = Role::kSource;
  std::uint32_t instance = 0, rank = 0, member = 0;
  std::string runtime_dir, control;
  std::string job;  // 32 hex digits
  std::uint64_t seed = 1;
  double share = 0.01;
  std::int64_t staging_bytes = 256 << 20, budget_bytes = 0;
  WatchOptions watch;
  int threads = 1;
  std::string kill_at;  // phase name: die there in the first round that has a former version to lose
  std::uint64_t kill_round = 2;
  bool kill_stops = false;      // SIGSTOP instead of SIGKILL
  std::int64_t kill_bytes = 0;  // of the live copy
  std::int64_t steps_done = 0;  // a restarted trainer resumes there, as from its own checkpoint
  bool snapshot = false;
  std::string security_bulk = "mac", port_range, advertise_address;
  std::string baseline_dir;
  int streams = 2;
  double stall_timeout_s = 30;
  std::vector<std::string> arguments() const;  // of the hidden command
};

Status run_member(const MemberOptions& options);

}  // namespace refit::cli
