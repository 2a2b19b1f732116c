// The pull lane of shm: a lease views the source's memory; nothing is copied here.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "transport/common/ledger.h"
#include "transport/shm/exports.h"
#include "transport/shm/link.h"

namespace refit::transport::shm {

// What a mover's lanes use of it. Shared by the mover and its lanes, so that a lane outlives a mover that was shut
// down.
struct State {
  MoverOptions options;
  Card self;
  std::unique_ptr<Exports> exports;
  std::mutex mutex;                                      // of links
  std::map<std::uint32_t, std::shared_ptr<Link>> links;  // by member; shared with lanes of the running round
  std::atomic<std::uint64_t> foreign{0}, bad{0}, bytes_in{0};
};

class PullLaneShm final : public PullLane {
 public:
  PullLaneShm(std::shared_ptr<State> state, const LaneId& id, std::map<std::uint32_t, std::shared_ptr<Link>> links,
              Wake wake)
      : state_(std::move(state)), id_(id), links_(std::move(links)), wake_(std::move(wake)) {}
  ~PullLaneShm() override;
  Result<Bytes> expose(std::span<const memory::RegionRef> regions) override;
  Status withdraw() override;
  Result<std::uint64_t> request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> descriptor,
                                std::span<const Segment> segments) override;
  Status recheck(std::uint32_t sender) override;
  Result<Lease> next(Deadline deadline) override;
  std::size_t poll(std::span<Completion> done) override { return ledger_.poll(done); }
  void abort(Error error) override;
  Status close(Deadline deadline) override;

 private:
  // A descriptor as last seen from one sender, parsed once; its maps once they are there.
  struct Loan {
    Bytes raw;
    Descriptor descriptor;
    std::vector<std::int64_t> sizes;  // of its regions
    std::map<std::uint64_t, FileMap> maps;
    bool mapped = false;
  };
  struct Pending {
    std::uint64_t ticket = 0;
    BucketId bucket;
    std::uint32_t sender = 0;
    std::shared_ptr<Loan> loan;  // shared by the requests that name the same descriptor, and their leases
    std::vector<Segment> segments;
    std::int64_t bytes = 0;
  };
  struct View;
  Result<std::shared_ptr<Loan>> loan_for(std::uint32_t sender, std::span<const std::byte> raw);
  Status check_ours(const Descriptor& descriptor, const Link& link);
  Status check_epoch(const Loan& loan, std::uint32_t sender);
  Result<Lease> deliver(const Pending& pending);
  void end_lend();

  std::shared_ptr<State> state_;
  const LaneId id_;
  const std::map<std::uint32_t, std::shared_ptr<Link>> links_;
  const Wake wake_;
  Ledger ledger_;
  std::mutex lend_mutex_;  // abort() may end the lend from another thread
  std::optional<Exports::Lend> lend_;
  std::map<std::uint32_t, std::shared_ptr<Loan>> loans_;  // by sender
  std::deque<Pending> pending_;
};

}  // namespace refit::transport::shm
