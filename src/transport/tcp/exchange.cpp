// What callers do with an exchange. The loop's side is in loop.cpp, the protocol's in protocol.cpp.
#include "transport/tcp/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "transport/common/net.h"
#include "transport/tcp/turn.h"

namespace refit::transport::tcp {
namespace {

Status wait_for(int fd, short events, Deadline deadline) {
  pollfd p{fd, events, 0};
  while (true) {
    const int n = ::poll(&p, 1, deadline.left_ms());
    if (n > 0) return {};
    if (n == 0 && deadline.over()) return Error(Code::kTimeout, "no answer within the deadline");
  }
}

Status read_all(int fd, std::span<std::byte> out, Deadline deadline) {
  while (!out.empty()) {
    REFIT_TRY(wait_for(fd, POLLIN, deadline));
    const ssize_t n = ::recv(fd, out.data(), out.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
      return Error(Code::kPeerLost, "the connection was closed");
    if (n > 0) out = out.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

// The handshake and the listener's first frame: that the other end is who its card says, key included.
Status probe(const Card& card, Hello hello, Deadline deadline) {
  REFIT_TRY(fresh(hello.nonce));
  REFIT_ASSIGN(const Fd fd, connect_to(card.host, card.port));
  REFIT_TRY(wait_for(fd.get(), POLLOUT, deadline));
  if (pending_error(fd.get()) != 0) return Error(Code::kPeerLost, "nobody listens at its address");
  const Bytes greeting = encode(hello);
  if (::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(greeting.size()))
    return Error(Code::kPeerLost, "the connection was closed");
  std::array<std::byte, kWelcomeBytes> answer{};
  REFIT_TRY(read_all(fd.get(), answer, deadline));
  REFIT_ASSIGN(const Welcome welcome, decode_welcome(answer));
  if (welcome.answer != Answer::kYes)
    return Error(Code::kMismatch, "another process, or another security.bulk, is at its address");
  std::array<std::byte, kFrameBytes> beat{};
  REFIT_TRY(read_all(fd.get(), beat, deadline));
  if (hello.security == Security::kNone) return {};
  REFIT_ASSIGN(const ConnectionKeys keys, derive_keys(card.key, hello, welcome.nonce));
  REFIT_ASSIGN(Gmac mac, Gmac::make(keys.to_connector));
  mac.begin(std::span(beat).first(kHeaderBytes));
  REFIT_ASSIGN(const Tag tag, mac.finish());
  if (!same_tag(tag, std::span(beat).subspan(kHeaderBytes)))
    return Error(Code::kCorrupt, "the process at its address does not know its key");
  return {};
}

}  // namespace

Exchange::Exchange(const MoverOptions& options, Wake wake)
    : options_(options),
      wake_(std::make_shared<const Wake>(std::move(wake))),
      staging_(std::make_shared<Staging>(options.staging_bytes, options.budget, wake_)) {}

Result<std::shared_ptr<Exchange>> Exchange::start(const MoverOptions& options) {
  REFIT_ASSIGN(const Security security, security_from(options.net.security));
  REFIT_ASSIGN(const Ports ports, parse_ports(options.net.port_range));
  if (options.net.streams < 1 || options.net.streams > kMaxStreams)
    return Error(Code::kInvalid, "streams must be 1 to " + std::to_string(kMaxStreams));
  REFIT_ASSIGN(Wake wake, Wake::make());
  std::shared_ptr<Exchange> x(new Exchange(options, std::move(wake)));
  REFIT_ASSIGN(Listening at, listen_on(options.net.advertise_address, ports, options.env->random_u64()));
  x->listener_ = std::move(at.fd);
  x->security_ = security;
  x->card_ = {options.job, options.member, options.incarnation, security, {}, at.port, at.host};
  REFIT_TRY(fresh(x->card_.key));
  x->last_turn_ns_ = options.env->now_ns();
  REFIT_ASSIGN(x->thread_, start_thread("refit-tcp", [e = x.get()] { e->loop(); }));
  x->counters_.threads = 1;
  return x;
}

Exchange::~Exchange() { stop(); }

void Exchange::stop() {
  {
    const Turn turn(mutex_, callers_);
    stopped_ = true;
    while (!lanes_.empty()) end_locked(*lanes_.begin()->second, Error(Code::kCancelled, "the mover is shut down"));
  }
  stop_ = true;
  wake_->raise();
  if (thread_.joinable()) thread_.join();
  const Turn turn(mutex_, callers_);
  counters_.threads = 0;
  links_.clear();
  incoming_.clear();
  graveyard_.clear();
  listener_.reset();
}

Counters Exchange::counters() const {
  const Turn turn(mutex_, callers_);
  return counters_;
}

Status Exchange::reach(const Peer& peer, Deadline deadline) {
  const auto card = decode_card(peer.card);
  if (!card.ok()) return Error(card.error()).at_peer(peer.name);
  if (card->security != security_)
    return Error(Code::kUnsupported, "security.bulk is " + std::string(to_string(card->security)) + " there and " +
                                         std::string(to_string(security_)) + " here")
        .at_peer(peer.name);
  const Hello hello{options_.job,     options_.member, peer.member, options_.incarnation,
                    peer.incarnation, security_,       kProbe,      {}};
  Status s = probe(*card, hello, deadline);
  if (s.ok()) return s;
  Error error = std::move(s).error();
  error.message =
      "tcp does not reach the peer at " + card->host + ":" + std::to_string(card->port) + ": " + error.message;
  if (error.code == Code::kPeerLost) error.code = Code::kUnsupported;  // the way out is another transport
  return std::move(error).at_peer(peer.name);
}

Status Exchange::open(const std::shared_ptr<LaneState>& lane) {
  const Turn turn(mutex_, callers_);
  if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
  lane->serial = next_serial_++;
  lanes_.emplace(lane->serial, lane);
  wake_->raise();
  return {};
}

Status Exchange::expect(LaneState& lane, std::span<const Expected> buckets) {
  REFIT_ASSIGN(Wanted wanted, check_expected(lane, buckets, staging_->limit()));
  std::map<std::uint32_t, Card> cards;
  for (const auto& [sender, bytes] : wanted.senders) {
    auto card = decode_card(lane.peers.at(sender).card);
    if (!card.ok()) return Error(std::move(card).error()).at_peer(lane.peers.at(sender).name);
    cards.emplace(sender, std::move(*card));
  }
  REFIT_TRY(staging_->reserve(wanted.staging));
  const Turn turn(mutex_, callers_);
  for (const auto& [sender, card] : cards) {
    const Peer& peer = lane.peers.at(sender);
    link_to(peer, card).watch = true;
    if (ended_.peer_ended(sender, {lane.id.job, lane.id.txn, peer.incarnation}, true))
      lane.lose(sender, Error(Code::kPeerLost, "the sender ended its part of the round"));
  }
  const std::lock_guard lock(lane.mutex);
  lane.expected = std::move(wanted.buckets);
  lane.expecting = true;
  wake_->raise();
  return {};
}

Result<std::uint64_t> Exchange::post(LaneState& lane, BucketId bucket,
                                     std::span<const std::span<const std::byte>> parts,
                                     std::span<const std::uint32_t> to) {
  REFIT_TRY(check_posting(lane, to));
  const std::shared_ptr<Post> post = make_post(bucket, parts);
  std::map<std::uint32_t, Card> cards;
  for (std::uint32_t member : to) {
    auto card = decode_card(lane.peers.at(member).card);
    if (!card.ok()) return Error(std::move(card).error()).at_peer(lane.peers.at(member).name);
    cards.emplace(member, std::move(*card));
  }
  const Turn turn(mutex_, callers_);
  REFIT_TRY(lane.ledger.check());
  const std::uint64_t ticket = post->ticket = lane.ledger.open(to);
  for (const auto& [member, card] : cards) {
    const Peer& peer = lane.peers.at(member);
    auto out = std::make_shared<Outgoing>();
    out->post = post;
    out->id = lane.id;
    out->lane = lane.serial;
    if (ended_.peer_ended(member, {lane.id.job, lane.id.txn, peer.incarnation}, false))
      out->error = Error(Code::kPeerLost, "the recipient ended its part of the round");
    link_to(peer, card).todo.push_back(std::move(out));
  }
  wake_->raise();
  return ticket;
}

void Exchange::end(LaneState& lane, const std::optional<Error>& error) {
  const Turn turn(mutex_, callers_);
  end_locked(lane, error);
  wake_->raise();
}

void Exchange::end_locked(LaneState& lane, const std::optional<Error>& error) {
  if (!lane.over) {
    lane.over = true;
    withdraw(lane);
    for (auto& [key, incoming] : lane.incoming) incoming->dropped = true;
    lane.incoming.clear();
    ended_.own(lane.id);
    tell_end(lane);
  }
  if (error)
    (void)lane.ledger.fail(*error);
  else
    lane.ledger.close();
  lane.clear_inbox();
  lanes_.erase(lane.serial);
}

// A stream that is in the middle of a chunk of this lane cannot go on: the bytes after it are no longer ours.
void Exchange::withdraw(const LaneState& lane) {
  for (auto& [member, link] : links_) {
    for (auto& stream : link->streams)
      if (stream->sending() != nullptr && stream->sending()->lane == lane.serial)
        stream->doom(Error(Code::kCancelled, "the round ended in the middle of a chunk"));
    std::erase_if(link->todo, [&](const auto& out) { return out->lane == lane.serial; });
  }
}

void Exchange::tell_end(const LaneState& lane) {
  Header end{.type = Type::kEnd, .length = 0, .id = lane.id, .bucket = {}, .code = kAsSender, .offset = 0, .bytes = 0};
  for (const auto& [member, peer] : lane.peers) {
    const auto link = links_.find(member);
    if (link != links_.end() && !link->second->streams.empty()) link->second->streams[0]->send(end);
    // Behind every `done` of the same connection.
    Header back = end;
    back.code = kAsSender | kAsRecipient;
    reply(member, peer.incarnation, back);
  }
}

Exchange::Link& Exchange::link_to(const Peer& peer, const Card& card) {
  std::unique_ptr<Link>& link = links_[peer.member];
  if (link && link->peer.incarnation == peer.incarnation && link->peer.card == peer.card) return *link;
  if (link) fail_link(*link, Error(Code::kPeerLost, "a new process has taken the peer's place"));
  link = std::make_unique<Link>();
  link->peer = peer;
  link->card = card;
  return *link;
}

}  // namespace refit::transport::tcp
