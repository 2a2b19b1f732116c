// The hub: who is there, what is under way, what time it is.
#include "transport/common/inproc.h"

#include <algorithm>
#include <chrono>

namespace refit::transport::inproc {
namespace {

constexpr std::size_t kEndedKept = 256;  // lanes of the past that a late opener may still ask about

struct Directory {
  std::mutex mutex;
  std::map<std::pair<bool, Hash128>, std::weak_ptr<Hub>> hubs;
};
Directory& directory() {
  static Directory d;
  return d;
}

}  // namespace

std::shared_ptr<Hub> Hub::find(bool simulated, const Hash128& job) {
  Directory& d = directory();
  const std::lock_guard lock(d.mutex);
  const auto it = d.hubs.find({simulated, job});
  return it == d.hubs.end() ? nullptr : it->second.lock();
}

std::shared_ptr<Hub> Hub::of(bool simulated, const Hash128& job, std::uint64_t seed) {
  Directory& d = directory();
  const std::lock_guard lock(d.mutex);
  std::erase_if(d.hubs, [](const auto& entry) { return entry.second.expired(); });
  auto& known = d.hubs[{simulated, job}];
  auto hub = known.lock();
  if (hub == nullptr) {
    hub = std::make_shared<Hub>(simulated, seed);
    hub->self_ = hub;
    known = hub;
  }
  return hub;
}

// splitmix64: small, seeded, the same everywhere.
std::uint64_t Hub::draw() {
  std::uint64_t z = (random_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::uint64_t Hub::join(std::uint32_t member, Counters* counters) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t mover = next_serial_++;
  nodes_[member] = {mover, counters};
  return mover;
}

void Hub::leave(std::uint64_t mover) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& n) { return n.second.mover == mover; });
  if (it == nodes_.end()) return;
  const std::uint32_t member = it->first;
  nodes_.erase(it);
  for (auto& [serial, lane] : lanes_)
    if (lane->member == member) {
      lane->lend.reset();
      (void)lane->ledger.fail(Error(Code::kCancelled, "the mover is shut down"));
      lane->posts.clear();
      lane->asks.clear();
    }
  fail_posts_to(member, nullptr);
  changed_.notify_all();
}

bool Hub::alive(const Peer& peer, const Hash128& job) {
  const auto card = decode_card(peer.card);
  if (!card.ok() || card->job != job || card->member != peer.member || card->incarnation != peer.incarnation)
    return false;
  const std::lock_guard lock(mutex_);
  const auto it = nodes_.find(peer.member);
  return it != nodes_.end() && it->second.mover == card->mover;
}

Counters Hub::read(const Counters& counters) const {
  const std::lock_guard lock(mutex_);
  return counters;
}

void Hub::set_faults(const SimFaults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
}

bool Hub::lost(const LaneState& lane, const Peer& peer) const {
  const auto card = decode_card(peer.card);
  const auto node = nodes_.find(peer.member);
  if (!card.ok() || node == nodes_.end() || node->second.mover != card->mover) return true;
  return std::find(ended_.begin(), ended_.end(), std::tuple(peer.member, peer.incarnation.value, lane.id.txn)) !=
         ended_.end();
}

Counters* Hub::counters_of(std::uint32_t member) const {
  static thread_local Counters nobody;
  const auto it = nodes_.find(member);
  return it == nodes_.end() ? &nobody : it->second.counters;
}

LaneState* Hub::lane_of(std::uint32_t member, const LaneState& like) const {
  for (const auto& [serial, lane] : lanes_)
    if (lane->member == member && lane->push == like.push && lane->id.txn == like.id.txn && !lane->over) return lane;
  return nullptr;
}

void Hub::open(LaneState& lane) {
  const std::lock_guard lock(mutex_);
  lane.serial = next_serial_++;
  // The same process may open the round again after a failure.
  std::erase(ended_, std::tuple(lane.member, lane.id.incarnation.value, lane.id.txn));
  lanes_[lane.serial] = &lane;
  pump();
  changed_.notify_all();
}

void Hub::fail_posts_to(std::uint32_t member, const Txn* txn) {
  for (auto& [serial, lane] : lanes_) {
    if (txn != nullptr && lane->id.txn != *txn) continue;
    std::erase_if(lane->posts, [&](const auto& post) {
      if (post.first.second != member) return false;
      const auto peer = lane->peers.find(member);
      lane->ledger.finish(
          post.first.first, member,
          Error(Code::kPeerLost, "the recipient left").at_peer(peer == lane->peers.end() ? "" : peer->second.name));
      return true;
    });
  }
}

void Hub::end(LaneState& lane, std::optional<Error> error) {
  const std::lock_guard lock(mutex_);
  const bool closing = !error.has_value();
  if (error) (void)lane.ledger.fail(std::move(*error));
  if (closing && lane.lend) lane.ledger.finish(kExposeTicket, lane.member);
  if (closing) lane.ledger.close();
  lane.lend.reset();
  lane.posts.clear();
  lane.asks.clear();
  if (!lane.over && lanes_.contains(lane.serial)) {
    lane.over = true;
    ended_.emplace_back(lane.member, lane.id.incarnation.value, lane.id.txn);
    if (ended_.size() > kEndedKept) ended_.pop_front();
    if (lane.push) fail_posts_to(lane.member, &lane.id.txn);
  }
  if (closing) lanes_.erase(lane.serial);
  changed_.notify_all();
}

void Hub::launch(const LaneState& lane, std::uint64_t ticket, std::uint32_t member) {
  if (!simulated_ || chance(faults_.drop)) return;  // a lost frame: its completion comes with the end of the lane
  const int copies = chance(faults_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const std::uint64_t delay = faults_.max_delay == 0 ? 0 : draw() % faults_.max_delay;
    in_flight_[{now_ + 1 + delay, next_frame_++}] = Frame{lane.serial, ticket, member, chance(faults_.corrupt)};
  }
}

bool Hub::step() {
  const std::lock_guard lock(mutex_);
  const bool moved = step_locked();
  changed_.notify_all();
  return moved;
}

bool Hub::step_locked() {
  for (auto it = in_flight_.begin(); it != in_flight_.end(); ++it) {
    if (deliver(it->second) == Fate::kWaits) continue;
    now_ = std::max(now_, it->first.first);
    in_flight_.erase(it);
    return true;
  }
  return false;
}

Hub::Fate Hub::deliver(const Frame& frame) {
  const auto it = lanes_.find(frame.lane);
  if (it == lanes_.end() || it->second->over) return Fate::kDone;  // it outlived its lane
  if (it->second->push) return deliver_post(*it->second, frame.ticket, frame.member, frame.corrupt);
  return deliver_ask(*it->second, frame.ticket, frame.corrupt);
}

void Hub::pump() {
  if (simulated_) return;
  for (auto& [serial, lane] : lanes_) {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> waiting;
    for (const auto& [key, post] : lane->posts) waiting.push_back(key);
    for (const auto& [ticket, member] : waiting) (void)deliver_post(*lane, ticket, member, false);
  }
}

void Hub::give_back(Staging& staging, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  staging.used -= bytes;
  pump();
  changed_.notify_all();
}

namespace {

struct Held final : Lease::Hold {
  Held(std::shared_ptr<Hub> h, std::shared_ptr<Staging> s, Bytes b)
      : hub(std::move(h)), staging(std::move(s)), bytes(std::move(b)) {}
  ~Held() override { hub->give_back(*staging, static_cast<std::int64_t>(bytes.size())); }
  std::shared_ptr<Hub> hub;  // shared with movers: a lease may outlive them
  std::shared_ptr<Staging> staging;
  Bytes bytes;
};

}  // namespace

Lease Hub::hand_out(LaneState& lane, std::shared_ptr<Hub> self) {
  Arrival arrival = std::move(lane.inbox.front());
  lane.inbox.pop_front();
  if (arrival.ticket != 0) lane.ledger.finish(arrival.ticket, arrival.sender);
  auto held = std::make_unique<Held>(std::move(self), lane.staging, std::move(arrival.bytes));
  const std::span<const std::byte> view = held->bytes;
  return Lease(arrival.bucket, arrival.sender, view, {}, std::move(held));
}

std::optional<Error> Hub::missing(const LaneState& lane) const {
  for (const auto& [key, bytes] : lane.expected) {
    const auto peer = lane.peers.find(key.first);
    if (lane.arrived.contains(key) || peer == lane.peers.end() || !lost(lane, peer->second)) continue;
    return Error(Code::kPeerLost, "the sender left before it had sent everything")
        .at_peer(peer->second.name)
        .at_stage("transfer")
        .at_bucket(std::to_string(key.second));
  }
  return std::nullopt;
}

Result<Lease> Hub::next(LaneState& lane, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    REFIT_TRY(lane.ledger.check());
    if (lane.push && !lane.expecting) return Error(Code::kInvalid, "expect() comes before the first next()");
    if (!simulated_ && lane.inbox.empty() && !lane.asks.empty())
      (void)deliver_ask(lane, lane.asks.begin()->first, false);
    if (!lane.inbox.empty()) return hand_out(lane, self_.lock());
    REFIT_TRY(lane.ledger.check());
    if (auto error = missing(lane)) return lane.ledger.fail(std::move(*error));
    if (simulated_ && step_locked()) continue;
    // Virtual time does not pass by itself: when no frame can move, the wait is over.
    if (simulated_ || deadline.over()) return Error(Code::kTimeout, "no bucket came");
    changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline.ns())));
  }
}

}  // namespace refit::transport::inproc
