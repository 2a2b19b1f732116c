// Movers that are wrong on purpose, each in one way, wrapped round a right one. The suites must notice every one.
#pragma once
#include <array>
#include <deque>
#include <mutex>

#include "beds.h"

namespace refit::conformance {

enum class Fault : std::uint8_t {
  kNone,
  kDrop,
  kLoseCompletion,
  kRepeat,
  kRepeatCompletion,
  kMixUp,
  kCorrupt,
  kEarly,
  kForgetError,
  kIgnoreEpoch,
  kIgnoreIdentity,
  kHideLoss,
  kOverrun
};
inline constexpr std::array kFaultNames = {"none",
                                           "drops",
                                           "loses_a_completion",
                                           "repeats",
                                           "completes_twice",
                                           "mixes_up",
                                           "corrupts",
                                           "completes_early",
                                           "forgets_its_error",
                                           "ignores_the_epoch",
                                           "ignores_identity",
                                           "hides_a_loss",
                                           "overruns_deadlines"};

inline constexpr double kOverrunS = 1;  // what a mover that overruns its deadlines waits

// A lease over a copy, under any bucket number.
inline Lease copy_of(const Lease& lease, BucketId bucket, bool flip) {
  struct Copy final : Lease::Hold {
    Bytes bytes;
  };
  auto hold = std::make_unique<Copy>();
  hold->bytes.assign(lease.packed().begin(), lease.packed().end());
  if (flip && !hold->bytes.empty()) hold->bytes.back() ^= std::byte{1};
  const std::span<const std::byte> view = hold->bytes;
  return Lease(bucket, lease.sender(), view, {}, std::move(hold));
}

template <typename Base>
class BrokenLane : public Base {
 public:
  BrokenLane(std::unique_ptr<Base> inner, Fault fault) : inner_(std::move(inner)), fault_(fault) {}
  Result<Lease> next(Deadline deadline) override {
    if (!stored_.empty()) return take_stored();
    if (fault_ == Fault::kOverrun) deadline = Deadline::after_s(kOverrunS);
    auto lease = inner_->next(deadline);
    if (!lease.ok()) {
      if (fault_ == Fault::kForgetError && lease.error().code != Code::kTimeout)
        return Error(Code::kTimeout, "nothing came");
      if (fault_ == Fault::kHideLoss && lease.error().code == Code::kPeerLost)
        return Error(Code::kTimeout, "nothing came");
      return lease;
    }
    if (fault_ == Fault::kRepeat) stored_.push_back(copy_of(*lease, lease->bucket(), false));
    if (fault_ == Fault::kCorrupt) return copy_of(*lease, lease->bucket(), true);
    if (fault_ == Fault::kMixUp) return mixed_up(std::move(*lease));
    return lease;
  }
  std::size_t poll(std::span<Completion> done) override {
    std::size_t n = 0;
    while (n < done.size() && !extra_.empty()) {
      done[n++] = extra_.front();
      extra_.pop_front();
    }
    const std::size_t real = inner_->poll(done.subspan(n));
    for (std::size_t i = n; i < n + real; ++i) {
      if (fault_ == Fault::kRepeatCompletion) extra_.push_back(done[i]);
    }
    // Those that were told early, and the one that is lost.
    const std::size_t hidden = fault_ == Fault::kEarly                        ? std::min(real, early_)
                               : fault_ == Fault::kLoseCompletion && real > 0 ? 1
                                                                              : 0;
    if (fault_ == Fault::kEarly) early_ -= hidden;
    return n + real - hidden;
  }
  void abort(Error error) override { inner_->abort(std::move(error)); }
  Status close(Deadline deadline) override { return inner_->close(deadline); }

 protected:
  Result<std::uint64_t> opened(Result<std::uint64_t> ticket, std::uint32_t member) {
    if (fault_ == Fault::kEarly && ticket.ok()) {
      extra_.push_back({*ticket, std::nullopt, member});
      ++early_;
    }
    return ticket;
  }
  Result<std::uint64_t> dropped(std::uint32_t member) {
    extra_.push_back({++fake_, std::nullopt, member});
    return fake_;
  }
  std::unique_ptr<Base> inner_;
  const Fault fault_;

 private:
  Lease take_stored() {
    Lease out = std::move(stored_.front());
    stored_.pop_front();
    return out;
  }
  // The bytes of one bucket under the number of another.
  Lease mixed_up(Lease first) {
    auto second = inner_->next(Deadline::after_ns(2'000'000));
    if (!second.ok()) return first;
    stored_.push_back(copy_of(*second, first.bucket(), false));
    return copy_of(first, second->bucket(), false);
  }
  std::deque<Lease> stored_;
  std::deque<Completion> extra_;
  std::size_t early_ = 0;
  std::uint64_t fake_ = 1'000'000;
};

class BrokenPush final : public BrokenLane<PushLane> {
 public:
  using BrokenLane::BrokenLane;
  Status expect(std::span<const Expected> buckets) override { return inner_->expect(buckets); }
  Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to) override {
    if (fault_ == Fault::kDrop && to.size() == 1) return dropped(to[0]);
    return opened(inner_->post(bucket, parts, to), kTarget);
  }
};

class BrokenPull final : public BrokenLane<PullLane> {
 public:
  using BrokenLane::BrokenLane;
  Result<Bytes> expose(std::span<const memory::RegionRef> regions) override { return inner_->expose(regions); }
  Status withdraw() override { return fault_ == Fault::kIgnoreEpoch ? Status() : inner_->withdraw(); }
  Result<std::uint64_t> request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> d,
                                std::span<const Segment> segments) override {
    auto asked =
        fault_ == Fault::kDrop ? dropped(sender) : opened(inner_->request(bucket, sender, d, segments), sender);
    if (!asked.ok() && asked.error().code == Code::kMismatch && fault_ == Fault::kIgnoreIdentity)
      return dropped(sender);
    return asked;
  }
  Status recheck(std::uint32_t sender) override {
    return fault_ == Fault::kIgnoreEpoch ? Status() : inner_->recheck(sender);
  }
};

class BrokenControl final : public ControlLane {
 public:
  BrokenControl(std::unique_ptr<ControlLane> inner, Fault fault) : inner_(std::move(inner)), fault_(fault) {}
  Status send(std::uint32_t peer, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    if (fault_ == Fault::kDrop && ++sent_ % 3 == 0) return {};
    return inner_->send(peer, bytes);
  }
  Result<ControlMessage> next(Deadline deadline) override {
    if (!stored_.empty()) {
      ControlMessage out = std::move(stored_.front());
      stored_.pop_front();
      return out;
    }
    if (fault_ == Fault::kOverrun) deadline = Deadline::after_s(kOverrunS);
    auto message = inner_->next(deadline);
    if (!message.ok() && fault_ == Fault::kForgetError) return Error(Code::kTimeout, "nothing came");
    if (!message.ok()) return message;
    if (fault_ == Fault::kRepeat) stored_.push_back(*message);
    if (fault_ == Fault::kCorrupt && !message->bytes.empty()) message->bytes[0] ^= std::byte{1};
    if (fault_ == Fault::kMixUp) {
      if (auto second = inner_->next(Deadline::after_ns(2'000'000)); second.ok()) {
        stored_.push_back(std::move(*message));
        return second;
      }
    }
    return message;
  }
  std::vector<Liveness> liveness() override {
    auto events = inner_->liveness();
    if (fault_ == Fault::kHideLoss)
      std::erase_if(events, [](const Liveness& l) { return l.event == PeerEvent::kGone; });
    return events;
  }
  std::string address() const override { return inner_->address(); }
  void abort(Error error) override { inner_->abort(std::move(error)); }
  Status close(Deadline deadline) override { return inner_->close(deadline); }

 private:
  std::unique_ptr<ControlLane> inner_;
  const Fault fault_;
  std::mutex mutex_;
  int sent_ = 0;
  std::deque<ControlMessage> stored_;
};

class BrokenMover final : public Mover {
 public:
  BrokenMover(std::unique_ptr<Mover> inner, Fault fault) : inner_(std::move(inner)), fault_(fault) {}
  Capabilities capabilities() const override { return inner_->capabilities(); }
  Bytes card() const override { return inner_->card(); }
  Status reach(const Peer& peer, Deadline deadline) override { return inner_->reach(peer, deadline); }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) override {
    REFIT_ASSIGN(auto lane, inner_->open_push(lenient(id), peers));
    return std::unique_ptr<PushLane>(std::make_unique<BrokenPush>(std::move(lane), fault_));
  }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId& id, std::span<const Peer> peers) override {
    REFIT_ASSIGN(auto lane, inner_->open_pull(id, peers));
    return std::unique_ptr<PullLane>(std::make_unique<BrokenPull>(std::move(lane), fault_));
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress& address) override {
    REFIT_ASSIGN(auto lane, inner_->open_control(address));
    return std::unique_ptr<ControlLane>(std::make_unique<BrokenControl>(std::move(lane), fault_));
  }
  Counters counters() const override { return inner_->counters(); }
  Status shutdown(Deadline deadline) override { return inner_->shutdown(deadline); }

 private:
  // Ignoring identity: every process is taken for the one that is expected.
  LaneId lenient(LaneId id) const {
    if (fault_ == Fault::kIgnoreIdentity && id.incarnation == Incarnation(77)) id.incarnation = Incarnation(1001);
    return id;
  }
  std::unique_ptr<Mover> inner_;
  const Fault fault_;
};

class BrokenBed final : public NamedBed {
 public:
  explicit BrokenBed(Fault fault) : NamedBed("loopback"), fault_(fault) { patience_s = 0.3, slack_s = kOverrunS / 2; }
  Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) override {
    REFIT_ASSIGN(auto inner, NamedBed::mover(options));
    return std::unique_ptr<Mover>(std::make_unique<BrokenMover>(std::move(inner), fault_));
  }

 private:
  Fault fault_;
};

}  // namespace refit::conformance
