#include "cli/demo/member.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/agent.h"
#include "cli/command.h"
#include "cli/demo/child.h"
#include "cli/demo/model_source.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

constexpr double kSliceS = 0.02;  // how long the agent runs between two looks at the driver's lines
constexpr double kGuardS = 30;    // how long a training step waits for a lease to end

std::string number(std::uint64_t v) { return std::to_string(v); }

struct Process {
  MemberOptions options;
  ModelSource model;
  engine::StepRule rule;
  std::unique_ptr<Watch> watch;  // outlives what it hears
  std::unique_ptr<agent::Seat> seat;
  std::unique_ptr<engine::ReferenceTrainer> trainer;
  std::unique_ptr<engine::ReferenceEngine> engine;
  std::unique_ptr<agent::SourceAgent> source;
  std::unique_ptr<agent::Agent> target;
  LineSocket lines;
  std::int64_t steps = 0;

  Process(const MemberOptions& o, ModelSource m)
      : options(o), model(std::move(m)), rule{.seed = o.seed, .share = o.share}, lines(Fd(kChildSocketFd)) {}
  agent::Agent& agent() { return source ? *source : *target; }
};

MemberName name_of(const MemberOptions& o) { return {o.role, o.instance, o.rank}; }

// Dies as a crash would: no destructor, no goodbye.
Observer killer(const MemberOptions& o) {
  if (o.kill_at.empty()) return {};
  Phase at{};
  phase_from_string(o.kill_at, at);
  return
      [at, round = o.kill_round, bytes = o.kill_bytes, signal = o.kill_stops ? SIGSTOP : SIGKILL](const PhaseEvent& e) {
        if (e.phase == at && e.txn.counter >= round && e.bytes >= bytes) ::kill(::getpid(), signal);
      };
}

Status set_up(Process& p) {
  const MemberOptions& o = p.options;
  const auto job = Hash128::from_hex(o.job);
  if (!job) return Error(Code::kInvalid, "--job must be 32 hex digits");
  REFIT_ASSIGN(p.watch, Watch::open(o.watch));
  REFIT_ASSIGN(p.seat, agent::Seat::make({.job = *job,
                                          .name = name_of(o),
                                          .member = o.member,
                                          .runtime_dir = o.runtime_dir,
                                          .control_address = o.control,
                                          .transport = o.transport,
                                          .staging_bytes = o.staging_bytes,
                                          .budget_bytes = o.budget_bytes,
                                          .threads = o.threads,
                                          .snapshot = o.snapshot,
                                          .baseline_dir = o.baseline_dir,
                                          .net = {.advertise_address = o.advertise_address,
                                                  .port_range = o.port_range,
                                                  .security = o.security_bulk,
                                                  .streams = o.streams,
                                                  .stall_ns = static_cast<std::int64_t>(o.stall_timeout_s * 1e9)},
                                          // A window of the live copy ends exactly where the process is to die.
                                          .progress_bytes = o.kill_bytes > 0 ? o.kill_bytes : 64 << 20,
                                          .observer = p.watch->observer(killer(o))}));
  memory::Budget* const budget = &p.seat->budget();
  const bool is_source = o.role == Role::kSource;
  REFIT_ASSIGN(const auto layout, p.model.layout(is_source ? o.source_spec : o.target_spec));
  const auto per = static_cast<std::uint32_t>(layout->world() / layout->instances());
  const Rank rank(o.instance * per + o.rank);
  if (is_source) {
    REFIT_ASSIGN(p.trainer, engine::ReferenceTrainer::make(system_env(), layout, rank, budget));
    REFIT_TRY(p.model.fill(*p.trainer, o.seed));
    REFIT_ASSIGN(p.source, agent::make_source_agent(p.seat->options(), *p.trainer));
    for (std::int64_t step = 1; step <= o.steps_done; ++step) p.trainer->step(p.rule, step);
    p.source->publish(o.steps_done, "policy");
  } else {
    REFIT_ASSIGN(p.engine, engine::ReferenceEngine::make(layout, rank, budget));
    REFIT_ASSIGN(p.target, agent::make_target_agent(p.seat->options(), *p.engine, *p.engine));
    p.engine->start_serving();
  }
  return {};
}

std::int64_t entries(const char* directory) {
  std::error_code ignored;
  std::int64_t n = 0;
  for (auto it = std::filesystem::directory_iterator(directory, ignored);
       !ignored && it != std::filesystem::directory_iterator(); it.increment(ignored))
    ++n;
  return n;
}

// What must stay flat over many refits.
nlohmann::json resources() {
  std::ifstream in("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return {{"descriptors", entries("/proc/self/fd")},
          {"threads", entries("/proc/self/task")},
          {"resident", resident * ::sysconf(_SC_PAGESIZE)}};
}

nlohmann::json encoded_of(const agent::EncodeReport& e) {
  return {{"unchanged", e.unchanged},
          {"delta", e.delta},
          {"raw", e.raw},
          {"elements", e.elements},
          {"changed", e.changed},
          {"delta_bytes", e.delta_bytes},
          {"delta_changed", e.delta_changed},
          {"bytes_useful", e.bytes_useful},
          {"bytes_wire", e.bytes_wire},
          {"pack_ns", e.pack_ns},
          {"encode_ns", e.encode_ns},
          {"send_ns", e.send_ns}};
}

nlohmann::json report_of(Process& p) {
  const agent::AgentReport r = p.agent().report();
  nlohmann::json out{{"state", r.state},
                     {"version", r.version.number},
                     {"step", r.version.step},
                     {"digest", r.version.digest.hex()},
                     {"seal_ns", r.seal_ns},
                     {"stage_ns", r.stage_ns},
                     {"verify_ns", r.verify_ns},
                     {"copy_ns", r.copy_ns},
                     {"plan_ns", r.plan_ns},
                     {"bytes_staged", r.bytes_staged},
                     {"bytes_sealed", r.bytes_sealed},
                     {"snapshot_bytes", r.snapshot_bytes},
                     {"shadow_bytes", r.shadow_bytes},
                     {"buckets", r.buckets},
                     {"quantise_ns", r.quantise_ns},
                     {"exchanged_blocks", r.exchanged_blocks},
                     {"encoded", encoded_of(r.encoded)},
                     {"base_ns", r.base_ns},
                     {"base_lost", r.base_lost},
                     {"unpack_ns", r.unpack_ns},
                     {"memory_used", p.seat->budget().used()},
                     {"memory_peak", p.seat->budget().peak()},
                     {"resources", resources()}};
  if (p.engine) {
    const engine::ServeCounts c = p.engine->counts();
    out["serving"] = {{"forwards", c.forwards},
                      {"refused", c.refused},
                      {"torn", c.torn},
                      {"stale_cache", c.stale_cache},
                      {"version", p.engine->version().number}};
  }
  return out;
}

// The weights are compared only where a complete version is installed.
nlohmann::json check_of(Process& p) {
  const Version v = p.engine->version();
  if (v.number == 0) return {{"ok", false}, {"error", "no version is installed"}};
  const Result<std::shared_ptr<const model::Layout>> trainer = p.model.layout(p.options.source_spec);
  if (!trainer.ok()) return {{"ok", false}, {"version", v.number}, {"error", trainer.error().to_string()}};
  const Result<Witness> w = compare_live(p.model, p.options.seed, p.rule, v.step, *p.engine, trainer->get());
  if (!w.ok()) return {{"ok", false}, {"version", v.number}, {"error", w.error().to_string()}};
  return {{"ok", true}, {"version", v.number}, {"step", v.step}, {"bytes", w->bytes}};
}

Status train(Process& p, std::int64_t step) {
  const Deadline deadline = Deadline::after_s(kGuardS);
  Status free = p.source->guard(Deadline::after_ns(0));
  while (!free.ok() && !deadline.over()) {
    REFIT_TRY(p.source->run(Deadline::after_s(kSliceS)));
    free = p.source->guard(Deadline::after_ns(0));
  }
  REFIT_TRY(free);
  p.trainer->step(p.rule, step);
  p.source->publish(step, "policy");
  return {};
}

Result<bool> obey(Process& p, const std::string& line) {
  const auto space = line.find(' ');
  const std::string verb = line.substr(0, space);
  if (verb == "quit") return false;
  if (verb == "report")
    REFIT_TRY(p.lines.send(report_of(p).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  if (verb == "check")
    REFIT_TRY(p.lines.send(check_of(p).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  if (verb == "step") {
    const Status s = train(p, std::strtoll(line.c_str() + space + 1, nullptr, 10));
    REFIT_TRY(p.lines.send(s.ok() ? "{\"ok\":true}"
                                  : nlohmann::json{{"ok", false}, {"error", s.error().to_string()}}.dump(
                                        -1, ' ', false, nlohmann::json::error_handler_t::replace)));
  }
  return true;
}

}  // namespace

std::vector<std::string> MemberOptions::arguments() const {
  std::vector<std::string> out = {"demo-member",
                                  "--model",
                                  model,
                                  "--source",
                                  source_spec,
                                  "--target",
                                  target_spec,
                                  "--transport",
                                  transport,
                                  "--role",
                                  std::string(to_string(role)),
                                  "--instance",
                                  number(instance),
                                  "--rank",
                                  number(rank),
                                  "--member",
                                  number(member),
                                  "--runtime-dir",
                                  runtime_dir,
                                  "--control",
                                  control,
                                  "--job",
                                  job,
                                  "--seed",
                                  number(seed),
                                  "--share",
                                  std::to_string(share),
                                  "--staging-bytes",
                                  std::to_string(staging_bytes),
                                  "--budget-bytes",
                                  std::to_string(budget_bytes),
                                  "--threads",
                                  std::to_string(threads)};
  if (!kill_at.empty()) out.insert(out.end(), {"--kill-at", kill_at, "--kill-round", number(kill_round)});
  if (steps_done > 0) out.insert(out.end(), {"--steps-done", std::to_string(steps_done)});
  if (kill_stops) out.push_back("--kill-stops");
  if (kill_bytes > 0) out.insert(out.end(), {"--kill-bytes", std::to_string(kill_bytes)});
  if (snapshot) out.push_back("--snapshot");
  out.insert(out.end(), {"--security-bulk", security_bulk, "--streams", number(static_cast<std::uint64_t>(streams)),
                         "--stall-timeout-s", std::to_string(stall_timeout_s)});
  if (!baseline_dir.empty()) out.insert(out.end(), {"--baseline-dir", baseline_dir});
  if (!port_range.empty()) out.insert(out.end(), {"--port-range", port_range});
  if (!advertise_address.empty()) out.insert(out.end(), {"--advertise-address", advertise_address});
  for (std::string& argument : cli::arguments(watch)) out.push_back(std::move(argument));
  return out;
}

Status run_member(const MemberOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a demo that is interrupted leaves no process behind
  REFIT_ASSIGN(ModelSource model, ModelSource::open(options.model));
  Process p(options, std::move(model));
  const Status ready = set_up(p);
  REFIT_TRY(p.lines.send((ready.ok() ? nlohmann::json{{"ok", true}, {"metrics", p.watch->metrics_url()}}
                                     : nlohmann::json{{"ok", false}, {"error", ready.error().to_string()}})
                             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  REFIT_TRY(ready);
  const MemberName me = name_of(options);
  while (true) {
    REFIT_TRY(p.agent().run(Deadline::after_s(kSliceS)));
    if (options.watch.any()) p.watch->look(me, p.agent(), p.agent().report(), *p.seat);
    Result<std::string> line = p.lines.receive(Deadline::after_ns(0));
    if (!line.ok() && line.error().code == Code::kTimeout) continue;
    if (!line.ok()) return {};  // the driver is gone: nobody is left to serve
    REFIT_ASSIGN(const bool go_on, obey(p, *line));
    if (!go_on) break;
  }
  if (p.engine) p.engine->stop_serving();
  const Status closed = p.agent().close(Deadline::after_s(2));
  const Status movers = p.seat->close(Deadline::after_s(4));
  return closed.ok() ? movers : closed;
}

namespace {
void setup_member(CLI::App& app, Context& context) {
  auto options = std::make_shared<MemberOptions>();
  auto role = std::make_shared<std::string>();
  CLI::App* c = app.add_subcommand("demo-member", "one process of the demo")->group("");
  c->add_option("--model", options->model)->required();
  c->add_option("--source", options->source_spec)->required();
  c->add_option("--target", options->target_spec)->required();
  c->add_option("--transport", options->transport);
  c->add_option("--role", *role)->required()->check(CLI::IsMember({"source", "target"}));
  c->add_option("--instance", options->instance);
  c->add_option("--rank", options->rank);
  c->add_option("--member", options->member);
  c->add_option("--runtime-dir", options->runtime_dir)->required();
  c->add_option("--control", options->control)->required();
  c->add_option("--job", options->job)->required();
  c->add_option("--seed", options->seed);
  c->add_option("--share", options->share);
  c->add_option("--staging-bytes", options->staging_bytes);
  c->add_option("--budget-bytes", options->budget_bytes);
  c->add_option("--threads", options->threads);
  c->add_option("--kill-at", options->kill_at);
  c->add_option("--kill-round", options->kill_round);
  c->add_option("--steps-done", options->steps_done);
  c->add_flag("--kill-stops", options->kill_stops);
  c->add_option("--kill-bytes", options->kill_bytes);
  c->add_flag("--snapshot", options->snapshot);
  c->add_option("--security-bulk", options->security_bulk);
  c->add_option("--port-range", options->port_range);
  c->add_option("--advertise-address", options->advertise_address);
  c->add_option("--streams", options->streams);
  c->add_option("--baseline-dir", options->baseline_dir);
  c->add_option("--stall-timeout-s", options->stall_timeout_s);
  declare(*c, options->watch);
  c->callback([options, role, &context] {
    options->role = *role == "source" ? Role::kSource : Role::kTarget;
    const Status s = run_member(*options);
    if (!s.ok()) fail(context, Error(s.error()).at_peer(name_of(*options).to_string()));
  });
}
REFIT_COMMAND("demo-member", setup_member);
}  // namespace

}  // namespace refit::cli
