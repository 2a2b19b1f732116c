// The pull lane of nixl: leases hold packed bytes in staging.
#pragma once
#include "transport/nixl/engine.h"

namespace refit::transport::nixl {

class PullLaneNixl final : public PullLane {
 public:
  PullLaneNixl(std::shared_ptr<Engine> engine, std::shared_ptr<LaneState> state)
      : engine_(std::move(engine)), state_(std::move(state)) {}
  ~PullLaneNixl() override;
  Result<Bytes> expose(std::span<const memory::RegionRef> regions) override;
  Status withdraw() override;
  Result<std::uint64_t> request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> descriptor,
                                std::span<const Segment> segments) override;
  Status recheck(std::uint32_t sender) override;
  Result<Lease> next(Deadline deadline) override;
  std::size_t poll(std::span<Completion> done) override { return state_->ledger.poll(done); }
  void abort(Error error) override;
  Status close(Deadline deadline) override;

 private:
  Result<std::shared_ptr<Loan>> loan_for(const Peer& peer, std::span<const std::byte> raw);
  Status check_ours(const Descriptor& descriptor, const Peer& peer);
  Result<Lease> hand_out(Arrived arrived);
  void end_lend();

  const std::shared_ptr<Engine> engine_;    // shared by the mover and its lanes, which may outlive it
  const std::shared_ptr<LaneState> state_;  // shared with the engine
  std::mutex lend_mutex_;                   // abort() may end the lend from another thread
  std::optional<MemoryEpoch> lend_;
  std::map<std::uint32_t, std::shared_ptr<Loan>> loans_;  // by sender; shared with requests and what they brought
  std::map<std::uint32_t, std::shared_ptr<Loan>> read_;   // what next() handed out last
  std::deque<std::pair<std::uint32_t, BucketId>> asked_;  // not handed out yet
};

}  // namespace refit::transport::nixl
