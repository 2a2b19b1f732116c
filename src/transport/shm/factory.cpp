#include "transport/shm/factory.h"

#include <unistd.h>

#include "transport/shm/lane.h"
#include "transport/shm/service.h"

namespace refit::transport::shm {
namespace {

Error no(const char* what, const char* instead) {
  return Error(Code::kUnsupported, std::string("transport shm has no ") + what + " lanes: use " + instead);
}

class MoverShm final : public Mover {
 public:
  MoverShm(std::shared_ptr<State> state, std::unique_ptr<Service> service)
      : state_(std::move(state)), service_(std::move(service)) {}
  ~MoverShm() override { stop(); }

  Capabilities capabilities() const override { return {.pull = true, .mapped = true}; }
  Bytes card() const override { return encode(state_->self); }

  Status reach(const Peer& peer, Deadline deadline) override {
    REFIT_ASSIGN(const Wake wake, Wake::make());
    auto answer = link_to(peer)->ping(deadline, wake);
    if (answer.ok() || answer.error().code == Code::kTimeout) return answer;
    Error error = std::move(answer).error();
    error.message = "shm does not reach the peer from here: " + error.message;
    // Whatever the cause, the caller's way out is another transport.
    if (error.code == Code::kPeerLost || error.code == Code::kInvalid) error.code = Code::kUnsupported;
    return error;
  }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId&, std::span<const Peer>) override {
    return no("push", "loopback or tcp");
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress&) override { return no("control", "zmq"); }

  Result<std::unique_ptr<PullLane>> open_pull(const LaneId& id, std::span<const Peer> peers) override {
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    if (id.job != state_->self.job) return Error(Code::kMismatch, "lane of another job than the mover's");
    std::map<std::uint32_t, std::shared_ptr<Link>> links;
    for (const Peer& peer : peers)
      if (!links.emplace(peer.member, link_to(peer)).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    REFIT_ASSIGN(Wake wake, Wake::make());
    return std::unique_ptr<PullLane>(std::make_unique<PullLaneShm>(state_, id, std::move(links), std::move(wake)));
  }

  Counters counters() const override {
    Counters c;
    c.frames_foreign = state_->foreign.load() + service_->foreign();
    c.frames_bad = state_->bad.load() + service_->bad();
    c.bytes_in = state_->bytes_in.load();
    c.threads = service_->running() ? 1 : 0;
    return c;
  }
  Status shutdown(Deadline) override {
    stop();
    return {};
  }

 private:
  // The link of an earlier round, unless the member is a new process now.
  std::shared_ptr<Link> link_to(const Peer& peer) {
    const std::lock_guard lock(state_->mutex);
    auto& link = state_->links[peer.member];
    if (link == nullptr || link->peer().incarnation != peer.incarnation || link->peer().card != peer.card)
      link = std::make_shared<Link>(*state_->options.env, state_->options.runtime_dir, peer);
    return link;
  }
  void stop() {
    if (stopped_) return;
    stopped_ = true;
    state_->exports->revoke_all();
    service_->stop();
    {
      const std::lock_guard lock(state_->mutex);
      state_->links.clear();
    }
    sweep_dead_sockets(state_->options.runtime_dir);
  }

  std::shared_ptr<State> state_;
  std::unique_ptr<Service> service_;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
  auto state = std::make_shared<State>();
  state->options = options;
  REFIT_ASSIGN(state->options.runtime_dir, make_runtime_dir(*options.env, options.runtime_dir));
  state->self = Card{options.job, options.member, options.incarnation, static_cast<std::uint32_t>(::geteuid())};
  REFIT_ASSIGN(state->exports, Exports::make(*options.env));
  sweep_dead_sockets(state->options.runtime_dir);
  const std::string path = socket_path(state->options.runtime_dir, state->self);
  REFIT_ASSIGN(auto service, Service::start(*options.env, path, state->self, *state->exports));
  return std::unique_ptr<Mover>(std::make_unique<MoverShm>(std::move(state), std::move(service)));
}

}  // namespace refit::transport::shm
