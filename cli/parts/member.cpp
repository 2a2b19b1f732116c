#include "cli/parts/member.h"

#include <charconv>
#include <filesystem>
#include <mutex>
#include <thread>

#include "cli/layouts.h"
#include "cli/training_config.h"

namespace refit::cli {
namespace {

constexpr double kPartSliceS = 0.02;  // how long an agent runs between two looks at what else there is to do

// Changes when a file in the directory appears, goes, grows or is written.
std::uint64_t contents_of(const std::string& directory) {
  namespace fs = std::filesystem;
  std::uint64_t sum = 0;  // independent of the order in which files are listed
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code gone;
    Hasher h;
    h.add(std::as_bytes(std::span(it->path().native())));
    h.add_u64(it->file_size(gone))
        .add_u64(static_cast<std::uint64_t>(it->last_write_time(gone).time_since_epoch().count()));
    sum += h.finish().lo;
  }
  return sum;
}

}  // namespace

void declare(CLI::App& c, Context& context, PartOptions& o) {
  c.add_option("ADDR", o.address, "The coordinator's address, as refit coordinator printed it: tcp://HOST:PORT");
  c.add_option("--keys", o.keys, "Directory with the key files of this process' ranks (refit keygen)");
  c.add_option("--model", o.model,
               "Checkpoint directory, or NAME[@layers=N] of a built-in configuration with random weights");
  c.add_option("--rank", o.rank, "One rank only (all of this instance without it)")->check(CLI::NonNegativeNumber);
  c.add_option("--transport", o.transport, "How weights move: tcp, or shm between processes of one host")
      ->capture_default_str();
  c.add_option("--security-bulk", o.security_bulk, "refit.security.bulk: mac, or none (spelled out)")
      ->check(CLI::IsMember({"mac", "none", "aes_gcm"}));
  c.add_option("--port-range", o.port_range,
               "refit.port_range, LOW-HIGH or one port: where to listen for weights (any port without it)");
  c.add_option("--advertise", o.advertise,
               "refit.advertise_address: where to listen for weights and be reached (127.0.0.1 without it)");
  c.add_option("--config", o.config, "A training configuration (YAML): its refit: section is honoured");
  c.add_option("--set", o.sets, "path=value over it; may be repeated")->allow_extra_args(false);
  c.add_option("--runtime-dir", o.runtime_dir, "Private directory for sockets, with --transport shm");
  c.add_option("--streams", o.streams, "Connections from one sender to one recipient")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  c.add_option("--threads", o.threads, "Kernel threads a rank")->check(CLI::Range(1, 256))->capture_default_str();
  c.add_option("--join-timeout-s", o.join_timeout_s, "How long to wait to be admitted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--seed", o.seed, "Of random weights and training-like steps")->capture_default_str();
  c.add_option("--share", o.share, "Part of the elements that a training-like step changes")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  declare(c, o.watch);
  c.add_flag("--json", context.json, "One JSON object a line");
}

Status either(const PartOptions& o, const std::string& url, const std::string& url_option,
              const std::vector<std::pair<std::string, const std::string*>>& job) {
  if (!url.empty()) {
    if (o.watch.any())
      return Error(Code::kUnsupported, url_option + ": --metrics, --trace and --log watch rounds of a job; a store has none");
    if (o.address.empty() && o.keys.empty()) return {};
    return Error(Code::kInvalid, "ADDR and --keys name a job, " + url_option + " a store: give one");
  }
  if (o.address.empty())
    return Error(Code::kInvalid, "give the coordinator's ADDR, or " + url_option + " URL for a store");
  if (o.keys.empty()) return Error(Code::kInvalid, "--keys is required");
  for (const auto& [name, value] : job)
    if (value->empty()) return Error(Code::kInvalid, name + " is required");
  return {};
}

Result<Part> open_part(const PartOptions& o) {
  std::vector<std::string> sets = o.sets;  // a flag is its key, said last
  for (std::string& set : network_sets(o.port_range, o.advertise)) sets.push_back(std::move(set));
  if (!o.security_bulk.empty()) sets.push_back("refit.security.bulk=" + o.security_bulk);
  sync::ConfigResult loaded = load_training_config(o.config, sets);
  if (!loaded.ok()) return loaded.errors.front();
  REFIT_ASSIGN(ModelSource model, ModelSource::open(o.model));
  REFIT_ASSIGN(auto layout, model.layout(o.spec));
  REFIT_TRY(model.covers(*layout));
  const auto per = static_cast<std::uint32_t>(layout->world() / layout->instances());
  return Part{o,  std::move(model), std::move(layout), std::move(loaded.config), {.seed = o.seed, .share = o.share},
              per};
}

Result<std::unique_ptr<agent::Seat>> take_seat(const Part& part, const MemberName& name, Watch& watch) {
  const PartOptions& o = part.options;
  const std::string path = o.keys + "/" + transport::key_file_name(name);
  REFIT_ASSIGN(transport::KeyFile key, transport::read_key_file(path));
  if (key.owner != name)
    return Error(Code::kInvalid, path + ": belongs to " + (key.owner ? key.owner->to_string() : "the coordinator") +
                                     ", not to " + name.to_string());
  std::string runtime_dir = o.runtime_dir;
  if (transport::mover_maps(o.transport)) {
    REFIT_ASSIGN(runtime_dir, transport::make_runtime_dir(system_env(), o.runtime_dir));
  }
  const Rank rank(name.instance * part.ranks_per_instance + name.rank);
  REFIT_ASSIGN(const model::RankLayout mine, part.layout->expand(rank));
  REFIT_ASSIGN(const std::int64_t bytes, rank_bytes(mine));
  const sync::Config& c = part.config;
  REFIT_ASSIGN(std::unique_ptr<agent::Seat> seat,
               agent::Seat::make({.job = key.job,
                                  .name = name,
                                  .member = key.member,
                                  .runtime_dir = runtime_dir,
                                  .control_address = o.address,
                                  .control_keys = std::move(key.keys),
                                  .transport = o.transport,
                                  .staging_bytes = c.staging_bytes.value,
                                  // Its shard, one copy of it (shadow or snapshot) and the staging budget; never more.
                                  .budget_bytes = 2 * bytes + c.staging_bytes.value,
                                  .threads = o.threads,
                                  .snapshot = c.snapshot.value,
                                  .net = {.advertise_address = c.advertise_address.value.value_or(""),
                                          .port_range = c.port_range.value.value_or(""),
                                          .security = c.security_bulk.value,
                                          .streams = o.streams,
                                          .stall_ns = static_cast<std::int64_t>(c.stall_timeout_s.value * 1e9)},
                                  .observer = watch.observer()}));
  const transport::Capabilities can = seat->options().data->capabilities();
  if (!can.push && !can.pull)
    return Error(Code::kUnsupported, "--transport " + o.transport + " moves no weights: give tcp, or shm on one host");
  return seat;
}

Result<std::unique_ptr<Watch>> open_watch(const Part& part, Events& events) {
  REFIT_ASSIGN(std::unique_ptr<Watch> watch, Watch::open(part.options.watch));
  if (!watch->metrics_url().empty()) events.tell("process", "metrics", {{"url", watch->metrics_url()}});
  return watch;
}

Status run_ranks(const Part& part, Role role, std::uint32_t instance, const RankBody& body) {
  std::vector<MemberName> names;
  if (part.options.rank >= static_cast<int>(part.ranks_per_instance))
    return Error(Code::kInvalid, "--rank " + std::to_string(part.options.rank) + ": an instance of '" +
                                     part.options.spec + "' has ranks 0 to " +
                                     std::to_string(part.ranks_per_instance - 1));
  for (std::uint32_t r = 0; r < part.ranks_per_instance; ++r)
    if (part.options.rank < 0 || part.options.rank == static_cast<int>(r)) names.push_back({role, instance, r});
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> running{names.size()};
  std::mutex mutex;
  Status first;
  std::vector<std::thread> threads;
  for (const MemberName& name : names)
    threads.emplace_back([&, name] {
      const Status s = body(name, stop);
      if (!s.ok()) {
        const std::lock_guard lock(mutex);
        if (first.ok()) first = Error(s.error()).at_peer(s.error().peer.empty() ? name.to_string() : s.error().peer);
        stop = true;
      }
      --running;
    });
  while (running > 0) {
    if (asked_to_end()) stop = true;
    system_env().wait(Deadline::after_ns(10'000'000));
  }
  for (std::thread& t : threads) t.join();
  return first;
}

Result<agent::AgentReport> Slices::run() {
  REFIT_TRY(agent_.run(Deadline::after_s(kPartSliceS)));
  agent::AgentReport report = agent_.report();
  watch_.look(who_, agent_, report, seat_);
  if (report.welcomed && !joined_) events_.tell(who_.to_string(), "joined");
  joined_ = joined_ || report.welcomed;
  if (!joined_ && deadline_.over()) {
    const std::string why = report.refused ? report.refused->to_string()
                            : !report.unconnected.empty()
                                ? report.unconnected
                                : "the coordinator hears this process and does not answer it: "
                                  "its key file is of another job";
    return Error(Code::kTimeout, "not admitted in time (--join-timeout-s): " + why)
        .at_peer("coordinator")
        .at_stage("join");
  }
  return report;
}

Result<Numbered> newest_directory(const std::string& parent) {
  namespace fs = std::filesystem;
  std::error_code error;
  Numbered newest;
  for (auto it = fs::directory_iterator(parent, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    if (name.starts_with('.') || digits == name.size() || !fs::is_directory(it->path())) continue;
    std::int64_t number = -1;
    const auto [end, err] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
    if (err == std::errc() && number > newest.number) newest = {number, it->path().string()};
  }
  if (error) return Error(Code::kInvalid, "--watch " + parent + ": " + error.message());
  return newest;
}

bool HalfWritten::changed(const std::string& path) {
  looked_at_ = path;
  looked_at_contents_ = contents_of(path);
  if (path != path_ || looked_at_contents_ != contents_) return true;
  if (!what_.is_null() && unchanged_.over()) {
    tell_("skips", what_);
    what_ = nullptr;
  }
  return false;
}

void HalfWritten::keep(const Error& error) {
  what_ = {{"directory", looked_at_}, {"error", error.to_string()}};
  if (looked_at_ != path_) tell_("waits", what_);
  path_ = looked_at_;
  contents_ = looked_at_contents_;
  unchanged_ = Deadline::after_s(timeout_s_);
}

}  // namespace refit::cli
