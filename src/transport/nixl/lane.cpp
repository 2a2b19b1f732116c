#include "transport/nixl/lane.h"

#include <algorithm>
#include <chrono>

#include "transport/common/segments.h"

namespace refit::transport::nixl {
namespace {

struct Held final : Lease::Hold {
  explicit Held(Staging::Slot s) : slot(std::move(s)) {}
  Staging::Slot slot;
};

}  // namespace

PullLaneNixl::~PullLaneNixl() { (void)close(Deadline::after_ns(0)); }

Result<Bytes> PullLaneNixl::expose(std::span<const memory::RegionRef> regions) {
  REFIT_TRY(state_->ledger.check());
  const std::lock_guard lock(lend_mutex_);
  if (lend_) return Error(Code::kBusy, "this lane lends already: withdraw first");
  REFIT_ASSIGN(Exports::Lend lent, engine_->exports().lend(regions));
  Descriptor d;
  d.id = state_->id;
  d.member = engine_->options().member;
  d.epoch = lent.epoch;
  d.metadata = std::move(lent.metadata);
  d.regions = std::move(lent.regions);
  lend_ = lent.epoch;
  state_->ledger.open_as(kExposeTicket, d.member);
  return encode(d);
}

Status PullLaneNixl::withdraw() {
  REFIT_TRY(state_->ledger.check());
  end_lend();
  return {};
}

void PullLaneNixl::end_lend() {
  const std::lock_guard lock(lend_mutex_);
  if (!lend_) return;
  engine_->exports().revoke(*lend_);
  lend_.reset();
  state_->ledger.finish(kExposeTicket, engine_->options().member);
}

Status PullLaneNixl::check_ours(const Descriptor& d, const Peer& peer) {
  const auto refuse = [&](const char* what) {
    engine_->note_foreign();
    return Error(Code::kMismatch, std::string("descriptor of another ") + what).at_peer(peer.name);
  };
  if (d.id.job != state_->id.job) return refuse("job");
  if (d.id.txn != state_->id.txn) return refuse("round");
  if (d.member != peer.member) return refuse("member");
  if (d.id.incarnation != peer.incarnation) return refuse("incarnation");
  return {};
}

Result<std::shared_ptr<Loan>> PullLaneNixl::loan_for(const Peer& peer, std::span<const std::byte> raw) {
  auto& known = loans_[peer.member];
  if (known != nullptr && std::equal(raw.begin(), raw.end(), known->raw.begin(), known->raw.end())) return known;
  auto fresh = std::make_shared<Loan>();
  fresh->raw.assign(raw.begin(), raw.end());
  auto parsed = decode_descriptor(fresh->raw);
  if (!parsed.ok()) {
    engine_->note_bad();
    return std::move(parsed).error().at_peer(peer.name);
  }
  REFIT_TRY(check_ours(*parsed, peer));
  fresh->descriptor = std::move(*parsed);
  fresh->metadata = hash128(fresh->descriptor.metadata);
  for (const LentRegion& region : fresh->descriptor.regions) fresh->sizes.push_back(region.bytes);
  known = std::move(fresh);
  return known;
}

Result<std::uint64_t> PullLaneNixl::request(BucketId bucket, std::uint32_t sender,
                                            std::span<const std::byte> descriptor, std::span<const Segment> segments) {
  REFIT_TRY(state_->ledger.check());
  const auto peer = state_->peers.find(sender);
  if (peer == state_->peers.end())
    return Error(Code::kInvalid, "member " + std::to_string(sender) + " is no peer of this lane");
  REFIT_ASSIGN(auto loan, loan_for(peer->second, descriptor));
  REFIT_ASSIGN(const std::int64_t bytes, check_segments(bucket, segments, loan->sizes));
  auto cut = nixl::cut(segments, bytes, engine_->staging_limit());
  if (!cut.ok())
    return std::move(cut).error().at_peer(peer->second.name).at_bucket(std::to_string(bucket.value));
  if (cut->slot > engine_->staging_limit())
    return Error(Code::kUnsupported,
                 "refit.staging_bytes does not hold this bucket: raise it, or lower refit.bucket_bytes")
        .at_peer(peer->second.name)
        .at_bucket(std::to_string(bucket.value))
        .amounts(cut->slot, engine_->staging_limit());
  Ask ask{state_, 0, bucket, sender, std::move(loan), std::move(*cut)};
  const std::uint64_t ticket = ask.ticket = state_->ledger.open(std::span(&sender, 1));
  asked_.emplace_back(sender, bucket);
  engine_->submit(std::move(ask));
  return ticket;
}

Result<Lease> PullLaneNixl::hand_out(Arrived a) {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(a.loan->mutex);
    link = a.loan->link;
  }
  // The source may have died since it answered; nothing that its round cannot finish is handed out.
  if (link == nullptr || link->hung_up())
    return state_->fail(Error(Code::kPeerLost, "the source's process is gone")
                            .at_peer(state_->peers.at(a.sender).name)
                            .at_stage("transfer")
                            .at_bucket(std::to_string(a.bucket.value)));
  state_->ledger.finish(a.ticket, a.sender);
  std::erase(asked_, std::pair(a.sender, a.bucket));
  read_[a.sender] = std::move(a.loan);
  const std::span<const std::byte> packed(a.slot.data(), static_cast<std::size_t>(a.bytes));
  return Lease(a.bucket, a.sender, packed, {}, std::make_unique<Held>(std::move(a.slot)));
}

Result<Lease> PullLaneNixl::next(Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  while (true) {
    REFIT_TRY(state_->ledger.check());
    if (!state_->inbox.empty()) {
      Arrived a = std::move(state_->inbox.front());
      state_->inbox.pop_front();
      lock.unlock();
      return hand_out(std::move(a));
    }
    if (deadline.over()) break;
    state_->changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::int64_t>(deadline.left_ns(), kNsPerSecond)));
  }
  if (asked_.empty()) return Error(Code::kTimeout, "no bucket was asked for");
  const auto& [sender, bucket] = asked_.front();
  return Error(Code::kTimeout, "no bucket came; it waits for " + state_->waits_for)
      .at_peer(state_->peers.at(sender).name)
      .at_stage("transfer")
      .at_bucket(std::to_string(bucket.value));
}

Status PullLaneNixl::recheck(std::uint32_t sender) {
  REFIT_TRY(state_->ledger.check());
  const auto loan = read_.find(sender);
  if (loan == read_.end())
    return Error(Code::kInvalid, "nothing was read from member " + std::to_string(sender) + " in this lane");
  const Peer& peer = state_->peers.at(sender);
  // The link judges an answer that does not come; the deadline here is for what it cannot see.
  const Deadline deadline = Deadline::after_ns(2 * engine_->options().net.stall_ns);
  const auto open = engine_->question(peer, loan->second->descriptor.epoch, deadline, &state_->ledger);
  REFIT_TRY(state_->ledger.check());
  if (!open.ok()) return state_->fail(Error(open.error()).at_stage("transfer"));
  if (*open) return {};
  return state_->fail(Error(Code::kMismatch, "the lend was withdrawn (memory epoch " +
                                                 std::to_string(loan->second->descriptor.epoch.value) + ")")
                          .at_peer(peer.name)
                          .at_stage("transfer"));
}

void PullLaneNixl::abort(Error error) {
  (void)state_->fail(std::move(error));
  engine_->wake();
  end_lend();
}

Status PullLaneNixl::close(Deadline /*deadline*/) {
  end_lend();
  state_->ledger.close();
  (void)state_->fail(Error(Code::kCancelled, "the lane is closed"));
  engine_->wake();
  loans_.clear();
  read_.clear();
  asked_.clear();
  return {};
}

}  // namespace refit::transport::nixl
