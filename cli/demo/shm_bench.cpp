// refit bench shm: a dense refit between real processes over shared memory, beside the best copy that the machine
// makes.
#include "bench/bench.h"
#include "cli/demo/fleet.h"
#include "cli/demo/model_source.h"
#include "kernel/kernel.h"
#include "plan/plan.h"

#include <algorithm>
#include <mutex>

namespace refit::cli {
namespace {

constexpr const char* kModel = "llama-3.1-8b@layers=1";  // random weights, 2.5 GB in bf16
constexpr int kWarmUp = 2;                               // the first version proves and touches every page

// When the coordinator saw each step of the round in hand.
class Clock {
 public:
  void operator()(const PhaseEvent& e) {
    const std::lock_guard lock(mutex_);
    at_[static_cast<std::size_t>(e.phase)] = e.at_ns;
  }
  double seconds(Phase from, Phase to) const {
    const std::lock_guard lock(mutex_);
    return static_cast<double>(at_[static_cast<std::size_t>(to)] - at_[static_cast<std::size_t>(from)]) * 1e-9;
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::int64_t, kPhaseCount> at_{};
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// memfd → private memory by `threads` threads in this process, the same page kind and total size as the refit.
Result<double> copy_seconds(int threads, std::int64_t bytes, int repeats) {
  memory::Budget budget(2 * bytes + (1 << 20));
  REFIT_ASSIGN(const memory::SharedRegion from, memory::SharedRegion::make(system_env(), bytes, &budget, "ceiling"));
  REFIT_ASSIGN(const memory::Arena to, memory::Arena::make(bytes, &budget, "ceiling"));
  ThreadPool pool(threads);
  return bench::median_seconds(repeats, [&] { kernel::copy_flat({&pool}, to.data(), from.data(), bytes); });
}

Result<std::vector<bench::Row>> bench_shm(const bench::Options& options) {
  DemoOptions d;
  d.model = options.arguments.empty() ? kModel : options.arguments[0];
  d.source = options.arguments.size() > 1 ? options.arguments[1] : "fsdp=4";
  d.target = options.arguments.size() > 2 ? options.arguments[2] : "vllm:tp=2";
  d.threads = options.threads;
  d.proof_every = 1000;  // proof by re-read is timed on its own
  REFIT_ASSIGN(const ModelSource model, ModelSource::open(d.model));
  REFIT_ASSIGN(const auto source, model.layout(d.source));
  REFIT_ASSIGN(const auto target, model.layout(d.target));
  REFIT_ASSIGN(const plan::World world, plan::make_world(*source, *target, plan::Options{}));
  REFIT_ASSIGN(const MemoryBill bill, make_bill(d, *source, *target));
  const int threads = static_cast<int>(target->world()) * options.threads;
  const std::int64_t ceiling_bytes = std::min<std::int64_t>(world.bytes_needed, 1 << 30);
  if (bill.total() + 2 * ceiling_bytes > bill.have)
    return Error(Code::kExhausted, "bench shm does not fit in memory; name a smaller model")
        .amounts(bill.total() + 2 * ceiling_bytes, bill.have);

  Clock clock;
  REFIT_ASSIGN(const auto fleet, Fleet::start(d, source, target, [&clock](const PhaseEvent& e) { clock(e); }));
  REFIT_TRY(fleet->synchronizer().init_communicator());
  std::vector<double> transfer, seal, pause, total, ceiling;
  double proof = 0;
  for (int round = 0; round < kWarmUp + options.repeats; ++round) {
    REFIT_ASSIGN(const sync::SyncReport report, fleet->synchronizer().sync_weights());
    if (!report.ok())
      return report.round.error ? *report.round.error
                                : Error(Code::kInternal, "the round did not commit and named no error");
    std::int64_t seal_ns = 0;
    for (const nlohmann::json& j : fleet->ask("report", Role::kSource, Deadline::after_s(60)))
      if (j.is_object()) seal_ns = std::max(seal_ns, j.value("seal_ns", std::int64_t{0}));
    if (round == 0) proof = clock.seconds(Phase::kLend, Phase::kVoted);
    if (round < kWarmUp) continue;
    transfer.push_back(clock.seconds(Phase::kLend, Phase::kVoted));
    seal.push_back(static_cast<double>(seal_ns) * 1e-9);
    pause.push_back(static_cast<double>(report.round.max_pause_ns) * 1e-9);
    total.push_back(report.seconds);
    REFIT_ASSIGN(const double copy,
                 copy_seconds(threads, ceiling_bytes, 1));  // in turn with the rounds: noise meets both alike
    ceiling.push_back(bench::gbps(ceiling_bytes, copy));
  }
  // Verified after timing: every rank against the pure function that made the weights.
  const std::vector<nlohmann::json> checks = fleet->ask("check", Role::kTarget, Deadline::after_s(300));
  for (std::size_t m = fleet->sources(); m < fleet->size(); ++m)
    if (!checks[m].is_object() || !checks[m].value("ok", false))
      return Error(Code::kCorrupt, checks[m].is_object()
                                       ? checks[m].value("error", std::string("does not hold the weights"))
                                       : "did not answer")
          .at_peer(fleet->name(m).to_string());
  REFIT_TRY(fleet->stop());

  const std::string name = "shm." + std::string(options.arguments.empty() ? "fsdp4-tp2" : d.source + "-" + d.target);
  const double best = median(ceiling);
  const auto text = std::to_string(threads) + " threads, memfd to arena";
  std::vector<bench::Row> rows;
  rows.push_back(
      bench::against(name, bench::gbps(world.bytes_needed, median(transfer)), "GB/s", best, "copy by " + text));
  rows.push_back({name + ".publish", median(seal), "s", {}, {}, "the source's own seal scan"});
  rows.push_back({name + ".pause", median(pause), "s", {}, {}, "gate shut: copy shadow to live and two round trips"});
  rows.push_back({name + ".total", median(total), "s", {}, {}, "sync_weights, all of it"});
  rows.push_back(
      {name + ".first-with-reread", proof, "s", {}, {}, "first version: staged bytes read again, pages new"});
  rows.push_back(
      {name + ".bytes", static_cast<double>(world.bytes_needed) * 1e-9, "GB", {}, {}, "useful bytes of one refit"});
  return rows;
}

const bench::Registration registration(
    "shm", "Dense refit between real processes over shared memory: [MODEL [SOURCE [TARGET]]]", bench_shm);

}  // namespace
}  // namespace refit::cli
