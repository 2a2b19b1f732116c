// What callers do with a hub. The loop's side is in loop.cpp.
#include "transport/zmq_sparse/hub.h"

#include <algorithm>

#include "transport/common/net.h"

namespace refit::transport::zmq_sparse {
namespace {

constexpr std::size_t kMineEnded = 8, kPeersEnded = 256;
constexpr std::int64_t kReachSliceNs = 2'000'000;

// A lease's hold: the place in staging, free again when the lease is dropped.
struct Held final : Lease::Hold {
  explicit Held(Staging::Slot s) : slot(std::move(s)) {}
  Staging::Slot slot;
};

Lease to_lease(Arrived a) {
  const std::span<const std::byte> bytes(a.slot.data(), static_cast<std::size_t>(a.bytes));
  return Lease(a.bucket, a.sender, bytes, {}, std::make_unique<Held>(std::move(a.slot)));
}

}  // namespace

std::optional<Key2> LaneState::missing(bool gone) const {
  for (const auto& [key, most] : expected)
    if (!arrived.contains(key) && (!gone || lost.contains(key.first))) return key;
  return std::nullopt;
}

Hub::Hub(const MoverOptions& options, Wake wake)
    : options_(options),
      wake_(std::make_shared<const Wake>(std::move(wake))),
      staging_(std::make_shared<Staging>(options.staging_bytes, options.budget, wake_)) {}

Result<std::shared_ptr<Hub>> Hub::start(const MoverOptions& options) {
  if (options.net.security != "mac" && options.net.security != "none")
    return Error(Code::kUnsupported, "refit.security.bulk '" + options.net.security +
                                         "': zmq_sparse has mac (which is CURVE here: it also hides) and none");
  REFIT_ASSIGN(Wake wake, Wake::make());
  std::shared_ptr<Hub> h(new Hub(options, std::move(wake)));
  REFIT_TRY(h->bind());
  h->last_turn_ns_ = h->now();
  REFIT_ASSIGN(h->thread_, start_thread("refit-zsparse", [x = h.get()] { x->loop(); }));
  h->counters_.threads = 3;  // the loop, and libzmq's own two
  return h;
}

Status Hub::bind() {
  REFIT_ASSIGN(const Ports ports, parse_ports(options_.net.port_range));
  REFIT_ASSIGN(context_, Context::make());
  std::optional<CurveKeys> keys;
  if (options_.net.security == "mac") {
    REFIT_ASSIGN(own_, fresh_keys());
    keys = own_;
    card_.key = key_bytes(own_.open);
  }
  const std::string host = options_.net.advertise_address.empty() ? "127.0.0.1" : options_.net.advertise_address;
  card_.job = options_.job;
  card_.member = options_.member;
  card_.incarnation = options_.incarnation;
  REFIT_ASSIGN(router_, Socket::listener(*context_, host, ports.low, ports.high, options_.env->random_u64(), keys,
                                         kMaxChunkBytes + kHeadBytes, card_.endpoint));
  return {};
}

Hub::~Hub() { stop(); }

void Hub::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    while (!lanes_.empty()) end_locked(*lanes_.begin()->second, Error(Code::kCancelled, "the mover is shut down"));
  }
  stop_ = true;
  wake_->raise();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  counters_.threads = 0;
  links_.clear();
  graveyard_.clear();
  router_.close();
}

Counters Hub::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Status Hub::reach(const Peer& peer, Deadline deadline) {
  const auto card = decode_card(peer.card);
  if (!card.ok()) return Error(card.error()).at_peer(peer.name);
  const auto out_of_reach = [&](const std::string& why) {
    return Error(Code::kUnsupported, "zmq_sparse does not reach the peer at " + card->endpoint + ": " + why)
        .at_peer(peer.name);
  };
  if (card->key.empty() == secured()) return out_of_reach("security.bulk differs");
  REFIT_ASSIGN(Socket socket,
               Socket::connection(*context_, card->endpoint, key_text(card->key), own_, kMaxChunkBytes + kHeadBytes));
  REFIT_ASSIGN(Socket monitor,
               Socket::monitor(*context_, socket, "reach-" + std::to_string(options_.env->random_u64())));
  REFIT_TRY(socket.connect());
  Head beat;
  beat.from = options_.member;
  beat.process = options_.incarnation;
  beat.id.job = options_.job;
  socket.send({}, encode(beat), {}, false);
  for (Message m; true;) {
    if (socket.receive(m, false)) {
      const auto head = decode_head(m.body);
      if (head.ok() && head->type == Type::kBeat && head->from == card->member && head->process == card->incarnation &&
          head->id.job == card->job)
        return {};
      return out_of_reach("another process is there");
    }
    if (monitor.broke()) return out_of_reach("nobody listens there, or its keys differ");
    if (deadline.over()) return out_of_reach("no answer within the deadline");
    options_.env->wait(Deadline::after_ns(kReachSliceNs).sooner(deadline));
  }
}

Status Hub::open(const std::shared_ptr<LaneState>& lane) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
  lane->serial = next_serial_++;
  lanes_.emplace(lane->serial, lane);
  wake_->raise();
  return {};
}

Status Hub::expect(LaneState& lane, std::span<const Expected> buckets) {
  REFIT_TRY(lane.ledger.check());
  std::map<Key2, std::int64_t> wanted;
  std::map<std::uint32_t, std::int64_t> largest;
  for (const Expected& e : buckets) {
    if (!lane.peers.contains(e.sender))
      return Error(Code::kInvalid, "member " + std::to_string(e.sender) + " is no peer of this lane");
    if (e.max_bytes < 0) return Error(Code::kInvalid, "a bucket with a negative size is expected");
    if (!wanted.emplace(Key2(e.sender, e.bucket.value), e.max_bytes).second)
      return Error(Code::kInvalid, "a bucket is expected twice").at_bucket(std::to_string(e.bucket.value));
    largest[e.sender] = std::max(largest[e.sender], e.max_bytes);
  }
  std::int64_t room = 0;  // rounded up to pages, as places in staging are; saturated, since sizes come from outside
  for (const auto& [sender, bytes] : largest)
    room = std::min(staging_->limit(), room + kGrantsPerSender * (std::min(bytes, staging_->limit()) + 4096));
  const std::lock_guard lock(mutex_);
  if (lane.expecting) return Error(Code::kInvalid, "expect was called before in this lane");
  REFIT_TRY(staging_->reserve(room));
  for (const auto& [sender, bytes] : largest) {
    const Peer& peer = lane.peers.at(sender);
    REFIT_TRY(link_to(peer));
    if (has_ended({lane.id.job, lane.id.txn, peer.incarnation}, sender, true))
      lane.lost.emplace(sender, at(Error(Code::kPeerLost, "the sender ended its part of the round"), peer));
  }
  lane.expected = std::move(wanted);
  lane.expecting = true;
  wake_->raise();
  return {};
}

Status Hub::check_posting(LaneState& lane, std::span<const std::uint32_t> to) const {
  REFIT_TRY(lane.ledger.check());
  if (to.empty()) return Error(Code::kInvalid, "a post without a recipient");
  std::set<std::uint32_t> once;
  for (std::uint32_t member : to) {
    if (!lane.peers.contains(member))
      return Error(Code::kInvalid, "member " + std::to_string(member) + " is no peer of this lane");
    if (!once.insert(member).second)
      return Error(Code::kInvalid, "member " + std::to_string(member) + " is named twice as a recipient");
  }
  return {};
}

Result<std::uint64_t> Hub::post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                                std::span<const std::uint32_t> to) {
  REFIT_TRY(check_posting(lane, to));
  auto kept = std::make_shared<std::vector<std::span<const std::byte>>>();
  std::uint64_t bytes = 0;
  for (const auto& part : parts)
    if (!part.empty()) {
      kept->push_back(part);
      bytes += part.size();
    }
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  std::vector<Link*> links;
  for (std::uint32_t member : to) {
    REFIT_ASSIGN(Link * link, link_to(lane.peers.at(member)));
    links.push_back(link);
  }
  const std::uint64_t ticket = lane.ledger.open(to);
  for (Link* link : links) {
    Outgoing out;
    out.lane = lane.serial;
    out.ticket = ticket;
    out.id = lane.id;
    out.bucket = bucket;
    out.parts = kept;
    out.bytes = bytes;
    if (has_ended({lane.id.job, lane.id.txn, link->peer.incarnation}, link->peer.member, false))
      finish(out, link->peer, Error(Code::kPeerLost, "the recipient ended its part of the round"));
    else
      link->todo.push_back(std::move(out));
  }
  wake_->raise();
  return ticket;
}

Result<Lease> Hub::next(LaneState& lane, Deadline deadline) {
  std::unique_lock lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  if (!lane.expecting) return Error(Code::kInvalid, "next before expect");
  while (true) {
    REFIT_TRY(lane.ledger.check());
    if (!lane.inbox.empty()) {
      Arrived a = std::move(lane.inbox.front());
      lane.inbox.pop_front();
      return to_lease(std::move(a));
    }
    if (const auto gone = lane.missing(true)) {
      end_locked(lane, Error(lane.lost.at(gone->first)).at_bucket(std::to_string(gone->second)));
      wake_->raise();
      return lane.ledger.check().error();
    }
    if (deadline.over()) {
      Error late(Code::kTimeout, "no bucket arrived within the deadline");
      const auto first = lane.missing(false);
      if (!first) return late;
      return at(std::move(late), lane.peers.at(first->first)).at_bucket(std::to_string(first->second));
    }
    lane.changed.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()));
  }
}

void Hub::end(LaneState& lane, const std::optional<Error>& error) {
  const std::lock_guard lock(mutex_);
  end_locked(lane, error);
  wake_->raise();
}

void Hub::end_locked(LaneState& lane, const std::optional<Error>& error) {
  if (!lane.over) {
    lane.over = true;
    for (auto& [member, link] : links_)
      std::erase_if(link->todo, [&](const Outgoing& out) { return out.lane == lane.serial; });
    lane.incoming.clear();
    mine_ended_.push_back(lane.id);
    if (mine_ended_.size() > kMineEnded) mine_ended_.pop_front();
    calls_.push_back([this, id = lane.id, peers = lane.peers] { tell_end(id, peers); });
  }
  if (error)
    (void)lane.ledger.fail(*error);
  else
    lane.ledger.close();
  lane.inbox.clear();
  lane.changed.notify_all();
  lanes_.erase(lane.serial);
}

void Hub::finish(const Outgoing& out, const Peer& to, std::optional<Error> error) {
  if (error) error = at(std::move(*error), to).at_bucket(std::to_string(out.bucket.value));
  const auto lane = lanes_.find(out.lane);
  if (lane != lanes_.end()) lane->second->ledger.finish(out.ticket, to.member, std::move(error));
}

void Hub::remember(Ended ended) {
  if (std::find(ended_.begin(), ended_.end(), ended) != ended_.end()) return;
  ended_.push_back(std::move(ended));
  if (ended_.size() > kPeersEnded) ended_.pop_front();
}

bool Hub::has_ended(const LaneId& id, std::uint32_t member, bool as_sender) const {
  return std::find(ended_.begin(), ended_.end(), Ended{member, id, as_sender}) != ended_.end();
}

Result<Hub::Link*> Hub::link_to(const Peer& peer) {
  const auto known = links_.find(peer.member);
  if (known != links_.end() && known->second->peer.incarnation == peer.incarnation &&
      known->second->peer.card == peer.card)
    return known->second.get();
  auto card = decode_card(peer.card);
  if (!card.ok()) return Error(std::move(card).error()).at_peer(peer.name);
  if (card->key.empty() == secured())
    return Error(Code::kMismatch, "security.bulk differs at the two ends").at_peer(peer.name);
  if (known != links_.end()) fail_link(peer.member, Error(Code::kPeerLost, "a new process has taken the peer's place"));
  auto link = std::make_unique<Link>();
  REFIT_ASSIGN(link->socket,
               Socket::connection(*context_, card->endpoint, key_text(card->key), own_, kMaxChunkBytes + kHeadBytes));
  REFIT_ASSIGN(link->monitor,
               Socket::monitor(*context_, link->socket,
                               "link-" + std::to_string(peer.member) + "-" + std::to_string(next_serial_++)));
  REFIT_TRY(link->socket.connect());
  link->peer = peer;
  link->card = std::move(*card);
  link->heard_ns = link->progress_ns = now();
  return (links_[peer.member] = std::move(link)).get();
}

}  // namespace refit::transport::zmq_sparse
