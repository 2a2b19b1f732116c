// What a store keeps: the newest versions, what leases need, and the chains below both. Thinking is pure; collect()
// performs it. No wall clock: a lease lives while its counter moves, seen on the collector's own monotonic clock.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/history.h"

namespace refit::store {

struct RetentionPolicy {
  std::uint64_t keep = 2;                      // newest versions that stay whatever happens
  std::int64_t lease_ns = 60 * kNsPerSecond;   // a lease that has not moved for so long has ended
  std::int64_t grace_ns = 300 * kNsPerSecond;  // between the decision to remove and removing: ≥ lease + longest read
};

// What a look at the store found.
struct Census {
  struct Version {
    std::uint64_t epoch = 0, parent = 0;
    bool anchor = false;
  };
  std::map<std::uint64_t, Version> committed;
  std::map<std::string, Lease> leases;
  std::set<Attempt> attempts;  // prefixes under versions/
};

// Versions that a reader may still need. A chain whose parent is gone ends there.
std::set<std::uint64_t> reachable(const Census& census, const std::set<std::uint64_t>& roots);

// What to remove now, in this order: markers first (nobody starts to read these versions), then everything under the
// prefixes. *thread-compatible*; pure: remembers when it saw what.
class Collector {
 public:
  explicit Collector(RetentionPolicy policy) : policy_(policy) {}
  struct Todo {
    std::vector<std::uint64_t> markers;
    std::vector<Attempt> prefixes;
    std::vector<std::string> leases;  // that ended
  };
  Todo step(const Census& census, std::int64_t now_ns);
  const std::map<std::uint64_t, Census::Version>& known() const { return known_; }

 private:
  struct Seen {
    Lease lease;
    std::int64_t since_ns = 0;
  };
  const RetentionPolicy policy_;
  std::map<std::string, Seen> leases_;
  std::map<Attempt, std::int64_t> doomed_;  // since when each was unneeded without a break
  std::map<std::uint64_t, Census::Version> known_;
};

struct Collected {
  std::int64_t versions = 0, objects = 0, attempts = 0, leases = 0;
};
// Looks, decides, removes. What is half removed is found and removed by the next call. Errors: the store's;
// kCorrupt, with nothing removed, when a committed version has no manifest.
Result<Collected> collect(History& history, Collector& collector, std::int64_t now_ns, Deadline deadline);

}  // namespace refit::store
