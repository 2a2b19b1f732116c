#include "store/retention.h"

#include <algorithm>

namespace refit::store {
namespace {

// `known`: committed versions that were looked at before; they never change.
Result<Census> look(History& history, const std::map<std::uint64_t, Census::Version>& known, Deadline deadline) {
  ObjectStore& store = history.store();
  Census out;
  REFIT_ASSIGN(const std::vector<std::uint64_t> numbers, history.committed(deadline));
  for (const std::uint64_t n : numbers) {
    if (const auto before = known.find(n); before != known.end()) {
      out.committed.insert(*before);
      continue;
    }
    REFIT_ASSIGN(const std::optional<Link> link, history.load(n, deadline));
    if (link) {
      out.committed[n] = {link->manifest.epoch, link->manifest.parent_number, link->manifest.anchor};
      continue;
    }
    // Markers go before manifests: another collector's work, unless the marker still stands. Then what lies below is
    // not known, and nothing may go.
    REFIT_ASSIGN(const std::optional<Bytes> marker, store.get(committed_key(n), kMarkerBytes, deadline));
    if (marker)
      return Error(Code::kCorrupt, "version " + std::to_string(n) + " is committed and has no manifest")
          .at_peer(store.name())
          .at_stage("manifest");
  }
  REFIT_ASSIGN(const std::vector<Listed> leases, store.list(kLeasesPrefix, deadline));
  for (const Listed& l : leases) {
    if (!is_lease_key(l.key)) continue;  // not of a reader
    REFIT_ASSIGN(const std::optional<Bytes> bytes, store.get(l.key, 1 << 10, deadline));
    if (!bytes) continue;
    const Result<Lease> lease = read_lease(*bytes);
    // One that can't be read protects nothing it could name; it ends like one that stands still.
    out.leases[l.key] = lease.ok() ? *lease : Lease{};
  }
  REFIT_ASSIGN(const std::vector<Listed> objects, store.list(kVersionsPrefix, deadline));
  for (const Listed& o : objects)
    if (const auto attempt = attempt_of(o.key)) out.attempts.insert(*attempt);
  return out;
}

}  // namespace

std::set<std::uint64_t> reachable(const Census& census, const std::set<std::uint64_t>& roots) {
  std::set<std::uint64_t> out;
  for (std::uint64_t n : roots) {
    bool anchored = false;
    for (auto at = census.committed.find(n); at != census.committed.end() && !anchored;
         at = census.committed.find(at->second.parent)) {
      out.insert(at->first);
      anchored = at->second.anchor || at->second.parent >= at->first;
    }
  }
  return out;
}

Collector::Todo Collector::step(const Census& census, std::int64_t now_ns) {
  known_ = census.committed;
  Todo out;
  std::set<std::uint64_t> roots;
  std::uint64_t kept = 0;
  for (auto it = census.committed.rbegin(); it != census.committed.rend() && kept < policy_.keep; ++it, ++kept)
    roots.insert(it->first);
  std::map<std::string, Seen> seen;
  for (const auto& [key, lease] : census.leases) {
    const auto before = leases_.find(key);
    const bool still = before != leases_.end() && before->second.lease.counter == lease.counter;
    seen[key] = {lease, still ? before->second.since_ns : now_ns};
    if (now_ns - seen[key].since_ns >= policy_.lease_ns) {
      out.leases.push_back(key);
      continue;
    }
    roots.insert(lease.to);
    // From what it holds upwards its deltas are the shorter way.
    for (auto it = census.committed.upper_bound(lease.from); lease.from != 0 && it != census.committed.end(); ++it)
      roots.insert(it->first);
  }
  leases_ = std::move(seen);
  const std::set<std::uint64_t> needed = reachable(census, roots);

  // The newest commit's number and above belong to attempts that may be under way.
  const std::uint64_t newest = census.committed.empty() ? 0 : census.committed.rbegin()->first;
  std::set<Attempt> unneeded;
  for (const auto& [number, version] : census.committed)
    if (!needed.contains(number)) unneeded.insert({number, version.epoch});
  for (const Attempt& a : census.attempts) {
    const auto committed = census.committed.find(a.number);
    const bool is_committed = committed != census.committed.end() && committed->second.epoch == a.epoch;
    if (!is_committed && a.number <= newest) unneeded.insert(a);  // lost a race, died, or its marker is removed already
  }
  std::map<Attempt, std::int64_t> doomed;
  for (const Attempt& a : unneeded) {
    const auto before = doomed_.find(a);
    doomed[a] = before == doomed_.end() ? now_ns : before->second;
    if (now_ns - doomed[a] < policy_.grace_ns) continue;
    const auto committed = census.committed.find(a.number);
    if (committed != census.committed.end() && committed->second.epoch == a.epoch) out.markers.push_back(a.number);
    out.prefixes.push_back(a);
  }
  doomed_ = std::move(doomed);
  return out;
}

Result<Collected> collect(History& history, Collector& collector, std::int64_t now_ns, Deadline deadline) {
  ObjectStore& store = history.store();
  REFIT_ASSIGN(const Census census, look(history, collector.known(), deadline));
  const Collector::Todo todo = collector.step(census, now_ns);
  Collected out;
  for (const std::uint64_t n : todo.markers) {
    REFIT_TRY(store.remove(committed_key(n), deadline));
    ++out.versions;
  }
  for (const Attempt& a : todo.prefixes) {
    REFIT_ASSIGN(std::vector<Listed> objects, store.list(version_prefix(a.number, a.epoch), deadline));
    // The manifest first: where one stands all that it names is there.
    std::stable_partition(objects.begin(), objects.end(),
                          [&](const Listed& o) { return o.key == manifest_key(a.number, a.epoch); });
    for (const Listed& o : objects) REFIT_TRY(store.remove(o.key, deadline));
    out.objects += std::ssize(objects);
    ++out.attempts;
  }
  for (const std::string& key : todo.leases) {
    REFIT_TRY(store.remove(key, deadline));
    ++out.leases;
  }
  return out;
}

}  // namespace refit::store
