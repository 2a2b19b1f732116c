// refit coordinator: the coordinator in a process of its own. It brings every replica to what the trainer offers: a
// round begins when all source ranks offer the same step and some replica does not serve it.
#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <thread>

#include "cli/command.h"
#include "cli/parts/events.h"
#include "cli/training_config.h"
#include "cli/watch/watch.h"
#include "sync/sync.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kLookNs = 50'000'000;
constexpr double kFirstPauseS = 0.2, kLongestPauseS = 5;  // between attempts that fail

struct CoordinatorOptions {
  std::string keys, listen = "127.0.0.1", port_range, advertise, journal, config;
  std::vector<std::string> sets;
  double join_timeout_s = 60, total_timeout_s = 600;
  std::int64_t until_step = -1;
  WatchOptions watch;
};

// Who is expected is who has a key.
Result<coordinator::Shape> shape_of(const transport::KeyFile& key) {
  std::set<MemberName> names;
  coordinator::Shape shape{.source_instances = 1, .source_ranks = 0, .target_instances = 0, .target_ranks = 0};
  for (const transport::Admitted& a : key.keys.admitted) {
    if (a.name.role == Role::kClient) continue;
    names.insert(a.name);
    if (a.name.role == Role::kSource) {
      if (a.name.instance != 0)
        return Error(Code::kInvalid, "members.pub: " + a.name.to_string() + ": there is one trainer, source:0");
      shape.source_ranks = std::max(shape.source_ranks, a.name.rank + 1);
    } else {
      shape.target_instances = std::max(shape.target_instances, a.name.instance + 1);
      shape.target_ranks = std::max(shape.target_ranks, a.name.rank + 1);
    }
  }
  if (shape.source_ranks == 0 || shape.target_ranks == 0)
    return Error(Code::kInvalid, "members.pub names no source or no target: refit keygen makes both");
  for (std::uint32_t m = 0; m < shape.members(); ++m)
    if (!names.contains(shape.name(m)))
      return Error(Code::kInvalid,
                   "members.pub has no key for " + shape.name(m).to_string() + ", but for others after it");
  return shape;
}

Result<sync::SyncOptions> sync_options(const CoordinatorOptions& o, const transport::KeyFile& key) {
  sync::SyncOptions s;
  s.job = key.job;
  REFIT_ASSIGN(s.shape, shape_of(key));
  const bool v6 = o.listen.find(':') != std::string::npos;
  s.control_address = "tcp://" + (v6 ? "[" + o.listen + "]" : o.listen) + ":0";
  s.control_keys = key.keys;
  s.join_timeout_s = o.join_timeout_s;
  s.total_timeout_s = o.total_timeout_s;
  std::vector<std::string> sets = o.sets;  // a flag is its key, said last
  for (std::string& set : network_sets(o.port_range, o.advertise)) sets.push_back(std::move(set));
  const sync::ConfigResult loaded = load_training_config(o.config, sets);
  if (!loaded.ok()) return loaded.errors.front();
  return sync::options_from(loaded.config, std::move(s));
}

// What the members say, as far as it decides whether to begin.
struct View {
  std::optional<std::int64_t> step;  // offered by every source rank
  bool due = false;
  std::string missing;  // who is waited for
};

View look(const json& status, bool goes_on_without) {
  View v;
  std::set<std::int64_t> offered;
  bool sources_here = true;
  std::map<std::string, bool> here;
  for (const json& m : status.value("members", json::array())) {
    const std::string name = m.value("name", std::string());
    const bool connected = m.value("connected", false);
    if (!connected) v.missing += (v.missing.empty() ? "" : ", ") + name;
    if (name.starts_with("source")) {
      sources_here = sources_here && connected && m.contains("published") && !m["published"].is_null();
      if (sources_here) offered.insert(m["published"].get<std::int64_t>());
    } else {
      const std::string replica = name.substr(0, name.find('.'));
      here[replica] = (!here.contains(replica) || here[replica]) && connected;
    }
  }
  if (!sources_here || offered.size() != 1) return v;
  v.step = *offered.begin();
  const json version = status.value("version", json());
  const bool newer = !version.is_object() || version.value("step", std::int64_t{-1}) != *v.step;
  bool all = true, any = false, behind = false;
  for (const json& r : status.value("replicas", json::array())) {
    const bool complete = here["target:" + std::to_string(r.value("instance", 0u))];
    all = all && complete;
    any = any || complete;
    behind = behind || (complete && version.is_object() &&
                        r.value("version", std::uint64_t{0}) != version.value("number", std::uint64_t{0}));
  }
  v.due = (newer || behind) && (all || (goes_on_without && any));
  return v;
}

// Everybody who is here serves the step.
bool reached(const json& status, std::int64_t step) {
  const json version = status.value("version", json());
  if (!version.is_object() || version.value("step", std::int64_t{-1}) < step) return false;
  for (const json& r : status.value("replicas", json::array()))
    if (r.value("version", std::uint64_t{0}) != version.value("number", std::uint64_t{0})) return false;
  return true;
}

nlohmann::ordered_json round_event(const sync::SyncReport& report, std::int64_t step) {
  const coordinator::RoundResult& r = report.round;
  nlohmann::ordered_json out{{"outcome", std::string(wire::to_string(r.outcome))},
                             {"version", r.outcome == wire::Outcome::kAborted ? r.number : r.version.number},
                             {"step", step},
                             {"seconds", report.seconds},
                             {"pause_seconds", static_cast<double>(r.max_pause_ns) * 1e-9},
                             {"proof", report.proof},
                             {"error", nullptr}};
  if (r.error) out["error"] = to_event(*r.error);
  return out;
}

class Coordinator {
 public:
  Coordinator(const CoordinatorOptions& options, Context& context) : options_(options), events_(context.json) {}

  Status run() {
    REFIT_ASSIGN(const transport::KeyFile key,
                 transport::read_key_file(options_.keys + "/" + transport::key_file_name(std::nullopt)));
    if (key.owner) return Error(Code::kInvalid, "--keys: coordinator.key belongs to " + key.owner->to_string());
    REFIT_ASSIGN(sync::SyncOptions s, sync_options(options_, key));
    goes_on_without_ = s.on_target_loss == sync::OnTargetLoss::kContinue;
    REFIT_ASSIGN(const std::string journal, journal_path());
    s.journal_path = journal;
    REFIT_ASSIGN(watch_, Watch::open(options_.watch));
    s.observer = watch_->observer();
    REFIT_ASSIGN(mover_, transport::make_mover("zmq", {.runtime_dir = {},
                                                       .job = key.job,
                                                       .member = ~0u,
                                                       .incarnation = Incarnation(system_env().random_u64()),
                                                       .name = "coordinator",
                                                       .env = &system_env()}));
    REFIT_ASSIGN(synchronizer_, sync::make_synchronizer(std::move(s), *mover_));
    events_.tell("coordinator", "ADDR", {{"address", synchronizer_->address()}});
    if (!watch_->metrics_url().empty()) events_.tell("coordinator", "metrics", {{"url", watch_->metrics_url()}});
    // A round in hand ends early when the process is asked to end.
    std::atomic<bool> done{false};
    std::thread watcher([&] {
      while (!done && !asked_to_end()) system_env().wait(Deadline::after_ns(kLookNs));
      if (asked_to_end()) (void)synchronizer_->shutdown();
    });
    const Status s2 = serve();
    done = true;
    watcher.join();
    const Status closed = synchronizer_->shutdown();
    return s2.ok() ? closed : s2;
  }

 private:
  Result<std::string> journal_path() const {
    std::error_code error;
    std::filesystem::create_directories(options_.journal, error);
    if (error || !std::filesystem::is_directory(options_.journal, error))
      return Error(Code::kInvalid,
                   "--journal " + options_.journal + ": " + (error ? error.message() : "is not a directory"));
    return options_.journal + "/journal";
  }

  Status serve() {
    std::string waiting_for = "?";
    double pause = kFirstPauseS;
    while (!asked_to_end()) {
      REFIT_TRY(synchronizer_->health());
      watch_->look(*synchronizer_);
      const json status = json::parse(synchronizer_->status(), nullptr, false);
      if (options_.until_step >= 0 && reached(status, options_.until_step)) return {};
      const View v = look(status, goes_on_without_);
      if (v.missing != waiting_for) {
        waiting_for = v.missing;
        events_.tell(
            "coordinator", waiting_for.empty() ? "complete" : "waits",
            waiting_for.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json{{"for", waiting_for}});
      }
      if (!v.due) {
        system_env().wait(Deadline::after_ns(kLookNs));
        continue;
      }
      const Result<sync::SyncReport> report = synchronizer_->sync_weights(v.step);
      if (asked_to_end()) break;
      if (!report.ok()) return report.error();
      watch_->round(*report);
      watch_->look(*synchronizer_);
      events_.tell("coordinator", "round", round_event(*report, *v.step));
      if (report->ok()) {
        pause = kFirstPauseS;
        continue;
      }
      system_env().wait(Deadline::after_s(pause));
      pause = std::min(2 * pause, kLongestPauseS);
    }
    return {};
  }

  const CoordinatorOptions options_;
  Events events_;
  bool goes_on_without_ = false;
  std::unique_ptr<Watch> watch_;  // outlives what it hears
  std::unique_ptr<transport::Mover> mover_;
  std::unique_ptr<sync::WeightSynchronizer> synchronizer_;
};

void setup_coordinator(CLI::App& app, Context& context) {
  auto o = std::make_shared<CoordinatorOptions>();
  CLI::App* c = app.add_subcommand("coordinator", "The coordinator in a process of its own, over TCP with keys");
  c->add_option("--keys", o->keys,
                "Directory with coordinator.key and members.pub (refit keygen): who has a key is expected")
      ->required();
  c->add_option("--journal", o->journal, "Directory of the journal; a restarted coordinator goes on from it")
      ->required();
  c->add_option("--listen", o->listen, "Address to listen on; 0.0.0.0 is every interface")->capture_default_str();
  c->add_option("--port-range", o->port_range,
                "refit.port_range, LOW-HIGH or one port: where to listen (any port without it)");
  c->add_option("--advertise", o->advertise,
                "refit.advertise_address: the host as members know it (the address listened on without it)");
  c->add_option("--config", o->config, "A training configuration (YAML): its refit: section is honoured");
  c->add_option("--set", o->sets, "path=value over it, e.g. refit.proof_every=5; may be repeated")
      ->allow_extra_args(false);
  c->add_option("--join-timeout-s", o->join_timeout_s, "How long a round waits for members that left")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--total-timeout-s", o->total_timeout_s, "How long a round may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--until-step", o->until_step, "End when every replica serves this step or a later one")
      ->check(CLI::NonNegativeNumber);
  declare(*c, o->watch);
  c->add_flag("--json", context.json, "One JSON object a line");
  c->callback([o, &context] {
    const Status s = Coordinator(*o, context).run();
    if (!s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("coordinator", setup_coordinator);

}  // namespace
}  // namespace refit::cli
