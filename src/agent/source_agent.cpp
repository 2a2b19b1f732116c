#include "agent/source_agent.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "kernel/kernel.h"

namespace refit::agent {
namespace {
static_assert(plan::kMaxSharedBlocks * 12 + 4096 <= transport::kMaxControlBytes);
constexpr std::int64_t kPublishSliceNs = 50'000'000;  // how often a wait for publish looks for a cancellation
// A trainer that offers a later step than a round asks for will hardly come back to it: only one that is about to load an
// older checkpoint does. So long it may take until it says so (guard, publish).
constexpr std::int64_t kGoneOnNs = 2 * kNsPerSecond;

std::uint64_t upper_entries(const plan::RankPlan& plan) { return plan.pieces.size(); }
}  // namespace

Result<std::unique_ptr<SourceAgent>> make_source_agent(const AgentOptions& options, engine::Shard& shard) {
  return SourceDriver::make(options, shard);
}

SourceDriver::SourceDriver(const AgentOptions& options, engine::Shard& shard, install::Identity identity)
    : Member(options), shard_(shard), state_(start_source(std::move(identity), monotonic_ns())) {}
SourceDriver::~SourceDriver() { [[maybe_unused]] const Status s = close(Deadline::after_s(1)); }

Result<std::unique_ptr<SourceAgent>> SourceDriver::make(const AgentOptions& options, engine::Shard& shard) {
  const std::shared_ptr<const model::Layout> layout = shard.layout();
  install::Identity identity{.job = options.job,
                             .name = options.name,
                             .incarnation = options.incarnation,
                             .layout_digest = layout->digest(),
                             .layout = to_bytes(layout->serialise()),
                             .card = options.data->card(),
                             .staging_bytes = 0,
                             .heartbeat_ns = options.heartbeat_ns};
  std::unique_ptr<SourceDriver> d(new SourceDriver(options, shard, std::move(identity)));
  REFIT_TRY(check_rank(*layout, options.name, shard.rank()));
  REFIT_TRY(d->open_lane());
  return std::unique_ptr<SourceAgent>(std::move(d));
}

Status SourceDriver::run(Deadline deadline) { return loop(deadline); }

Status SourceDriver::close(Deadline deadline) {
  {
    const std::lock_guard lock(publish_mutex_);
    held_ = false;
  }
  published_changed_.notify_all();
  withdrawn_ = true;
  const Status s = close_threads(deadline);
  if (outlet_) {
    const Status l = outlet_->close(deadline);
    outlet_.reset();
    if (!l.ok()) return l;
  }
  return s;
}

AgentReport SourceDriver::report() const {
  AgentReport report;
  {
    const std::lock_guard lock(publish_mutex_);
    report = report_;
  }
  count_into(report);
  return report;
}

std::int64_t SourceDriver::published() const {
  const std::lock_guard lock(publish_mutex_);
  return published_ ? published_step_ : -1;
}

void SourceDriver::publish(std::int64_t step, const std::string& weight_set) {
  {
    const std::lock_guard lock(publish_mutex_);
    published_ = true;
    published_step_ = step;
    weight_set_ = weight_set;
    published_writes_ = shard_.write_counter();
  }
  published_changed_.notify_all();
}

Status SourceDriver::guard(Deadline deadline) {
  std::unique_lock lock(publish_mutex_);
  const bool free =
      published_changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns()), [&] { return !held_; });
  if (!free)
    return Error(Code::kBusy, "the weights are lent to a round; the optimizer must not write before it ends")
        .at_peer(options_.name.to_string());
  published_ = false;  // what was published is about to change
  return {};
}

void SourceDriver::on_connection(bool up) {
  if (up)
    feed(install::ConnectionUp{});
  else
    feed(install::ConnectionDown{});
}

// Whether a source sends or others read its memory, the transfer is seen while the lend is out.
void SourceDriver::on_tick() {
  feed(install::Tick{});
  if (state_.phase != SourcePhase::kLending || transfer_seen_ == state_.txn) return;
  transfer_seen_ = state_.txn;
  observe(Phase::kTransfer, state_.txn);
}

// Events that an action causes at once wait until the actions before them are done: the order given is the contract.
void SourceDriver::feed(SourceEventKind what) {
  events_.push_back(std::move(what));
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    SourceEvent event{monotonic_ns(), std::move(events_.front())};
    events_.pop_front();
    std::vector<SourceAction> todo = step(state_, event, ignored_);
    busy_ = state_.phase != SourcePhase::kIdle;
    wire::Heartbeat h = progress_now();
    h.state = to_member_state(state_.phase);
    keep_alive_with(state_.link.welcomed
                        ? std::optional(install::envelope(state_.link, state_.self, state_.txn, state_.sent, h))
                        : std::nullopt);
    {
      const std::lock_guard lock(publish_mutex_);
      report_.welcomed = state_.link.welcomed;
      report_.rejected = state_.link.rejected;
      report_.refused = state_.link.refused;
    }
    for (SourceAction& action : todo) std::visit([&](auto& a) { perform(a); }, action);
  }
  feeding_ = false;
}

void SourceDriver::perform(install::Send& a) {
  if (auto* heartbeat = std::get_if<wire::Heartbeat>(&a.envelope.message)) heartbeat->published = published();
  send(a.envelope);
}
void SourceDriver::perform(install::Observe& a) { observe(a.phase, a.txn); }

void SourceDriver::perform(install::MakePlan& a) {
  work([this, configure = std::move(a.configure), seed = state_.link.digest_seed.value_or(0)]() -> Finish {
    const std::int64_t start = monotonic_ns();
    const Status s = take_plan(configure, seed);
    const std::lock_guard lock(publish_mutex_);
    report_.plan_ns = monotonic_ns() - start;
    if (planned_) report_.bytes_needed = planned_->plan.bytes_needed, report_.bytes_moved = planned_->plan.bytes_moved;
    if (!s.ok())
      return [this, e = s.error(), epoch = configure.layout_epoch] { feed(install::PlanFailed{epoch, {e}}); };
    return [this, epoch = configure.layout_epoch, id = planned_->plan.id] { feed(install::PlanMade{epoch, id}); };
  });
}

Status SourceDriver::take_plan(const wire::Configure& configure, std::uint64_t digest_seed) {
  sealer_.reset();
  outlet_.reset();
  const PlanId former = planned_ && seed_ == digest_seed ? planned_->plan.id : PlanId{};
  REFIT_ASSIGN(Planned planned, make_planned(configure, options_.name));
  if (planned.source->digest() != state_.self.layout_digest)
    return Error(Code::kMismatch, "the coordinator sent another layout than this rank's own").at_stage("plan");
  // It refers to the plan that goes, and holds bytes as that encoding wants them.
  if (former != planned.plan.id || planned_->encode != planned.encode) baseline_.reset();
  planned_ = std::move(planned);
  seed_ = digest_seed;
  REFIT_TRY(lend_regions());
  REFIT_TRY(lend_values());
  REFIT_TRY(lend_codes());
  const auto bytes = wire::manifest_bytes(planned_->plan.shared_with.size(), planned_->plan.buckets.size(),
                                          upper_entries(planned_->plan));
  if (page_.bytes() < static_cast<std::int64_t>(bytes)) {
    page_ = {};
    REFIT_ASSIGN(page_, memory::SharedRegion::make(*options_.runtime.env, static_cast<std::int64_t>(bytes),
                                                   options_.budget, "manifest page"));
  }
  lent_.push_back({page_.data(), page_.bytes(), memory::Kind::kHostShared, &page_});
  if (planned_->deltas() && !baseline_) {
    const codec::Form form = planned_->encode == Encode::kOverwrite ? codec::Form::kOverwrite : codec::Form::kUndoable;
    REFIT_ASSIGN(baseline_, Baseline::make(*planned_, {form, options_.baseline_dir, exec(), options_.budget}));
  }
  REFIT_ASSIGN(outlet_, Outlet::make({options_.data, &*planned_, lent_, exec(), options_.budget,
                                        planned_->deltas() ? baseline_.get() : nullptr}));
  sealer_ = std::make_unique<Sealer>(planned_->plan, std::span(lent_).first(lent_.size() - 1), digest_seed, exec(),
                                     &planned_->options);
  return {};
}

// The buffer that stages write, after the shard's own.
Status SourceDriver::lend_values() {
  stages_.reset();
  if (planned_->plan.transforms.empty()) return {};
  // A rank without an element of those tensors lends the buffer too, so that all ranks' regions are numbered alike.
  const std::int64_t bytes = std::max<std::int64_t>(1, planned_->plan.value_bytes);
  if (values_.bytes() != bytes || values_.data() == nullptr) {
    values_ = {};
    REFIT_ASSIGN(values_,
                 memory::SharedRegion::make(*options_.runtime.env, bytes, options_.budget, "transformed values"));
  }
  lent_.push_back({values_.data(), values_.bytes(), memory::Kind::kHostShared, &values_});
  stages_ = std::make_unique<ValueStages>(planned_->plan, planned_->options);
  return {};
}

// Likewise, behind the values.
Status SourceDriver::lend_codes() {
  quantising_.reset();
  if (planned_->plan.quantised.empty()) {
    codes_ = {};
    return {};
  }
  const std::int64_t bytes = std::max<std::int64_t>(1, planned_->plan.quant.bytes);
  if (codes_.bytes() != bytes || codes_.data() == nullptr) {
    codes_ = {};
    REFIT_ASSIGN(codes_, memory::SharedRegion::make(*options_.runtime.env, bytes, options_.budget, "quantised weights"));
  }
  lent_.push_back({codes_.data(), codes_.bytes(), memory::Kind::kHostShared, &codes_});
  REFIT_ASSIGN(Quantising made, Quantising::make(planned_->plan, planned_->options));
  quantising_ = std::make_unique<Quantising>(std::move(made));
  return {};
}

// The shard's own memory where it can be lent, else a copy of it that is refreshed at each publish.
Status SourceDriver::lend_regions() {
  moved_ = false;
  lent_.assign(shard_.regions().begin(), shard_.regions().end());
  REFIT_ASSIGN(const model::RankLayout mine, planned_->source->expand(shard_.rank()));
  if (lent_.size() != mine.buffers.size())
    return Error(Code::kMismatch, "the trainer lends " + std::to_string(lent_.size()) + " regions, its layout has " +
                                      std::to_string(mine.buffers.size()) + " buffers");
  for (std::size_t i = 0; i < lent_.size(); ++i)
    if (lent_[i].bytes < mine.buffers[i].bytes)
      return Error(Code::kMismatch, "lent region " + std::to_string(i) + " is smaller than its buffer")
          .amounts(mine.buffers[i].bytes, lent_[i].bytes);
  snapshotting_ = options_.snapshot;
  if (Outlet::needs_shared(*options_.data))
    for (const memory::RegionRef& r : lent_) snapshotting_ = snapshotting_ || r.shared == nullptr;
  if (!snapshotting_) return {};
  if (snapshot_.empty()) {
    std::vector<memory::SharedRegion> fresh;  // all or none: a later plan must not find half of them
    for (const memory::RegionRef& r : lent_) {
      REFIT_ASSIGN(memory::SharedRegion copy,
                   memory::SharedRegion::make(*options_.runtime.env, r.bytes, options_.budget, "snapshot"));
      fresh.push_back(std::move(copy));
    }
    snapshot_ = std::move(fresh);
  }
  for (std::size_t i = 0; i < lent_.size(); ++i)
    lent_[i] = {snapshot_[i].data(), snapshot_[i].bytes(), memory::Kind::kHostShared, &snapshot_[i]};
  return {};
}

Status SourceDriver::follow_regions() {
  if (snapshotting_) return {};  // copied from where they lie
  const std::span<const memory::RegionRef> live = shard_.regions();
  const std::size_t own = lent_.size() - 1 - (stages_ ? 1 : 0) - (quantising_ ? 1 : 0);  // less values, codes, page
  const auto same_size = [](const memory::RegionRef& now, const memory::RegionRef& then) { return now.bytes == then.bytes; };
  if (live.size() != own || !std::ranges::equal(live, std::span(lent_).first(own), same_size))
    return Error(Code::kMismatch, "the trainer's regions have other sizes than those of the plan").at_stage("seal");
  const auto same = [](const memory::RegionRef& now, const memory::RegionRef& then) {
    return now.data == then.data && now.shared == then.shared;
  };
  if (!moved_ && std::ranges::equal(live, std::span(lent_).first(own), same)) return {};
  moved_ = true;  // until all have followed
  std::ranges::copy(live, lent_.begin());
  sealer_->rebind(std::span(lent_).first(lent_.size() - 1));
  REFIT_TRY(outlet_->rebind());
  moved_ = false;
  return {};
}

void SourceDriver::perform(Prepare& a) {
  const std::uint64_t task = progress_.start(Phase::kSeal);
  work([this, task, txn = a.txn, begin = a.begin, member = state_.link.member]() -> Finish {
    Result<wire::BlockAmax> amax = prepare(task, begin);
    if (amax.ok() && planned_->plan.exchanges())
      return [this, done = AmaxDone{txn, std::move(*amax)}] { feed(done); };
    Result<SealDone> r = amax.ok() ? seal(txn, begin, member, amax->amax) : std::move(amax).error();
    return sealed(txn, std::move(r));
  });
}

void SourceDriver::perform(Quantise& a) {
  (void)progress_.start(Phase::kSeal);
  work([this, a, member = state_.link.member]() -> Finish { return sealed(a.txn, seal(a.txn, a.begin, member, a.amax)); });
}

SourceDriver::Finish SourceDriver::sealed(const Txn& txn, Result<SealDone> r) {
  if (!r.ok()) return [this, txn, e = std::move(r).error()] { feed(SourceTaskFailed{SourceTask::kSeal, txn, e}); };
  return [this, done = std::move(*r)] { feed(done); };
}

Result<wire::BlockAmax> SourceDriver::prepare(std::uint64_t task, const wire::Begin& begin) {
  if (!sealer_ || planned_->epoch != begin.layout_epoch)
    return Error(Code::kMismatch, "no plan of this layout epoch").at_stage("seal");
  {
    std::unique_lock lock(publish_mutex_);
    const Deadline until = Deadline::after_ns(begin.total_ns);
    const auto ready = [&] { return published_ && (!begin.step || *begin.step == published_step_); };
    std::optional<Deadline> gone_on;
    while (!ready()) {
      if (!published_ || !begin.step || published_step_ < *begin.step)
        gone_on.reset();
      else if (!gone_on)
        gone_on = Deadline::after_ns(kGoneOnNs);
      else if (gone_on->over())
        return Error(Code::kMismatch, "the trainer has gone on to step " + std::to_string(published_step_) +
                                          ", the round asks for step " + std::to_string(*begin.step))
            .at_stage("seal");
      if (progress_.cancelled(task))
        return Error(Code::kCancelled, "the round ended before the trainer published").at_stage("seal");
      if (until.over())
        return Error(Code::kTimeout, "the trainer did not publish" +
                                         (begin.step ? " step " + std::to_string(*begin.step) : std::string()))
            .at_stage("seal");
      published_changed_.wait_for(lock, std::chrono::nanoseconds(kPublishSliceNs));
      ++progress_.progress;  // waiting for the trainer is bounded by the total, it is no stall
    }
    // Release cancels before it takes this mutex: a round that is over must not hold the trainer.
    if (progress_.cancelled(task))
      return Error(Code::kCancelled, "the round ended before it was sealed").at_stage("seal");
    held_ = true;
    sealed_step_ = published_step_;
    sealed_set_ = weight_set_;
  }
  const std::int64_t start = monotonic_ns();
  sealed_writes_ = shard_.write_counter();
  {
    const std::lock_guard lock(publish_mutex_);
    if (sealed_writes_ != published_writes_)
      return Error(Code::kMismatch, "the trainer wrote its weights after it published them").at_stage("seal");
  }
  snapshot_bytes_ = 0;
  if (snapshotting_) {
    const std::span<const memory::RegionRef> live = shard_.regions();
    for (std::size_t i = 0; i < live.size(); ++i) {
      kernel::copy_flat(exec(), lent_[i].data, live[i].data, live[i].bytes);
      snapshot_bytes_ += live[i].bytes;
    }
    if (shard_.write_counter() != sealed_writes_)
      return Error(Code::kMismatch, "the trainer wrote while its snapshot was taken").at_stage("seal");
    const std::lock_guard lock(publish_mutex_);
    held_ = false;
    published_changed_.notify_all();
  }
  REFIT_TRY(follow_regions());
  const std::span<const memory::RegionRef> lent = lent_;
  if (stages_) REFIT_TRY(stages_->run(lent, values_.data(), exec()));
  wire::BlockAmax out;
  if (quantising_) {
    REFIT_ASSIGN(out.amax, quantising_->shared_amax(lent, exec()));
    for (const plan::SharedBlock& b : planned_->plan.quant.shared)
      out.blocks.push_back(std::uint64_t{b.tensor} << 32 | b.block);
  }
  prepare_ns_ = monotonic_ns() - start;
  return out;
}

Result<SealDone> SourceDriver::seal(const Txn& txn, const wire::Begin& begin, std::uint32_t member,
                                    std::span<const float> amax) {
  if (!sealer_ || planned_->epoch != begin.layout_epoch)
    return Error(Code::kMismatch, "no plan of this layout epoch").at_stage("seal");
  SealDone done{.txn = txn,
                .step = sealed_step_,
                .weight_set = sealed_set_,
                .digest = {},
                .groups = {},
                .manifest_bytes = 0,
                .manifest_hash = {}};
  const std::int64_t start = monotonic_ns();
  sealed_amax_.assign(amax.begin(), amax.end());
  if (quantising_) REFIT_TRY(quantising_->run(lent_, sealed_amax_, codes_.data(), exec()));
  quantise_ns_ = monotonic_ns() - start;
  REFIT_ASSIGN(const Seal sealed, sealer_->seal(begin.proof));
  REFIT_ASSIGN(const wire::WrittenManifest page, write_page(sealed, txn, begin, member));
  done.digest = to_wire(sealed.counted);
  for (const auto& [group, digest] : sealed.groups) done.groups.push_back({group_id(group), to_wire(digest)});
  done.manifest_bytes = page.bytes;
  shipment_ = {.page_bytes = static_cast<std::int64_t>(page.bytes),  // of our own page: it fits
               .begin = begin,
               .header = {}};
  shipment_.header.job = options_.job;
  shipment_.header.txn = txn;
  shipment_.header.sender = member;
  shipment_.header.incarnation = options_.incarnation;
  if (baseline_) baseline_->begin(txn, begin.base, sealed);
  done.manifest_hash = page.hash;
  progress_.bucket_done(sealer_->scanned_bytes());
  const std::lock_guard lock(publish_mutex_);
  report_.base_bytes = baseline_ ? baseline_->bytes() : 0;
  report_.txn = txn;
  report_.seal_ns = prepare_ns_ + monotonic_ns() - start;
  report_.quantise_ns = quantising_ ? quantise_ns_ : 0;
  report_.exchanged_blocks = static_cast<std::int64_t>(amax.size());
  report_.bytes_sealed = sealer_->scanned_bytes();
  report_.snapshot_bytes = snapshot_bytes_;
  report_.buckets = static_cast<std::int64_t>(sealed.buckets.size());
  return done;
}

Result<wire::WrittenManifest> SourceDriver::write_page(const Seal& sealed, const Txn& txn, const wire::Begin& begin,
                                                       std::uint32_t member) {
  wire::Manifest m;
  m.job = options_.job;
  m.txn = txn;
  m.member = member;
  m.incarnation = options_.incarnation;
  m.layout_epoch = begin.layout_epoch;
  m.plan = planned_->plan.id;
  for (const auto& [rank, hash] : planned_->plan.shared_with) m.recipients.push_back({Rank(rank), hash});
  for (std::size_t i = 0; i < sealed.buckets.size(); ++i) {
    const SealedBucket& b = sealed.buckets[i];
    m.buckets.push_back({b.bucket, static_cast<std::uint32_t>(m.entries.size()),
                         static_cast<std::uint32_t>(b.tensors.size()),
                         static_cast<std::uint64_t>(planned_->plan.buckets[i].bytes)});
    for (const auto& [tensor, digest] : b.tensors) m.entries.push_back({tensor, to_wire(digest)});
  }
  return wire::write_manifest(m, {page_.data(), static_cast<std::size_t>(page_.bytes())});
}

void SourceDriver::perform(Expose& a) {
  (void)progress_.start(Phase::kLend);
  work([this, txn = a.txn]() -> Finish {
    unsent_.reset();
    withdrawn_ = false;  // nothing withdraws before it was told of this lend
    Result<wire::Bytes> r = outlet_->open({options_.job, txn, options_.incarnation});
    if (!r.ok()) return [this, txn, e = std::move(r).error()] { feed(SourceTaskFailed{SourceTask::kExpose, txn, e}); };
    return [this, txn, bytes = std::move(*r)] {
      send_all(txn);  // queued before a withdrawal that the event may cause
      feed(Exposed{txn, bytes});
    };
  });
}

// An error waits for the seal's check, which every round that is not aborted comes to.
void SourceDriver::send_all(const Txn& txn) {
  work([this, txn]() -> Finish {
    progress_.phase = static_cast<std::uint32_t>(Phase::kTransfer);
    if (shipment_.header.txn != txn) return [] {};  // the round has ended, and another one was sealed
    if (const Status s = outlet_->send(shipment_, progress_, withdrawn_); !s.ok()) unsent_ = s.error();
    const std::lock_guard lock(publish_mutex_);
    report_.encoded = outlet_->encoded();
    return [] {};
  });
}

void SourceDriver::perform(CheckSeal& a) {
  (void)progress_.start(Phase::kVoted);
  work([this, txn = a.txn, rescan = a.rescan]() -> Finish {
    Status s;
    if (unsent_)
      s = *unsent_;
    else if (!snapshotting_ && shard_.write_counter() != sealed_writes_)
      s = Error(Code::kMismatch, "the trainer wrote its weights after they were sealed for this round");
    else if (rescan) {
      // The scan reads codes, which only we write: the trainer's values as they are now must give the same ones.
      if (quantising_ && !snapshotting_) s = quantising_->run(lent_, sealed_amax_, codes_.data(), exec());
      if (s.ok()) s = sealer_->rescan();
    }
    if (!s.ok()) return [this, txn, e = s.error()] { feed(SourceTaskFailed{SourceTask::kCheckSeal, txn, e}); };
    return [this, txn] { feed(SealChecked{txn}); };
  });
}

// Behind the round's sending and before its release, so that what was sealed is still there.
void SourceDriver::perform(MoveBase& a) {
  work([this, a]() -> Finish {
    if (!baseline_ || shipment_.header.txn != a.txn) return [] {};
    const std::int64_t start = monotonic_ns();
    const Packer* packer = a.sealed || snapshotting_ ? outlet_->packer() : nullptr;
    const Result<std::size_t> moved = baseline_->move(a.txn, packer, *sealer_);
    std::size_t lost = moved.ok() ? *moved : 0;
    if (moved.ok() && shipment_.begin.proof) lost += baseline_->prove(*sealer_);
    if (!moved.ok()) baseline_->drop();  // the next round sends complete buckets
    const std::lock_guard lock(publish_mutex_);
    report_.base_ns = monotonic_ns() - start;
    report_.base_lost = static_cast<std::int64_t>(lost);
    return [] {};
  });
}

void SourceDriver::perform(Withdraw&) {
  progress_.cancel_all();
  withdrawn_ = true;
  // Queued behind a running task, so that the lane has one user at a time.
  work([this]() -> Finish {
    if (outlet_) outlet_->withdraw();
    return [] {};
  });
}

// Behind a queued withdrawal, so that the trainer writes only when no reader is told otherwise.
void SourceDriver::perform(Release& a) {
  progress_.cancel_all();
  work([this, a, version = state_.last]() -> Finish {
    {
      const std::lock_guard lock(publish_mutex_);
      held_ = false;
      report_.version = version;
      report_.state = a.committed ? "committed" : "released";
    }
    published_changed_.notify_all();
    return [] {};
  });
}

}  // namespace refit::agent
