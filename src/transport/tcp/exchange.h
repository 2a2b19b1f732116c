// Exchange: what one mover's lanes, connections and loop thread share. Buckets are offered, granted a place in the
// recipient's staging, then sent; so a recipient holds no more than it has room for.
#pragma once
#include <atomic>
#include <list>
#include <thread>

#include "transport/common/push.h"
#include "transport/tcp/stream.h"

namespace refit::transport::tcp {

// One lane.
struct LaneState : PushState {
  std::map<Key2, std::shared_ptr<Incoming>> incoming;  // granted; shared with the streams that read into them
};

// *thread-safe*: one lock; the loop holds it only around calls that do not wait, and lets callers go first.
class Exchange final : public StreamOwner {
 public:
  using LaneState = tcp::LaneState;
  static constexpr std::string_view kName = "tcp";
  static Result<std::shared_ptr<Exchange>> start(const MoverOptions& options);
  ~Exchange() override;
  Bytes card() const { return encode(card_); }
  std::string_view security() const { return to_string(security_); }
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
  LaneState* lane_of(const LaneId& theirs, std::uint32_t member);
  Link& link_to(const Peer& peer, const Card& card);
  void end_locked(LaneState& lane, const std::optional<Error>& error);
  void tell_end(const LaneState& lane);
  void withdraw(const LaneState& lane);

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
  Endings ended_;
  std::uint64_t next_serial_ = 1;
  std::int64_t last_turn_ns_ = 0;
  Counters counters_;
  bool stopped_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace refit::transport::tcp
