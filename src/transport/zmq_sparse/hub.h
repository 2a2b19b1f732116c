// Hub: what one mover's lanes, sockets and loop thread share. A bucket is offered, granted a place in the recipient's
// staging, then sent in chunks with credit; so a recipient holds no more than it has room for, and a sender has no more
// in its queues than a few chunks.
#pragma once
#include <atomic>
#include <list>
#include <thread>

#include "transport/common/push.h"
#include "transport/common/strangers.h"
#include "transport/common/sys.h"
#include "transport/zmq_sparse/card.h"
#include "transport/zmq_sparse/socket.h"

namespace refit::transport::zmq_sparse {

inline constexpr std::size_t kChunkBytes = 1 << 20;     // sent
inline constexpr std::size_t kMaxChunkBytes = 4 << 20;  // accepted
inline constexpr std::uint64_t kCreditBytes = 4 << 20;  // of one bucket on its way and not yet taken
// All ranks of a host, or behind one address, connect at once.
inline constexpr std::size_t kMostStrangers = 192;
struct Incoming {
  std::uint64_t bytes = 0, got = 0;
  Staging::Slot slot;
};
// One lane.
struct LaneState : PushState {
  std::map<Key2, Incoming> incoming;  // granted
};

// *thread-safe*: one lock. Sockets are the loop's; what callers want sent waits in the links and in `calls_`.
class Hub {
 public:
  using LaneState = zmq_sparse::LaneState;
  static constexpr std::string_view kName = "zmq_sparse";
  static Result<std::shared_ptr<Hub>> start(const MoverOptions& options);
  ~Hub();
  Bytes card() const { return encode(card_); }
  std::string_view security() const { return secured() ? "curve" : "none"; }
  Counters counters() const;
  void stop();

  Status reach(const Peer& peer, Deadline deadline);
  Status open(const std::shared_ptr<LaneState>& lane);
  Status expect(LaneState& lane, std::span<const Expected> buckets);
  Result<std::uint64_t> post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to);
  // Abort with an error, close without one. Afterwards no lent memory of this lane is touched.
  void end(LaneState& lane, const std::optional<Error>& error);

 private:
  struct Outgoing {
    std::uint64_t lane = 0;
    LaneId id;
    std::shared_ptr<const Post> post;  // shared by its recipients
    std::uint64_t sent = 0, took = 0;
    Cursor cursor;  // where the next chunk begins
    bool offered = false, granted = false;
  };
  // This mover's own connection to one peer, and what waits for it. Lives over rounds.
  struct Link {
    Peer peer;
    Card card;
    Socket socket, monitor;
    std::list<Outgoing> todo;
    std::int64_t heard_ns = 0, beat_ns = 0, progress_ns = 0;
    std::optional<std::int64_t> first_asked_ns;  // since when an answer is due
    bool greeted = false;                        // it has answered once
  };
  // Where answers to a peer go: it has connected to us.
  struct Caller {
    Incarnation process;
    Bytes routing_id;
    int descriptor = -1;
    std::int64_t heard_ns = 0;
  };
  struct Offer {
    Head head;
    Bytes routing_id;
  };

  Hub(const MoverOptions& options, Wake wake);
  Status bind();
  bool secured() const { return !card_.key.empty(); }

  // Loop.
  void loop();
  void poll_once();
  void watch_strangers();
  void read_router();
  bool call(const Head& head, const Message& message);
  void cut_deaf();
  void reclaim_offers(std::int64_t now, bool stood_still);
  void read_link(Link& link);
  void timers();
  void serve_offers();
  bool serve_offer(const Offer& offer);
  void send_some(Link& link);
  bool send_chunk(Link& link, Outgoing& out);
  void beat(Link& link);

  void take_offer(const Head& head, std::span<const std::byte> routing_id);
  void take_data(const Head& head, std::span<const std::byte> bytes, std::span<const std::byte> routing_id);
  void take_answer(Link& link, const Head& head);
  void take_end(const Head& head);
  void deliver(LaneState& lane, const Key2& key, std::span<const std::byte> routing_id);
  Head answer(Type type, const Head& to) const;
  void reply(std::span<const std::byte> routing_id, const Head& head);
  LaneState* lane_of(const Head& head);
  void fail_link(std::uint32_t member, const Error& error);
  void lose(std::uint32_t member, Incarnation process, const Error& error);
  void finish(const Outgoing& out, const Peer& to, std::optional<Error> error);
  void end_locked(LaneState& lane, const std::optional<Error>& error);
  void tell_end(const LaneId& id, const std::map<std::uint32_t, Peer>& peers);
  Result<Link*> link_to(const Peer& peer);
  std::int64_t now() const { return options_.env->now_ns(); }

  const MoverOptions options_;
  Card card_;
  CurveKeys own_;  // of the listener; and of all connections that this mover makes
  std::shared_ptr<Context> context_;
  Socket router_, doorstep_;  // and what happens to its connections
  std::uint16_t port_ = 0;
  std::shared_ptr<const Wake> wake_;
  std::shared_ptr<Staging> staging_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::unique_ptr<Link>> links_;  // by member
  std::map<std::uint32_t, Caller> callers_;               // by member
  std::vector<std::unique_ptr<Link>> graveyard_;          // closed by the loop, which alone touches sockets
  std::map<std::uint64_t, std::shared_ptr<LaneState>> lanes_;
  std::deque<Offer> offers_;
  Endings ended_;
  Strangers strangers_{kMostStrangers, kMostStrangers};
  std::vector<Bytes> deaf_;                  // routing ids of callers whose replies found no room
  std::deque<std::function<void()>> calls_;  // run by the loop, under the lock
  std::uint64_t next_serial_ = 1;
  std::int64_t last_turn_ns_ = 0;
  bool blocked_ = false;  // a socket took no more: look again soon
  Counters counters_;
  bool stopped_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace refit::transport::zmq_sparse
