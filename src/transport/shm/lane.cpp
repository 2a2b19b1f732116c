#include "transport/shm/lane.h"

#include "transport/common/segments.h"

namespace refit::transport::shm {

// Keeps the maps of a lease's descriptor alive.
struct PullLaneShm::View final : Lease::Hold {
  explicit View(std::shared_ptr<Loan> l) : loan(std::move(l)) {}
  std::shared_ptr<Loan> loan;
};

PullLaneShm::~PullLaneShm() { (void)close(Deadline::after_ns(0)); }

Result<Bytes> PullLaneShm::expose(std::span<const memory::RegionRef> regions) {
  REFIT_TRY(ledger_.check());
  const std::lock_guard lock(lend_mutex_);
  if (lend_) return Error(Code::kBusy, "this lane lends already: withdraw first");
  REFIT_ASSIGN(auto lent, state_->exports->lend(regions));
  Descriptor d;
  d.id = id_;
  d.member = state_->self.member;
  d.slot = lent.first.slot;
  d.epoch = lent.first.epoch;
  d.regions = std::move(lent.second);
  lend_ = std::move(lent.first);
  ledger_.open_as(kExposeTicket, d.member);
  return encode(d);
}

Status PullLaneShm::withdraw() {
  REFIT_TRY(ledger_.check());
  end_lend();
  return {};
}

void PullLaneShm::end_lend() {
  const std::lock_guard lock(lend_mutex_);
  if (!lend_) return;
  state_->exports->revoke(*lend_);
  lend_.reset();
  ledger_.finish(kExposeTicket, state_->self.member);
}

Status PullLaneShm::check_ours(const Descriptor& d, const Link& link) {
  const auto refuse = [&](const char* what) {
    state_->foreign.fetch_add(1);
    return Error(Code::kMismatch, std::string("descriptor of another ") + what).at_peer(link.peer().name);
  };
  if (d.id.job != id_.job) return refuse("job");
  if (d.id.txn != id_.txn) return refuse("round");
  if (d.member != link.peer().member) return refuse("member");
  if (d.id.incarnation != link.peer().incarnation) return refuse("incarnation");
  return {};
}

Result<std::shared_ptr<PullLaneShm::Loan>> PullLaneShm::loan_for(std::uint32_t sender, std::span<const std::byte> raw) {
  const auto link = links_.find(sender);
  if (link == links_.end())
    return Error(Code::kInvalid, "member " + std::to_string(sender) + " is no peer of this lane");
  auto& known = loans_[sender];
  if (known != nullptr && std::equal(raw.begin(), raw.end(), known->raw.begin(), known->raw.end())) return known;
  auto fresh = std::make_shared<Loan>();
  fresh->raw.assign(raw.begin(), raw.end());
  auto parsed = decode_descriptor(fresh->raw);
  if (!parsed.ok()) {
    state_->bad.fetch_add(1);
    return std::move(parsed).error().at_peer(link->second->peer().name);
  }
  REFIT_TRY(check_ours(*parsed, *link->second));
  fresh->descriptor = std::move(*parsed);
  for (const LentRegion& region : fresh->descriptor.regions) fresh->sizes.push_back(region.bytes);
  known = std::move(fresh);
  return known;
}

Result<std::uint64_t> PullLaneShm::request(BucketId bucket, std::uint32_t sender, std::span<const std::byte> descriptor,
                                           std::span<const Segment> segments) {
  REFIT_TRY(ledger_.check());
  REFIT_ASSIGN(auto loan, loan_for(sender, descriptor));
  REFIT_ASSIGN(const std::int64_t bytes, check_segments(bucket, segments, loan->sizes));
  Pending pending{0, bucket, sender, std::move(loan), {segments.begin(), segments.end()}, bytes};
  pending.ticket = ledger_.open(std::span(&sender, 1));
  pending_.push_back(std::move(pending));
  return pending_.back().ticket;
}

Status PullLaneShm::check_epoch(const Loan& loan, std::uint32_t sender) {
  const Link& link = *links_.at(sender);
  REFIT_ASSIGN(const MemoryEpoch now, links_.at(sender)->epoch(loan.descriptor.slot));
  if (now == loan.descriptor.epoch) return {};
  return Error(Code::kMismatch, "the lend was withdrawn (memory epoch " + std::to_string(loan.descriptor.epoch.value) +
                                    ", now " + std::to_string(now.value) + ")")
      .at_peer(link.peer().name);
}

Result<Lease> PullLaneShm::deliver(const Pending& p) {
  std::vector<const std::byte*> bases;
  bases.reserve(p.segments.size());
  for (const Segment& s : p.segments) {
    const LentRegion& region = p.loan->descriptor.regions[s.region];
    const auto map = p.loan->maps.find(region.file);
    const std::byte* start = map == p.loan->maps.end() ? nullptr : map->second->data() + region.offset;
    // An empty segment may carry any offset; no address is formed from it.
    REFIT_ASSIGN(const std::int64_t bytes, packed_bytes(s));
    bases.push_back(bytes == 0 ? start : start + s.offset);
  }
  state_->bytes_in.fetch_add(static_cast<std::uint64_t>(p.bytes));
  return Lease(p.bucket, p.sender, {}, std::move(bases), std::make_unique<View>(p.loan));
}

Result<Lease> PullLaneShm::next(Deadline deadline) {
  REFIT_TRY(ledger_.check());
  if (pending_.empty()) {
    const Ready ready = wait_readable(-1, wake_, deadline);
    if (ready == Ready::kWoken) REFIT_TRY(ledger_.check());
    return Error(Code::kTimeout, "no bucket was asked for");
  }
  Pending& front = pending_.front();
  const std::string bucket = std::to_string(front.bucket.value);
  const auto failed = [&](Error cause) {
    Error error = std::move(cause).at_stage("transfer").at_bucket(bucket);
    if (error.code == Code::kTimeout) return error;
    wake_.raise();
    return ledger_.fail(std::move(error));
  };
  Loan& loan = *front.loan;
  if (!loan.mapped) {
    auto maps = links_.at(front.sender)->maps(loan.descriptor.regions, deadline, wake_);
    if (!maps.ok()) return failed(std::move(maps).error());
    loan.maps = std::move(*maps);
    loan.mapped = true;
  }
  if (auto valid = check_epoch(loan, front.sender); !valid.ok()) return failed(std::move(valid).error());
  auto lease = deliver(front);
  if (!lease.ok()) return failed(std::move(lease).error());
  ledger_.finish(front.ticket, front.sender);
  pending_.pop_front();
  return lease;
}

Status PullLaneShm::recheck(std::uint32_t sender) {
  REFIT_TRY(ledger_.check());
  const auto loan = loans_.find(sender);
  if (loan == loans_.end() || loan->second == nullptr || !loan->second->mapped)
    return Error(Code::kInvalid, "nothing was read from member " + std::to_string(sender) + " in this lane");
  // The caller's reads of the bucket must be done before the slot is looked at.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (auto valid = check_epoch(*loan->second, sender); !valid.ok())
    return ledger_.fail(std::move(valid).error().at_stage("transfer"));
  return {};
}

void PullLaneShm::abort(Error error) {
  (void)ledger_.fail(std::move(error));
  wake_.raise();
  const std::lock_guard lock(lend_mutex_);
  if (lend_) state_->exports->revoke(*lend_);
  lend_.reset();
}

Status PullLaneShm::close(Deadline /*deadline*/) {
  end_lend();
  ledger_.close();
  wake_.raise();
  pending_.clear();
  loans_.clear();
  return {};
}

}  // namespace refit::transport::shm
