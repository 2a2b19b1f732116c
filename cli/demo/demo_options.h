// What the user asked of the demo, and what it costs.
#pragma once
#include <string>
#include <vector>

#include "cli/demo/member.h"
#include "cli/layouts.h"
#include "cli/watch/watch.h"
#include "core/core.h"
#include "model/model.h"
#include "plan/plan.h"

namespace refit::cli {

struct Kill {
  MemberName who;
  std::string phase;
  bool stop = false;       // SIGSTOP instead of SIGKILL
  std::int64_t bytes = 0;  // of the live copy; 0: at the step's start
};
// ROLE:INDEX[.RANK]@STEP. Errors: kInvalid listing what is allowed.
Result<Kill> parse_kill(const std::string& text);

struct DemoOptions {
  std::string model = "llama-3.1-8b@layers=1", source = "fsdp=2,tp=2", target = "vllm:tp=2", transport = "shm";
  int steps = 3;
  std::vector<std::string> kill, stop;
  double share = 0.01;
  std::uint64_t seed = 1;
  std::int64_t staging_bytes = 256 << 20, bucket_bytes = 32 << 20, proof_every = 10;
  int threads = 1;
  double stall_timeout_s = 30, total_timeout_s = 600;
  bool hold = false, snapshot = false, on_loss_continue = false;
  std::vector<std::string> allow_cast;
  std::string security_bulk = "mac", port_range, advertise_address;  // of transports that use the network
  int streams = 2;
  std::string encoding;  // empty: as the transport is used
  std::string baseline_dir;
  WatchOptions watch;
  std::string store;  // of s3_sparse; empty: a temporary directory
  // raw, xor or overwrite
  std::string encoding_in_use() const {
    return encoding.empty() ? (transport == "zmq_sparse" ? "xor" : "raw") : encoding;
  }
};

// Bytes that the whole demo will hold at once, by owner.
struct MemoryBill {
  std::int64_t source_shards = 0, snapshots = 0, target_shards = 0, shadows = 0, staging = 0, baselines = 0, other = 0;
  std::int64_t have = 0;  // available on this machine, less a reserve
  std::int64_t total() const {
    return source_shards + snapshots + target_shards + shadows + staging + baselines + other;
  }
  std::string to_string() const;
};
Result<MemoryBill> make_bill(const DemoOptions& options, const model::Layout& source, const model::Layout& target);

}  // namespace refit::cli
