// LocalReplica: brings all ranks of one replica, which live in this process, to a version whose tensors lie in this
// process' memory too (a followed store's mirror, laid out as `hf`). The same plan, seal, shadow, digests, gate and
// commit word as in a round; no coordinator, because this process is the whole membership: what decides is that every
// rank's staged bytes add up to the seal.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "agent/lower.h"
#include "agent/sealer.h"
#include "engine/engine.h"
#include "install/install.h"

namespace refit::agent {

struct LocalRank {
  engine::Shard* shard = nullptr;
  engine::Instance* instance = nullptr;
};

struct LocalReplicaOptions {
  plan::Options plan;
  std::uint64_t digest_seed = 0;
  kernel::Exec exec;
  memory::Budget* budget = nullptr;
  engine::CachePolicy cache_policy = engine::CachePolicy::kReset;
  std::int64_t gate_ns = 10 * kNsPerSecond;  // for all ranks of the replica together
  Observer observer;
};

struct LocalInstall {
  std::int64_t seal_ns = 0, stage_ns = 0, pause_ns = 0, bytes = 0;
  install::ProofCounts proof;
};

// *thread-compatible*. The shards, instances and source regions must outlive it.
class LocalReplica {
 public:
  // `source` has one rank, whose buffers are `regions`; `ranks` are all of one instance of `target`. Errors: the
  // plan's, naming tensors; kExhausted.
  static Result<std::unique_ptr<LocalReplica>> make(std::shared_ptr<const model::Layout> source,
                                                    std::vector<memory::RegionRef> regions,
                                                    std::shared_ptr<const model::Layout> target,
                                                    std::vector<LocalRank> ranks, LocalReplicaOptions options);
  ~LocalReplica();

  // The parts of the source's buffers that these ranks read. Gaps of less than `grain` bytes may be counted in.
  void for_each_read(std::int64_t grain,
                     const std::function<void(std::uint32_t buffer, std::int64_t offset, std::int64_t bytes)>& f) const;

  // All ranks, or none. After an error the ranks serve what they served before, unless fenced() says that copying had
  // begun: then all gates are shut until another install succeeds. With `proof`, what was written is read again.
  Result<LocalInstall> install(const Txn& txn, const Version& version, bool proof);
  const std::optional<Error>& fenced() const { return fenced_; }

 private:
  LocalReplica() = default;
  Status stage(const Seal& seal, const Txn& txn, bool proof, LocalInstall& report);
  Status shut(const Txn& txn);
  Status replace(const Seal& seal, const Txn& txn, const Version& version, bool proof);
  void observe(Phase phase, const Txn& txn) const;

  LocalReplicaOptions options_;
  std::shared_ptr<const model::Layout> source_, target_;
  std::vector<memory::RegionRef> regions_;
  std::vector<LocalRank> ranks_;
  plan::RankPlan source_plan_;
  std::vector<plan::RankPlan> plans_;  // by rank
  std::unique_ptr<Sealer> sealer_;
  std::vector<std::unique_ptr<install::StagedExecutor>> executors_;
  std::optional<Error> fenced_;
};

}  // namespace refit::agent
