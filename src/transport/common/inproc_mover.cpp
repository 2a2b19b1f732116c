// Lanes and movers as shells round the hub.
#include "transport/common/inproc.h"

namespace refit::transport::inproc {
namespace {

// What both kinds of lane do alike.
template <typename Base>
class HubLane : public Base {
 public:
  HubLane(std::shared_ptr<Hub> hub, const LaneId& id, std::uint32_t member, std::span<const Peer> peers,
          std::int64_t staging)
      : hub_(std::move(hub)) {
    state_.push = std::is_same_v<Base, PushLane>;
    state_.id = id;
    state_.member = member;
    for (const Peer& peer : peers) state_.peers.emplace(peer.member, peer);
    state_.staging->limit = staging;
    hub_->open(state_);
  }
  ~HubLane() override { hub_->end(state_, std::nullopt); }
  Result<Lease> next(Deadline deadline) override { return hub_->next(state_, deadline); }
  std::size_t poll(std::span<Completion> done) override { return state_.ledger.poll(done); }
  void abort(Error error) override { hub_->end(state_, std::move(error)); }
  Status close(Deadline /*deadline*/) override {
    hub_->end(state_, std::nullopt);
    return {};
  }

 protected:
  std::shared_ptr<Hub> hub_;  // shared by movers, lanes and leases of the job
  LaneState state_;
};

class PushLaneInproc final : public HubLane<PushLane> {
 public:
  using HubLane::HubLane;
  Status expect(std::span<const Expected> buckets) override { return hub_->expect(state_, buckets); }
  Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to) override {
    return hub_->post(state_, bucket, parts, to);
  }
};

class PullLaneInproc final : public HubLane<PullLane> {
 public:
  using HubLane::HubLane;
  Result<Bytes> expose(std::span<const memory::RegionRef> regions) override { return hub_->expose(state_, regions); }
  Status withdraw() override { return hub_->withdraw(state_); }
  Result<std::uint64_t> request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> descriptor,
                                std::span<const Segment> segments) override {
    return hub_->request(state_, bucket, sender, descriptor, segments);
  }
  Status recheck(std::uint32_t sender) override { return hub_->recheck(state_, sender); }
};

class MoverInproc final : public Mover {
 public:
  MoverInproc(bool simulated, const MoverOptions& options, OpenControl control)
      : options_(options),
        open_control_(control),
        hub_(Hub::of(simulated, options.job, options.seed)),
        serial_(hub_->join(options.member, &counters_)) {}
  ~MoverInproc() override { hub_->leave(serial_); }

  Capabilities capabilities() const override {
    return {.push = true, .pull = true, .control = open_control_ != nullptr, .multicast = true};
  }
  Bytes card() const override { return encode(Card{options_.job, options_.member, options_.incarnation, serial_}); }
  Status reach(const Peer& peer, Deadline) override {
    if (hub_->alive(peer, options_.job)) return {};
    return Error(Code::kUnsupported, "the peer is not in this process, or gone").at_peer(peer.name);
  }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) override {
    REFIT_TRY(check_opening(id, peers));
    return std::unique_ptr<PushLane>(
        std::make_unique<PushLaneInproc>(hub_, id, options_.member, peers, options_.staging_bytes));
  }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId& id, std::span<const Peer> peers) override {
    REFIT_TRY(check_opening(id, peers));
    return std::unique_ptr<PullLane>(
        std::make_unique<PullLaneInproc>(hub_, id, options_.member, peers, options_.staging_bytes));
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address) override {
    if (open_control_ == nullptr)
      return Error(Code::kUnsupported, "this transport has no control lanes: use zmq or loopback");
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    return open_control_(address);
  }
  Counters counters() const override { return hub_->read(counters_); }
  Status shutdown(Deadline) override {
    stopped_ = true;
    hub_->leave(serial_);
    return {};
  }

 private:
  Status check_opening(const LaneId& id, std::span<const Peer> peers) const {
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    if (id.job != options_.job) return Error(Code::kMismatch, "lane of another job than the mover's");
    std::set<std::uint32_t> members;
    for (const Peer& peer : peers)
      if (!members.insert(peer.member).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    return {};
  }
  const MoverOptions options_;
  const OpenControl open_control_;
  Counters counters_;  // written under the hub's mutex
  std::shared_ptr<Hub> hub_;
  const std::uint64_t serial_;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Mover>> make(bool simulated, const MoverOptions& options, OpenControl open_control) {
  return std::unique_ptr<Mover>(std::make_unique<MoverInproc>(simulated, options, open_control));
}

}  // namespace refit::transport::inproc
