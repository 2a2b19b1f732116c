#include "sync/synchronizer.h"

#include "agent/agent.h"

namespace refit::sync {
namespace {

std::int64_t ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

Status check(const SyncOptions& o) {
  const auto positive = [](double v, const char* option) -> Status {
    if (v > 0) return {};
    return Error(Code::kInvalid, std::string(option) + " must be positive");
  };
  REFIT_TRY(positive(static_cast<double>(o.proof_every), "refit.proof_every"));
  REFIT_TRY(positive(o.stall_timeout_s, "refit.stall_timeout_s"));
  REFIT_TRY(positive(o.total_timeout_s, "refit.total_timeout_s"));
  REFIT_TRY(positive(o.gate_timeout_s, "refit.gate_timeout_s"));
  REFIT_TRY(positive(o.join_timeout_s, "refit.join_timeout_s"));
  REFIT_TRY(positive(static_cast<double>(o.plan.bucket_bytes), "refit.bucket_bytes"));
  REFIT_TRY(positive(static_cast<double>(o.plan.staging_bytes), "refit.staging_bytes"));
  if (o.min_targets < 1 || o.min_targets > o.shape.target_instances)
    return Error(Code::kInvalid, "refit.min_targets must lie between 1 and the number of targets, " +
                                     std::to_string(o.shape.target_instances));
  return {};
}

class Synchronizer final : public WeightSynchronizer {
 public:
  Synchronizer(SyncOptions options, transport::Mover& control) : options_(std::move(options)), control_(control) {}
  ~Synchronizer() override { [[maybe_unused]] const Status s = shutdown(); }

  Status open() {
    REFIT_ASSIGN(auto lane, control_.open_control({.address = options_.control_address,
                                                   .listen = true,
                                                   .keys = options_.control_keys,
                                                   .advertise = options_.advertise_address}));
    coordinator::DriverOptions d;
    d.env = options_.env;
    d.observer = options_.observer;
    d.journal_path = options_.journal_path;
    d.config.job = options_.job;
    d.config.shape = options_.shape;
    d.config.incarnation = Incarnation(options_.env->random_u64());
    d.config.barrier = options_.barrier;
    d.config.continue_on_loss = options_.on_target_loss == OnTargetLoss::kContinue;
    d.config.min_targets = options_.min_targets;
    REFIT_ASSIGN(const agent::Encode encode, agent::encode_from_string(options_.encoding));
    d.config.options_json = agent::options_to_json({options_.plan, encode});
    d.config.gate_ns = ns(options_.gate_timeout_s);
    d.config.join_ns = ns(options_.join_timeout_s);
    d.config.rebuild_ns = d.config.join_ns / 4;  // heard, promised, and as much again to plan
    REFIT_ASSIGN(std::shared_ptr<coordinator::Driver> started,
                 coordinator::Driver::start(std::move(d), std::move(lane)));
    driver_ = std::move(started);
    return {};
  }

  Status init_communicator() override {
    const auto d = driver();
    if (!d) return closed();
    return d->wait_ready(Deadline::after_s(options_.join_timeout_s));
  }

  void mark_stale() override { move(StaleEvent::kMark); }

  bool is_stale() override {
    const std::lock_guard lock(mutex_);
    collect();
    return sync::is_stale(staleness_);
  }

  Result<SyncReport> sync_weights(std::optional<std::int64_t> step) override {
    const auto d = driver();
    if (!d) return closed();
    const std::lock_guard one(call_mutex_);
    SyncReport report;
    report.proof = needs_proof();
    const std::int64_t start = monotonic_ns();
    move(StaleEvent::kRoundStart);
    Result<coordinator::RoundResult> r = d->sync({.step = step,
                                                  .proof = report.proof,
                                                  .stall_ns = ns(options_.stall_timeout_s),
                                                  .total_ns = ns(options_.total_timeout_s)});
    report.seconds = static_cast<double>(monotonic_ns() - start) * 1e-9;
    if (!r.ok()) {
      move(StaleEvent::kAborted);
      return std::move(r).error();
    }
    report.round = std::move(*r);
    settle(report);
    return report;
  }

  Result<std::string> verify(double timeout_s) override {
    const auto d = driver();
    if (!d) return closed();
    return d->verify(wire::Domain::kLive, ns(timeout_s));
  }
  std::string status() override {
    const auto d = driver();
    return d ? d->status() : "{}";
  }
  Status health() override {
    const auto d = driver();
    return d ? d->health() : closed();
  }
  std::string address() override {
    const auto d = driver();
    return d ? d->address() : "";
  }

  Status shutdown() override {
    std::shared_ptr<coordinator::Driver> d;
    {
      const std::lock_guard lock(mutex_);
      d = std::move(driver_);
    }
    return d ? d->shutdown(Deadline::after_s(5)) : Status{};
  }

 private:
  std::shared_ptr<coordinator::Driver> driver() const {
    const std::lock_guard lock(mutex_);
    return driver_;
  }
  static Error closed() { return Error(Code::kCancelled, "the synchronizer was shut down"); }
  void move(StaleEvent event) {
    const std::lock_guard lock(mutex_);
    staleness_ = next(staleness_, event);
  }
  // The first version, each repair, and every proof_every-th.
  bool needs_proof() const { return !proven_ || since_proof_ + 1 >= options_.proof_every; }

  void settle(const SyncReport& report) {
    const std::lock_guard lock(mutex_);
    last_txn_ = report.round.txn;
    if (report.ok()) {
      staleness_ = next(staleness_, StaleEvent::kAllApplied);
      since_proof_ = report.proof ? 0 : since_proof_ + 1;
      proven_ = proven_ || report.proof;
      return;
    }
    proven_ = false;
    staleness_ = next(staleness_,
                      report.round.outcome == wire::Outcome::kAborted ? StaleEvent::kAborted : StaleEvent::kIncomplete);
  }
  // A round that was reported incomplete may have been finished since.
  void collect() {
    if (!driver_) return;
    for (const coordinator::Finished& f : driver_->finished())
      if (f.txn == last_txn_ && f.all_applied) staleness_ = next(staleness_, StaleEvent::kLateApplied);
  }

  SyncOptions options_;
  transport::Mover& control_;
  std::shared_ptr<coordinator::Driver> driver_;  // shared with the calls that are inside it
  std::mutex call_mutex_;
  mutable std::mutex mutex_;  // the rest
  Staleness staleness_;
  Txn last_txn_;
  bool proven_ = false;
  std::int64_t since_proof_ = 0;
};

}  // namespace

Result<std::unique_ptr<WeightSynchronizer>> make_synchronizer(SyncOptions options, transport::Mover& control) {
  REFIT_TRY(check(options));
  auto s = std::make_unique<Synchronizer>(std::move(options), control);
  REFIT_TRY(s->open());
  return std::unique_ptr<WeightSynchronizer>(std::move(s));
}

}  // namespace refit::sync
