// The protocol between two exchanges: offer → grant → data → done, refusals, ends. Runs on the loop.
#include <algorithm>

#include "transport/tcp/exchange.h"

namespace refit::transport::tcp {
namespace {

constexpr std::size_t kMaxOffers = 1 << 16;  // parked for lanes that are not open yet

Error refusal(std::uint32_t code) {
  switch (static_cast<Refusal>(code)) {
    case Refusal::kForeign:
      return Error(Code::kMismatch, "the recipient does not know this incarnation of the sender");
    case Refusal::kUnexpected:
      return Error(Code::kMismatch, "the recipient does not expect this bucket");
    case Refusal::kDuplicate:
      return Error(Code::kMismatch, "the recipient has this bucket already");
    case Refusal::kLarge:
      return Error(Code::kCorrupt, "bucket is larger than announced");
    case Refusal::kOver:
      return Error(Code::kPeerLost, "the recipient ended its part of the round");
    case Refusal::kStaging:
      return Error(Code::kExhausted, "bucket is larger than the recipient's staging");
  }
  return Error(Code::kCorrupt, "the recipient refused with an unknown reason");
}

}  // namespace

Answer Exchange::admit(Stream& /*stream*/, const Hello& h) {
  if (h.job != options_.job || h.to != options_.member || h.to_incarnation != options_.incarnation) {
    ++counters_.frames_foreign;
    return Answer::kOther;
  }
  return h.security == security_ ? Answer::kYes : Answer::kSecurity;
}

// The listener speaks first, so that a connector knows whom it reached; then what it may have missed.
void Exchange::opened(Stream& stream) {
  Header header;
  header.id.job = options_.job;
  header.id.incarnation = options_.incarnation;
  stream.send(header);
  if (stream.hello().stream != 0) return;
  header.type = Type::kEnd;
  header.code = stream.outgoing() ? kAsSender : kAsSender | kAsRecipient;
  for (const LaneId& id : ended_.own()) {
    header.id = id;
    stream.send(header);
  }
}

void Exchange::frame(Stream& stream, const Header& h) {
  if (h.id.job != options_.job) {
    ++counters_.frames_foreign;
    return;
  }
  if (h.type == Type::kBeat) return;
  if (h.type == Type::kEnd) return take_end(stream, h);
  if (!stream.outgoing()) {
    if (h.type == Type::kOffer) return take_offer(stream, h);
    ++counters_.frames_bad;
    return stream.doom(Error(Code::kCorrupt, "a sender sent a recipient's frame"));
  }
  const auto link = links_.find(stream.hello().to);
  if (h.type == Type::kOffer || link == links_.end()) {
    ++counters_.frames_bad;
    return stream.doom(Error(Code::kCorrupt, "a recipient sent a sender's frame"));
  }
  take_answer(*link->second, h);
}

LaneState* Exchange::lane_of(const LaneId& theirs, std::uint32_t member) {
  for (auto& [serial, lane] : lanes_) {
    if (lane->id.txn != theirs.txn) continue;
    const auto peer = lane->peers.find(member);
    if (peer != lane->peers.end() && peer->second.incarnation == theirs.incarnation) return lane.get();
  }
  return nullptr;
}

// ---- recipient ----

void Exchange::take_offer(Stream& stream, const Header& h) {
  Offer offer{stream.hello().from, stream.hello().from_incarnation, h};
  if (h.id.incarnation != offer.incarnation) {
    ++counters_.frames_foreign;
    return refuse(offer, Refusal::kForeign);
  }
  if (offers_.size() >= kMaxOffers) return stream.doom(Error(Code::kExhausted, "too many buckets are offered"));
  offers_.push_back(std::move(offer));
}

void Exchange::serve_offers() {
  bool full = false;
  std::erase_if(offers_, [&](const Offer& offer) {
    if (full) return false;  // nobody overtakes a bucket that waits for room
    const Served served = serve_offer(offer);
    full = served == Served::kNoRoom;
    return served == Served::kDone;
  });
}

Exchange::Served Exchange::serve_offer(const Offer& offer) {
  LaneState* lane = lane_of(offer.header.id, offer.member);
  if (lane == nullptr) {
    if (!ended_.own_ended(offer.header.id)) return Served::kWaits;  // a round that this side has not opened yet
    ++counters_.frames_foreign;
    refuse(offer, Refusal::kOver);
    return Served::kDone;
  }
  const Key2 key(offer.member, offer.header.bucket.value);
  std::optional<Refusal> why;
  {
    const std::lock_guard lock(lane->mutex);
    if (!lane->expecting) return Served::kWaits;
    const auto expected = lane->expected.find(key);
    if (expected == lane->expected.end())
      why = Refusal::kUnexpected;
    else if (lane->arrived.contains(key) || lane->incoming.contains(key))
      why = Refusal::kDuplicate;
    else if (static_cast<std::int64_t>(offer.header.bytes) > expected->second)
      why = Refusal::kLarge;
    else if (static_cast<std::int64_t>(offer.header.bytes) > staging_->limit())
      why = Refusal::kStaging;
  }
  if (!why) return grant(*lane, offer);
  ++(*why == Refusal::kDuplicate ? counters_.frames_duplicate : counters_.frames_bad);
  refuse(offer, *why);
  if (*why == Refusal::kLarge || *why == Refusal::kStaging)
    end_locked(*lane, at_transfer(refusal(static_cast<std::uint32_t>(*why)), lane->peers.at(offer.member))
                          .at_bucket(std::to_string(key.second)));
  return Served::kDone;
}

Exchange::Served Exchange::grant(LaneState& lane, const Offer& offer) {
  const auto under_way = std::count_if(lane.incoming.begin(), lane.incoming.end(),
                                       [&](const auto& entry) { return entry.first.first == offer.member; });
  if (under_way >= kGrantsPerSender) return Served::kWaits;
  auto slot = staging_->take(static_cast<std::int64_t>(offer.header.bytes));
  if (!slot) return Served::kNoRoom;
  auto incoming = std::make_shared<Incoming>();
  incoming->id = offer.header.id;
  incoming->sender = offer.member;
  incoming->bucket = offer.header.bucket;
  incoming->bytes = offer.header.bytes;
  incoming->slot = std::move(*slot);
  incoming->progress_ns = now();
  if (incoming->bytes == 0) {
    deliver(lane, *incoming);
    return Served::kDone;
  }
  lane.incoming.emplace(Key2(offer.member, offer.header.bucket.value), std::move(incoming));
  Header h = offer.header;
  h.type = Type::kGrant;
  reply(offer.member, offer.incarnation, h);
  return Served::kDone;
}

Result<std::shared_ptr<Incoming>> Exchange::sink(Stream& stream, const Header& h) {
  const std::uint32_t from = stream.hello().from;
  if (stream.outgoing()) return Error(Code::kCorrupt, "a recipient sent data");
  LaneState* lane = h.id.job == options_.job ? lane_of(h.id, from) : nullptr;
  const auto found =
      lane == nullptr ? decltype(lane->incoming.end()){} : lane->incoming.find(Key2(from, h.bucket.value));
  if (lane == nullptr || found == lane->incoming.end()) {
    ++counters_.frames_foreign;
    return std::shared_ptr<Incoming>();
  }
  Incoming& incoming = *found->second;
  if (h.bytes != incoming.bytes || !incoming.claim(h.offset, h.length))
    return Error(Code::kCorrupt, "a chunk does not fit its bucket");
  return found->second;
}

void Exchange::arrived(Stream& /*stream*/, const Header& h, const std::shared_ptr<Incoming>& incoming) {
  if (incoming->dropped) {
    ++counters_.frames_foreign;
    return;
  }
  incoming->have += h.length;
  if (incoming->have < incoming->bytes) return;
  LaneState* lane = lane_of(incoming->id, incoming->sender);
  if (lane == nullptr) return;
  lane->incoming.erase(Key2(incoming->sender, incoming->bucket.value));
  deliver(*lane, *incoming);
}

void Exchange::deliver(LaneState& lane, Incoming& incoming) {
  counters_.bytes_in += incoming.bytes;
  lane.deliver({incoming.bucket, incoming.sender, incoming.bytes, std::move(incoming.slot)});
  reply(incoming.sender, incoming.id.incarnation,
        {.type = Type::kDone,
         .length = 0,
         .id = incoming.id,
         .bucket = incoming.bucket,
         .code = 0,
         .offset = 0,
         .bytes = 0});
}

void Exchange::refuse(const Offer& offer, Refusal why) {
  Header h = offer.header;
  h.type = Type::kRefuse;
  h.code = static_cast<std::uint32_t>(why);
  reply(offer.member, offer.incarnation, h);
}

// On the newest first connection that this incarnation of the member made to us.
Stream* Exchange::back_to(std::uint32_t member, Incarnation incarnation) {
  for (auto it = incoming_.rbegin(); it != incoming_.rend(); ++it)
    if ((*it)->open() && (*it)->hello().stream == 0 && (*it)->hello().from == member &&
        (*it)->hello().from_incarnation == incarnation)
      return it->get();
  return nullptr;
}

void Exchange::reply(std::uint32_t member, Incarnation incarnation, const Header& header) {
  if (Stream* stream = back_to(member, incarnation)) stream->send(header);
}

// ---- sender ----

void Exchange::take_answer(Link& link, const Header& h) {
  const auto out = std::find_if(link.todo.begin(), link.todo.end(), [&](const auto& o) {
    return o->id == h.id && o->post->bucket == h.bucket && o->state != Outgoing::State::kQueued;
  });
  if (out == link.todo.end()) {
    ++counters_.frames_foreign;
    return;
  }
  if (h.type == Type::kGrant) {
    (*out)->state = Outgoing::State::kGranted;
    (*out)->progress_ns = now();
  } else if (h.type == Type::kRefuse) {
    (*out)->error = refusal(h.code);
  } else if ((*out)->cut == (*out)->post->bytes) {
    counters_.bytes_out += (*out)->post->bytes;
    finish(**out, link.peer, std::nullopt);
    link.todo.erase(out);
  } else {
    (*out)->error = Error(Code::kCorrupt, "the recipient says that it has what was not sent");
  }
}

void Exchange::finish(const Outgoing& out, const Peer& to, std::optional<Error> error) {
  const auto lane = lanes_.find(out.lane);
  if (lane == lanes_.end()) return;
  if (error) error = at_transfer(std::move(*error), to).at_bucket(std::to_string(out.post->bucket.value));
  lane->second->ledger.finish(out.post->ticket, to.member, std::move(error));
}

// ---- both ----

void Exchange::take_end(Stream& stream, const Header& h) {
  const std::uint32_t member = stream.outgoing() ? stream.hello().to : stream.hello().from;
  LaneState* lane = lane_of(h.id, member);
  if ((h.code & kAsSender) != 0) {
    ended_.of_peer(member, h.id, true);
    const auto before = offers_.size();
    std::erase_if(offers_, [&](const Offer& o) { return o.member == member && o.header.id == h.id; });
    counters_.frames_foreign += before - offers_.size();
    if (lane != nullptr) {
      std::erase_if(lane->incoming, [&](auto& entry) {
        if (entry.first.first != member) return false;
        entry.second->dropped = true;
        return true;
      });
      lane->lose(member, Error(Code::kPeerLost, "the sender ended its part of the round"));
    }
  }
  const auto link = links_.find(member);
  if ((h.code & kAsRecipient) == 0) return;
  ended_.of_peer(member, h.id, false);
  if (link == links_.end() || link->second->peer.incarnation != h.id.incarnation) return;
  for (auto& out : link->second->todo)
    if (out->id.txn == h.id.txn) out->error = Error(Code::kPeerLost, "the recipient ended its part of the round");
}

// A sender is gone, or (only_granted) what it was sending is: lanes that still want something of it hear so in next().
void Exchange::lose(std::uint32_t member, Incarnation incarnation, const Error& error, bool only_granted) {
  for (auto& [serial, lane] : lanes_) {
    const auto peer = lane->peers.find(member);
    if (peer == lane->peers.end() || peer->second.incarnation != incarnation) continue;
    const auto dropped = std::erase_if(lane->incoming, [&](auto& entry) {
      if (entry.first.first != member) return false;
      entry.second->dropped = true;
      return true;
    });
    if (only_granted && dropped == 0) continue;
    lane->lose(member, error);
  }
}

}  // namespace refit::transport::tcp
