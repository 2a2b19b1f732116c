// refit doctor: what works on this machine, tried for real.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/doctor/finding.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

struct DoctorOptions {
  std::vector<std::string> need;
  std::string store, region, endpoint, profile, advertise, engine, shm_bytes = "64MiB";
  double timeout_s = 10;
};

// What a job on one host cannot do without.
const std::set<std::string> kAlwaysNeeded = {"shm", "tcp", "zmq", "curve", "shared-memory"};

Result<Findings> examine(const DoctorOptions& o, std::set<std::string>& asked) {
  REFIT_ASSIGN(const std::int64_t shm, parse_bytes(o.shm_bytes, "--shm-bytes"));
  std::string directory = (std::filesystem::temp_directory_path() / "refit-doctor-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr)
    return Error(Code::kInvalid, "cannot make a directory in " + std::filesystem::temp_directory_path().string());
  Findings all = try_movers(system_env(), directory, o.timeout_s);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  const auto add = [&](Findings more) { std::ranges::move(more, std::back_inserter(all)); };
  add(look_at_host(system_env(), {.root = {}, .shm_bytes = shm, .advertise = o.advertise}));
  add(look_for_vendors());
  if (o.store.empty())
    all.push_back(look_for_credentials());
  else
    all.push_back(try_store(o.store, o.region, o.endpoint, o.profile, o.timeout_s));
  if (!o.engine.empty()) all.push_back(try_engine(o.engine, o.timeout_s));
  asked = o.need.empty() ? kAlwaysNeeded : std::set<std::string>(o.need.begin(), o.need.end());
  if (!o.store.empty()) asked.insert("store");
  if (!o.engine.empty()) asked.insert("engine");
  if (!o.advertise.empty()) asked.insert("network");
  for (const std::string& name : o.need)
    if (std::ranges::none_of(all, [&](const Finding& f) { return f.name == name; })) {
      std::string names;
      for (const Finding& f : all) names += (names.empty() ? "" : ", ") + f.name;
      return Error(Code::kInvalid, "--need " + name + ": there is no such check; there are " + names);
    }
  return all;
}

void print(const Findings& all, const std::set<std::string>& asked) {
  for (const Finding& f : all) {
    const char* mark = f.works ? "ok" : asked.contains(f.name) ? "FAILS" : "no";
    fmt::print("{:<18} {:<6} {}\n", f.name, mark, f.found);
    if (f.works) continue;
    fmt::print("{:<25} needed for {}\n", "", f.needed);
    if (!f.todo.empty()) fmt::print("{:<25} {}\n", "", f.todo);
  }
}

Status doctor(Context& context, const DoctorOptions& o) {
  std::set<std::string> asked;
  REFIT_ASSIGN(const Findings all, examine(o, asked));
  bool ok = true;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : all) {
    ok = ok && (f.works || !asked.contains(f.name));
    list.push_back({{"name", f.name},
                    {"works", f.works},
                    {"asked", asked.contains(f.name)},
                    {"found", f.found},
                    {"needed", f.needed},
                    {"todo", f.todo}});
  }
  if (!ok) context.exit_code = 1;
  if (context.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"ok", ok}, {"checks", list}}.dump(
                           -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  }
  print(all, asked);
  fmt::print("{}\n", ok ? "what was asked works" : "something that was asked does not work");
  return {};
}

void setup_doctor(CLI::App& app, Context& context) {
  auto o = std::make_shared<DoctorOptions>();
  CLI::App* c = app.add_subcommand("doctor", "What works on this machine, tried for real with small data");
  c->add_option(
       "--need", o->need,
       "A check that must succeed; repeatable (without it: shm, tcp, zmq, curve, shared-memory). --store, --engine "
       "and --advertise are asked for by being given")
      ->allow_extra_args(false);
  c->add_option("--shm-bytes", o->shm_bytes, "How much shared memory a rank will lend")->capture_default_str();
  c->add_option("--advertise", o->advertise, "refit.advertise_address: must be an address of this host");
  c->add_option("--store", o->store, "s3://BUCKET/PREFIX or file:///DIRECTORY: write, read and remove a small object");
  c->add_option("--region", o->region, "With --store: S3 region");
  c->add_option("--endpoint-url", o->endpoint, "With --store: S3-compatible server");
  c->add_option("--profile", o->profile, "With --store: profile of ~/.aws/credentials");
  c->add_option("--engine", o->engine, "http://HOST:PORT of a running engine: kind, version, what is known of it");
  c->add_option("--timeout-s", o->timeout_s, "How long each check may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_flag("--json", context.json, "Print one JSON object");
  c->callback([o, &context] {
    if (const Status s = doctor(context, *o); !s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("doctor", setup_doctor);

}  // namespace
}  // namespace refit::cli
