#include "agent/local_replica.h"

#include <map>

namespace refit::agent {
namespace {

constexpr std::uint32_t kLocalSender = 0;

std::string rank_name(Rank rank) { return "rank " + std::to_string(rank.value); }

Status add_up(const std::vector<std::unique_ptr<install::StagedExecutor>>& executors, const Seal& seal,
              const char* what) {
  kernel::Digest sum;
  for (const auto& x : executors) sum += x->counted();
  if (sum == seal.counted) return {};
  return Error(Code::kCorrupt, std::string(what) + " bytes of the replica do not add up to what was sealed: " +
                                   sum.hex() + ", sealed " + seal.counted.hex());
}

// Spans of a segment; loops whose strides leave gaps below `grain` count as one.
void spans(const Segment& s, std::int64_t grain, std::size_t level, std::int64_t at,
           const std::function<void(std::int64_t, std::int64_t)>& f) {
  std::int64_t bytes = s.run_bytes;
  bool dense = true;
  for (std::size_t k = s.extents.size(); k-- > level;) {
    if (s.extents[k] == 0) return;
    dense = dense && s.strides[k] >= 0 && s.strides[k] <= bytes + grain;
    bytes += (s.extents[k] - 1) * s.strides[k];
  }
  if (dense || level == s.extents.size()) return f(at, bytes);
  for (std::int64_t i = 0; i < s.extents[level]; ++i) spans(s, grain, level + 1, at + i * s.strides[level], f);
}

}  // namespace

Result<std::unique_ptr<LocalReplica>> LocalReplica::make(std::shared_ptr<const model::Layout> source,
                                                         std::vector<memory::RegionRef> regions,
                                                         std::shared_ptr<const model::Layout> target,
                                                         std::vector<LocalRank> ranks, LocalReplicaOptions options) {
  std::unique_ptr<LocalReplica> out(new LocalReplica);
  out->options_ = std::move(options);
  out->source_ = std::move(source);
  out->target_ = std::move(target);
  out->regions_ = std::move(regions);
  out->ranks_ = std::move(ranks);
  if (out->source_->world() != 1 || std::ssize(out->ranks_) != out->target_->world() / out->target_->instances())
    return Error(Code::kInvalid, "a local replica has one source and all ranks of one instance");
  const plan::Options& o = out->options_.plan;
  REFIT_ASSIGN(const plan::Plans plans, plan::Plans::make(*out->source_, *out->target_, o));
  REFIT_ASSIGN(out->source_plan_, plans.of(plan::Side::kSource, Rank(0)));
  out->sealer_ =
      std::make_unique<Sealer>(out->source_plan_, out->regions_, out->options_.digest_seed, out->options_.exec);
  for (const LocalRank& r : out->ranks_) {
    const Rank rank = r.shard->rank();
    if (r.shard->commit_word() == nullptr)
      return Error(Code::kInvalid, "a target's shard must offer a commit word beside its live bytes");
    REFIT_ASSIGN(plan::RankPlan plan, plans.of(plan::Side::kTarget, rank));
    REFIT_ASSIGN(const model::RankLayout held, out->target_->expand(rank));
    install::LandingTable table = lower_target(plan, *out->target_, held, {kLocalSender}, o, false);
    const std::span<const memory::RegionRef> live = r.shard->regions();
    REFIT_ASSIGN(auto executor,
                 install::StagedExecutor::make(std::move(table), {live.begin(), live.end()}, out->options_.digest_seed,
                                               out->options_.exec, out->options_.budget));
    out->plans_.push_back(std::move(plan));
    out->executors_.push_back(std::move(executor));
  }
  return out;
}

LocalReplica::~LocalReplica() = default;

void LocalReplica::for_each_read(std::int64_t grain,
                                 const std::function<void(std::uint32_t, std::int64_t, std::int64_t)>& f) const {
  for (const plan::RankPlan& plan : plans_)
    for (const plan::Piece& p : plan.pieces)
      spans(segment_of(plan.geometries[p.geometry], p.src_buffer, 0), grain, 0, p.src_offset,
            [&](std::int64_t offset, std::int64_t bytes) { f(p.src_buffer, offset, bytes); });
}

void LocalReplica::observe(Phase phase, const Txn& txn) const {
  for (const LocalRank& r : ranks_)
    if (options_.observer)
      options_.observer(
          {.phase = phase, .who = {Role::kTarget, 0, r.shard->rank().value}, .txn = txn, .at_ns = monotonic_ns()});
}

Result<LocalInstall> LocalReplica::install(const Txn& txn, const Version& version, bool proof) {
  LocalInstall report;
  const std::int64_t start = monotonic_ns();
  REFIT_ASSIGN(const Seal seal, sealer_->seal(proof));
  report.seal_ns = monotonic_ns() - start;
  Status s = stage(seal, txn, proof, report);
  report.stage_ns = monotonic_ns() - start - report.seal_ns;
  if (!s.ok()) {
    for (const auto& x : executors_) x->abort();
    return std::move(s).error();
  }
  observe(Phase::kVoted, txn);
  const std::int64_t shut_at = monotonic_ns();
  s = shut(txn);
  if (!s.ok()) {  // nothing was written: whoever served before serves on
    for (const auto& x : executors_) x->abort();
    for (const LocalRank& r : ranks_)
      if (!fenced_) REFIT_TRY(r.instance->resume());
    return std::move(s).error();
  }
  s = replace(seal, txn, version, proof);
  report.pause_ns = monotonic_ns() - shut_at;
  if (!s.ok()) {
    fenced_ = s.error();
    return std::move(s).error();
  }
  fenced_.reset();
  observe(Phase::kReopened, txn);
  for (const auto& x : executors_) {
    report.proof.placed_staged += x->proof().placed_staged;
    report.proof.placed_live += x->proof().placed_live;
  }
  return report;
}

Status LocalReplica::stage(const Seal& seal, const Txn& txn, bool proof, LocalInstall& report) {
  std::map<BucketId, const SealedBucket*> sealed_of;
  for (const SealedBucket& b : seal.buckets) sealed_of[b.bucket] = &b;
  std::vector<const std::byte*> bases;
  std::vector<install::TensorDigest> sealed;
  for (std::size_t i = 0; i < executors_.size(); ++i) {
    install::StagedExecutor& x = *executors_[i];
    x.begin(txn);
    for (std::size_t k = 0; k < x.table().buckets.size(); ++k) {
      const install::BucketTable& b = x.table().buckets[k];
      const auto found = sealed_of.find(b.id);
      if (found == sealed_of.end()) return Error(Code::kInternal, "the two sides of a local plan differ");
      bases.clear(), sealed.clear();
      for (const Segment& s : b.segments) bases.push_back(regions_[s.region].data + s.offset);
      for (const auto& [tensor, digest] : found->second->tensors) sealed.push_back({tensor.value, digest});
      if (Status s = x.stage(k, bases, sealed); !s.ok())
        return Error(s.error()).at_peer(rank_name(ranks_[i].shard->rank())).at_stage("install");
      report.bytes += b.bytes;
    }
    if (Status s = x.verify(proof); !s.ok())
      return Error(s.error()).at_peer(rank_name(ranks_[i].shard->rank())).at_stage("install");
  }
  observe(Phase::kStaged, txn);
  return add_up(executors_, seal, "staged");
}

Status LocalReplica::shut(const Txn& txn) {
  const Deadline deadline = Deadline::after_ns(options_.gate_ns);
  for (const LocalRank& r : ranks_)
    if (Status s = r.instance->pause(deadline); !s.ok())
      return Error(s.error()).at_peer(rank_name(r.shard->rank())).at_stage("gated");
  observe(Phase::kGated, txn);
  return {};
}

Status LocalReplica::replace(const Seal& seal, const Txn& txn, const Version& version, bool proof) {
  const auto words = [&](engine::WordState state) {
    for (const LocalRank& r : ranks_) r.shard->commit_word()->store({.state = state, .txn = txn, .version = version});
  };
  words(engine::WordState::kCopying);
  observe(Phase::kCopying, txn);
  for (std::size_t i = 0; i < executors_.size(); ++i)
    if (Status s = executors_[i]->apply(proof); !s.ok())
      return Error(s.error()).at_peer(rank_name(ranks_[i].shard->rank())).at_stage("copying");
  REFIT_TRY(add_up(executors_, seal, "live"));
  for (const LocalRank& r : ranks_) {
    Status s = r.instance->invalidate(options_.cache_policy);
    if (s.ok()) s = r.instance->set_version(version);
    if (!s.ok()) return Error(s.error()).at_peer(rank_name(r.shard->rank())).at_stage("caches");
  }
  words(engine::WordState::kApplied);
  observe(Phase::kApplied, txn);
  for (const LocalRank& r : ranks_) {
    const Status s = r.instance->resume();
    if (s.ok()) continue;
    // A replica is open whole or not at all: those before it shut again. What does not shut is told by resume()'s
    // error.
    const Deadline deadline = Deadline::after_ns(options_.gate_ns);
    for (const LocalRank& opened : ranks_) static_cast<void>(opened.instance->pause(deadline));
    return Error(s.error()).at_peer(rank_name(r.shard->rank())).at_stage("reopened");
  }
  return {};
}

}  // namespace refit::agent
