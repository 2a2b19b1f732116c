// The loop thread of a hub: the only one that touches its sockets.
#include <zmq.h>

#include <algorithm>
#include <cstring>

#include "transport/zmq_sparse/hub.h"

namespace refit::transport::zmq_sparse {
namespace {

constexpr int kTickMs = 50, kRetryMs = 1;
constexpr std::int64_t kBeatNs = 250'000'000;
// A listener that dies while it accepts may leave a connection that looks whole and never answers; libzmq's own limit
// for a handshake is as long.
constexpr std::int64_t kGreetingNs = 5 * kNsPerSecond;
constexpr int kBatch = 256;  // messages per turn, so that callers and timers have theirs
constexpr std::size_t kMostOffers = 1 << 16, kMostOffersOfOne = 64;  // that wait for a lane: of all peers, of one
constexpr std::size_t kMostCallers = 4096;

const char* words_of(Refusal why) {
  switch (why) {
    case Refusal::kEnded:
      return "the recipient ended its part of the round";
    case Refusal::kUnexpected:
      return "the recipient does not expect this bucket";
    case Refusal::kTooLarge:
      return "the bucket is larger than the recipient expects";
    case Refusal::kForeign:
      return "the recipient knows no such lane of this sender";
    case Refusal::kTooMany:
      return "too many buckets are offered before their lane is open";
  }
  return "the recipient refused the bucket";
}

}  // namespace

void Hub::loop() {
  while (!stop_) poll_once();
  const std::lock_guard lock(mutex_);
  for (auto& call : calls_) call();
  calls_.clear();
}

void Hub::poll_once() {
  std::vector<zmq_pollitem_t> items;
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    items.push_back({nullptr, wake_->fd(), ZMQ_POLLIN, 0});
    items.push_back({router_.get(), 0, ZMQ_POLLIN, 0});
    items.push_back({doorstep_.get(), 0, ZMQ_POLLIN, 0});
    for (auto& [member, link] : links_) {
      items.push_back({link->socket.get(), 0, ZMQ_POLLIN, 0});
      items.push_back({link->monitor.get(), 0, ZMQ_POLLIN, 0});
    }
    again = blocked_;
  }
  (void)zmq_poll(items.data(), static_cast<int>(items.size()), again ? kRetryMs : kTickMs);
  wake_->lower();
  const std::lock_guard lock(mutex_);
  blocked_ = false;
  graveyard_.clear();
  for (std::deque<std::function<void()>> calls = std::exchange(calls_, {}); auto& call : calls) call();
  watch_strangers();
  read_router();
  std::vector<std::uint32_t> broken;
  for (auto& [member, link] : links_) {
    read_link(*link);
    if (link->monitor.broke()) broken.push_back(member);
  }
  for (std::uint32_t member : broken)
    fail_link(member, Error(Code::kPeerLost, "its connection broke, or could not be made"));
  timers();
  serve_offers();
  for (auto& [member, link] : links_) send_some(*link);
  cut_deaf();
}

void Hub::watch_strangers() {
  while (const auto e = doorstep_.event()) {
    // Its first message may have been read before this event.
    const bool known = std::any_of(callers_.begin(), callers_.end(),
                                   [&](const auto& one) { return one.second.descriptor == e->value; });
    if (e->what == ZMQ_EVENT_ACCEPTED && !known) strangers_.accepted(e->value, port_, now());
    if (e->what != ZMQ_EVENT_DISCONNECTED) continue;
    strangers_.forget(e->value);
    for (auto& [member, caller] : callers_)
      if (caller.descriptor == e->value) caller.descriptor = -1;  // the number may be another connection's from now on
  }
  strangers_.watch(now());
}

// Where its answers go from now on. False: there are too many callers. Each has one connection; whoever asks only, or
// has called again over another one, is a stranger whose time runs.
bool Hub::call(const Head& head, const Message& m) {
  const auto known = callers_.find(head.from);
  if (known == callers_.end() && callers_.size() >= kMostCallers) return false;
  Caller& caller = callers_[head.from];
  if (caller.descriptor >= 0 && caller.descriptor != m.descriptor) strangers_.accepted(caller.descriptor, port_, now());
  caller = {head.process, m.routing_id, m.descriptor, now()};
  strangers_.forget(m.descriptor);
  return true;
}

// A caller that does not read its answers would miss some: its connection goes, so that it knows.
void Hub::cut_deaf() {
  for (const Bytes& routing_id : std::exchange(deaf_, {})) {
    const auto caller = std::find_if(callers_.begin(), callers_.end(),
                                     [&](const auto& one) { return one.second.routing_id == routing_id; });
    if (caller == callers_.end()) continue;
    const auto [member, gone] = *caller;
    callers_.erase(caller);
    strangers_.cut(gone.descriptor, port_);
    lose(member, gone.process, Error(Code::kExhausted, "it does not read the answers to what it sends"));
  }
}

void Hub::read_router() {
  Message m;
  int n = 0;
  for (; n < kBatch && router_.receive(m, true); ++n) {
    counters_.bytes_in += m.body.size();
    const auto head = decode_head(m.body);
    if (!head.ok()) {
      ++counters_.frames_bad;
      continue;
    }
    if (head->id.job != options_.job) {
      ++counters_.frames_foreign;
      continue;
    }
    if (head->type == Type::kBeat && head->code == kOnlyAsks) {
      reply(m.routing_id, answer(Type::kBeat, *head));
      continue;
    }
    if (!call(*head, m)) {
      ++counters_.frames_foreign;
      continue;
    }
    switch (head->type) {
      case Type::kOffer:
        take_offer(*head, m.routing_id);
        break;
      case Type::kData:
        take_data(*head, std::span<const std::byte>(m.body).subspan(kHeadBytes), m.routing_id);
        break;
      case Type::kEnd:
        take_end(*head);
        break;
      case Type::kBeat:
        reply(m.routing_id, answer(Type::kBeat, *head));
        break;
      default:
        ++counters_.frames_bad;
    }
  }
  blocked_ = blocked_ || n == kBatch;
}

void Hub::read_link(Link& link) {
  Message m;
  for (int n = 0; n < kBatch && link.socket.receive(m, false); ++n) {
    counters_.bytes_in += m.body.size();
    const auto head = decode_head(m.body);
    if (!head.ok() || head->from != link.peer.member || head->id.job != options_.job ||
        head->process != link.peer.incarnation) {
      ++(head.ok() ? counters_.frames_foreign : counters_.frames_bad);
      continue;
    }
    link.heard_ns = now();
    link.greeted = true;
    take_answer(link, *head);
  }
}

// ---- as a recipient

Head Hub::answer(Type type, const Head& to) const {
  Head h = to;
  h.type = type;
  h.from = options_.member;
  h.process = options_.incarnation;
  h.code = 0;
  return h;
}

void Hub::reply(std::span<const std::byte> routing_id, const Head& head) {
  counters_.bytes_out += kHeadBytes;
  if (router_.send(routing_id, encode(head)) == Sent::kFull) deaf_.emplace_back(routing_id.begin(), routing_id.end());
}

// The lane of this side that a sender's frame belongs to.
LaneState* Hub::lane_of(const Head& head) {
  for (auto& [serial, lane] : lanes_) {
    if (lane->id.txn != head.id.txn) continue;
    const auto peer = lane->peers.find(head.from);
    if (peer != lane->peers.end() && peer->second.incarnation == head.id.incarnation) return lane.get();
  }
  return nullptr;
}

void Hub::take_offer(const Head& head, std::span<const std::byte> routing_id) {
  const auto of_one = std::count_if(offers_.begin(), offers_.end(), [&](const Offer& o) {
    return o.head.from == head.from && o.head.process == head.process;
  });
  if (offers_.size() >= kMostOffers || static_cast<std::size_t>(of_one) >= kMostOffersOfOne) {
    ++counters_.frames_bad;
    Head h = answer(Type::kRefuse, head);
    h.code = static_cast<std::uint32_t>(Refusal::kTooMany);
    return reply(routing_id, h);
  }
  offers_.push_back({head, Bytes(routing_id.begin(), routing_id.end())});
}

void Hub::serve_offers() {
  for (std::size_t i = 0; i < offers_.size();) {
    if (serve_offer(offers_[i]))
      offers_.erase(offers_.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
}

// False: it waits for its lane, for expect(), or for room.
bool Hub::serve_offer(const Offer& offer) {
  const Head& head = offer.head;
  const auto refuse = [&](Refusal why) {
    Head h = answer(Type::kRefuse, head);
    h.code = static_cast<std::uint32_t>(why);
    reply(offer.routing_id, h);
    return true;
  };
  LaneState* lane = lane_of(head);
  if (lane == nullptr) {
    const bool same_round =
        std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& one) { return one.second->id.txn == head.id.txn; });
    if (same_round) {
      ++counters_.frames_foreign;
      return refuse(Refusal::kForeign);
    }
    return ended_.own_ended(head.id) ? refuse(Refusal::kEnded) : false;
  }
  if (!lane->expecting) return false;
  const Key2 key(head.from, head.bucket.value);
  const auto most = lane->expected.find(key);
  if (most == lane->expected.end()) return refuse(Refusal::kUnexpected);
  if (lane->arrived.contains(key) || lane->incoming.contains(key)) {
    ++counters_.frames_duplicate;
    return true;
  }
  if (head.bytes > static_cast<std::uint64_t>(most->second)) {
    refuse(Refusal::kTooLarge);
    const Peer peer = lane->peers.at(head.from);
    end_locked(*lane, at_transfer(Error(Code::kCorrupt, "a bucket is larger than announced")
                                      .amounts(most->second, static_cast<std::int64_t>(head.bytes)),
                                  peer)
                          .at_bucket(std::to_string(head.bucket.value)));
    return true;
  }
  const auto granted = std::count_if(lane->incoming.begin(), lane->incoming.end(),
                                     [&](const auto& one) { return one.first.first == head.from; });
  if (granted >= kGrantsPerSender) return false;
  auto slot = staging_->take(static_cast<std::int64_t>(head.bytes));
  if (!slot) return false;
  lane->incoming[key] = {head.bytes, 0, std::move(*slot)};
  reply(offer.routing_id, answer(Type::kGrant, head));
  if (head.bytes == 0) deliver(*lane, key, offer.routing_id);
  return true;
}

void Hub::take_data(const Head& head, std::span<const std::byte> bytes, std::span<const std::byte> routing_id) {
  LaneState* lane = lane_of(head);
  const Key2 key(head.from, head.bucket.value);
  const auto at_key = lane == nullptr ? std::map<Key2, Incoming>::iterator{} : lane->incoming.find(key);
  if (lane == nullptr || at_key == lane->incoming.end()) {
    ++counters_.frames_foreign;  // of a round that is over here
    return;
  }
  Incoming& in = at_key->second;
  if (head.offset != in.got || bytes.size() > kMaxChunkBytes || bytes.size() > in.bytes - in.got) {
    ++counters_.frames_bad;
    const Peer peer = lane->peers.at(head.from);
    return end_locked(*lane, at_transfer(Error(Code::kCorrupt, "a chunk does not continue its bucket"), peer)
                                 .at_bucket(std::to_string(head.bucket.value)));
  }
  std::memcpy(in.slot.data() + in.got, bytes.data(), bytes.size());
  in.got += bytes.size();
  Head took = answer(Type::kTook, head);
  took.offset = in.got;
  reply(routing_id, took);
  if (in.got == in.bytes) deliver(*lane, key, routing_id);
}

void Hub::deliver(LaneState& lane, const Key2& key, std::span<const std::byte> routing_id) {
  Incoming in = std::move(lane.incoming.at(key));
  lane.incoming.erase(key);
  Head done;
  done.type = Type::kDone;
  done.from = options_.member;
  done.process = options_.incarnation;
  done.id = {lane.id.job, lane.id.txn, lane.peers.at(key.first).incarnation};
  done.bucket = BucketId(key.second);
  done.bytes = in.bytes;
  reply(routing_id, done);
  lane.deliver({BucketId(key.second), key.first, in.bytes, std::move(in.slot)});
}

void Hub::take_end(const Head& head) {
  if ((head.code & kAsSender) != 0) {
    ended_.of_peer(head.from, head.id, true);
    std::erase_if(offers_, [&](const Offer& o) { return o.head.from == head.from && o.head.id == head.id; });
    if (LaneState* lane = lane_of(head)) {
      std::erase_if(lane->incoming, [&](const auto& one) { return one.first.first == head.from; });
      lane->lose(head.from, Error(Code::kPeerLost, "the sender ended its part of the round"));
    }
  }
  if ((head.code & kAsRecipient) == 0) return;
  ended_.of_peer(head.from, head.id, false);
  const auto link = links_.find(head.from);
  if (link == links_.end() || link->second->peer.incarnation != head.id.incarnation) return;
  std::erase_if(link->second->todo, [&](const Outgoing& out) {
    if (out.id.txn != head.id.txn) return false;
    finish(out, link->second->peer, Error(Code::kPeerLost, "the recipient ended its part of the round"));
    return true;
  });
}

// ---- as a sender

void Hub::take_answer(Link& link, const Head& head) {
  if (head.type == Type::kBeat) return;
  if (head.type == Type::kEnd) return take_end(head);
  const auto out = std::find_if(link.todo.begin(), link.todo.end(), [&](const Outgoing& o) {
    return o.offered && o.id == head.id && o.post->bucket == head.bucket;
  });
  if (out == link.todo.end()) {
    ++counters_.frames_foreign;  // of a post that has ended here
    return;
  }
  link.progress_ns = now();
  if (head.type == Type::kGrant) {
    out->granted = true;
  } else if (head.type == Type::kTook && head.offset <= out->sent) {
    out->took = std::max(out->took, head.offset);
  } else if (head.type == Type::kDone && out->sent == out->post->bytes) {
    finish(*out, link.peer, std::nullopt);
    link.todo.erase(out);
  } else if (head.type == Type::kRefuse) {
    const auto why = static_cast<Refusal>(head.code);
    finish(*out, link.peer, Error(why == Refusal::kEnded ? Code::kPeerLost : Code::kMismatch, words_of(why)));
    link.todo.erase(out);
  } else {
    ++counters_.frames_bad;
  }
}

void Hub::send_some(Link& link) {
  std::size_t offered = 0;
  for (Outgoing& out : link.todo) {
    if (!out.offered) {
      if (offered >= kOffered) break;
      Head h;
      h.type = Type::kOffer;
      h.from = options_.member;
      h.process = options_.incarnation;
      h.id = out.id;
      h.bucket = out.post->bucket;
      h.bytes = out.post->bytes;
      counters_.bytes_out += kHeadBytes;
      if (!link.socket.send(encode(h))) {
        blocked_ = true;
        return;
      }
      out.offered = true;
    }
    ++offered;
    while (out.granted && out.sent < out.post->bytes && out.sent - out.took < kCreditBytes)
      if (!send_chunk(link, out)) {
        blocked_ = true;
        return;
      }
  }
}

// Runs are gathered: however a bucket lies in memory, it travels in few messages. What is copied here is lent no longer
// than this call takes.
bool Hub::send_chunk(Link& link, Outgoing& out) {
  Head h;
  h.type = Type::kData;
  h.from = options_.member;
  h.process = options_.incarnation;
  h.id = out.id;
  h.bucket = out.post->bucket;
  h.offset = out.sent;
  h.bytes = out.post->bytes;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, out.post->bytes - out.sent));
  Cursor next = out.cursor;
  if (!link.socket.send(encode(h), bytes, [&](std::span<std::byte> to) { copy_parts(*out.post, next, to); }))
    return false;
  counters_.bytes_out += kHeadBytes + bytes;
  out.cursor = next;
  out.sent += bytes;
  return true;
}

// ---- both

void Hub::beat(Link& link) {
  Head h;
  h.from = options_.member;
  h.process = options_.incarnation;
  h.id.job = options_.job;
  link.beat_ns = now();
  (void)link.socket.send(encode(h));
}

void Hub::timers() {
  const std::int64_t t = now(), stall = options_.net.stall_ns;
  // A process that stood still itself judges nobody for that time.
  const bool stood_still = t - last_turn_ns_ > std::min(stall / 2, kNsPerSecond);
  last_turn_ns_ = t;
  reclaim_offers(t, stood_still);
  std::vector<std::pair<std::uint32_t, Error>> silent;
  for (auto& [member, link] : links_) {
    const bool watched = std::any_of(lanes_.begin(), lanes_.end(), [&, m = member](const auto& one) {
      return one.second->expecting && one.second->peers.contains(m);
    });
    const bool moving = std::any_of(link->todo.begin(), link->todo.end(),
                                    [](const Outgoing& o) { return o.granted && o.took < o.post->bytes; });
    if (stood_still || !moving) link->progress_ns = t;
    if (stood_still || (!watched && link->todo.empty())) {
      link->heard_ns = t;
      link->first_asked_ns.reset();
      continue;
    }
    if (t - link->beat_ns >= kBeatNs) beat(*link);
    if (!link->first_asked_ns) link->first_asked_ns = t;
    if (!link->greeted && t - *link->first_asked_ns > kGreetingNs)
      silent.emplace_back(member, Error(Code::kPeerLost, "it does not answer over a new connection"));
    else if (t - link->heard_ns > stall)
      silent.emplace_back(member, Error(Code::kTimeout, "it was silent beyond the stall deadline"));
    else if (moving && t - link->progress_ns > stall)
      silent.emplace_back(member, Error(Code::kTimeout, "it took no bytes within the stall deadline"));
  }
  for (const auto& [member, error] : silent) fail_link(member, error);
}

// Offers of senders that are silent or were replaced before this side opened their lane: nobody will end them.
void Hub::reclaim_offers(std::int64_t t, bool stood_still) {
  if (stood_still)
    for (auto& [member, caller] : callers_) caller.heard_ns = t;
  counters_.frames_foreign += std::erase_if(offers_, [&](const Offer& o) {
    const auto caller = callers_.find(o.head.from);
    const bool replaced = caller == callers_.end() || caller->second.process != o.head.process;
    const bool silent = !replaced && t - caller->second.heard_ns > options_.net.stall_ns;
    if (silent) {  // it may only have stood still, and would wait for an answer
      Head h = answer(Type::kRefuse, o.head);
      h.code = static_cast<std::uint32_t>(Refusal::kEnded);
      reply(o.routing_id, h);
    }
    return replaced || silent;
  });
}

void Hub::fail_link(std::uint32_t member, const Error& error) {
  const auto at_member = links_.find(member);
  std::unique_ptr<Link> link = std::move(at_member->second);
  links_.erase(at_member);
  for (const Outgoing& out : link->todo) finish(out, link->peer, error);
  link->todo.clear();
  lose(member, link->peer.incarnation, error);
  graveyard_.push_back(std::move(link));
}

void Hub::lose(std::uint32_t member, Incarnation process, const Error& error) {
  std::erase_if(offers_, [&](const Offer& o) { return o.head.from == member && o.head.process == process; });
  for (auto& [serial, lane] : lanes_) {
    const auto peer = lane->peers.find(member);
    if (peer == lane->peers.end() || peer->second.incarnation != process) continue;
    std::erase_if(lane->incoming, [&](const auto& one) { return one.first.first == member; });
    lane->lose(member, error);
  }
}

// On the connection that data or answers went, behind them.
void Hub::tell_end(const LaneId& id, const std::map<std::uint32_t, Peer>& peers) {
  Head h;
  h.type = Type::kEnd;
  h.from = options_.member;
  h.process = options_.incarnation;
  h.id = id;
  for (const auto& [member, peer] : peers) {
    h.code = kAsSender;
    const auto link = links_.find(member);
    if (link != links_.end() && link->second->peer.incarnation == peer.incarnation)
      (void)link->second->socket.send(encode(h));
    h.code = kAsSender | kAsRecipient;
    const auto caller = callers_.find(member);
    if (caller != callers_.end() && caller->second.process == peer.incarnation) reply(caller->second.routing_id, h);
  }
}

}  // namespace refit::transport::zmq_sparse
