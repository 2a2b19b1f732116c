#include "transport/common/push.h"

#include <algorithm>
#include <cstring>

namespace refit::transport {
namespace {

constexpr std::size_t kOwnEnded = 64, kEndedPerPeer = 16;
constexpr std::size_t kPeersEnded = 1 << 16;  // member numbers come from outside

// A lease's hold: the place in staging, free again when the lease is dropped.
struct StagedHold final : Lease::Hold {
  explicit StagedHold(Staging::Slot s) : slot(std::move(s)) {}
  Staging::Slot slot;
};

Lease to_lease(Arrived a) {
  const std::span<const std::byte> bytes(a.slot.data(), static_cast<std::size_t>(a.bytes));
  return Lease(a.bucket, a.sender, bytes, {}, std::make_unique<StagedHold>(std::move(a.slot)));
}

void keep_newest(std::deque<LaneId>& all, const LaneId& id, std::size_t most) {
  if (std::find(all.begin(), all.end(), id) != all.end()) return;
  all.push_back(id);
  if (all.size() > most) all.pop_front();
}

}  // namespace

std::optional<Key2> PushState::missing(bool gone) const {
  for (const auto& [key, most] : expected)
    if (!arrived.contains(key) && (!gone || lost.contains(key.first))) return key;
  return std::nullopt;
}

void PushState::deliver(Arrived a) {
  const std::lock_guard lock(mutex);
  arrived.emplace(a.sender, a.bucket.value);
  inbox.push_back(std::move(a));
  changed.notify_all();
}

void PushState::lose(std::uint32_t sender, Error error) {
  const std::lock_guard lock(mutex);
  lost.emplace(sender, at_transfer(std::move(error), peers.at(sender)));
  changed.notify_all();
}

void PushState::clear_inbox() {
  const std::lock_guard lock(mutex);
  inbox.clear();
  changed.notify_all();
}

Error at_transfer(Error error, const Peer& peer) { return std::move(error).at_peer(peer.name).at_stage("transfer"); }

Result<Wanted> check_expected(PushState& lane, std::span<const Expected> buckets, std::int64_t staging_limit) {
  REFIT_TRY(lane.ledger.check());
  Wanted out;
  for (const Expected& e : buckets) {
    if (!lane.peers.contains(e.sender))
      return Error(Code::kInvalid, "member " + std::to_string(e.sender) + " is no peer of this lane");
    if (e.max_bytes < 0) return Error(Code::kInvalid, "a bucket with a negative size is expected");
    if (!out.buckets.emplace(Key2(e.sender, e.bucket.value), e.max_bytes).second)
      return Error(Code::kInvalid, "a bucket is expected twice").at_bucket(std::to_string(e.bucket.value));
    std::int64_t& largest = out.senders[e.sender];
    largest = std::max(largest, e.max_bytes);
  }
  // Rounded up to pages, as places in staging are; saturated, since sizes come from outside.
  for (const auto& [sender, bytes] : out.senders)
    out.staging = std::min(staging_limit, out.staging + kGrantsPerSender * (std::min(bytes, staging_limit) + 4096));
  const std::lock_guard lock(lane.mutex);
  if (lane.expecting) return Error(Code::kInvalid, "expect was called before in this lane");
  return out;
}

Status check_posting(const PushState& lane, std::span<const std::uint32_t> to) {
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

Result<Lease> next_lease(PushState& lane, Deadline deadline, const std::function<void(const Error&)>& end) {
  std::unique_lock lock(lane.mutex);
  if (Status s = lane.ledger.check(); !s.ok()) return s.error();
  if (!lane.expecting) return Error(Code::kInvalid, "next before expect");
  while (true) {
    if (Status s = lane.ledger.check(); !s.ok()) return s.error();
    if (!lane.inbox.empty()) {
      Arrived a = std::move(lane.inbox.front());
      lane.inbox.pop_front();
      return to_lease(std::move(a));
    }
    if (const auto gone = lane.missing(true)) {
      const Error error = Error(lane.lost.at(gone->first)).at_bucket(std::to_string(gone->second));
      lock.unlock();
      end(error);
      return lane.ledger.check().error();
    }
    if (deadline.over()) {
      Error late(Code::kTimeout, "no bucket arrived within the deadline");
      const auto first = lane.missing(false);
      if (!first) return late;
      return at_transfer(std::move(late), lane.peers.at(first->first)).at_bucket(std::to_string(first->second));
    }
    lane.changed.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()));
  }
}

std::shared_ptr<Post> make_post(BucketId bucket, std::span<const std::span<const std::byte>> parts) {
  auto post = std::make_shared<Post>();
  post->bucket = bucket;
  for (const auto& part : parts) {
    if (part.empty()) continue;
    post->parts.push_back(part);
    post->bytes += part.size();
  }
  return post;
}

std::size_t parts_at(const Post& post, Cursor at, std::uint64_t limit, std::span<iovec> out) {
  std::size_t n = 0;
  for (; limit > 0 && n < out.size() && at.part < post.parts.size(); ++at.part, at.offset = 0) {
    const auto part = post.parts[at.part].subspan(at.offset);
    const std::size_t take = std::min<std::uint64_t>(part.size(), limit);
    if (take == 0) continue;
    out[n++] = {const_cast<std::byte*>(part.data()), take};
    limit -= take;
  }
  return n;
}

void advance(const Post& post, Cursor& at, std::uint64_t bytes) {
  while (bytes > 0) {
    const std::size_t here = post.parts[at.part].size() - at.offset;
    const std::size_t step = std::min<std::uint64_t>(here, bytes);
    at.offset += step;
    bytes -= step;
    if (at.offset == post.parts[at.part].size()) ++at.part, at.offset = 0;
  }
}

void copy_parts(const Post& post, Cursor& at, std::span<std::byte> to) {
  while (!to.empty()) {
    const auto part = post.parts[at.part].subspan(at.offset);
    const std::size_t take = std::min(part.size(), to.size());
    std::memcpy(to.data(), part.data(), take);
    to = to.subspan(take);
    advance(post, at, take);
  }
}

void Endings::own(const LaneId& id) { keep_newest(own_, id, kOwnEnded); }

void Endings::of_peer(std::uint32_t member, const LaneId& id, bool as_sender) {
  const std::pair key(member, as_sender);
  if (peers_.size() >= kPeersEnded && !peers_.contains(key)) return;
  keep_newest(peers_[key], id, kEndedPerPeer);
}

bool Endings::own_ended(const LaneId& id) const {
  return std::any_of(own_.begin(), own_.end(), [&](const LaneId& e) { return e.job == id.job && e.txn == id.txn; });
}

bool Endings::peer_ended(std::uint32_t member, const LaneId& id, bool as_sender) const {
  const auto at = peers_.find({member, as_sender});
  return at != peers_.end() && std::find(at->second.begin(), at->second.end(), id) != at->second.end();
}

}  // namespace refit::transport
