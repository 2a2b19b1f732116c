// Exports: what a source lends. Regions are registered once and stay registered over rounds.
#pragma once
#include <map>
#include <mutex>
#include <set>

#include "transport/nixl/agent.h"
#include "transport/nixl/card.h"

namespace refit::transport::nixl {

// *thread-safe*.
class Exports {
 public:
  Exports(const Api& api, std::string agent_name, NixlOptions options, std::uint64_t first_epoch)
      : api_(api), name_(std::move(agent_name)), options_(std::move(options)), next_epoch_(first_epoch | 1) {}

  struct Lend {
    MemoryEpoch epoch;
    Bytes metadata;
    std::vector<LentRegion> regions;
  };
  // Registers what is not registered yet, gives back what no open lend uses, and opens a lend under an epoch of its
  // own. The agent starts with the first lend.
  Result<Lend> lend(std::span<const memory::RegionRef> regions);
  void revoke(MemoryEpoch epoch);
  bool open(MemoryEpoch epoch) const;
  // All lends end and the agent goes: later lends are refused.
  void stop();
  std::size_t registrations() const;
  int agents() const;

 private:
  using Key = std::pair<std::byte*, std::int64_t>;
  Result<Lend> lend_locked(std::span<const memory::RegionRef> regions);
  Status add(const Key& key);
  void drop_unused();

  const Api& api_;
  const std::string name_;
  const NixlOptions options_;
  mutable std::mutex mutex_;
  std::unique_ptr<Agent> agent_;
  std::set<Key> registered_;
  std::map<std::uint64_t, std::set<Key>> lends_;  // open ones, by epoch
  Bytes metadata_;                                // of what is registered; empty: to be asked for
  std::uint64_t next_epoch_;
  bool stopped_ = false;
};

}  // namespace refit::transport::nixl
