#include "transport/nixl/factory.h"

#include <algorithm>

#include "transport/nixl/lane.h"

namespace refit::transport::nixl {
namespace {

Error no(const char* what, const char* instead) {
  return Error(Code::kUnsupported, std::string("transport nixl has no ") + what + " lanes: use " + instead);
}

bool stays_here(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "localhost" || address == "::1";
}

class MoverNixl final : public Mover {
 public:
  explicit MoverNixl(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~MoverNixl() override { engine_->stop(); }

  Capabilities capabilities() const override { return {.pull = true, .security = "none"}; }
  Bytes card() const override { return engine_->card(); }

  Status reach(const Peer& peer, Deadline deadline) override {
    REFIT_ASSIGN(const Card card, decode_card(peer.card));
    REFIT_TRY(allowed(card, peer));
    const std::string& ours = engine_->options().net.nixl.backend;
    if (card.backend != ours)
      return Error(Code::kUnsupported, "the peer's backend_name is " + card.backend + ", ours is " + ours)
          .at_peer(peer.name);
    const auto there = engine_->question(peer, MemoryEpoch(), deadline);
    if (there.ok()) return {};
    Error error = there.error();
    if (error.code == Code::kTimeout || error.code == Code::kCancelled) return error;
    error.message = "nixl does not reach the peer from here: " + error.message;
    // Whatever the cause, the caller's way out is another transport.
    if (error.code == Code::kPeerLost || error.code == Code::kInvalid) error.code = Code::kUnsupported;
    return error;
  }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId&, std::span<const Peer>) override {
    return no("push", "tcp");
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress&) override { return no("control", "zmq"); }

  Result<std::unique_ptr<PullLane>> open_pull(const LaneId& id, std::span<const Peer> peers) override {
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    if (id.job != engine_->options().job) return Error(Code::kMismatch, "lane of another job than the mover's");
    auto state = std::make_shared<LaneState>();
    state->id = id;
    for (const Peer& peer : peers) {
      // One that cannot be read is refused by the first question.
      if (const auto card = decode_card(peer.card); card.ok()) REFIT_TRY(allowed(*card, peer));
      if (!state->peers.emplace(peer.member, peer).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    }
    return std::unique_ptr<PullLane>(std::make_unique<PullLaneNixl>(engine_, std::move(state)));
  }

  Counters counters() const override { return engine_->counters(); }
  Status shutdown(Deadline) override {
    stopped_ = true;
    engine_->stop();
    return {};
  }

 private:
  // `mac` stands for "stays on this host", at both ends.
  Status allowed(const Card& card, const Peer& peer) const {
    if (engine_->options().net.security != "mac" || stays_here(card.host)) return {};
    return Error(Code::kUnsupported, "refit.security.bulk 'mac': the peer is at " + card.host +
                                         ", and nixl authenticates no byte on the way: spell none, or use tcp")
        .at_peer(peer.name);
  }
  const std::shared_ptr<Engine> engine_;  // shared with lanes, which may outlive the mover
  bool stopped_ = false;
};

Result<std::unique_ptr<Mover>> make_over(const MoverOptions& o, const Api& api) {
  if (o.net.security != "none" && o.net.security != "mac")
    return Error(Code::kUnsupported, "refit.security.bulk '" + o.net.security + "': nixl has none");
  if (o.net.security == "mac" && !stays_here(o.net.advertise_address))
    return Error(Code::kUnsupported,
                 "refit.security.bulk: nixl authenticates no byte on the way; between hosts that must "
                 "be spelled out as none, or use tcp");
  if (o.net.nixl.backend.empty() || o.net.nixl.backend.size() > kLongestName)
    return Error(Code::kInvalid, "backend_name must be the name of a NIXL plugin, such as UCX");
  MoverOptions options = o;
  auto& params = options.net.nixl.params;
  const auto configures = [](const auto& p) { return p.first == "engine_config"; };
  // By itself UCX listens on every interface, whatever address the door has.
  if (o.net.security == "mac" && o.net.nixl.backend == "UCX" && std::none_of(params.begin(), params.end(), configures))
    params.emplace_back("engine_config", "NET_DEVICES=lo");
  REFIT_ASSIGN(auto engine, Engine::start(options, api));
  return std::unique_ptr<Mover>(std::make_unique<MoverNixl>(std::move(engine)));
}

}  // namespace

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
  REFIT_ASSIGN(const Api* const api, real_api(options.net.nixl.library));
  return make_over(options, *api);
}

Result<std::unique_ptr<Mover>> make_double(const MoverOptions& options) { return make_over(options, host_double()); }

}  // namespace refit::transport::nixl
