// What the hub does for push and pull lanes.
#include <algorithm>

#include "transport/common/inproc.h"
#include "transport/common/segments.h"

namespace refit::transport::inproc {
namespace {

// The smallest change that a digest must notice.
void flip_a_bit(Bytes& bytes) {
  if (!bytes.empty()) bytes[bytes.size() / 2] ^= std::byte{0x10};
}
// The credit rule: a bucket fits, or it is the only one.
bool fits(const Staging& staging, std::int64_t bytes) {
  return staging.used == 0 || bytes <= staging.limit - staging.used;
}

}  // namespace

Status Hub::expect(LaneState& lane, std::span<const Expected> buckets) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  if (lane.expecting) return Error(Code::kInvalid, "expect() is called once a round");
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> wanted;
  for (const Expected& e : buckets) {
    const std::string which = "bucket " + std::to_string(e.bucket.value) + " from member " + std::to_string(e.sender);
    if (!lane.peers.contains(e.sender)) return Error(Code::kInvalid, which + ": no peer of this lane");
    if (e.max_bytes < 0) return Error(Code::kInvalid, which + ": negative size");
    if (!wanted.emplace(std::pair(e.sender, e.bucket.value), e.max_bytes).second)
      return Error(Code::kInvalid, which + " is expected twice");
  }
  lane.expected = std::move(wanted);
  lane.expecting = true;
  pump();
  changed_.notify_all();
  return {};
}

Result<std::uint64_t> Hub::post(LaneState& lane, BucketId bucket, std::span<const std::span<const std::byte>> parts,
                                std::span<const std::uint32_t> to) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  Post post{bucket, {parts.begin(), parts.end()}, 0};
  for (const auto& part : parts) post.bytes += static_cast<std::int64_t>(part.size());
  if (to.empty()) return Error(Code::kInvalid, "a bucket without a recipient");
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!lane.peers.contains(to[i]) || std::find(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(i), to[i]) !=
                                           to.begin() + static_cast<std::ptrdiff_t>(i))
      return Error(Code::kInvalid, "recipient " + std::to_string(to[i]) + " is no peer of this lane, or named twice");
  const std::uint64_t ticket = lane.ledger.open(to);
  for (std::uint32_t member : to) {
    const Peer& peer = lane.peers.at(member);
    if (lost(lane, peer)) {
      lane.ledger.finish(ticket, member, Error(Code::kPeerLost, "the recipient is gone").at_peer(peer.name));
      continue;
    }
    lane.posts.emplace(std::pair(ticket, member), post);
    launch(lane, ticket, member);
  }
  pump();
  changed_.notify_all();
  return ticket;
}

Hub::Fate Hub::deliver_post(LaneState& from, std::uint64_t ticket, std::uint32_t member, bool corrupt) {
  LaneState* to = lane_of(member, from);
  const auto found = from.posts.find({ticket, member});
  if (to == nullptr || !to->expecting) return found == from.posts.end() ? Fate::kDone : Fate::kWaits;
  Counters& counters = *counters_of(member);
  if (found == from.posts.end()) {  // its twin was here before
    ++counters.frames_duplicate;
    return Fate::kDone;
  }
  const Post post = found->second;
  const auto finish = [&](std::optional<Error> error) {
    from.ledger.finish(ticket, member, std::move(error));
    from.posts.erase({ticket, member});
    changed_.notify_all();
    return Fate::kDone;
  };
  const auto known = to->peers.find(from.member);
  const std::string name = from.peers.at(member).name;
  if (known == to->peers.end() || known->second.incarnation != from.id.incarnation) {
    ++counters.frames_foreign;
    return finish(Error(Code::kMismatch, "the recipient does not know this incarnation of the sender").at_peer(name));
  }
  const std::pair key(from.member, post.bucket.value);
  const auto expected = to->expected.find(key);
  if (expected == to->expected.end()) {
    ++counters.frames_bad;
    return finish(Error(Code::kMismatch, "the recipient does not expect this bucket")
                      .at_peer(name)
                      .at_bucket(std::to_string(post.bucket.value)));
  }
  if (to->arrived.contains(key)) {
    ++counters.frames_duplicate;
    return finish(Error(Code::kMismatch, "the recipient has this bucket already")
                      .at_peer(name)
                      .at_bucket(std::to_string(post.bucket.value)));
  }
  if (post.bytes > expected->second) {
    ++counters.frames_bad;
    Error large = Error(Code::kCorrupt, "bucket is larger than announced")
                      .amounts(post.bytes, expected->second)
                      .at_bucket(std::to_string(post.bucket.value));
    (void)to->ledger.fail(Error(large).at_peer(known->second.name));
    return finish(std::move(large).at_peer(name));
  }
  if (!fits(*to->staging, post.bytes)) return Fate::kWaits;
  Bytes bytes;
  bytes.reserve(static_cast<std::size_t>(post.bytes));
  for (const auto& part : post.parts) bytes.insert(bytes.end(), part.begin(), part.end());
  if (corrupt) flip_a_bit(bytes);
  to->staging->used += post.bytes;
  to->arrived.insert(key);
  to->inbox.push_back({post.bucket, from.member, 0, std::move(bytes)});
  counters.bytes_in += static_cast<std::uint64_t>(post.bytes);
  counters_of(from.member)->bytes_out += static_cast<std::uint64_t>(post.bytes);
  return finish(std::nullopt);
}

Result<Bytes> Hub::expose(LaneState& lane, std::span<const memory::RegionRef> regions) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  if (lane.lend) return Error(Code::kBusy, "this lane lends already: withdraw first");
  Descriptor d{lane.id, lane.member, lane.serial, next_epoch_++, {}};
  for (const memory::RegionRef& region : regions) {
    if (region.bytes < 0) return Error(Code::kInvalid, "a region with a negative length");
    d.sizes.push_back(region.bytes);
  }
  lane.lend = Lend{d.epoch, {regions.begin(), regions.end()}};
  lane.ledger.open_as(kExposeTicket, lane.member);
  return encode(d);
}

Status Hub::withdraw(LaneState& lane) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  if (lane.lend) lane.ledger.finish(kExposeTicket, lane.member);
  lane.lend.reset();
  return {};
}

Result<std::uint64_t> Hub::request(LaneState& lane, BucketId bucket, std::uint32_t sender,
                                   std::span<const std::byte> raw, std::span<const Segment> segments) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  const auto peer = lane.peers.find(sender);
  if (peer == lane.peers.end())
    return Error(Code::kInvalid, "member " + std::to_string(sender) + " is no peer of this lane");
  auto d = decode_descriptor(raw);
  if (!d.ok()) {
    ++counters_of(lane.member)->frames_bad;
    return std::move(d).error().at_peer(peer->second.name);
  }
  if (d->id.job != lane.id.job || d->id.txn != lane.id.txn || d->member != sender ||
      d->id.incarnation != peer->second.incarnation) {
    ++counters_of(lane.member)->frames_foreign;
    return Error(Code::kMismatch, "descriptor of another job, round, member or incarnation").at_peer(peer->second.name);
  }
  REFIT_ASSIGN(const std::int64_t bytes, check_segments(bucket, segments, d->sizes));
  const std::uint64_t ticket = lane.ledger.open(std::span(&sender, 1));
  lane.asks.emplace(ticket, Ask{bucket, sender, d->lender, d->epoch, {segments.begin(), segments.end()}, bytes});
  launch(lane, ticket, sender);
  return ticket;
}

std::optional<Error> Hub::still_lent(const LaneState& reader, std::uint32_t sender, std::uint64_t lender,
                                     std::uint64_t epoch) const {
  const Peer& peer = reader.peers.at(sender);
  const auto card = decode_card(peer.card);
  const auto node = nodes_.find(sender);
  if (!card.ok() || node == nodes_.end() || node->second.mover != card->mover)
    return Error(Code::kPeerLost, "the source is gone").at_peer(peer.name).at_stage("transfer");
  const auto lane = lanes_.find(lender);
  if (lane == lanes_.end() || !lane->second->lend || lane->second->lend->epoch != epoch)
    return Error(Code::kMismatch, "the lend was withdrawn").at_peer(peer.name).at_stage("transfer");
  return std::nullopt;
}

Hub::Fate Hub::deliver_ask(LaneState& lane, std::uint64_t ticket, bool corrupt) {
  const auto found = lane.asks.find(ticket);
  if (found == lane.asks.end()) {
    ++counters_of(lane.member)->frames_duplicate;
    return Fate::kDone;
  }
  const Ask& ask = found->second;
  if (auto error = still_lent(lane, ask.sender, ask.lender, ask.epoch)) {
    (void)lane.ledger.fail(std::move(*error).at_bucket(std::to_string(ask.bucket.value)));
    lane.asks.clear();
    changed_.notify_all();
    return Fate::kDone;
  }
  if (!fits(*lane.staging, ask.bytes)) return Fate::kWaits;
  Bytes bytes;
  bytes.reserve(static_cast<std::size_t>(ask.bytes));
  const auto& regions = lanes_.at(ask.lender)->lend->regions;
  for (const Segment& s : ask.segments) gather(s, regions[s.region].data, bytes);
  if (corrupt) flip_a_bit(bytes);
  lane.staging->used += ask.bytes;
  lane.last_read[ask.sender] = {ask.lender, ask.epoch};
  lane.inbox.push_back({ask.bucket, ask.sender, ticket, std::move(bytes)});
  counters_of(lane.member)->bytes_in += static_cast<std::uint64_t>(ask.bytes);
  counters_of(ask.sender)->bytes_out += static_cast<std::uint64_t>(ask.bytes);
  lane.asks.erase(found);
  changed_.notify_all();
  return Fate::kDone;
}

Status Hub::recheck(LaneState& lane, std::uint32_t sender) {
  const std::lock_guard lock(mutex_);
  REFIT_TRY(lane.ledger.check());
  const auto read = lane.last_read.find(sender);
  if (read == lane.last_read.end())
    return Error(Code::kInvalid, "nothing was read from member " + std::to_string(sender) + " in this lane");
  if (auto error = still_lent(lane, sender, read->second.first, read->second.second))
    return lane.ledger.fail(std::move(*error));
  return {};
}

}  // namespace refit::transport::inproc
