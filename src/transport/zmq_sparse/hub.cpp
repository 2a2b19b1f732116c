// What callers do with a hub. The loop's side is in loop.cpp.
#include "transport/zmq_sparse/hub.h"

#include <algorithm>

#include "transport/common/net.h"

namespace refit::transport::zmq_sparse {
namespace {

constexpr std::int64_t kReachSliceNs = 2'000'000;

}  // namespace

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
  port_ = static_cast<std::uint16_t>(std::stoul(card_.endpoint.substr(card_.endpoint.rfind(':') + 1)));
  REFIT_ASSIGN(doorstep_, Socket::monitor(*context_, router_, "doorstep"));
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
  router_.unwatch();
  doorstep_.close();
  router_.close();
  strangers_.let_go();
}

Counters Hub::counters() const {
  const std::lock_guard lock(mutex_);
  Counters out = counters_;
  out.connections_refused = strangers_.cut();
  return out;
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
  beat.code = kOnlyAsks;
  bool asked = false;
  for (Message m; true;) {
    asked = asked || socket.send(encode(beat));
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
  REFIT_ASSIGN(Wanted wanted, check_expected(lane, buckets, staging_->limit()));
  REFIT_TRY(staging_->reserve(wanted.staging));
  const std::lock_guard lock(mutex_);
  for (const auto& [sender, bytes] : wanted.senders) {
    const Peer& peer = lane.peers.at(sender);
    REFIT_TRY(link_to(peer));
    if (ended_.peer_ended(sender, {lane.id.job, lane.id.txn, peer.incarnation}, true))
      lane.lose(sender, Error(Code::kPeerLost, "the sender ended its part of the round"));
  }
  const std::lock_guard inner(lane.mutex);
  lane.expected = std::move(wanted.buckets);
  lane.expecting = true;
  wake_->raise();
  return {};
}

Result<std::uint64_t> Hub::post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                                std::span<const std::uint32_t> to) {
  REFIT_TRY(check_posting(lane, to));
  const std::shared_ptr<Post> post = make_post(bucket, parts);
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  std::vector<Link*> links;
  for (std::uint32_t member : to) {
    REFIT_ASSIGN(Link * link, link_to(lane.peers.at(member)));
    links.push_back(link);
  }
  post->ticket = lane.ledger.open(to);
  for (Link* link : links) {
    Outgoing out;
    out.lane = lane.serial;
    out.id = lane.id;
    out.post = post;
    if (ended_.peer_ended(link->peer.member, {lane.id.job, lane.id.txn, link->peer.incarnation}, false))
      finish(out, link->peer, Error(Code::kPeerLost, "the recipient ended its part of the round"));
    else
      link->todo.push_back(std::move(out));
  }
  wake_->raise();
  return post->ticket;
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
    ended_.own(lane.id);
    calls_.push_back([this, id = lane.id, peers = lane.peers] { tell_end(id, peers); });
  }
  if (error)
    (void)lane.ledger.fail(*error);
  else
    lane.ledger.close();
  lane.clear_inbox();
  lanes_.erase(lane.serial);
}

void Hub::finish(const Outgoing& out, const Peer& to, std::optional<Error> error) {
  if (error) error = at_transfer(std::move(*error), to).at_bucket(std::to_string(out.post->bucket.value));
  const auto lane = lanes_.find(out.lane);
  if (lane != lanes_.end()) lane->second->ledger.finish(out.post->ticket, to.member, std::move(error));
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
