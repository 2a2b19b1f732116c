#include "agent/target_agent.h"

#include "agent/lower.h"
#include "kernel/kernel.h"

namespace refit::agent {
namespace {

// The manifest page travels as a bucket of its own, with a number that no plan uses.
constexpr BucketId kManifestBucket{0xffffffffu};
constexpr std::int64_t kLeaseSliceNs = 20'000'000;  // how often a wait for a lease looks for a cancellation
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;
constexpr std::size_t kWindow = 4;  // requests in flight; mapped leases hold no staging memory

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
  const std::lock_guard lock(report_mutex_);
  return report_;
}

std::string TargetDriver::member_name(std::uint32_t member) const {
  for (const wire::RosterEntry& e : planned_->roster)
    if (e.member == member) return e.name.to_string();
  return "member " + std::to_string(member);
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
  report_.state = std::string(wire::to_string(h.state));
  if (state_.phase == install::TargetPhase::kFenced && state_.fenced) report_.state += ": " + state_.fenced->message;
}

void TargetDriver::done(install::Task task, const Txn& txn, const Status& status, const wire::Digest4& counted,
                        const wire::ProofCounts& proof) {
  if (status.ok())
    feed(install::TaskDone{task, txn, counted, proof});
  else
    feed(install::TaskFailed{task, txn, status.error()});
}

void TargetDriver::perform(install::Send& a) { send(a.envelope); }
void TargetDriver::perform(install::Observe& a) { observe(a.phase, a.txn); }
void TargetDriver::perform(install::CancelStaging&) { progress_.cancel = true; }
void TargetDriver::perform(install::DropStage&) {}  // the shadow is one arena, overwritten by the next round's staging

void TargetDriver::perform(install::MakePlan& a) {
  work([this, configure = std::move(a.configure), seed = state_.link.digest_seed.value_or(0)]() -> Finish {
    const std::int64_t start = monotonic_ns();
    const Status s = take_plan(configure, seed);
    {
      const std::lock_guard lock(report_mutex_);
      report_.plan_ns = monotonic_ns() - start;
      report_.shadow_bytes = executor_ ? executor_->shadow_bytes() : 0;
    }
    if (!s.ok())
      return [this, e = s.error(), epoch = configure.layout_epoch] { feed(install::PlanFailed{epoch, {e}}); };
    return [this, epoch = configure.layout_epoch, id = planned_->plan.id] { feed(install::PlanMade{epoch, id}); };
  });
}

Status TargetDriver::take_plan(const wire::Configure& configure, std::uint64_t digest_seed) {
  const PlanId former = planned_ && executor_ ? planned_->plan.id : PlanId{};
  REFIT_ASSIGN(Planned planned, make_planned(configure, options_.name));
  if (planned.target->digest() != state_.config.self.layout_digest)
    return Error(Code::kMismatch, "the coordinator sent another layout than this rank's own").at_stage("plan");
  const bool same = former != PlanId{} && former == planned.plan.id && seed_ == digest_seed;
  planned_ = std::move(planned);
  REFIT_ASSIGN(const model::RankLayout rank, planned_->target->expand(rank_));
  install::LandingTable table =
      lower_target(planned_->plan, *planned_->target, rank, planned_->member_of_rank, planned_->options);
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
  progress_.start(Phase::kTransfer);
  work([this, a]() -> Finish {
    const std::int64_t start = monotonic_ns();
    const Status s = stage_all(a);
    {
      const std::lock_guard lock(report_mutex_);
      report_.txn = a.txn;
      report_.stage_ns = monotonic_ns() - start;
      report_.bytes_staged = progress_.bytes;
      report_.buckets = static_cast<std::int64_t>(progress_.buckets);
    }
    const wire::Digest4 counted = executor_ ? agent::to_wire(executor_->counted()) : wire::Digest4{};
    const wire::ProofCounts proof = executor_ ? to_wire(executor_->proof()) : wire::ProofCounts{};
    return [this, txn = a.txn, s, counted, proof] { done(install::Task::kStage, txn, s, counted, proof); };
  });
}

Status TargetDriver::check_cancel() const {
  if (progress_.cancel) return Error(Code::kCancelled, "the round was aborted").at_stage("transfer");
  return {};
}

Status TargetDriver::stage_all(const install::StartStaging& a) {
  if (!executor_ || planned_->epoch != a.begin.layout_epoch)
    return Error(Code::kMismatch, "no plan of this layout epoch").at_stage("transfer");
  REFIT_ASSIGN(const std::unique_ptr<transport::PullLane> lane,
               options_.data->open_pull({options_.job, a.txn, options_.incarnation}, planned_->peers));
  executor_->begin();
  Status s = read_manifests(a, *lane);
  if (s.ok()) s = pull_buckets(a, *lane);
  // What was read counts only if no lend was taken back meanwhile (rule Z8).
  for (std::size_t i = 0; s.ok() && i < a.sources.size(); ++i)
    if (manifests_.contains(a.sources[i].member)) {
      s = lane->recheck(a.sources[i].member);
      if (!s.ok()) s = Error(std::move(s).error()).at_peer(member_name(a.sources[i].member)).at_stage("transfer");
    }
  const std::int64_t verify_start = monotonic_ns();
  if (s.ok()) s = executor_->verify(a.begin.proof);
  const Status closed = lane->close(Deadline::after_s(2));
  if (s.ok()) s = closed;
  const std::lock_guard lock(report_mutex_);
  report_.verify_ns = monotonic_ns() - verify_start;
  return s;
}

Status TargetDriver::read_manifests(const install::StartStaging& a, transport::PullLane& lane) {
  manifests_.clear();
  for (const wire::LendEntry& e : a.sources) {
    const auto rank = std::find(planned_->member_of_rank.begin(), planned_->member_of_rank.end(), e.member);
    if (rank == planned_->member_of_rank.end())
      return Error(Code::kMismatch, "a lend came from a member that is not a source").at_stage("lend");
    const auto shared =
        planned_->plan.shared_with.find(static_cast<std::uint32_t>(rank - planned_->member_of_rank.begin()));
    if (shared == planned_->plan.shared_with.end()) continue;  // sends nothing to this rank
    const std::string peer = member_name(e.member);
    // The page lies in the region after the weights.
    REFIT_ASSIGN(const model::RankLayout lent, planned_->source->expand(Rank(shared->first)));
    const auto bytes = narrow<std::int64_t>(e.manifest_bytes);
    if (!bytes || *bytes > kMaxManifestBytes)
      return Error(Code::kInvalid, "manifest length is absurd").at_peer(peer).at_stage("lend");
    const Segment page{.region = static_cast<std::uint32_t>(lent.buffers.size()),
                       .offset = 0,
                       .run_bytes = *bytes,
                       .extents = {},
                       .strides = {}};
    Result<std::uint64_t> ticket = lane.request(kManifestBucket, e.member, e.descriptor, {&page, 1});
    if (!ticket.ok()) return Error(std::move(ticket).error()).at_peer(peer).at_stage("lend");
    const Deadline stall = Deadline::after_ns(a.begin.stall_ns);
    Result<transport::Lease> lease = lane.next(Deadline::after_ns(kLeaseSliceNs).sooner(stall));
    while (!lease.ok() && lease.error().code == Code::kTimeout && !stall.over()) {
      REFIT_TRY(check_cancel());
      lease = lane.next(Deadline::after_ns(kLeaseSliceNs).sooner(stall));
    }
    if (!lease.ok()) return Error(std::move(lease).error()).at_peer(peer).at_stage("lend");
    if (lease->sender() != e.member || lease->bases().size() != 1)
      return Error(Code::kMismatch, "the lane answered with another bucket").at_peer(peer).at_stage("lend");
    page_copy_.assign(lease->bases()[0], lease->bases()[0] + *bytes);
    Result<wire::Manifest> m = wire::parse_manifest(page_copy_, e.manifest_hash);
    if (!m.ok()) return Error(std::move(m).error()).at_peer(peer).at_stage("lend");
    const Status identity =
        wire::check_identity(*m, {options_.job, a.txn, e.member, e.incarnation, planned_->epoch, planned_->plan.id});
    if (!identity.ok()) return Error(identity.error()).at_peer(peer).at_stage("lend");
    const wire::ManifestRecipient* me = m->find(rank_);
    if (me == nullptr || me->bucket_list != shared->second)
      return Error(Code::kMismatch, "the two ends planned different buckets for each other")
          .at_peer(peer)
          .at_stage("lend");
    manifests_.emplace(e.member, std::move(*m));
    progress_.bucket_done(0);
  }
  return {};
}

Status TargetDriver::pull_buckets(const install::StartStaging& a, transport::PullLane& lane) {
  const std::vector<install::BucketTable>& buckets = executor_->table().buckets;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> index;
  for (std::size_t i = 0; i < buckets.size(); ++i) index[{buckets[i].sender, buckets[i].id.value}] = i;
  std::map<std::uint32_t, const wire::LendEntry*> lends;
  for (const wire::LendEntry& e : a.sources) lends[e.member] = &e;

  std::size_t asked = 0, staged = 0;
  Deadline stall = Deadline::after_ns(a.begin.stall_ns);
  while (staged < buckets.size()) {
    REFIT_TRY(check_cancel());
    for (; asked < buckets.size() && asked - staged < kWindow; ++asked) {
      const install::BucketTable& b = buckets[asked];
      const auto lend = lends.find(b.sender);
      if (lend == lends.end() || !manifests_.contains(b.sender))
        return Error(Code::kMismatch, "a planned sender lent nothing").at_peer(member_name(b.sender)).at_stage("lend");
      Result<std::uint64_t> ticket = lane.request(b.id, b.sender, lend->second->descriptor, b.segments);
      if (!ticket.ok())
        return Error(std::move(ticket).error())
            .at_peer(member_name(b.sender))
            .at_stage("transfer")
            .at_bucket(std::to_string(b.id.value));
    }
    Result<transport::Lease> lease = lane.next(Deadline::after_ns(kLeaseSliceNs).sooner(stall));
    if (!lease.ok()) {
      if (lease.error().code == Code::kTimeout && !stall.over()) continue;
      return Error(std::move(lease).error())
          .at_peer(member_name(buckets[staged].sender))
          .at_stage("transfer")
          .at_bucket(std::to_string(buckets[staged].id.value));
    }
    const auto found = index.find({lease->sender(), lease->bucket().value});
    if (found == index.end())
      return Error(Code::kMismatch, "the lane delivered a bucket that is not planned")
          .at_peer(member_name(lease->sender()))
          .at_stage("transfer");
    const install::BucketTable& b = buckets[found->second];
    progress_.in_hand = std::uint64_t{b.sender} << 32 | b.id.value;
    const wire::Manifest& manifest = manifests_.at(b.sender);
    const wire::ManifestBucket* sealed = manifest.find(b.id);
    if (sealed == nullptr)
      return Error(Code::kMismatch, "the sender sealed no such bucket")
          .at_peer(member_name(b.sender))
          .at_stage("transfer")
          .at_bucket(std::to_string(b.id.value));
    sealed_.clear();
    for (const wire::ManifestEntry& e : manifest.of(*sealed)) sealed_.push_back({e.tensor.value, to_kernel(e.digest)});
    Status s = executor_->stage(found->second, lease->bases(), sealed_);
    if (!s.ok()) return Error(std::move(s).error()).at_peer(member_name(b.sender)).at_stage("transfer");
    ++staged;
    progress_.in_hand = TaskProgress::kNoBucket;
    progress_.bucket_done(b.bytes);
    observe(Phase::kTransfer, a.txn);
    stall = Deadline::after_ns(a.begin.stall_ns);
    std::array<transport::Completion, 16> completions;
    while (lane.poll(completions) > 0) {
    }
  }
  return {};
}

void TargetDriver::perform(install::ShutGate& a) {
  done(install::Task::kShutGate, a.txn, instance_.pause(Deadline::at_ns(a.deadline_ns)));
}

void TargetDriver::perform(install::SetWord& a) { shard_.commit_word()->store(to_engine(a.word, a.version)); }

void TargetDriver::perform(install::CopyShadowToLive& a) {
  progress_.start(Phase::kCopying);
  work([this, a]() -> Finish {
    const std::int64_t start = monotonic_ns();
    copying_ = a.txn;
    const Status s = executor_->apply(a.proof);
    copying_ = {};
    {
      const std::lock_guard lock(report_mutex_);
      report_.copy_ns = monotonic_ns() - start;
    }
    progress_.bucket_done(0);  // its bytes were counted on the way
    return [this, txn = a.txn, s, counted = agent::to_wire(executor_->counted()), proof = to_wire(executor_->proof())] {
      done(install::Task::kCopy, txn, s, counted, proof);
    };
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
