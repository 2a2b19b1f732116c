// What movers that push over a network share: a lane's state, what its callers may ask for and when, which lanes have
// ended, and the shells that callers hold. A mover adds its connections, its protocol and its loop: the engine.
#pragma once
#include <sys/uio.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "transport/common/ledger.h"
#include "transport/common/staging.h"

namespace refit::transport {

// Buckets that are granted to one sender at a time: one under way, one that follows without a pause.
inline constexpr std::int64_t kGrantsPerSender = 2;
inline constexpr std::size_t kOffered = 8;  // buckets of one sender that a recipient knows of before they move

using Key2 = std::pair<std::uint32_t, std::uint32_t>;  // (sender, bucket)

struct Arrived {
  BucketId bucket;
  std::uint32_t sender = 0;
  std::uint64_t bytes = 0;
  Staging::Slot slot;
};

// One lane. The first group belongs to the engine's lock, the second to its own mutex (which is taken inside that lock,
// never around it), the ledger to itself.
struct PushState {
  std::uint64_t serial = 0;
  LaneId id;
  std::map<std::uint32_t, Peer> peers;
  bool over = false;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Arrived> inbox;
  bool expecting = false;
  std::map<Key2, std::int64_t> expected;  // → most bytes
  std::set<Key2> arrived;
  std::map<std::uint32_t, Error> lost;  // senders that are gone

  Ledger ledger;

  // The first bucket that still owes an arrival; with `gone`, of a lost sender. Under `mutex`.
  std::optional<Key2> missing(bool gone) const;
  // These take `mutex`.
  void deliver(Arrived a);
  void lose(std::uint32_t sender, Error error);
  void clear_inbox();
};

// The error of a peer, where buckets move.
Error at_transfer(Error error, const Peer& peer);

struct Wanted {
  std::map<Key2, std::int64_t> buckets;           // → most bytes
  std::map<std::uint32_t, std::int64_t> senders;  // → their largest bucket
  std::int64_t staging = 0;                       // room that lets each sender go on without a pause
};
// What expect() was given. kInvalid naming what is wrong.
Result<Wanted> check_expected(PushState& lane, std::span<const Expected> buckets, std::int64_t staging_limit);
Status check_posting(const PushState& lane, std::span<const std::uint32_t> to);
// PushLane::next(). `end` fails the lane when a sender is lost that still owes a bucket.
Result<Lease> next_lease(PushState& lane, Deadline deadline, const std::function<void(const Error&)>& end);

// A position in a post's parts.
struct Cursor {
  std::size_t part = 0;
  std::size_t offset = 0;
};
// One posted bucket: memory that the caller lends until every recipient's completion.
struct Post {
  std::uint64_t ticket = 0;
  BucketId bucket;
  std::vector<std::span<const std::byte>> parts;  // none empty
  std::uint64_t bytes = 0;
};
std::shared_ptr<Post> make_post(BucketId bucket, std::span<const std::span<const std::byte>> parts);
// The parts from `at` on, at most `limit` bytes and `out.size()` parts. Returns how many.
std::size_t parts_at(const Post& post, Cursor at, std::uint64_t limit, std::span<iovec> out);
void advance(const Post& post, Cursor& at, std::uint64_t bytes);
void copy_parts(const Post& post, Cursor& at, std::span<std::byte> to);  // no more than are left

// Which lanes are over: peers' that this side may not have opened yet, and its own that peers may still write to.
// Bounded for each member, so that a round of many peers pushes nothing out.
class Endings {
 public:
  void own(const LaneId& id);
  void of_peer(std::uint32_t member, const LaneId& id, bool as_sender);
  bool own_ended(const LaneId& id) const;  // of that job and round, whoever asks
  bool peer_ended(std::uint32_t member, const LaneId& id, bool as_sender) const;
  const std::deque<LaneId>& own() const { return own_; }

 private:
  std::deque<LaneId> own_;
  std::map<std::pair<std::uint32_t, bool>, std::deque<LaneId>> peers_;
};

// The shells. Engine: LaneState (a PushState), kName, start(options), card(), security(), reach, open, expect, post,
// next, end, counters, stop.
template <typename Engine>
class PushShell final : public PushLane {
 public:
  PushShell(std::shared_ptr<Engine> engine, std::shared_ptr<typename Engine::LaneState> state)
      : engine_(std::move(engine)), state_(std::move(state)) {}
  ~PushShell() override { engine_->end(*state_, std::nullopt); }
  Status expect(std::span<const Expected> buckets) override { return engine_->expect(*state_, buckets); }
  Result<std::uint64_t> post(BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to) override {
    return engine_->post(*state_, bucket, parts, to);
  }
  Result<Lease> next(Deadline deadline) override {
    return next_lease(*state_, deadline, [this](const Error& e) { engine_->end(*state_, e); });
  }
  std::size_t poll(std::span<Completion> done) override { return state_->ledger.poll(done); }
  void abort(Error error) override { engine_->end(*state_, std::move(error)); }
  Status close(Deadline /*deadline*/) override {
    engine_->end(*state_, std::nullopt);
    return {};
  }

 private:
  std::shared_ptr<Engine> engine_;  // shared by the mover and its lanes: a lane may outlive its mover
  std::shared_ptr<typename Engine::LaneState> state_;  // shared with the engine while the lane is open
};

template <typename Engine>
class PushMover final : public Mover {
 public:
  static Result<std::unique_ptr<Mover>> make(const MoverOptions& options) {
    REFIT_ASSIGN(auto engine, Engine::start(options));
    return std::unique_ptr<Mover>(std::unique_ptr<PushMover>(new PushMover(std::move(engine), options.job)));
  }
  ~PushMover() override { engine_->stop(); }
  Capabilities capabilities() const override {
    return {.push = true, .multicast = true, .security = engine_->security()};
  }
  Bytes card() const override { return engine_->card(); }
  Status reach(const Peer& peer, Deadline deadline) override { return engine_->reach(peer, deadline); }
  Result<std::unique_ptr<PushLane>> open_push(const LaneId& id, std::span<const Peer> peers) override {
    if (id.job != job_) return Error(Code::kMismatch, "lane of another job than the mover's");
    auto state = std::make_shared<typename Engine::LaneState>();
    state->id = id;
    for (const Peer& peer : peers)
      if (!state->peers.emplace(peer.member, peer).second)
        return Error(Code::kInvalid,
                     "member " + std::to_string(peer.member) + " is named twice among the lane's peers");
    REFIT_TRY(engine_->open(state));
    return std::unique_ptr<PushLane>(std::make_unique<PushShell<Engine>>(engine_, std::move(state)));
  }
  Result<std::unique_ptr<PullLane>> open_pull(const LaneId&, std::span<const Peer>) override {
    return Error(Code::kUnsupported,
                 "transport " + std::string(Engine::kName) + " has no pull lanes: use shm on one host");
  }
  Result<std::unique_ptr<ControlLane>> open_control(const ControlAddress&) override {
    return Error(Code::kUnsupported, "transport " + std::string(Engine::kName) + " has no control lanes: use zmq");
  }
  Counters counters() const override { return engine_->counters(); }
  Status shutdown(Deadline) override {
    engine_->stop();
    return {};
  }

 private:
  PushMover(std::shared_ptr<Engine> engine, Hash128 job) : engine_(std::move(engine)), job_(job) {}
  std::shared_ptr<Engine> engine_;
  const Hash128 job_;
};

}  // namespace refit::transport
