#include "transport/zmq/factory.h"

#include "transport/zmq/lane.h"

namespace refit::transport::zmq {
namespace {

Error no(const char* what) {
  return Error(Code::kUnsupported,
               std::string("transport zmq has no ") + what + " lanes in this build; it carries control messages");
}

class MoverZmq final : public Mover {
 public:
  explicit MoverZmq(const MoverOptions& options) : env_(*options.env), tally_(std::make_shared<Tally>()) {}
  Capabilities capabilities() const override { return {.control = true}; }
  // Members find the coordinator by a ControlAddress, so the card says nothing.
  Bytes card() const override { return {}; }
  Status reach(const Peer& peer, Deadline) override {
    return Error(Code::kUnsupported, "transport zmq reaches peers by a control address, not by a card")
        .at_peer(peer.name);
  }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId&, std::span<const Peer>) override { return no("push"); }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId&, std::span<const Peer>) override { return no("pull"); }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address) override {
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    return ControlLaneZmq::open(env_, address, tally_);
  }
  Counters counters() const override {
    Counters c;
    c.frames_foreign = tally_->foreign.load();
    c.frames_bad = tally_->bad.load();
    c.bytes_in = tally_->bytes_in.load();
    c.bytes_out = tally_->bytes_out.load();
    c.threads = tally_->threads.load();
    return c;
  }
  Status shutdown(Deadline) override {
    stopped_ = true;
    return {};
  }

 private:
  Env& env_;
  std::shared_ptr<Tally> tally_;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
  return std::unique_ptr<Mover>(std::make_unique<MoverZmq>(options));
}

}  // namespace refit::transport::zmq
