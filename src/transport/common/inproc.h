// What loopback and sim share: lanes of one process that meet in a hub, one per (mover kind, job). loopback delivers at
// once; sim keeps frames in a seeded queue and delivers one a step.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "transport/common/ledger.h"

namespace refit::transport::inproc {

// Bytes that leases and an inbox hold. Shared by a lane and its leases, which may outlive it.
struct Staging {
  std::int64_t limit = 0, used = 0;
};
struct Arrival {
  BucketId bucket;
  std::uint32_t sender = 0;
  std::uint64_t ticket = 0;  // of a pull request; 0: pushed
  Bytes bytes;
};
struct Post {
  BucketId bucket;
  std::vector<std::span<const std::byte>> parts;  // lent by the caller until the completion
  std::int64_t bytes = 0;
};
struct Ask {
  BucketId bucket;
  std::uint32_t sender = 0;
  std::uint64_t lender = 0, epoch = 0;  // lane and memory epoch of the descriptor
  std::vector<Segment> segments;
  std::int64_t bytes = 0;
};
struct Lend {
  std::uint64_t epoch = 0;
  std::vector<memory::RegionRef> regions;
};

// One lane as the hub sees it. Guarded by the hub's mutex, except the ledger.
struct LaneState {
  std::uint64_t serial = 0;
  std::uint32_t member = 0;
  LaneId id;
  bool push = false, over = false;
  std::map<std::uint32_t, Peer> peers;
  Ledger ledger;
  std::shared_ptr<Staging> staging = std::make_shared<Staging>();
  std::deque<Arrival> inbox;
  bool expecting = false;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> expected;  // (sender, bucket) → most bytes
  std::set<std::pair<std::uint32_t, std::uint32_t>> arrived;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Post> posts;  // (ticket, recipient)
  std::map<std::uint64_t, Ask> asks;                              // by ticket
  std::optional<Lend> lend;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> last_read;  // sender → (lender, epoch)
};

struct Card {
  Hash128 job;
  std::uint32_t member = 0;
  Incarnation incarnation;
  std::uint64_t mover = 0;  // serial in this process
};
Bytes encode(const Card& card);
Result<Card> decode_card(std::span<const std::byte> bytes);

struct Descriptor {
  LaneId id;
  std::uint32_t member = 0;
  std::uint64_t lender = 0, epoch = 0;
  std::vector<std::int64_t> sizes;
};
Bytes encode(const Descriptor& descriptor);
Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes);

// *thread-safe*: one mutex over all of it; these movers are for tests and simulation, not for speed.
class Hub {
 public:
  Hub(bool simulated, std::uint64_t seed) : simulated_(simulated), random_(seed) {}
  // The hub of (kind, job); made by the first mover, gone with the last.
  static std::shared_ptr<Hub> of(bool simulated, const Hash128& job, std::uint64_t seed);
  static std::shared_ptr<Hub> find(bool simulated, const Hash128& job);

  std::uint64_t join(std::uint32_t member, Counters* counters);
  void leave(std::uint64_t mover);
  bool alive(const Peer& peer, const Hash128& job);
  Counters read(const Counters& counters) const;
  void set_faults(const SimFaults& faults);
  bool step();

  void open(LaneState& lane);
  void end(LaneState& lane, std::optional<Error> error);  // abort with, close without an error
  Status expect(LaneState& lane, std::span<const Expected> buckets);
  Result<std::uint64_t> post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to);
  Result<Bytes> expose(LaneState& lane, std::span<const memory::RegionRef> regions);
  Status withdraw(LaneState& lane);
  Result<std::uint64_t> request(LaneState& lane, BucketId bucket, std::uint32_t sender,
                                std::span<const std::byte> descriptor, std::span<const Segment> segments);
  Status recheck(LaneState& lane, std::uint32_t sender);
  Result<Lease> next(LaneState& lane, Deadline deadline);
  void give_back(Staging& staging, std::int64_t bytes);

 private:
  struct Node {
    std::uint64_t mover = 0;
    Counters* counters = nullptr;
  };
  // A post or an ask under way (sim).
  struct Frame {
    std::uint64_t lane = 0, ticket = 0;
    std::uint32_t member = 0;  // recipient of a post, sender that is asked
    bool corrupt = false;
  };
  enum class Fate : std::uint8_t { kDone, kWaits };

  std::uint64_t draw();
  bool chance(double p) { return p > 0 && static_cast<double>(draw() >> 11) * 0x1.0p-53 < p; }
  void launch(const LaneState& lane, std::uint64_t ticket, std::uint32_t member);
  bool step_locked();
  Fate deliver(const Frame& frame);
  Fate deliver_post(LaneState& from, std::uint64_t ticket, std::uint32_t to, bool corrupt);
  Fate deliver_ask(LaneState& lane, std::uint64_t ticket, bool corrupt);
  void pump();
  bool lost(const LaneState& lane, const Peer& peer) const;
  std::optional<Error> missing(const LaneState& lane) const;
  std::optional<Error> still_lent(const LaneState& reader, std::uint32_t sender, std::uint64_t lender,
                                  std::uint64_t epoch) const;
  Lease hand_out(LaneState& lane, std::shared_ptr<Hub> self);
  void fail_posts_to(std::uint32_t member, const Txn* txn);
  LaneState* lane_of(std::uint32_t member, const LaneState& like) const;
  Counters* counters_of(std::uint32_t member) const;

  const bool simulated_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t random_, next_serial_ = 1, next_epoch_ = 1, now_ = 0, next_frame_ = 0;
  SimFaults faults_;
  std::map<std::uint32_t, Node> nodes_;                                 // living movers by member
  std::map<std::uint64_t, LaneState*> lanes_;                           // open ones, by serial
  std::deque<std::tuple<std::uint32_t, std::uint64_t, Txn>> ended_;     // lanes that were: (member, incarnation, txn)
  std::map<std::pair<std::uint64_t, std::uint64_t>, Frame> in_flight_;  // (time, order) → frame
  std::weak_ptr<Hub> self_;
};

// A mover whose lanes meet in a hub; control lanes come from `open_control` when there are any.
using OpenControl = Result<std::unique_ptr<ControlLane>> (*)(const ControlAddress&);
Result<std::unique_ptr<Mover>> make(bool simulated, const MoverOptions& options, OpenControl open_control);

}  // namespace refit::transport::inproc
