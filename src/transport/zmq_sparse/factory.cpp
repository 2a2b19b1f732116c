#include "transport/zmq_sparse/factory.h"

#include "transport/zmq_sparse/hub.h"

namespace refit::transport::zmq_sparse {
namespace {

class PushLaneSparse final : public PushLane {
 public:
  PushLaneSparse(std::shared_ptr<Hub> hub, std::shared_ptr<LaneState> state)
      : hub_(std::move(hub)), state_(std::move(state)) {}
  ~PushLaneSparse() override { hub_->end(*state_, std::nullopt); }
  Status expect(std::span<const Expected> buckets) override { return hub_->expect(*state_, buckets); }
  Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to) override {
    return hub_->post(*state_, bucket, parts, to);
  }
  Result<Lease> next(Deadline deadline) override { return hub_->next(*state_, deadline); }
  std::size_t poll(std::span<Completion> done) override { return state_->ledger.poll(done); }
  void abort(Error error) override { hub_->end(*state_, std::move(error)); }
  Status close(Deadline /*deadline*/) override {
    hub_->end(*state_, std::nullopt);
    return {};
  }

 private:
  std::shared_ptr<Hub> hub_;          // shared by the mover and its lanes: a lane may outlive its mover
  std::shared_ptr<LaneState> state_;  // shared with the hub while the lane is open
};

class MoverSparse final : public Mover {
 public:
  MoverSparse(std::shared_ptr<Hub> hub, Hash128 job) : hub_(std::move(hub)), job_(job) {}
  ~MoverSparse() override { hub_->stop(); }
  Capabilities capabilities() const override {
    return {.push = true, .multicast = true, .security = hub_->secured() ? "curve" : "none"};
  }
  Bytes card() const override { return hub_->card(); }
  Status reach(const Peer& peer, Deadline deadline) override { return hub_->reach(peer, deadline); }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) override {
    if (id.job != job_) return Error(Code::kMismatch, "lane of another job than the mover's");
    auto state = std::make_shared<LaneState>();
    state->id = id;
    for (const Peer& peer : peers)
      if (!state->peers.emplace(peer.member, peer).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    REFIT_TRY(hub_->open(state));
    return std::unique_ptr<PushLane>(std::make_unique<PushLaneSparse>(hub_, std::move(state)));
  }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId&, std::span<const Peer>) override {
    return Error(Code::kUnsupported, "transport zmq_sparse has no pull lanes: use shm on one host");
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress&) override {
    return Error(Code::kUnsupported, "transport zmq_sparse has no control lanes: use zmq");
  }
  Counters counters() const override { return hub_->counters(); }
  Status shutdown(Deadline) override {
    hub_->stop();
    return {};
  }

 private:
  std::shared_ptr<Hub> hub_;
  const Hash128 job_;
};

}  // namespace

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
  REFIT_ASSIGN(auto hub, Hub::start(options));
  return std::unique_ptr<Mover>(std::make_unique<MoverSparse>(std::move(hub), options.job));
}

}  // namespace refit::transport::zmq_sparse
