// The loop thread of a control lane: the only one that touches its sockets.
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/zmq/lane.h"

namespace refit::transport::zmq {
namespace {

constexpr std::int64_t kPingNs = 250'000'000;  // an idle peer hears from us this often
constexpr std::int64_t kHelloNs = 20'000'000;  // until the coordinator answers
constexpr std::int64_t kProbeNs = 20'000'000;  // pings while looking for who hung up
constexpr std::int64_t kProbeForNs = 400'000'000;
constexpr int kRetryMs = 2;  // after a socket refused a message
constexpr int kTickMs = 50;
constexpr int kHelloTickMs = 10;
constexpr int kBatch = 256;  // messages per turn, so that liveness is looked at under load
constexpr std::size_t kMaxPeers = 4096, kMaxPeersPerKey = 16;  // a member needs one, clients share a key

// One received frame. `more` tells whether the message goes on.
class Frame {
 public:
  Frame() { zmq_msg_init(&message_); }
  ~Frame() { zmq_msg_close(&message_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  bool receive(void* socket) { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
  bool more() { return zmq_msg_more(&message_) != 0; }
  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  const char* user() { return zmq_msg_gets(&message_, "User-Id"); }  // as the door named it; null without a door
  int descriptor() { return zmq_msg_get(&message_, ZMQ_SRCFD); }

 private:
  zmq_msg_t message_;
};

}  // namespace

void ControlLaneZmq::loop() {
  while (!mailbox_.failed()) {
    std::array<zmq_pollitem_t, 4> items{zmq_pollitem_t{nullptr, wake_.fd(), ZMQ_POLLIN, 0},
                                        zmq_pollitem_t{monitor_, 0, ZMQ_POLLIN, 0}};
    int polled = 2;
    if (door_) items[static_cast<std::size_t>(polled++)] = {door_->socket(), 0, ZMQ_POLLIN, 0};
    const bool full = mailbox_.inbox_full();
    if (!full) items[static_cast<std::size_t>(polled++)] = {socket_, 0, ZMQ_POLLIN, 0};
    (void)zmq_poll(items.data(), polled, poll_timeout_ms());
    wake_.lower();
    const std::int64_t now = env_.now_ns();
    forgive_own_gap(now);
    drain_monitor(now);
    if (door_) {
      door_->answer_all();
      strangers_.watch(now);
      refused_ = door_->refused() + strangers_.cut() + turned_away_;
    }
    if (!full) receive_all(now);
    flush(now);
    keep_alive(now);
    if (stop_.load() && (mailbox_.nothing_to_send() || now >= flush_by_ns_.load())) break;
  }
  for (const auto& [number, peer] : peers_) (void)transmit(peer.routing_id, encode(Kind::kBye));
}

int ControlLaneZmq::poll_timeout_ms() const {
  if (!mailbox_.nothing_to_send() && (address_.listen || welcomed_)) return kRetryMs;
  if (!address_.listen && !welcomed_) return kHelloTickMs;
  return last_loop_ns_ < probe_until_ns_ ? static_cast<int>(kProbeNs / 1'000'000) : kTickMs;
}

// A process that itself stood still, or did not read because its inbox was full, judges nobody for silence.
void ControlLaneZmq::forgive_own_gap(std::int64_t now) {
  const bool stood_still = now - last_loop_ns_ > std::min(silent_ns() / 2, kNsPerSecond);
  if (stood_still || mailbox_.inbox_full())
    for (auto& [number, peer] : peers_) peer.seen_ns = now;
  last_loop_ns_ = now;
}

void ControlLaneZmq::drain_monitor(std::int64_t now) {
  while (true) {
    Frame head;
    if (!head.receive(monitor_)) return;
    // An event's first frame: its number, and a descriptor or a status (native byte order, this process' own).
    std::uint16_t event = 0;
    std::int32_t value = 0;
    if (head.bytes().size() >= sizeof event + sizeof value) {
      std::memcpy(&event, head.bytes().data(), sizeof event);
      std::memcpy(&value, head.bytes().data() + sizeof event, sizeof value);
    }
    for (bool more = head.more(); more;) {
      Frame rest;
      if (!rest.receive(monitor_)) break;
      more = rest.more();
    }
    // Its hello may have been read before this event.
    const bool known = std::any_of(peers_.begin(), peers_.end(),
                                   [&](const auto& entry) { return entry.second.descriptor == value; });
    if (event == ZMQ_EVENT_ACCEPTED && door_ && !known) strangers_.accepted(value, port_, now);
    if (event == ZMQ_EVENT_DISCONNECTED && door_) closed(value);
    if (event == ZMQ_EVENT_DISCONNECTED) hung_up(now);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && !address_.listen)
      mailbox_.fail(Error(Code::kInvalid, "the coordinator at " + told_ +
                                              " does not admit this process' key: it is not in its allow-list")
                        .at_peer("coordinator"));
  }
}

void ControlLaneZmq::closed(int descriptor) {
  strangers_.forget(descriptor);
  for (auto& [number, peer] : peers_)
    if (peer.descriptor == descriptor) peer.descriptor = -1;  // the number may be another connection's from now on
}

void ControlLaneZmq::hung_up(std::int64_t now) {
  if (address_.listen)
    probe_until_ns_ = now + kProbeForNs;  // a router does not say who; pings to all will
  else if (welcomed_)
    drop(0, "hung up");
  else
    broken_.fetch_add(1);
}

void ControlLaneZmq::receive_all(std::int64_t now) {
  for (int i = 0; i < kBatch; ++i) {
    Frame first;
    if (!first.receive(socket_)) return;
    Frame second;
    bool whole = true;
    if (address_.listen) whole = first.more() && second.receive(socket_);
    bool more = address_.listen ? whole && second.more() : first.more();
    whole = whole && !more;
    while (more) {
      Frame rest;
      more = rest.receive(socket_) && rest.more();
    }
    if (!whole) {
      tally_->bad.fetch_add(1);
      continue;
    }
    if (!address_.listen) {
      receive({}, first.bytes(), now);
      continue;
    }
    Origin from{first.bytes(), std::nullopt};
    if (door_) {
      from.proven = door_->who(second.user());
      from.descriptor = second.descriptor();
    }
    receive(from, second.bytes(), now);
  }
}

void ControlLaneZmq::receive(const Origin& from, std::span<const std::byte> message, std::int64_t now) {
  tally_->bytes_in.fetch_add(message.size());
  const auto kind = decode(message);
  if (!kind.ok()) {
    tally_->bad.fetch_add(1);
    return;
  }
  std::uint32_t number = 0;
  if (address_.listen) {
    if (*kind == Kind::kHello) return welcome(from, now);
    const auto it = by_id_.find(Bytes(from.routing_id.begin(), from.routing_id.end()));
    if (it == by_id_.end()) {
      tally_->foreign.fetch_add(1);
      // It was dropped while it stood still: it must come back as a new peer.
      if (*kind != Kind::kBye) (void)transmit(from.routing_id, encode(Kind::kBye));
      return;
    }
    number = it->second;
  }
  const auto peer = peers_.find(number);
  if (peer == peers_.end()) return;
  // libzmq binds an identity to a connection; a message under another one is nobody's.
  if (peer->second.proven != from.proven) {
    tally_->foreign.fetch_add(1);
    return;
  }
  peer->second.seen_ns = now;
  if (door_ && from.descriptor >= 0) {
    // A key alone makes no peer: only who was welcomed is a stranger no longer, for as long as it is a peer.
    strangers_.forget(from.descriptor);
    peer->second.descriptor = from.descriptor;
  }
  if (*kind == Kind::kFull && !address_.listen)
    return mailbox_.fail(
        Error(Code::kExhausted,
              "the coordinator at " + told_ +
                  (message.size() == kHeadBytes ? " has as many connections under this process' key as it takes"
                                                : " has as many connections as it takes"))
            .at_peer("coordinator"));
  if (*kind == Kind::kData) mailbox_.deliver(number, message.subspan(kHeadBytes), from.proven);
  if (*kind == Kind::kBye) drop(number, "closed its lane");
  if (*kind == Kind::kWelcome && !address_.listen && !welcomed_) {
    welcomed_ = true;
    mailbox_.connected(0);
  }
}

void ControlLaneZmq::welcome(const Origin& from, std::int64_t now) {
  const Bytes id(from.routing_id.begin(), from.routing_id.end());
  if (door_ && !from.proven) {
    tally_->foreign.fetch_add(1);
    return;
  }
  if (!by_id_.contains(id)) {
    if (full_for(from)) return;
    by_id_[id] = next_peer_;
    peers_[next_peer_] = {id, now, now, from.proven, from.descriptor};
    if (door_) strangers_.forget(from.descriptor);
    mailbox_.connected(next_peer_++);
  }
  (void)transmit(id, encode(Kind::kWelcome));
}

// Says so, and lets the strangers' time run on: who does not go by itself is cut.
bool ControlLaneZmq::full_for(const Origin& from) {
  const auto same = from.proven ? std::count_if(peers_.begin(), peers_.end(),
                                                [&](const auto& one) { return one.second.proven == from.proven; })
                                : 0;
  const bool of_key = static_cast<std::size_t>(same) >= kMaxPeersPerKey;
  if (!of_key && peers_.size() < kMaxPeers) return false;
  if (!door_ || strangers_.turn_away(from.descriptor)) ++turned_away_;
  tally_->foreign.fetch_add(1);
  const std::byte at_all{1};
  (void)transmit(from.routing_id, encode(Kind::kFull, std::span(&at_all, of_key ? 0 : 1)));
  return true;
}

void ControlLaneZmq::flush(std::int64_t now) {
  if (!address_.listen && !welcomed_) return;
  std::vector<std::uint32_t> unreachable;
  for (auto& [number, peer] : peers_) {
    for (int i = 0; i < kBatch; ++i) {
      auto bytes = mailbox_.take(number);
      if (!bytes) break;
      const Sent sent = transmit(peer.routing_id, encode(Kind::kData, *bytes));
      if (sent == Sent::kYes) {
        peer.sent_ns = now;
        continue;
      }
      if (sent == Sent::kUnreachable) unreachable.push_back(number);
      if (sent == Sent::kLater) mailbox_.put_back(number, std::move(*bytes));
      break;
    }
  }
  for (std::uint32_t number : unreachable) drop(number, "is unreachable");
}

void ControlLaneZmq::keep_alive(std::int64_t now) {
  if (!address_.listen && !welcomed_) {
    if (!peers_.empty() && now - peers_[0].sent_ns >= kHelloNs && transmit({}, encode(Kind::kHello)) == Sent::kYes)
      peers_[0].sent_ns = now;
    return;
  }
  const std::int64_t every = now < probe_until_ns_ ? kProbeNs : kPingNs;
  std::vector<std::pair<std::uint32_t, const char*>> lost;
  for (auto& [number, peer] : peers_) {
    if (now - peer.seen_ns > silent_ns())
      lost.emplace_back(number, "was silent for too long");
    else if (now - peer.sent_ns >= every) {
      const Sent sent = transmit(peer.routing_id, encode(Kind::kPing));
      if (sent == Sent::kUnreachable) lost.emplace_back(number, "is unreachable");
      peer.sent_ns = now;
    }
  }
  for (const auto& [number, why] : lost) drop(number, why);
}

void ControlLaneZmq::drop(std::uint32_t number, const char* why) {
  const auto it = peers_.find(number);
  if (it == peers_.end()) return;
  by_id_.erase(it->second.routing_id);
  if (it->second.descriptor >= 0) strangers_.accepted(it->second.descriptor, port_, env_.now_ns());
  peers_.erase(it);
  mailbox_.gone(number);
  // A member has nobody else to talk to: its lane is over.
  if (!address_.listen)
    mailbox_.fail(Error(Code::kPeerLost, "the coordinator at " + address_.address + " " + why).at_peer("coordinator"));
}

ControlLaneZmq::Sent ControlLaneZmq::transmit(std::span<const std::byte> routing_id, const Bytes& message) {
  if (address_.listen && zmq_send(socket_, routing_id.data(), routing_id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
    return zmq_errno() == EHOSTUNREACH ? Sent::kUnreachable : Sent::kLater;
  if (zmq_send(socket_, message.data(), message.size(), ZMQ_DONTWAIT) < 0)
    return zmq_errno() == EHOSTUNREACH ? Sent::kUnreachable : Sent::kLater;
  tally_->bytes_out.fetch_add(message.size());
  return Sent::kYes;
}

}  // namespace refit::transport::zmq
