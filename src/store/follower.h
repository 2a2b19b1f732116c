// Following a store: bringing a local copy of the tensors (a mirror) to the newest committed version, by whatever costs
// fewest bytes from what it holds. Every chunk proves itself by its hash, so a copy that a failure left half done, or
// that a file kept over a restart, is gone on with.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "store/history.h"

namespace refit::store {

struct FollowOptions {
  Trust trust{};
  std::string lease{};  // name of this reader's lease, [a-z0-9-]; empty: none is written
  ThreadPool* pool = nullptr;
  std::int64_t renew_ns = 10 * kNsPerSecond;  // a lease that says nothing new is written again after so long
  std::int64_t range_bytes = 16 << 20;        // most bytes of one download
  std::int64_t gap_bytes = 64 << 10;          // unneeded bytes that are read rather than asked for around
  std::uint64_t least_number = 0;             // versions below were never served again: the high-water mark
};

struct Fetched {
  std::uint64_t number = 0, epoch = 0;
  std::int64_t step = 0;
  Hash128 content;
  std::int64_t wanted = 0, held = 0;      // chunks; those that were right already
  std::int64_t deltas = 0, complete = 0;  // payloads
  std::int64_t payload_bytes = 0;
  std::int64_t manifests = 0;
  bool is_signed = false;
  Cost cost;
};

// *thread-compatible*; the store must outlive it.
class Follower {
 public:
  // Errors: kBusy while nothing is published.
  static Result<Follower> open(ObjectStore& store, FollowOptions options, Deadline deadline);
  const Model& model() const { return *model_; }
  const Grid& grid() const { return history_->grid(); }
  const Lineage& lineage() const { return history_->lineage(); }
  const Trust& trust() const { return history_->trust(); }

  // Where the tensors lie (tensor t at tensors[t], row-major, grid().tensor_bytes(t) bytes) and which chunks are kept.
  // What lies there already counts where its hash is right.
  void attach(std::vector<std::byte*> tensors, std::vector<bool> wanted);
  // The newest committed version's number; 0: none. Renews the lease. Errors: kMismatch when the store went back
  // behind a version that was fetched.
  Result<std::uint64_t> newest(Deadline deadline);
  // Brings the mirror to version `number`. After an error the mirror is a mixture that only another fetch() may use.
  // Errors: kBusy when the version was collected meanwhile (ask for the newest again); kCorrupt naming the object.
  Result<Fetched> fetch(std::uint64_t number, Deadline deadline);
  // The version whose bytes the mirror holds; 0: none, or a mixture.
  std::uint64_t held() const { return whole_ ? content_.number : 0; }
  // Says that this reader needs nothing more.
  Status end(Deadline deadline);

 private:
  Follower(ObjectStore& store, FollowOptions options) : store_(&store), options_(std::move(options)) {}
  Status renew(std::uint64_t to, Deadline deadline);
  Result<std::vector<std::vector<const Entry*>>> choose(const std::vector<Link>& chain, const Content& target) const;
  Status take(const Link& link, std::vector<const Entry*> entries, Fetched& report, Deadline deadline);
  Status take_range(const Link& link, std::span<const Entry* const> entries, Deadline deadline);
  Status use(const Link& link, const Entry& entry, View payload, codec::Workspace& work);

  ObjectStore* store_;
  FollowOptions options_;
  std::unique_ptr<History> history_;
  const Model* model_ = nullptr;
  std::vector<std::byte*> tensors_;
  std::vector<bool> wanted_;
  std::vector<Hash128> held_;  // of each wanted chunk, as it lies there
  Content content_;            // the last version that was read whole
  bool whole_ = false;
  Lease lease_;
  std::int64_t renewed_ns_ = 0;
  std::uint64_t highest_ = 0;
};

}  // namespace refit::store
