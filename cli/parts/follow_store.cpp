// refit serve --follow: one rollout replica that takes its versions out of a store. Starts from the newest, catches up
// by whatever is shortest, goes on serving while the store is away or wrong.
#include <algorithm>

#include "agent/agent.h"
#include "cli/parts/events.h"
#include "cli/parts/member.h"
#include "cli/parts/stores.h"

namespace refit::cli {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr double kLookS = 30;       // one look at what is newest
constexpr int kCollectedTries = 3;  // a version may be collected while it is read

class StoreFollower {
 public:
  explicit StoreFollower(const FollowStoreOptions& o)
      : o_(o), events_(o.json), pool_(o.threads), rule_{.seed = o.seed, .share = o.share} {}

  Status run() {
    REFIT_ASSIGN(store_, open_store(o_.store, "--follow"));
    if (!o_.state.empty()) {
      REFIT_ASSIGN(store::FollowState state, store::FollowState::open(o_.state));
      state_ = std::make_unique<store::FollowState>(std::move(state));
    }
    REFIT_TRY(open());
    while (!asked_to_end()) {
      const Status s = look();
      if (s.ok()) told_error_.clear();
      if (!s.ok() && s.error().code == Code::kCancelled) break;
      if (!s.ok() && (o_.once || s.error().code == Code::kInternal)) return end(s);
      if (!s.ok() && s.error().to_string() != told_error_) {  // the version that is served stays
        told_error_ = s.error().to_string();
        nlohmann::ordered_json event = to_event(s.error());
        event["serving"] = serving_;
        event["fenced"] = replica_ && replica_->fenced().has_value();
        events_.tell("follower", "failed", event);
      }
      if (o_.once || (o_.until_step >= 0 && serving_ > 0 && step_ >= o_.until_step)) break;
      system_env().wait(Deadline::after_s(o_.poll_s));
    }
    return end({});
  }

 private:
  // Waits until there is something to follow, then lays out the engines for it.
  Status open() {
    store::FollowOptions options{.lease = o_.lease.empty() ? random_name() : o_.lease, .pool = &pool_};
    if (o_.lease == "none") options.lease.clear();  // reads only: nothing holds versions back for it
    if (o_.lease != "none" && !store::is_lease_name(options.lease))
      return Error(Code::kInvalid, "--lease '" + options.lease + "': 1 to 64 of a-z, 0-9 and -");
    if (state_ && state_->mark()) {
      options.trust = state_->mark()->trust;
      options.least_number = state_->mark()->number;
    }
    if (!o_.trust.empty()) {
      REFIT_ASSIGN(options.trust.key, store::read_public_key(o_.trust));
      options.trust.pinned = true;
    }
    while (true) {
      Result<store::Follower> opened = store::Follower::open(*store_, options, look_deadline());
      if (opened.ok()) {
        follower_ = std::make_unique<store::Follower>(std::move(*opened));
        break;
      }
      const Error& e = opened.error();
      if (o_.once || asked_to_end() || !(retryable(e.code) || e.code == Code::kPeerLost)) return e;
      if (e.to_string() != told_error_) events_.tell("follower", "waits", to_event(e));
      told_error_ = e.to_string();
      system_env().wait(Deadline::after_s(o_.poll_s));
    }
    if (state_ && state_->mark() && state_->mark()->lineage != follower_->lineage())
      return Error(Code::kMismatch, "--state " + o_.state + " belongs to another store's versions; give another one");
    return lay_out();
  }

  Deadline look_deadline() const { return Deadline::after_s(std::min(kLookS, o_.store.timeout_s)); }
  static std::string random_name() { return Hash128{0, system_env().random_u64()}.hex().substr(16); }

  Status lay_out() {
    const store::Model& model = follower_->model();
    const model::Catalogue names = catalogue_of(model);
    REFIT_ASSIGN(hf_, model::rule_layout(model.config, "hf", &names));
    REFIT_ASSIGN(target_, model::rule_layout(model.config, o_.spec, &names));
    const auto per = static_cast<std::uint32_t>(target_->world() / target_->instances());
    if (o_.replica >= static_cast<std::uint32_t>(target_->instances()))
      return Error(Code::kInvalid, "--replica " + std::to_string(o_.replica) + ": '" + o_.spec + "' has " +
                                       std::to_string(target_->instances()));
    REFIT_ASSIGN(const model::RankLayout held, hf_->expand(Rank(0)));
    REFIT_TRY(take_memory(held));
    std::vector<agent::LocalRank> ranks;
    for (std::uint32_t r = 0; r < per; ++r) {
      REFIT_ASSIGN(auto engine, engine::ReferenceEngine::make(target_, Rank(o_.replica * per + r), nullptr));
      ranks.push_back({engine.get(), engine.get()});
      engine->start_serving();
      engines_.push_back(std::move(engine));
    }
    agent::LocalReplicaOptions options;
    options.digest_seed = system_env().random_u64();
    options.exec = {&pool_};
    REFIT_ASSIGN(replica_, agent::LocalReplica::make(hf_, regions_, target_, std::move(ranks), std::move(options)));
    REFIT_TRY(attach(held));
    events_.tell("follower", "opened",
                 {{"store", store_->name()},
                  {"lineage", follower_->lineage().hex()},
                  {"chunks", follower_->grid().chunks()},
                  {"wanted", wanted_},
                  {"bytes", follower_->grid().bytes()}});
    return {};
  }

  // The mirror: one block, in which each buffer of the `hf` layout begins on a page.
  Status take_memory(const model::RankLayout& held) {
    std::int64_t total = 0;
    std::vector<std::int64_t> starts;
    for (const model::BufferSpec& b : held.buffers) {
      starts.push_back(total);
      total += (b.bytes + kPage - 1) / kPage * kPage;
    }
    std::byte* base = nullptr;
    if (state_) {
      REFIT_ASSIGN(const std::span<std::byte> mirror, state_->mirror(total));
      base = mirror.data();
    } else {
      REFIT_ASSIGN(memory_, memory::Arena::make(total, nullptr, "mirror of the store"));
      base = memory_.data();
    }
    for (std::size_t i = 0; i < starts.size(); ++i)
      regions_.push_back({base + starts[i], held.buffers[i].bytes, memory::Kind::kHost, nullptr});
    return {};
  }

  Status attach(const model::RankLayout& held) {
    const store::Model& model = follower_->model();
    const store::Grid& grid = follower_->grid();
    struct Lies {
      std::uint32_t buffer = 0;
      std::int64_t offset = -1;
    };
    std::vector<Lies> places(model.tensors.size());
    const model::Catalogue names = catalogue_of(model);
    for (const model::Holding& h : held.holdings) {
      const model::LogicalTensor& t = hf_->catalogue().tensors[h.tensor.value];
      const std::int64_t at = names.find(t.name);
      if (at < 0) continue;  // a tie under a name of its own
      std::int64_t bytes = item_size(t.dtype);
      bool whole = h.dtype == t.dtype;
      for (std::size_t k = h.box.size(); k-- > 0;) {
        whole = whole && h.strides[k] == bytes;
        bytes *= h.box[k].size();
      }
      if (!whole || bytes != grid.tensor_bytes(static_cast<std::size_t>(at)))
        return Error(Code::kUnsupported, "the checkpoint layout does not hold this tensor whole").at_tensor(t.name);
      places[static_cast<std::size_t>(at)] = {h.buffer, h.offset};
    }
    std::vector<std::byte*> tensors;
    for (std::size_t t = 0; t < places.size(); ++t) {
      if (places[t].offset < 0)
        return Error(Code::kMismatch, "the configuration has no place for this tensor")
            .at_tensor(model.tensors[t].name);
      tensors.push_back(regions_[places[t].buffer].data + places[t].offset);
    }
    // Only chunks that these ranks read: by where they lie in the mirror.
    std::vector<bool> wanted(grid.chunks(), false);
    std::vector<std::pair<std::byte*, std::size_t>> order;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (grid.tensor_bytes(t) > 0) order.emplace_back(tensors[t], t);
    std::sort(order.begin(), order.end());
    replica_->for_each_read(grid.chunk_bytes(), [&](std::uint32_t buffer, std::int64_t offset, std::int64_t bytes) {
      std::byte* const lo = regions_[buffer].data + offset;
      auto it = std::upper_bound(order.begin(), order.end(), std::pair(lo, tensors.size()));
      if (it == order.begin()) return;
      const std::size_t t = std::prev(it)->second;
      const std::int64_t first = (lo - tensors[t]) / grid.chunk_bytes();
      const std::int64_t last = (lo - tensors[t] + bytes - 1) / grid.chunk_bytes();
      for (std::int64_t c = first; bytes > 0 && c <= last; ++c)
        wanted[grid.first(t) + static_cast<std::size_t>(c)] = true;
    });
    wanted_ = std::count(wanted.begin(), wanted.end(), true);
    follower_->attach(std::move(tensors), std::move(wanted));
    return {};
  }

  // One look at the store; installs what is newer, or what the mirror holds after a restart.
  Status look() {
    for (int tries = 0;; ++tries) {
      REFIT_ASSIGN(const std::uint64_t number, follower_->newest(look_deadline()));
      if (number == 0 || (number == serving_ && !replica_->fenced())) return keep();
      const Status s = take(number);
      if (s.ok() || s.error().code != Code::kBusy || tries + 1 == kCollectedTries) return s;
    }
  }

  Status take(std::uint64_t number) {
    const std::int64_t start = monotonic_ns();
    REFIT_ASSIGN(const store::Fetched f, follower_->fetch(number, Deadline::after_s(o_.store.timeout_s)));
    const std::int64_t fetched = monotonic_ns();
    const Version version{follower_->lineage(), f.number, f.content, f.step};
    const bool proof = installs_ % o_.proof_every == 0 || replica_->fenced().has_value();
    REFIT_ASSIGN(const agent::LocalInstall in,
                 replica_->install({follower_->lineage(), Epoch(f.epoch), f.number}, version, proof));
    ++installs_;
    serving_ = f.number;
    step_ = f.step;
    nlohmann::ordered_json event{
        {"version", f.number},
        {"step", f.step},
        {"digest", f.content.hex()},
        {"signed", f.is_signed},
        {"wanted", f.wanted},
        {"held", f.held},
        {"deltas", f.deltas},
        {"complete", f.complete},
        {"payload_bytes", f.payload_bytes},
        {"manifests", f.manifests},
        {"fetch_seconds", static_cast<double>(fetched - start) * 1e-9},
        {"install_seconds", static_cast<double>(monotonic_ns() - fetched) * 1e-9},
        {"pause_seconds", static_cast<double>(in.pause_ns) * 1e-9},
        {"bytes", in.bytes},
        {"proof", {{"staged", in.proof.placed_staged}, {"live", in.proof.placed_live}, {"reread", proof}}},
        {"cost", to_event(f.cost)}};
    if (o_.check) {
      REFIT_ASSIGN(const std::int64_t compared, compare());
      event["compared_bytes"] = compared;
    }
    events_.tell("follower", "serves", event);
    return keep();
  }

  // How far it came; tried again with every look until it is written.
  Status keep() {
    if (!state_ || serving_ == 0) return {};
    return state_->save({follower_->lineage(), serving_, follower_->trust()});
  }

  // An independent reading of what was published.
  Result<std::int64_t> compare() {
    std::string path = o_.model;
    std::int64_t steps = step_;
    if (!o_.watch.empty()) {
      REFIT_ASSIGN(const Numbered newest, newest_directory(o_.watch));
      if (newest.number == step_) path = newest.path, steps = 0;
    }
    if (path.empty())
      return Error(Code::kInvalid,
                   "--check needs --model, or --watch with the checkpoint of step " + std::to_string(step_));
    REFIT_ASSIGN(const ModelSource model, ModelSource::open(path));
    std::int64_t bytes = 0;
    for (const auto& e : engines_) {
      Result<Witness> w = compare_live(model, o_.seed, rule_, steps, *e);
      // What is live differs from what it claims to be: nothing that a later version would mend.
      if (!w.ok()) return Error(Code::kInternal, "--check: " + w.error().to_string());
      bytes += w->bytes;
    }
    return bytes;
  }

  Status end(Status s) {
    engine::ServeCounts sum;
    for (const auto& e : engines_) {
      e->stop_serving();
      const engine::ServeCounts c = e->counts();
      sum.forwards += c.forwards, sum.torn += c.torn, sum.stale_cache += c.stale_cache;
    }
    events_.tell("follower", "served",
                 {{"forwards", sum.forwards}, {"torn", sum.torn}, {"stale_cache", sum.stale_cache}});
    if (follower_) {  // a lease that stays only keeps its versions a little longer
      [[maybe_unused]] const Status ended = follower_->end(Deadline::after_s(2));
    }
    if (s.ok() && (sum.torn > 0 || sum.stale_cache > 0))
      return Error(Code::kInternal, "a forward pass saw weights of two versions, or a stale cache");
    return s;
  }

  const FollowStoreOptions& o_;
  Events events_;
  ThreadPool pool_;
  const engine::StepRule rule_;
  std::unique_ptr<store::ObjectStore> store_;
  std::unique_ptr<store::FollowState> state_;
  std::unique_ptr<store::Follower> follower_;
  std::shared_ptr<const model::Layout> hf_, target_;
  memory::Arena memory_;
  std::vector<memory::RegionRef> regions_;
  std::vector<std::unique_ptr<engine::ReferenceEngine>> engines_;
  std::unique_ptr<agent::LocalReplica> replica_;
  std::int64_t wanted_ = 0, installs_ = 0, step_ = -1;
  std::uint64_t serving_ = 0;
  std::string told_error_;
};

}  // namespace

Status follow_store(const FollowStoreOptions& o) {
  if (o.spec.empty()) return Error(Code::kInvalid, "--follow needs --target, e.g. vllm:tp=2");
  (void)asked_to_end();
  const Status s = StoreFollower(o).run();
  return !s.ok() && s.error().code == Code::kCancelled && asked_to_end() ? Status() : s;
}

}  // namespace refit::cli
