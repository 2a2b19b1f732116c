// Front header of agent: the one component that lives inside a trainer's or an engine's process, in either role.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/bridge.h"
#include "agent/source.h"
#include "engine/engine.h"
#include "memory/memory.h"
#include "transport/transport.h"

namespace refit::agent {

struct AgentOptions {
  Runtime runtime;  // env, pool of kernel threads, observer
  Hash128 job;
  MemberName name;
  std::string control_address;  // of the coordinator, e.g. "ipc:///run/user/0/refit-…/control"
  std::optional<transport::ControlKeys> control_keys{};  // this member's own, where that address is tcp://
  transport::Mover* control = nullptr;                   // opens the control lane
  transport::Mover* data = nullptr;                      // moves the weights
  Incarnation incarnation;                               // same as the data mover's
  memory::Budget* budget = nullptr;
  std::int64_t staging_bytes = 256 << 20;  // `refit.staging_bytes`
  bool snapshot = false;                   // `refit.snapshot`: source copies before it seals
  std::string baseline_dir;  // `….sparse.baseline.mmap_dir`: where a source keeps its base; empty: memory
  engine::CachePolicy cache_policy = engine::CachePolicy::kReset;
  std::int64_t heartbeat_ns = 100'000'000;
  // Scans and copies raise the progress counter, and the live copy tells the observer, after at most this many bytes.
  std::int64_t progress_bytes = 64 << 20;
};

// How the buckets of one round went out.
struct EncodeReport {
  std::int64_t unchanged = 0, delta = 0, raw = 0;   // buckets; one that goes out in two forms counts twice
  std::int64_t elements = 0, changed = 0;           // of buckets that were compared with their base
  std::int64_t delta_bytes = 0, delta_changed = 0;  // payloads of deltas, and the elements they change
  std::int64_t bytes_useful = 0, bytes_wire = 0;    // summed over recipients; wire: with bucket headers
  std::int64_t pack_ns = 0, encode_ns = 0, send_ns = 0;
};

// What the last round took on this rank, and what it holds. For tables and metrics.
struct AgentReport {
  Txn txn;
  std::int64_t seal_ns = 0, stage_ns = 0, verify_ns = 0, copy_ns = 0, pause_ns = 0, plan_ns = 0;
  std::int64_t bytes_staged = 0, bytes_sealed = 0, snapshot_bytes = 0, shadow_bytes = 0;
  std::int64_t buckets = 0;
  std::int64_t quantise_ns = 0, exchanged_blocks = 0;  // source: of seal_ns; blocks that it shared with other sources
  EncodeReport encoded;                     // source: how the buckets went out
  std::int64_t base_ns = 0, base_lost = 0;  // source: moving the base; buckets that a proof took out of it
  std::int64_t base_bytes = 0;              // source: memory or file that holds the base
  std::int64_t unpack_ns = 0;               // target: checking and applying deltas
  // Of the plan in hand: what this rank was due (a target) or sends, each byte once; summed over recipients; and what a
  // commit writes over live weights.
  std::int64_t bytes_needed = 0, bytes_moved = 0, bytes_installed = 0;
  std::string last_from{};       // target: the sender of the bucket that came last
  int tasks = 0;                 // long tasks that wait or run
  std::uint64_t reconnects = 0;  // control lanes that were opened anew
  Version version;
  std::string state;
  bool welcomed = false;         // the coordinator admitted this rank
  bool rejected = false;         // the coordinator refused, and asking again would not help
  std::optional<Error> refused;  // why it did not, last heard
  std::string unconnected{};     // nothing was heard from the coordinator yet: why, as the control lane says
};

// *thread-compatible*: one thread calls run(); guard() and publish() may come from another.
class Agent {
 public:
  virtual ~Agent() = default;
  // Serves the protocol until the deadline. Engine and user code run only here, on the caller's thread. Returns early
  // only with an error: kPeerLost when the control lane failed for good.
  virtual Status run(Deadline deadline) = 0;
  virtual AgentReport report() const = 0;
  // True while a round is in hand on this rank.
  virtual bool busy() const = 0;
  // Says Goodbye and joins the agent's threads.
  virtual Status close(Deadline deadline) = 0;
};

class SourceAgent : public Agent {
 public:
  // The weights in the shard's memory are those of `step`: a round may seal them.
  virtual void publish(std::int64_t step, const std::string& weight_set) = 0;
  // Called before the optimizer writes: waits until no lease is out. kBusy at the deadline: do not write.
  virtual Status guard(Deadline deadline) = 0;
};

// The shard, the instance and everything in `options` must outlive the agent.
Result<std::unique_ptr<SourceAgent>> make_source_agent(const AgentOptions& options, engine::Shard& shard);
// A shard whose commit word survived another agent is taken over as rule C5 says.
Result<std::unique_ptr<Agent>> make_target_agent(const AgentOptions& options, engine::Shard& shard,
                                                 engine::Instance& instance);

}  // namespace refit::agent

#include "agent/local_replica.h"  // all ranks of a replica in one process, without a coordinator
#include "agent/seat.h"  // built on the above
