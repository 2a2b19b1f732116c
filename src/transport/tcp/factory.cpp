#include "transport/tcp/factory.h"

#include "transport/tcp/exchange.h"

namespace refit::transport::tcp {
namespace {

class PushLaneTcp final : public PushLane {
 public:
  PushLaneTcp(std::shared_ptr<Exchange> exchange, std::shared_ptr<LaneState> state)
      : exchange_(std::move(exchange)), state_(std::move(state)) {}
  ~PushLaneTcp() override { exchange_->end(*state_, std::nullopt); }
  Status expect(std::span<const Expected> buckets) override { return exchange_->expect(*state_, buckets); }
  Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to) override {
    return exchange_->post(*state_, bucket, parts, to);
  }
  Result<Lease> next(Deadline deadline) override { return exchange_->next(*state_, deadline); }
  std::size_t poll(std::span<Completion> done) override { return state_->ledger.poll(done); }
  void abort(Error error) override { exchange_->end(*state_, std::move(error)); }
  Status close(Deadline /*deadline*/) override {
    exchange_->end(*state_, std::nullopt);
    return {};
  }

 private:
  std::shared_ptr<Exchange> exchange_;  // shared by the mover and its lanes: a lane may outlive its mover
  std::shared_ptr<LaneState> state_;    // shared with the exchange while the lane is open
};

class MoverTcp final : public Mover {
 public:
  MoverTcp(std::shared_ptr<Exchange> exchange, Hash128 job) : exchange_(std::move(exchange)), job_(job) {}
  ~MoverTcp() override { exchange_->stop(); }
  Capabilities capabilities() const override {
    return {.push = true, .multicast = true, .security = to_string(exchange_->self().security)};
  }
  Bytes card() const override { return exchange_->card(); }
  Status reach(const Peer& peer, Deadline deadline) override { return exchange_->reach(peer, deadline); }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) override {
    if (id.job != job_) return Error(Code::kMismatch, "lane of another job than the mover's");
    auto state = std::make_shared<LaneState>();
    state->id = id;
    for (const Peer& peer : peers)
      if (!state->peers.emplace(peer.member, peer).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    REFIT_TRY(exchange_->open(state));
    return std::unique_ptr<PushLane>(std::make_unique<PushLaneTcp>(exchange_, std::move(state)));
  }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId&, std::span<const Peer>) override {
    return Error(Code::kUnsupported, "transport tcp has no pull lanes: use shm on one host");
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress&) override {
    return Error(Code::kUnsupported, "transport tcp has no control lanes: use zmq");
  }
  Counters counters() const override { return exchange_->counters(); }
  Status shutdown(Deadline) override {
    exchange_->stop();
    return {};
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  const Hash128 job_;
};

}  // namespace

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
  REFIT_ASSIGN(auto exchange, Exchange::start(options));
  return std::unique_ptr<Mover>(std::make_unique<MoverTcp>(std::move(exchange), options.job));
}

}  // namespace refit::transport::tcp
