#include "agent/target_agent.h"

#include "agent/lower.h"
#include "kernel/kernel.h"

namespace refit::agent {
namespace {

constexpr std::int64_t kLeaseSliceNs = 20'000'000;  // how often a wait for a lease looks for a cancellation
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;

engine::WordValue to_engine(const wire::CommitWord& word, const Version& version) {
  return {.state = word.word == wire::Word::kNone      ? engine::WordState::kNone
                   : word.word == wire::Word::kCopying ? engine::WordState::kCopying
                                                       : engine::WordState::kApplied,
          .txn = word.txn,
          .version = version};
}

std::optional<install::Survived> survived(engine::Shard& shard) {
  const engine::WordValue word = shard.commit_word()->load();
  if (word.state == engine::WordState::kNone) return std::nullopt;
  install::Survived out;
  out.word = {word.state == engine::WordState::kCopying ? wire::Word::kCopying : wire::Word::kApplied, word.txn};
  out.live = word.version;
  return out;
}

wire::ProofCounts to_wire(const install::ProofCounts& p) {
  return {.placed_staged = static_cast<std::uint64_t>(p.placed_staged),
          .placed_live = static_cast<std::uint64_t>(p.placed_live)};
}

}  // namespace

Result<std::unique_ptr<Agent>> make_target_agent(const AgentOptions& options, engine::Shard& shard,
                                                 engine::Instance& instance) {
  return TargetDriver::make(options, shard, instance);
}

TargetDriver::TargetDriver(const AgentOptions& options, engine::Shard& shard, engine::Instance& instance,
                           install::TargetState state)
    : Member(options), shard_(shard), instance_(instance), state_(std::move(state)) {}
TargetDriver::~TargetDriver() { [[maybe_unused]] const Status s = close(Deadline::after_s(1)); }

Result<std::unique_ptr<Agent>> TargetDriver::make(const AgentOptions& options, engine::Shard& shard,
                                                  engine::Instance& instance) {
  if (shard.commit_word() == nullptr)
    return Error(Code::kInvalid, "a target's shard must offer a commit word beside its live bytes");
  const std::shared_ptr<const model::Layout> layout = shard.layout();
  install::TargetConfig config;
  config.self = {.job = options.job,
                 .name = options.name,
                 .incarnation = options.incarnation,
                 .layout_digest = layout->digest(),
                 .layout = to_bytes(layout->serialise()),
                 .card = options.data->card(),
                 .staging_bytes = options.staging_bytes,
                 .heartbeat_ns = options.heartbeat_ns};
  std::unique_ptr<TargetDriver> d(new TargetDriver(
      options, shard, instance, install::start_target(std::move(config), survived(shard), monotonic_ns())));
  REFIT_TRY(check_rank(*layout, options.name, shard.rank()));
  d->rank_ = shard.rank();
  REFIT_TRY(d->open_lane());
  return std::unique_ptr<Agent>(std::move(d));
}

Status TargetDriver::run(Deadline deadline) { return loop(deadline); }
Status TargetDriver::close(Deadline deadline) { return close_threads(deadline); }

AgentReport TargetDriver::report() const {
  AgentReport report;
  {
    const std::lock_guard lock(report_mutex_);
    report = report_;
  }
  count_into(report);
  return report;
}

std::string TargetDriver::bucket_in_hand() const {
  const std::uint64_t in_hand = progress_.in_hand.load();
  if (in_hand == TaskProgress::kNoBucket) return {};
  return std::to_string(in_hand & 0xffffffffu) + " from member " + std::to_string(in_hand >> 32);
}

void TargetDriver::on_connection(bool up) {
  if (up)
    feed(install::ConnectionUp{});
  else
    feed(install::ConnectionDown{});
}

// Events that an action causes at once wait until the actions before them are done: the order given is the contract.
void TargetDriver::feed(install::TargetEventKind what) {
  events_.push_back(std::move(what));
  if (feeding_) return;
  feeding_ = true;
  while (!events_.empty()) {
    install::TargetEvent event{monotonic_ns(), std::move(events_.front())};
    events_.pop_front();
    std::vector<install::TargetAction> todo = install::step(state_, event, ignored_);
    after_step();
    for (install::TargetAction& action : todo) std::visit([&](auto& a) { perform(a); }, action);
  }
  feeding_ = false;
}

void TargetDriver::after_step() {
  busy_ = state_.phase == install::TargetPhase::kReceiving || state_.phase == install::TargetPhase::kVoted ||
          state_.phase == install::TargetPhase::kApplying;
  wire::Heartbeat h = progress_now();
  h.state = install::to_member_state(state_.phase);
  keep_alive_with(state_.link.welcomed
                      ? std::optional(install::envelope(state_.link, state_.config.self, state_.txn, state_.sent, h))
                      : std::nullopt);
  const std::lock_guard lock(report_mutex_);
  report_.version = state_.live;
  report_.welcomed = state_.link.welcomed;
  report_.rejected = state_.link.rejected;
  report_.refused = state_.link.refused;
  report_.state = std::string(wire::to_string(h.state));
  if (state_.phase == install::TargetPhase::kFenced && state_.fenced) report_.state += ": " + state_.fenced->message;
}

void TargetDriver::done(install::Task task, const Txn& txn, const Status& status, const wire::Digest4& counted,
                        const wire::ProofCounts& proof, bool retained) {
  if (status.ok())
    feed(install::TaskDone{task, txn, counted, proof, retained});
  else
    feed(install::TaskFailed{task, txn, status.error()});
}

void TargetDriver::perform(install::Send& a) { send(a.envelope); }
void TargetDriver::perform(install::Observe& a) { observe(a.phase, a.txn); }
void TargetDriver::perform(install::CancelStaging&) { progress_.cancel_all(); }
void TargetDriver::perform(install::DropStage&) {}  // the shadow is one arena, overwritten by the next round's staging

void TargetDriver::perform(install::MakePlan& a) {
  work([this, configure = std::move(a.configure), seed = state_.link.digest_seed.value_or(0)]() -> Finish {
    const std::int64_t start = monotonic_ns();
    bool same = false;
    const Status s = take_plan(configure, seed, same);
    {
      const std::lock_guard lock(report_mutex_);
      report_.plan_ns = monotonic_ns() - start;
      report_.shadow_bytes = executor_ ? executor_->shadow_bytes() : 0;
      if (planned_) report_.bytes_needed = planned_->plan.bytes_needed, report_.bytes_moved = planned_->plan.bytes_moved;
    }
    if (!s.ok())
      return [this, e = s.error(), epoch = configure.layout_epoch] { feed(install::PlanFailed{epoch, {e}}); };
    return [this, epoch = configure.layout_epoch, id = planned_->plan.id, same] {
      feed(install::PlanMade{epoch, id, same});
    };
  });
}

Status TargetDriver::take_plan(const wire::Configure& configure, std::uint64_t digest_seed, bool& same) {
  const PlanId former = planned_ && executor_ ? planned_->plan.id : PlanId{};
  REFIT_ASSIGN(Planned planned, make_planned(configure, options_.name));
  if (planned.target->digest() != state_.config.self.layout_digest)
    return Error(Code::kMismatch, "the coordinator sent another layout than this rank's own").at_stage("plan");
  if (planned.deltas() && !options_.data->capabilities().push)
    return Error(Code::kUnsupported,
                 "deltas need a transport that sends buckets, such as tcp; with this one, encoding "
                 "must be raw")
        .at_stage("plan");
  same = former != PlanId{} && former == planned.plan.id && seed_ == digest_seed &&
         planned_->encode == planned.encode;  // the executor was made for one
  planned_ = std::move(planned);
  REFIT_ASSIGN(const model::RankLayout rank, planned_->target->expand(rank_));
  install::LandingTable table =
      lower_target(planned_->plan, *planned_->target, rank, planned_->member_of_rank, planned_->options,
                   planned_->deltas() || Intake::packed(*options_.data), planned_->pack());
  if (same) {  // members changed, the plan did not: the shadow and what is proven of the live bytes stay
    executor_->replace_senders(table.buckets);
    return {};
  }
  seed_ = digest_seed;
  executor_.reset();  // frees the old shadow before the new one is taken
  const std::span<const memory::RegionRef> live = shard_.regions();
  REFIT_ASSIGN(executor_, install::StagedExecutor::make(std::move(table), {live.begin(), live.end()}, digest_seed,
                                                        exec(), options_.budget));
  return {};
}

void TargetDriver::perform(install::StartStaging& a) {
  work([this, a, task = progress_.start(Phase::kTransfer)]() -> Finish {
    staging_ = task;
    const std::int64_t start = monotonic_ns();
    const Status s = stage_all(a);
    {
      const std::lock_guard lock(report_mutex_);
      report_.txn = a.txn;
      report_.stage_ns = monotonic_ns() - start;
      report_.unpack_ns = unpack_ns_;
      report_.last_from = last_sender_ && planned_ ? planned_->name_of(*last_sender_) : std::string();
      report_.bytes_staged = progress_.bytes;
      report_.buckets = static_cast<std::int64_t>(progress_.buckets);
    }
    const wire::Digest4 counted = executor_ ? agent::to_wire(executor_->counted()) : wire::Digest4{};
    const wire::ProofCounts proof = executor_ ? to_wire(executor_->proof()) : wire::ProofCounts{};
    return [this, txn = a.txn, s, counted, proof] { done(install::Task::kStage, txn, s, counted, proof); };
  });
}

Status TargetDriver::check_cancel() const {
  if (progress_.cancelled(staging_)) return Error(Code::kCancelled, "the round was aborted").at_stage("transfer");
  return {};
}

Status TargetDriver::stage_all(const install::StartStaging& a) {
  if (!executor_ || planned_->epoch != a.begin.layout_epoch)
    return Error(Code::kMismatch, "no plan of this layout epoch").at_stage("transfer");
  REFIT_ASSIGN(const auto from, suppliers(a));
  executor_->begin(a.txn, a.base);
  last_sender_.reset();
  unpack_ns_ = 0;
  REFIT_ASSIGN(
      const std::unique_ptr<Intake> intake,
      Intake::open(
          {options_.data, {options_.job, a.txn, options_.incarnation}, &*planned_, &executor_->table().buckets, from}));
  Status s = take_all(a, *intake, from);
  // What was read counts only if no lend was taken back meanwhile (rule Z8).
  for (const auto& [member, supplier] : from) {
    if (!s.ok()) break;
    s = intake->recheck(member);
    if (!s.ok()) s = Error(std::move(s).error()).at_peer(planned_->name_of(member)).at_stage("transfer");
  }
  const std::int64_t verify_start = monotonic_ns();
  if (s.ok()) s = executor_->verify(a.begin.proof);
  const Status closed = intake->close(Deadline::after_s(2));
  if (s.ok()) s = closed;
  const std::lock_guard lock(report_mutex_);
  report_.verify_ns = monotonic_ns() - verify_start;
  return s;
}

// The lends of sources that send to this rank.
Result<std::map<std::uint32_t, Supplier>> TargetDriver::suppliers(const install::StartStaging& a) const {
  std::map<std::uint32_t, Supplier> out;
  for (const wire::LendEntry& e : a.sources) {
    const auto rank = std::find(planned_->member_of_rank.begin(), planned_->member_of_rank.end(), e.member);
    if (rank == planned_->member_of_rank.end())
      return Error(Code::kMismatch, "a lend came from a member that is not a source").at_stage("lend");
    const auto number = static_cast<std::uint32_t>(rank - planned_->member_of_rank.begin());
    if (!planned_->plan.shared_with.contains(number)) continue;
    // The page lies in the region after the weights and their values.
    REFIT_ASSIGN(const model::RankLayout lent, planned_->source->expand(Rank(number)));
    const auto bytes = narrow<std::int64_t>(e.manifest_bytes);
    if (!bytes || *bytes > kMaxManifestBytes)
      return Error(Code::kInvalid, "manifest length is absurd").at_peer(planned_->name_of(e.member)).at_stage("lend");
    out[e.member] = {&e, static_cast<std::uint32_t>(planned_->lent_buffers(lent)), *bytes};
  }
  return out;
}

// Names whom the round waits for: the first bucket that is not staged.
Error TargetDriver::late(Error error) const {
  if (unstaged_.empty()) return std::move(error).at_stage("transfer");
  const auto& [sender, bucket] = unstaged_.begin()->first;
  return std::move(error).at_peer(planned_->name_of(sender)).at_stage("transfer").at_bucket(std::to_string(bucket));
}

Status TargetDriver::take_all(const install::StartStaging& a, Intake& intake,
                              const std::map<std::uint32_t, Supplier>& suppliers) {
  manifests_.clear();
  unstaged_.clear();
  const std::vector<install::BucketTable>& buckets = executor_->table().buckets;
  for (std::size_t i = 0; i < buckets.size(); ++i) unstaged_[{buckets[i].sender, buckets[i].id.value}] = i;
  std::vector<transport::Lease> early;  // buckets that overtook their sender's manifest: a few, its place is granted
  Deadline stall = Deadline::after_ns(a.begin.stall_ns);
  while (!unstaged_.empty() || manifests_.size() < suppliers.size()) {
    REFIT_TRY(check_cancel());
    Result<transport::Lease> lease = intake.next(Deadline::after_ns(kLeaseSliceNs).sooner(stall));
    if (!lease.ok()) {
      if (lease.error().code == Code::kTimeout && !stall.over()) continue;
      return late(std::move(lease).error());
    }
    stall = Deadline::after_ns(a.begin.stall_ns);
    const std::uint32_t sender = lease->sender();
    if (lease->bucket() != kManifestBucket) {
      if (manifests_.contains(sender))
        REFIT_TRY(take_bucket(a.txn, intake, *lease, suppliers));
      else
        early.push_back(std::move(*lease));
      continue;
    }
    const auto supplier = suppliers.find(sender);
    if (supplier == suppliers.end())
      return Error(Code::kMismatch, "a manifest came from a member that is not a source").at_stage("lend");
    const Status s = take_manifest(a.txn, supplier->second, intake, *lease);
    if (!s.ok()) return Error(s.error()).at_peer(planned_->name_of(sender)).at_stage("lend");
    for (transport::Lease& waited : early)
      if (waited.sender() == sender) REFIT_TRY(take_bucket(a.txn, intake, waited, suppliers));
    std::erase_if(early, [&](const transport::Lease& l) { return l.sender() == sender; });
  }
  return {};
}

Status TargetDriver::take_manifest(const Txn& txn, const Supplier& supplier, const Intake& intake,
                                   const transport::Lease& lease) {
  const wire::LendEntry& e = *supplier.lend;
  REFIT_ASSIGN(const std::span<const std::byte> page, intake.page(lease));
  page_copy_.assign(page.begin(), page.end());  // lent memory may change while it is checked (rule Z6)
  REFIT_ASSIGN(wire::Manifest m, wire::parse_manifest(page_copy_, e.manifest_hash));
  REFIT_TRY(wire::check_identity(m, {options_.job, txn, e.member, e.incarnation, planned_->epoch, planned_->plan.id}));
  const auto rank = std::find(planned_->member_of_rank.begin(), planned_->member_of_rank.end(), e.member);
  const auto shared =
      planned_->plan.shared_with.find(static_cast<std::uint32_t>(rank - planned_->member_of_rank.begin()));
  const wire::ManifestRecipient* me = m.find(rank_);
  if (me == nullptr || shared == planned_->plan.shared_with.end() || me->bucket_list != shared->second)
    return Error(Code::kMismatch, "the two ends planned different buckets for each other");
  manifests_.emplace(e.member, std::move(m));
  progress_.bucket_done(0);
  return {};
}

// A bucket that travels with its header: complete, unchanged or a delta. The lease is this side's own copy.
Status TargetDriver::take_headed(const Txn& txn, std::size_t index, const Supplier& supplier,
                                 std::span<const std::byte> bytes) {
  const install::BucketTable& b = executor_->table().buckets[index];
  if (bytes.size() < wire::kBucketHeaderBytes)
    return Error(Code::kCorrupt, "bucket is shorter than its header")
        .amounts(static_cast<std::int64_t>(wire::kBucketHeaderBytes), static_cast<std::int64_t>(bytes.size()));
  const auto payload = bytes.subspan(wire::kBucketHeaderBytes);
  REFIT_ASSIGN(const wire::BucketHeader h, wire::check_bucket(bytes.first(wire::kBucketHeaderBytes), payload));
  if (h.job != options_.job || h.txn != txn || h.bucket != b.id || h.sender != b.sender ||
      h.incarnation != supplier.lend->incarnation)
    return Error(Code::kMismatch, "the bucket's header is of another job, round, sender or bucket");
  if (static_cast<std::int64_t>(h.logical_bytes) != b.packed_bytes)
    return Error(Code::kMismatch, "bucket has another size than the plan")
        .amounts(b.packed_bytes, static_cast<std::int64_t>(h.logical_bytes));
  if (h.encoding == wire::Encoding::kUnchanged) return executor_->stage_unchanged(index, h.base, sealed_);
  if (h.encoding == wire::Encoding::kDelta) {
    const std::int64_t start = monotonic_ns();
    const Status s = executor_->stage_delta(index, h.base, payload, sealed_);
    unpack_ns_ += monotonic_ns() - start;
    return s;
  }
  std::vector<const std::byte*> bases;
  for (std::int64_t start : b.packed_starts) bases.push_back(payload.data() + start);
  return executor_->stage(index, bases, sealed_);
}

Status TargetDriver::take_bucket(const Txn& txn, Intake& intake, const transport::Lease& lease,
                                 const std::map<std::uint32_t, Supplier>& suppliers) {
  const auto found = unstaged_.find({lease.sender(), lease.bucket().value});
  if (found == unstaged_.end())
    return Error(Code::kMismatch, "the lane delivered a bucket that is not planned, or twice")
        .at_peer(planned_->name_of(lease.sender()))
        .at_stage("transfer");
  const install::BucketTable& b = executor_->table().buckets[found->second];
  progress_.in_hand = std::uint64_t{b.sender} << 32 | b.id.value;
  const auto stage = [&]() -> Status {
    const wire::Manifest& manifest = manifests_.at(b.sender);
    const wire::ManifestBucket* sealed = manifest.find(b.id);
    if (sealed == nullptr) return Error(Code::kMismatch, "the sender sealed no such bucket");
    sealed_.clear();
    for (const wire::ManifestEntry& e : manifest.of(*sealed)) sealed_.push_back({e.tensor.value, to_kernel(e.digest)});
    if (planned_->deltas()) {
      REFIT_ASSIGN(const std::span<const std::byte> bytes, intake.page(lease));
      return take_headed(txn, found->second, suppliers.at(b.sender), bytes);
    }
    REFIT_ASSIGN(const auto bases, intake.bases(lease, b));
    return executor_->stage(found->second, bases, sealed_);
  };
  const Status s = stage();
  if (!s.ok())
    return Error(s.error())
        .at_peer(planned_->name_of(b.sender))
        .at_stage("transfer")
        .at_bucket(std::to_string(b.id.value));
  last_sender_ = b.sender;
  unstaged_.erase(found);
  progress_.in_hand = TaskProgress::kNoBucket;
  progress_.bucket_done(b.bytes);
  observe(Phase::kTransfer, txn);
  return intake.staged();
}

void TargetDriver::perform(install::ShutGate& a) {
  done(install::Task::kShutGate, a.txn, instance_.pause(Deadline::at_ns(a.deadline_ns)));
}

void TargetDriver::perform(install::SetWord& a) { shard_.commit_word()->store(to_engine(a.word, a.version)); }

void TargetDriver::perform(install::CopyShadowToLive& a) {
  (void)progress_.start(Phase::kCopying);
  work([this, a]() -> Finish {
    const std::int64_t start = monotonic_ns();
    copying_ = a.txn;
    const Status s = executor_->apply(a.proof);
    copying_ = {};
    {
      const std::lock_guard lock(report_mutex_);
      report_.copy_ns = monotonic_ns() - start;
      report_.bytes_installed = executor_->shadow_bytes();
    }
    progress_.bucket_done(0);  // its bytes were counted on the way
    return [this, txn = a.txn, s, counted = agent::to_wire(executor_->counted()), proof = to_wire(executor_->proof()),
            retained = executor_->retained()] { done(install::Task::kCopy, txn, s, counted, proof, retained); };
  });
}

void TargetDriver::perform(install::InvalidateCaches& a) {
  Status s = instance_.invalidate(options_.cache_policy);
  if (s.ok()) s = instance_.set_version(a.version);
  done(install::Task::kCaches, a.txn, s);
}

void TargetDriver::perform(install::OpenGate& a) { done(install::Task::kOpenGate, a.txn, instance_.resume()); }

void TargetDriver::perform(install::Fence&) {
  // The word or the engine may be what failed: the gate is shut either way, and the reason is the state's.
  [[maybe_unused]] const Status s = instance_.pause(Deadline::after_s(1));
}

void TargetDriver::perform(install::RunVerify& a) {
  work([this, a]() -> Finish {
    Status s = executor_ ? executor_->prove_live()
                         : Status(Error(Code::kMismatch, "no version is applied here, nothing can be proven"));
    wire::Digest4 counted;
    wire::ProofCounts proof;
    std::vector<Error> errors;
    if (s.ok()) {
      counted = agent::to_wire(executor_->applied_counted());
      proof = {.placed_live = executor_->tensors_held()};
    } else {
      errors.push_back(s.error());
    }
    return [this, a, counted, proof, errors] { feed(install::Verified{a.nonce, a.domain, counted, proof, errors}); };
  });
}

}  // namespace refit::agent
