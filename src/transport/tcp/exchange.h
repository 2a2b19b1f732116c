// Exchange: what one mover's lanes, connections and loop thread share. Buckets are offered, granted a place in the
// recipient's staging, then sent; so a recipient holds no more than it has room for.
#pragma once
#include <atomic>
#include <condition_variable>
#include <list>
#include <set>
#include <thread>

#include "transport/common/ledger.h"
#include "transport/tcp/stream.h"

namespace refit::transport::tcp {

// Buckets that are granted to one sender at a time: one under way, one that follows without a pause.
inline constexpr std::int64_t kGrantsPerSender = 2;

using Key2 = std::pair<std::uint32_t, std::uint32_t>;  // (sender, bucket)

struct Arrived {
  BucketId bucket;
  std::uint32_t sender = 0;
  std::uint64_t bytes = 0;
  Staging::Slot slot;
};

// One lane. The first group belongs to the exchange's lock, the second to its own mutex, the ledger to itself.
struct LaneState {
  std::uint64_t serial = 0;
  LaneId id;
  std::map<std::uint32_t, Peer> peers;
  bool over = false;
  std::map<Key2, std::shared_ptr<Incoming>> incoming;  // granted; shared with the streams that read into them

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Arrived> inbox;
  bool expecting = false;
  std::map<Key2, std::int64_t> expected;  // → most bytes
  std::set<Key2> arrived;
  std::map<std::uint32_t, Error> lost;  // senders that are gone

  Ledger ledger;
  // The first bucket that still owes an arrival; with `gone`, of a lost sender.
  std::optional<Key2> missing(bool gone) const;
};

// *thread-safe*: one lock; the loop holds it only around calls that do not wait, and lets callers go first.
class Exchange final : public StreamOwner {
 public:
  static Result<std::shared_ptr<Exchange>> start(const MoverOptions& options);
  ~Exchange() override;
  Bytes card() const { return encode(card_); }
  const Card& self() const { return card_; }
  Counters counters() const;
  void stop();

  Status reach(const Peer& peer, Deadline deadline);
  Status open(const std::shared_ptr<LaneState>& lane);
  Status expect(LaneState& lane, std::span<const Expected> buckets);
  Result<std::uint64_t> post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                             std::span<const std::uint32_t> to);
  Result<Lease> next(LaneState& lane, Deadline deadline);
  // Abort with an error, close without one. Afterwards no lent memory of this lane is touched.
  void end(LaneState& lane, const std::optional<Error>& error);

 private:
  // The connections that this mover made to one peer, and what waits for them. Lives over rounds.
  struct Link {
    Peer peer;
    Card card;
    std::vector<std::unique_ptr<Stream>> streams;
    std::list<std::shared_ptr<Outgoing>> todo;  // shared with the stream that sends a chunk of it
    bool watch = false;                         // a lane wants to know whether the peer lives
  };
  // An offer that waits for its lane to expect, or for room.
  struct Offer {
    std::uint32_t member = 0;
    Incarnation incarnation;
    Header header;
  };
  struct Ended {
    std::uint32_t member = 0;
    LaneId id;
    bool as_sender = false;
    friend bool operator==(const Ended&, const Ended&) = default;
  };

  Exchange(const MoverOptions& options, Wake wake);

  // Loop.
  void loop();
  void poll_once();
  void accept_all();
  void move(Stream& stream, short events);
  void bury();
  void timers();
  void forgive_own_gap();
  void serve_links();
  void serve_link(Link& link);
  void cut_chunks(Link& link);
  void serve_offers();
  enum class Served : std::uint8_t { kDone, kWaits, kNoRoom };
  Served serve_offer(const Offer& offer);
  Served grant(LaneState& lane, const Offer& offer);
  int poll_ms() const;

  // StreamOwner.
  Answer admit(Stream& stream, const Hello& hello) override;
  void opened(Stream& stream) override;
  void frame(Stream& stream, const Header& header) override;
  Result<std::shared_ptr<Incoming>> sink(Stream& stream, const Header& header) override;
  void arrived(Stream& stream, const Header& header, const std::shared_ptr<Incoming>& incoming) override;
  std::int64_t now() const override { return options_.env->now_ns(); }

  void take_offer(Stream& stream, const Header& header);
  void take_answer(Link& link, const Header& header);
  void take_end(Stream& stream, const Header& header);
  void deliver(LaneState& lane, Incoming& incoming);
  void refuse(const Offer& offer, Refusal why);
  void reply(std::uint32_t member, Incarnation incarnation, const Header& header);
  Stream* back_to(std::uint32_t member, Incarnation incarnation);
  Status connect(Link& link);
  void fail_link(Link& link, const Error& error);
  void lose(std::uint32_t member, Incarnation incarnation, const Error& error, bool only_granted);
  void finish(const Outgoing& outgoing, const Peer& to, std::optional<Error> error);
  void finish_condemned(Link& link);
  void offer_some(Link& link);
  void check_progress(std::int64_t now);
  void check_stream(Stream& stream, std::int64_t now);
  void close_streams(Link& link);
  Status check_posting(LaneState& lane, std::span<const std::uint32_t> to);
  LaneState* lane_of(const LaneId& theirs, std::uint32_t member);
  Link& link_to(const Peer& peer, const Card& card);
  void end_locked(LaneState& lane, const std::optional<Error>& error);
  void tell_end(const LaneState& lane);
  void withdraw(const LaneState& lane);
  void remember(Ended ended);
  bool has_ended(const LaneId& id, std::uint32_t member, bool as_sender) const;
  Error at(Error error, const Peer& peer) const { return std::move(error).at_peer(peer.name).at_stage("transfer"); }

  const MoverOptions options_;
  Card card_;
  Security security_ = Security::kMac;
  Fd listener_;
  std::shared_ptr<const Wake> wake_;  // shared with the staging, whose slots may outlive us
  std::shared_ptr<Staging> staging_;
  mutable std::mutex mutex_;
  mutable std::atomic<int> callers_{0};                   // that wait for the lock
  std::map<std::uint32_t, std::unique_ptr<Link>> links_;  // by member
  std::vector<std::unique_ptr<Stream>> incoming_;
  std::vector<std::unique_ptr<Stream>> graveyard_;             // closed by the loop, which alone destroys streams
  std::map<std::uint64_t, std::shared_ptr<LaneState>> lanes_;  // open ones, shared with their shells
  std::deque<Offer> offers_;
  std::deque<Ended> ended_;  // lanes of peers that were, the newest kEnded
  std::deque<LaneId> mine_ended_;
  std::uint64_t next_serial_ = 1;
  std::int64_t last_turn_ns_ = 0;
  Counters counters_;
  bool stopped_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace refit::transport::tcp
