// refit bench shm|tcp|nixl: a dense refit between real processes, beside the best that the machine does with the same
// bytes: a copy for shared memory and for NIXL, which copies across address spaces here; bare sockets for TCP.
#include "bench/bench.h"
#include "cli/demo/fleet.h"
#include "cli/demo/model_source.h"
#include "kernel/kernel.h"
#include "plan/plan.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>
#include <thread>

namespace refit::cli {
namespace {

constexpr const char* kModel = "llama-3.1-8b@layers=1";  // random weights, 2.5 GB in bf16
constexpr const char* kDense = "llama-3.2-1b@layers=4";  // 1 GB, nearly all of it transposed but the embedding
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

// One connection over loopback, both ends blocking.
Result<std::pair<Fd, Fd>> connection() {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  Fd from(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), address, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), address, &size) != 0 || ::connect(from.get(), address, size) != 0)
    return Error(Code::kExhausted, "no loopback connection for the ceiling");
  return std::pair(std::move(from), Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
}

// `bytes` over `streams` bare connections, a thread at each end, out of and into warm private memory.
Result<double> socket_seconds(std::size_t streams, std::int64_t bytes) {
  constexpr std::size_t kWindow = 1 << 20;
  std::vector<std::pair<Fd, Fd>> pairs;
  for (std::size_t i = 0; i < streams; ++i) {
    REFIT_ASSIGN(auto pair, connection());
    pairs.push_back(std::move(pair));
  }
  memory::Budget budget(2 * bytes + (1 << 20));
  REFIT_ASSIGN(const memory::Arena from, memory::Arena::make(bytes, &budget, "ceiling"));
  REFIT_ASSIGN(const memory::Arena to, memory::Arena::make(bytes, &budget, "ceiling"));
  const auto share = static_cast<std::size_t>(bytes) / streams;
  const std::int64_t start = monotonic_ns();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < streams; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t done = 0; done < share;) {
        const ssize_t n =
            ::send(pairs[i].first.get(), from.data() + i * share + done, std::min(kWindow, share - done), MSG_NOSIGNAL);
        if (n <= 0) return;
        done += static_cast<std::size_t>(n);
      }
    });
    threads.emplace_back([&, i] {
      for (std::size_t done = 0; done < share;) {
        const ssize_t n =
            ::recv(pairs[i].second.get(), to.data() + i * share + done, std::min(kWindow, share - done), 0);
        if (n <= 0) return;
        done += static_cast<std::size_t>(n);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return static_cast<double>(monotonic_ns() - start) * 1e-9;
}

// What one mover is measured against: seconds for `bytes`, and in words.
struct Ceiling {
  std::string words;
  std::function<Result<double>(std::int64_t bytes)> seconds;
};

Result<std::vector<bench::Row>> measure(
    DemoOptions d, const std::string& name, int repeats,
    const std::function<Ceiling(const DemoOptions&, std::size_t, std::size_t)>& make) {
  d.proof_every = 1000;  // proof by re-read is timed on its own
  REFIT_ASSIGN(const ModelSource model, ModelSource::open(d.model));
  REFIT_ASSIGN(const auto source, model.layout(d.source));
  REFIT_ASSIGN(const auto target, model.layout(d.target));
  plan::Options stages;
  stages.values = plan::Values::kStages;
  REFIT_ASSIGN(const plan::World world, plan::make_world(*source, *target, stages));
  REFIT_ASSIGN(const MemoryBill bill, make_bill(d, *source, *target));
  const Ceiling best = make(d, static_cast<std::size_t>(source->world()), static_cast<std::size_t>(target->world()));
  const std::int64_t ceiling_bytes = std::min<std::int64_t>(world.bytes_needed, 1 << 30);
  if (bill.total() + 2 * ceiling_bytes > bill.have)
    return Error(Code::kExhausted, "bench " + d.transport + " does not fit in memory; name a smaller model")
        .amounts(bill.total() + 2 * ceiling_bytes, bill.have);

  Clock clock;
  REFIT_ASSIGN(const auto fleet, Fleet::start(d, source, target, [&clock](const PhaseEvent& e) { clock(e); }));
  REFIT_TRY(fleet->synchronizer().init_communicator());
  std::vector<double> transfer, seal, pause, total, ceiling;
  double proof = 0;
  for (int round = 0; round < kWarmUp + repeats; ++round) {
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
                 best.seconds(ceiling_bytes));  // in turn with the rounds: noise meets both alike
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

  std::vector<bench::Row> rows;
  rows.push_back(
      bench::against(name, bench::gbps(world.bytes_needed, median(transfer)), "GB/s", median(ceiling), best.words));
  rows.push_back({name + ".transfer", median(transfer), "s", {}, {}, "from the first lend to the last vote"});
  rows.push_back({name + ".publish", median(seal), "s", {}, {}, "the source's own seal scan"});
  rows.push_back({name + ".pause", median(pause), "s", {}, {}, "gate shut: copy shadow to live and two round trips"});
  rows.push_back({name + ".total", median(total), "s", {}, {}, "sync_weights, all of it"});
  rows.push_back(
      {name + ".first-with-reread", proof, "s", {}, {}, "first version: staged bytes read again, pages new"});
  rows.push_back(
      {name + ".bytes", static_cast<double>(world.bytes_needed) * 1e-9, "GB", {}, {}, "useful bytes of one refit"});
  return rows;
}

DemoOptions options_of(const bench::Options& options, const std::string& transport) {
  DemoOptions d;
  d.transport = transport;
  d.model = options.arguments.empty() ? kModel : options.arguments[0];
  d.source = options.arguments.size() > 1 ? options.arguments[1] : "fsdp=4";
  d.target = options.arguments.size() > 2 ? options.arguments[2] : "vllm:tp=2";
  d.threads = options.threads;
  return d;
}
std::string row_of(const bench::Options& options, const DemoOptions& d) {
  return d.transport + "." + (options.arguments.empty() ? "fsdp4-tp2" : d.source + "-" + d.target);
}

Result<std::vector<bench::Row>> bench_shm(const bench::Options& options) {
  const DemoOptions all = options_of(options, "shm");
  return measure(all, row_of(options, all), options.repeats,
                 [](const DemoOptions& d, std::size_t, std::size_t targets) -> Ceiling {
                   const int threads = static_cast<int>(targets) * d.threads;
                   return {"copy by " + std::to_string(threads) + " threads, memfd to arena",
                           [threads](std::int64_t bytes) { return copy_seconds(threads, bytes, 1); }};
                 });
}

Result<std::vector<bench::Row>> bench_tcp(const bench::Options& options) {
  const auto sockets = [](const DemoOptions& d, std::size_t sources, std::size_t targets) -> Ceiling {
    const std::size_t streams = sources * targets * static_cast<std::size_t>(d.streams);
    return {"bare loopback sockets, " + std::to_string(streams) +
                " stream(s), no staging and no digest; refit with buckets of " + human_bytes(d.bucket_bytes),
            [streams](std::int64_t bytes) { return socket_seconds(streams, bytes); }};
  };
  DemoOptions d = options_of(options, "tcp");
  d.streams = 1;             // loopback has nothing to gain from more
  d.bucket_bytes = 4 << 20;  // what is under way from all senders stays near the last-level cache
  if (options.arguments.size() > 3) {
    REFIT_ASSIGN(d.bucket_bytes, parse_bytes(options.arguments[3], "BUCKET_BYTES"));
  }
  if (options.arguments.size() > 4) {
    REFIT_ASSIGN(const std::int64_t streams, parse_bytes(options.arguments[4], "STREAMS"));
    d.streams = static_cast<int>(std::clamp<std::int64_t>(streams, 1, 16));
  }
  d.security_bulk = "none";  // as bare as the sockets beside it; the row with mac follows
  REFIT_ASSIGN(std::vector<bench::Row> rows, measure(d, row_of(options, d), options.repeats, sockets));
  d.security_bulk = "mac";
  REFIT_ASSIGN(const std::vector<bench::Row> mac, measure(d, row_of(options, d) + ".mac", options.repeats, sockets));
  rows.insert(rows.end(), mac.begin(), mac.end());
  return rows;
}

Result<std::vector<bench::Row>> bench_nixl(const bench::Options& options) {
  const DemoOptions d = options_of(options, "nixl");
  return measure(d, row_of(options, d), options.repeats,
                 [](const DemoOptions& o, std::size_t, std::size_t targets) -> Ceiling {
                   const int threads = static_cast<int>(targets) * o.threads;
                   return {"copy by " + std::to_string(threads) +
                               " threads, memfd to arena; NIXL's reads are one more, "
                               "into staging",
                           [threads](std::int64_t bytes) { return copy_seconds(threads, bytes, 1); }};
                 });
}

// A whole dense model whose tensors JAX keeps transposed, between two processes: plan, seal, staging and digests, one
// thread at the target, beside copying as many bytes.
Result<std::vector<bench::Row>> bench_transpose(const bench::Options& options) {
  DemoOptions d;
  d.transport = "shm";
  d.model = options.arguments.empty() ? kDense : options.arguments[0];
  d.threads = 1;
  std::vector<bench::Row> rows;
  for (const auto& [from, to] : {std::pair("hf", "jax"), std::pair("jax", "hf")}) {
    d.source = from;
    d.target = to;
    const std::string name = std::string("transpose.") + from + "-" + to;
    REFIT_ASSIGN(
        const std::vector<bench::Row> all,
        measure(d, name, options.repeats, [](const DemoOptions&, std::size_t, std::size_t) -> Ceiling {
          return {"copy by 1 thread, memfd to arena", [](std::int64_t bytes) { return copy_seconds(1, bytes, 1); }};
        }));
    for (const bench::Row& r : all)
      if (r.name == name || r.name == name + ".transfer" || r.name == name + ".bytes") rows.push_back(r);
  }
  return rows;
}

const bench::Registration transpose(
    "transpose", "A dense model between Hugging Face's and JAX's layout, shared memory, one thread: [MODEL]",
    bench_transpose);
const bench::Registration shm("shm", "Dense refit between real processes over shared memory: [MODEL [SOURCE [TARGET]]]",
                              bench_shm);
const bench::Registration nixl(
    "nixl", "Dense refit between real processes over NIXL, from the wheel nixl-cu12: [MODEL [SOURCE [TARGET]]]",
    bench_nixl);
const bench::Registration tcp(
    "tcp", "Dense refit between real processes over TCP: [MODEL [SOURCE [TARGET [BUCKET_BYTES [STREAMS]]]]]",
    bench_tcp);

}  // namespace
}  // namespace refit::cli
