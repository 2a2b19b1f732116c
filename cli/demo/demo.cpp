// refit demo: the whole job on this machine with real processes.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/demo/demo_options.h"
#include "cli/demo/fleet.h"
#include "cli/demo/model_source.h"
#include "cli/demo/store_demo.h"
#include "cli/watch/trace_file.h"
#include "kernel/kernel.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

using nlohmann::json;

constexpr double kAnswerS = 120;  // members answer between rounds; the witness reads its whole shard

std::atomic<bool> interrupted{false};
void on_signal(int) { interrupted = true; }

// The ceiling of the same run: memfd → private arena, as many threads as one rollout rank uses.
Result<double> memcpy_gbps(int threads) {
  constexpr std::int64_t kBytes = 256 << 20;
  memory::Budget budget(2 * kBytes);
  REFIT_ASSIGN(const memory::SharedRegion from, memory::SharedRegion::make(system_env(), kBytes, &budget, "ceiling"));
  REFIT_ASSIGN(const memory::Arena to, memory::Arena::make(kBytes, &budget, "ceiling"));
  ThreadPool pool(threads);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t start = monotonic_ns();
    kernel::copy_flat({&pool}, to.data(), from.data(), kBytes);
    best = std::max(best, static_cast<double>(kBytes) / static_cast<double>(monotonic_ns() - start));
  }
  return best;
}

std::string proof_text(const wire::ProofCounts& p) {
  return fmt::format("{} staged, {} live", p.placed_staged, p.placed_live);
}

json error_json(const std::optional<Error>& e) {
  if (!e) return nullptr;
  return {{"code", std::string(to_string(e->code))},
          {"message", e->message},
          {"peer", e->peer},
          {"stage", e->stage},
          {"bucket", e->bucket},
          {"tensor", e->tensor}};
}

class Demo {
 public:
  Demo(Context& context, DemoOptions options) : context_(context), options_(std::move(options)) {}

  Status run() {
    const Status done = job();
    const Status traced = write_trace();
    return done.ok() ? traced : done;
  }

 private:
  Status job() {
    REFIT_TRY(prepare());
    WatchOptions own = options_.watch;
    if (!own.trace.empty()) own.trace += ".part";
    REFIT_ASSIGN(watch_, Watch::open(own));
    REFIT_ASSIGN(fleet_, Fleet::start(options_, source_, target_, watch_->observer()));
    say(fmt::format("processes: {} trainer ranks ({}), {} rollout ranks ({}), coordinator at {}", source_->world(),
                    options_.source, target_->world(), options_.target, fleet_->address()));
    if (options_.encoding_in_use() != "raw") say("buckets: unchanged, delta or raw, whichever is shortest");
    if (options_.transport == "nixl")
      say("weights: nixl, security.bulk none (every address is loopback)");
    else if (!transport::mover_maps(options_.transport))
      say(fmt::format("weights: {}, security.bulk {}, {} streams a pair", options_.transport, options_.security_bulk,
                      options_.streams));
    if (!watch_->metrics_url().empty()) {
      say("metrics: coordinator " + watch_->metrics_url());
      for (const auto& [name, url] : fleet_->metrics()) say("         " + name + " " + url);
    }
    REFIT_TRY(fleet_->synchronizer().init_communicator());
    REFIT_ASSIGN(memcpy_gbps_, memcpy_gbps(options_.threads));
    header();
    for (int step = 0; step <= options_.steps && !interrupted; ++step) REFIT_TRY(one_version(step));
    REFIT_TRY(finish());
    return {};
  }

  void say(const std::string& line) {
    if (!context_.json) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    }
  }

  Status prepare() {
    REFIT_ASSIGN(const ModelSource model, ModelSource::open(options_.model));
    REFIT_ASSIGN(source_, model.layout(options_.source));
    REFIT_ASSIGN(target_, model.layout(options_.target));
    if (source_->instances() != 1)
      return Error(Code::kInvalid, "--source '" + options_.source + "' has replicas; the demo trains one instance");
    REFIT_TRY(model.covers(*source_));
    plan::Options p{.bucket_bytes = options_.bucket_bytes,
                    .staging_bytes = options_.staging_bytes,
                    .partial = false,
                    .files = false,
                    .values = plan::Values::kStages,
                    .allow_cast = options_.allow_cast};
    REFIT_ASSIGN(world_, plan::make_world(*source_, *target_, p));
    REFIT_ASSIGN(const MemoryBill bill, make_bill(options_, *source_, *target_));
    say(fmt::format("model: {} ({} tensors, {})", options_.model, source_->catalogue().tensors.size(),
                    model.from_checkpoint() ? "checkpoint" : "random weights"));
    say(fmt::format("plan: {} needed, {} moved, {} segments in {} buckets, coverage {:.1f}, id {}",
                    human_bytes(world_.bytes_needed), human_bytes(world_.bytes_moved), world_.segments, world_.buckets,
                    world_.coverage, world_.id.hex().substr(0, 12)));
    if (const std::string stages = plan::describe_stages(world_); !stages.empty()) say("stages: " + stages);
    say(bill.to_string());
    bill_ = bill;
    if (bill.total() > bill.have)
      return Error(Code::kExhausted,
                   "this demo does not fit in memory; take fewer replicas or ranks, or a smaller model (NAME@layers=N)")
          .amounts(bill.total(), bill.have);
    return {};
  }

  void header() {
    say(fmt::format("ceiling: copy memfd -> arena {:.1f} GB/s ({} thread{} per rank)", memcpy_gbps_, options_.threads,
                    options_.threads == 1 ? "" : "s"));
    say(fmt::format("{:>4} {:>4} {:<20} {:>10} {:>8} {:>8} {:>9} {:>7} {:>8}  {}", "step", "ver", "outcome", "bytes",
                    "seal s", "total s", "pause ms", "GB/s", "of copy", "proof / witness"));
  }

  Status train(int step) {
    if (step == 0) return {};
    const std::vector<json> answers =
        fleet_->ask("step " + std::to_string(step), Role::kSource, Deadline::after_s(kAnswerS));
    for (std::size_t m = 0; m < fleet_->sources(); ++m)
      if (!answers[m].is_object() || !answers[m].value("ok", false))
        return Error(Code::kPeerLost, answers[m].is_object() ? answers[m].value("error", std::string("failed"))
                                                             : std::string("did not answer"))
            .at_peer(fleet_->name(m).to_string())
            .at_stage("train");
    fleet_->stepped(step);
    fleet_->synchronizer().mark_stale();
    return {};
  }

  Status one_version(int step) {
    deaths_ += fleet_->dead().size();
    if (!fleet_->dead().empty()) REFIT_TRY(repair());
    REFIT_TRY(train(step));
    REFIT_ASSIGN(const sync::SyncReport report, fleet_->synchronizer().sync_weights(step));
    watch_->round(report);
    watch_->look(fleet_->synchronizer());
    json row = describe(report, step);
    row["targets"] = targets_now();
    versions_.push_back(row);
    print(row, report);
    return {};
  }

  Status repair() {
    REFIT_ASSIGN(const auto names, fleet_->revive());
    for (const std::string& n : names) say("     restarted " + n);
    return fleet_->synchronizer().init_communicator();
  }

  json describe(const sync::SyncReport& report, int step) {
    const coordinator::RoundResult& r = report.round;
    const std::vector<json> reports = fleet_->ask("report", std::nullopt, Deadline::after_s(kAnswerS));
    std::int64_t seal = 0, stage = 0;
    json deltas{{"unchanged", 0}, {"delta", 0},       {"raw", 0},           {"elements", 0},
                {"changed", 0},   {"delta_bytes", 0}, {"delta_changed", 0}, {"bytes_wire", 0}};
    std::int64_t pack = 0, encode = 0, unpack = 0, base = 0;
    json resources = json::object();
    for (std::size_t m = 0; m < reports.size(); ++m)
      if (reports[m].is_object()) resources[fleet_->name(m).to_string()] = reports[m]["resources"];
    for (const json& j : reports) {
      if (!j.is_object()) continue;
      seal = std::max(seal, j.value("seal_ns", std::int64_t{0}));
      stage = std::max(stage, j.value("stage_ns", std::int64_t{0}));
      unpack = std::max(unpack, j.value("unpack_ns", std::int64_t{0}));
      base = std::max(base, j.value("base_ns", std::int64_t{0}));
      const json& e = j["encoded"];
      pack = std::max(pack, e["pack_ns"].get<std::int64_t>());
      encode = std::max(encode, e["encode_ns"].get<std::int64_t>());
      for (auto& [key, sum] : deltas.items()) sum = sum.get<std::int64_t>() + e[key].get<std::int64_t>();
    }
    const bool with_deltas = options_.encoding_in_use() != "raw";
    const auto share = [&](const char* part, const char* of, double scale) {
      const auto n = deltas[of].get<double>();
      return n > 0 ? scale * deltas[part].get<double>() / n : 0.0;
    };
    deltas["changed_share"] = share("changed", "elements", 1);
    deltas["bits_per_changed"] = share("delta_bytes", "delta_changed", 8);
    deltas["pack_seconds"] = static_cast<double>(pack) * 1e-9;
    deltas["encode_seconds"] = static_cast<double>(encode) * 1e-9;
    deltas["apply_seconds"] = static_cast<double>(unpack) * 1e-9;
    deltas["base_seconds"] = static_cast<double>(base) * 1e-9;

    bool verified = report.ok();
    std::int64_t compared = 0;
    std::string witness;
    if (report.ok()) {
      const std::vector<json> checks = fleet_->ask("check", Role::kTarget, Deadline::after_s(kAnswerS));
      for (std::size_t m = fleet_->sources(); m < fleet_->size(); ++m) {
        // A replica that was evicted with on_target_loss: continue is no member of this version.
        if (std::find(r.evicted.begin(), r.evicted.end(), fleet_->name(m)) != r.evicted.end()) continue;
        const json& c = checks[m];
        const bool good = c.is_object() && c.value("ok", false) &&
                          c.value("version", std::uint64_t{0}) == r.version.number && c.value("step", -1) == step;
        if (!good && witness.empty())
          witness =
              fleet_->name(m).to_string() + ": " +
              (c.is_object() ? c.value("error", std::string("serves another version")) : std::string("did not answer"));
        verified = verified && good;
        if (good) compared += c.value("bytes", std::int64_t{0});
      }
    }
    const double transfer = static_cast<double>(stage) * 1e-9;
    const double rate = transfer > 0 ? static_cast<double>(world_.bytes_needed) / transfer * 1e-9 : 0;
    return {{"step", step},
            {"version", r.version.number},
            {"attempted", r.number},
            {"digest", r.version.digest.hex()},
            {"bytes_useful", world_.bytes_needed},
            {"bytes_wire", !report.ok()  ? 0
                           : with_deltas ? deltas["bytes_wire"].get<std::int64_t>()
                                         : world_.bytes_moved},
            {"deltas", with_deltas ? deltas : json(nullptr)},
            {"publish_seconds", static_cast<double>(seal) * 1e-9},
            {"transfer_seconds", transfer},
            {"seconds", report.seconds},
            {"pause_seconds", static_cast<double>(r.max_pause_ns) * 1e-9},
            {"transfer_gbps", rate},
            {"verified", verified},
            {"witness_bytes", compared},
            {"witness_error", witness},
            {"proof_version", report.proof},
            {"proof",
             {{"placed_staged", r.proof.placed_staged},
              {"placed_live", r.proof.placed_live},
              {"handed_over", r.proof.handed_over},
              {"probed", r.proof.probed}}},
            {"outcome", std::string(wire::to_string(r.outcome))},
            {"error", error_json(r.error)},
            {"stale", fleet_->synchronizer().is_stale()},
            {"resources", resources}};
  }

  void print(const json& row, const sync::SyncReport& report) {
    const double rate = row["transfer_gbps"].get<double>();
    const bool ok = report.ok();
    say(fmt::format(
        "{:>4} {:>4} {:<20} {:>10} {:>8.3f} {:>8.3f} {:>9.2f} {:>7} {:>8}  {}", row["step"].get<int>(),
        row["version"].get<std::uint64_t>(), row["outcome"].get<std::string>(),
        human_bytes(row["bytes_wire"].get<std::int64_t>()), row["publish_seconds"].get<double>(),
        row["seconds"].get<double>(), row["pause_seconds"].get<double>() * 1e3, ok ? fmt::format("{:.1f}", rate) : "-",
        ok ? fmt::format("{:.2f}", rate / memcpy_gbps_) : "-",
        ok ? fmt::format("{}{}; {} equal to the checkpoint + {} steps", proof_text(report.round.proof),
                         report.proof ? " (re-read)" : "", human_bytes(row["witness_bytes"].get<std::int64_t>()),
                         row["step"].get<int>())
           : (report.round.error ? report.round.error->to_string() : std::string("no error was reported"))));
    if (ok && row["deltas"].is_object()) {
      const json& e = row["deltas"];
      say(fmt::format(
          "     buckets: {} unchanged, {} delta, {} raw; {:.2f} % changed, {:.2f} bits each; pack {:.3f} s, "
          "encode {:.3f} s, apply {:.3f} s, base {:.3f} s",
          e["unchanged"].get<int>(), e["delta"].get<int>(), e["raw"].get<int>(), e["changed_share"].get<double>() * 100,
          e["bits_per_changed"].get<double>(), e["pack_seconds"].get<double>(), e["encode_seconds"].get<double>(),
          e["apply_seconds"].get<double>(), e["base_seconds"].get<double>()));
    }
    if (!row["witness_error"].get<std::string>().empty())
      say("     WITNESS: " + row["witness_error"].get<std::string>());
    if (ok) return;
    for (const std::string& d : fleet_->dead()) say("     died: " + d);
    for (const json& t : row["targets"])
      say(fmt::format("     replica {} serves version {} ({})", t["index"].get<int>(),
                      t["version"].get<std::uint64_t>(), t["state"].get<std::string>()));
  }

  // One row per replica; a replica is what its least advanced rank is.
  std::vector<json> targets_now() {
    const std::vector<json> reports = fleet_->ask("report", Role::kTarget, Deadline::after_s(kAnswerS));
    const auto per = static_cast<std::size_t>(target_->world() / target_->instances());
    std::vector<json> out;
    for (std::size_t i = 0; i < static_cast<std::size_t>(target_->instances()); ++i) {
      json row{{"index", i},       {"version", ~std::uint64_t{0}},
               {"digest", ""},     {"state", "serving"},
               {"forwards", 0},    {"torn", 0},
               {"stale_cache", 0}, {"refused", 0}};
      for (std::size_t r = 0; r < per; ++r) {
        const json& j = reports[fleet_->sources() + i * per + r];
        if (!j.is_object()) {
          row["state"] = "lost rank " + std::to_string(r);
          row["version"] = 0;
          continue;
        }
        if (row["state"] == "serving") row["state"] = j.value("state", std::string());
        if (j.value("version", std::uint64_t{0}) < row["version"].get<std::uint64_t>()) row["version"] = j["version"];
        row["digest"] = j.value("digest", std::string());
        for (const char* key : {"forwards", "torn", "stale_cache", "refused"})
          row[key] = row[key].get<std::uint64_t>() + j["serving"].value(key, std::uint64_t{0});
      }
      out.push_back(std::move(row));
    }
    return out;
  }

  json metrics_json() {
    if (watch_->metrics_url().empty()) return nullptr;
    json out{{"coordinator", watch_->metrics_url()}};
    for (const auto& [name, url] : fleet_->metrics()) out[name] = url;
    return out;
  }

  Status finish() {
    const Result<std::string> verdict = fleet_->synchronizer().verify(kAnswerS);
    const std::vector<json> targets = targets_now();
    deaths_ += fleet_->dead().size();
    std::int64_t peak = 0;
    for (const json& j : fleet_->ask("report", std::nullopt, Deadline::after_s(kAnswerS)))
      if (j.is_object()) peak = std::max(peak, j.value("memory_peak", std::int64_t{0}));
    bool ok = verdict.ok() && json::parse(*verdict, nullptr, false).value("ok", false) && !versions_.empty();
    std::size_t failed = 0;
    for (const json& v : versions_) {
      if (v["outcome"] != "committed")
        ++failed;
      else
        ok = ok && v["verified"].get<bool>();
    }
    // Each planned death may cost one version; the last one must be whole.
    ok = ok && failed <= options_.kill.size() + options_.stop.size() && versions_.back()["outcome"] == "committed";
    for (const json& t : targets)
      ok = ok && t["torn"] == 0 && t["stale_cache"] == 0 && t["version"] == versions_.back()["version"];
    if (deaths_ < options_.kill.size() + options_.stop.size()) {
      ok = false;
      say("a planned death did not happen: its step is not taken by that role in the versions that were made");
    }
    const double rate = versions_.empty() ? 0 : versions_.back()["transfer_gbps"].get<double>();
    say(
        fmt::format("memory: peak {} on the busiest rank (its shard + one copy; budget includes {} staging, which a "
                    "mapped transport leaves untouched)",
                    human_bytes(peak), human_bytes(options_.staging_bytes)));
    for (const json& t : targets)
      say(fmt::format("replica {}: version {} {}, {} forward passes served, {} torn, {} from a stale cache",
                      t["index"].get<int>(), t["version"].get<std::uint64_t>(), t["state"].get<std::string>(),
                      t["forwards"].get<std::uint64_t>(), t["torn"].get<std::uint64_t>(),
                      t["stale_cache"].get<std::uint64_t>()));
    const json proof = verdict.ok() ? json::parse(*verdict, nullptr, false) : json::object();
    const bool proven = proof.is_object() && proof.contains("ok") && proof["ok"] == true;
    say(proven ? fmt::format("verify: all {} rollout ranks read their live bytes again and prove version {}",
                             proof["members"].size(), proof["version"].dump())
               : "verify: NOT proven: " + (verdict.ok() ? *verdict : verdict.error().to_string()));
    if (context_.json)
      fmt::print("{}\n",
                 json{{"versions", versions_},
                      {"memcpy_gbps", memcpy_gbps_},
                      {"ratio_to_memcpy", memcpy_gbps_ > 0 ? rate / memcpy_gbps_ : 0},
                      {"targets", targets},
                      {"memory",
                       {{"bill",
                         {{"source_shards", bill_.source_shards},
                          {"snapshots", bill_.snapshots},
                          {"target_shards", bill_.target_shards},
                          {"shadows", bill_.shadows},
                          {"staging", bill_.staging},
                          {"processes", bill_.other},
                          {"need", bill_.total()},
                          {"have", bill_.have}}},
                        {"peak_rank", peak}}},
                      {"plan_id", world_.id.hex()},
                      {"transport", options_.transport},
                      {"security_bulk", transport::mover_maps(options_.transport) ? "" : options_.security_bulk},
                      {"deaths", deaths_},
                      {"address", fleet_->address()},
                      {"metrics", metrics_json()},
                      {"ok", ok}}
                     .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (!ok) context_.exit_code = 1;
    say(ok ? "ok" : "NOT ok");
    if (options_.hold) hold();
    return fleet_->stop();
  }

  // One file of all processes' parts: they share the machine's monotonic clock.
  Status write_trace() {
    if (options_.watch.trace.empty() || !watch_) return {};
    std::vector<std::string> parts = {options_.watch.trace + ".part"};
    if (fleet_) parts.insert(parts.end(), fleet_->trace_parts().begin(), fleet_->trace_parts().end());
    REFIT_ASSIGN(const TraceFile all, TraceFile::read(parts));
    REFIT_TRY(all.write(options_.watch.trace));
    for (const std::string& part : parts) std::remove(part.c_str());
    say("trace: " + options_.watch.trace + "   (refit trace summary, or ui.perfetto.dev)");
    return {};
  }

  void hold() {
    say("ADDR " + fleet_->address() + "   (refit status ADDR, refit verify ADDR; end with Ctrl-C)");
    std::fflush(stdout);
    while (!interrupted) {
      watch_->look(fleet_->synchronizer());
      system_env().wait(Deadline::after_ns(50'000'000));
    }
  }

  Context& context_;
  DemoOptions options_;
  std::shared_ptr<const model::Layout> source_, target_;
  plan::World world_;
  MemoryBill bill_;
  std::unique_ptr<Watch> watch_;  // outlives what it hears
  std::unique_ptr<Fleet> fleet_;
  double memcpy_gbps_ = 0;
  std::size_t deaths_ = 0;  // processes that had to be started again
  std::vector<json> versions_;
};

void setup_demo(CLI::App& app, Context& context) {
  auto o = std::make_shared<DemoOptions>();
  CLI::App* c = app.add_subcommand("demo",
                                   "The whole job on this machine: trainer and rollout processes, a dense version, "
                                   "training-like steps, a refit each, every version proven");
  c->add_option("--model", o->model,
                "Checkpoint directory, or NAME[@layers=N] of a built-in configuration with random weights")
      ->capture_default_str();
  c->add_option("--source", o->source, "Layout of the trainer, e.g. fsdp=2,tp=2")->capture_default_str();
  c->add_option("--target", o->target, "Layout of the rollout engine, e.g. vllm:tp=3,replicas=2")
      ->capture_default_str();
  c->add_option("--transport", o->transport, "How weights move")->capture_default_str();
  c->add_option("--security-bulk", o->security_bulk,
                "refit.security.bulk, where weights cross a network: mac, or none (spelled out)")
      ->check(CLI::IsMember({"mac", "none", "aes_gcm"}))
      ->capture_default_str();
  c->add_option("--port-range", o->port_range, "refit.port_range, LOW-HIGH: where processes listen for weights");
  c->add_option("--advertise-address", o->advertise_address,
                "refit.advertise_address: where processes listen for weights and are reached (127.0.0.1 without it)");
  c->add_option("--streams", o->streams, "Connections from one sender to one recipient")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  c->add_option("--encoding", o->encoding,
                "raw: all bytes of every version; delta (or xor) and overwrite: what changed since the last one, where "
                "that is shorter (raw, for zmq_sparse delta)")
      ->check(CLI::IsMember({"raw", "delta", "xor", "overwrite"}));
  c->add_option("--baseline-mmap-dir", o->baseline_dir,
                "….sparse.baseline.mmap_dir: trainers keep the base of deltas in a file there instead of in memory");
  c->add_option(
      "--store", o->store,
      "With --transport s3_sparse: s3://BUCKET/PREFIX (fresh) or file:///DIR; a temporary directory without it");
  c->add_option("--steps", o->steps, "Training-like steps after the first version")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option(
      "--kill", o->kill,
      "ROLE:INDEX[.RANK]@STEP: that process dies there in the first round after version 1; copying:BYTES dies "
      "when so much of the live copy is written; repeatable");
  c->add_option("--stop", o->stop,
                "Like --kill with SIGSTOP: the process stands still, and is ended before the next step");
  c->add_option("--share", o->share, "Share of elements that a step changes")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--seed", o->seed, "Seed of random weights and steps")->capture_default_str();
  c->add_option("--staging-bytes", o->staging_bytes, "refit.staging_bytes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--bucket-bytes", o->bucket_bytes, "refit.bucket_bytes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--proof-every", o->proof_every, "refit.proof_every")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--threads", o->threads, "Kernel threads per process")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--stall-timeout-s", o->stall_timeout_s, "refit.stall_timeout_s")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--allow-cast", o->allow_cast, "Tensors (pattern) whose casts may lose values; repeatable");
  c->add_flag("--snapshot", o->snapshot, "refit.snapshot: the trainer copies its weights before they are sealed");
  c->add_flag("--on-target-loss-continue", o->on_loss_continue,
              "refit.on_target_loss: continue without a lost replica");
  declare(*c, o->watch);
  c->add_flag("--hold", o->hold, "Keep running at the end and print the coordinator's ADDR");
  c->add_flag("--json", context.json, "Print one JSON object");
  c->callback([o, &context] {
    ::signal(SIGINT, on_signal);
    ::signal(SIGTERM, on_signal);
    if (o->transport == "s3_sparse") {
      if (o->watch.any())
        return fail(context, Error(Code::kUnsupported,
                                   "--transport s3_sparse: --metrics, --trace and --log watch rounds "
                                   "of a job; a store has none"));
      const Result<double> gbps = memcpy_gbps(o->threads);
      const Status s = gbps.ok() ? run_store_demo(context, *o, *gbps) : Status(gbps.error());
      if (!s.ok()) fail(context, s.error());
      return;
    }
    const Status s = Demo(context, *o).run();
    if (!s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("demo", setup_demo);

}  // namespace
}  // namespace refit::cli
