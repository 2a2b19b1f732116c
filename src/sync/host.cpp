#include "sync/host.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "files/files.h"

namespace refit::sync {
namespace {
using nlohmann::json;

constexpr std::string_view kScheme = "ipc://";
constexpr std::int64_t kMaxCardBytes = 1 << 16;

Error bad_key(const std::string& key) {
  return Error(Code::kInvalid, std::string(kCardFile) + ": key '" + key + "' is missing or of the wrong kind");
}

Result<std::int64_t> whole(const json& j, const char* key, std::int64_t lowest, std::int64_t highest) {
  const auto at = j.find(key);
  if (at == j.end() || !at->is_number_integer()) return bad_key(key);
  const auto value = at->get<std::int64_t>();
  if (value < lowest || value > highest) return bad_key(key);
  return value;
}

Result<std::uint32_t> count(const json& j, const char* key) {
  REFIT_ASSIGN(const std::int64_t value, whole(j, key, 1, 1 << 20));
  return static_cast<std::uint32_t>(value);
}

Result<std::string> text(const json& j, const char* key) {
  const auto at = j.find(key);
  if (at == j.end() || !at->is_string()) return bad_key(key);
  return at->get<std::string>();
}

Result<bool> flag(const json& j, const char* key) {
  const auto at = j.find(key);
  if (at == j.end() || !at->is_boolean()) return bad_key(key);
  return at->get<bool>();
}

Result<std::vector<std::pair<std::string, std::string>>> pairs(const json& j, const char* key) {
  const auto at = j.find(key);
  if (at == j.end() || !at->is_array()) return bad_key(key);
  std::vector<std::pair<std::string, std::string>> out;
  for (const json& pair : *at) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) return bad_key(key);
    out.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return out;
}
}  // namespace

std::string write_card(const JobCard& c) {
  return json{{"job", c.job.hex()},
              {"source_ranks", c.shape.source_ranks},
              {"target_instances", c.shape.target_instances},
              {"target_ranks", c.shape.target_ranks},
              {"transport", c.transport},
              {"staging_bytes", c.staging_bytes},
              {"snapshot", c.snapshot},
              {"advertise_address", c.net.advertise_address},
              {"port_range", c.net.port_range},
              {"security_bulk", c.net.security},
              {"streams", c.net.streams},
              {"stall_ns", c.net.stall_ns},
              {"nixl_backend", c.net.nixl.backend},
              {"nixl_params", c.net.nixl.params},
              {"nixl_release", c.net.nixl.release_after_round}}
      .dump();
}

Result<JobCard> parse_card(const std::string& written) {
  const json j = json::parse(written, nullptr, false);
  if (!j.is_object()) return Error(Code::kCorrupt, std::string(kCardFile) + " is not a JSON object");
  JobCard c;
  REFIT_ASSIGN(const std::string job, text(j, "job"));
  const auto id = Hash128::from_hex(job);
  if (!id) return bad_key("job");
  c.job = *id;
  REFIT_ASSIGN(c.shape.source_ranks, count(j, "source_ranks"));
  REFIT_ASSIGN(c.shape.target_instances, count(j, "target_instances"));
  REFIT_ASSIGN(c.shape.target_ranks, count(j, "target_ranks"));
  REFIT_ASSIGN(c.transport, text(j, "transport"));
  constexpr std::int64_t kMost = INT64_MAX;
  REFIT_ASSIGN(c.staging_bytes, whole(j, "staging_bytes", 1, kMost));
  REFIT_ASSIGN(c.snapshot, flag(j, "snapshot"));
  REFIT_ASSIGN(c.net.advertise_address, text(j, "advertise_address"));
  REFIT_ASSIGN(c.net.port_range, text(j, "port_range"));
  REFIT_ASSIGN(c.net.security, text(j, "security_bulk"));
  REFIT_ASSIGN(const std::int64_t streams, whole(j, "streams", 1, 1 << 10));
  c.net.streams = static_cast<int>(streams);
  REFIT_ASSIGN(c.net.stall_ns, whole(j, "stall_ns", 1, kMost));
  REFIT_ASSIGN(c.net.nixl.backend, text(j, "nixl_backend"));
  REFIT_ASSIGN(c.net.nixl.params, pairs(j, "nixl_params"));
  REFIT_ASSIGN(c.net.nixl.release_after_round, flag(j, "nixl_release"));
  return c;
}

Result<std::string> runtime_dir_of(const std::string& address) {
  if (!address.starts_with(kScheme))
    return Error(Code::kUnsupported, "the coordinator's address '" + address + "' is not an " + std::string(kScheme) +
                                         " address: members find its directory by it");
  return std::filesystem::path(address.substr(kScheme.size())).parent_path().string();
}

Result<JobCard> read_card(const std::string& address) {
  REFIT_ASSIGN(const std::string dir, runtime_dir_of(address));
  const std::string path = dir + "/" + kCardFile;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return Error(Code::kPeerLost, "no job listens at " + address + ": there is no " + path).at_peer("coordinator");
  REFIT_ASSIGN(const std::string written, files::read_text(path, kMaxCardBytes));
  return parse_card(written);
}

Result<agent::SeatOptions> seat_options(const JobCard& card, const std::string& address, const MemberName& name) {
  const auto member = card.shape.slot(name);
  if (!member)
    return Error(Code::kInvalid, "the job has " + std::to_string(card.shape.sources()) + " source ranks and " +
                                     std::to_string(card.shape.target_instances) + " targets of " +
                                     std::to_string(card.shape.target_ranks) + " ranks")
        .at_peer(name.to_string());
  agent::SeatOptions o;
  o.job = card.job;
  o.name = name;
  o.member = *member;
  REFIT_ASSIGN(o.runtime_dir, runtime_dir_of(address));
  o.control_address = address;
  o.transport = card.transport;
  o.staging_bytes = card.staging_bytes;
  o.snapshot = card.snapshot;
  o.net = card.net;
  return o;
}

Result<std::unique_ptr<Host>> Host::make(HostOptions options) {
  const std::vector<std::string> built = transport::mover_names();
  if (std::find(built.begin(), built.end(), options.transport) == built.end()) {
    std::string names;
    for (const std::string& name : built) names += " " + name;
    return Error(Code::kUnsupported, "transport '" + options.transport + "' is not built; built are:" + names);
  }
  std::unique_ptr<Host> h(new Host);
  SyncOptions& s = options.sync;
  Env& env = *s.env;
  s.job = {env.random_u64(), env.random_u64()};
  h->card_ = {.job = s.job,
              .shape = s.shape,
              .transport = options.transport,
              .staging_bytes = s.plan.staging_bytes,
              .snapshot = options.snapshot,
              .net = options.net};
  h->card_.net.stall_ns = static_cast<std::int64_t>(s.stall_timeout_s * 1e9);
  REFIT_ASSIGN(const std::string base, transport::make_runtime_dir(env, options.parent_dir));
  const std::string dir = base + "/" + options.label + "-" + s.job.hex().substr(0, 8);
  REFIT_ASSIGN(h->runtime_dir_, transport::make_runtime_dir(env, dir));
  h->address_ = std::string(kScheme) + h->runtime_dir_ + "/control";
  REFIT_ASSIGN(h->mover_, transport::make_mover("zmq", {.runtime_dir = h->runtime_dir_,
                                                        .job = s.job,
                                                        .member = ~0u,
                                                        .incarnation = Incarnation(env.random_u64()),
                                                        .name = "coordinator",
                                                        .env = &env}));
  s.control_address = h->address_;
  s.journal_path = h->runtime_dir_ + "/journal";
  REFIT_ASSIGN(h->synchronizer_, make_synchronizer(s, *h->mover_));
  // Last: who finds the card finds a listener.
  REFIT_TRY(files::write_text(h->runtime_dir_ + "/" + kCardFile, write_card(h->card_)));
  return h;
}

Host::~Host() {
  if (synchronizer_) [[maybe_unused]]
    const Status s = synchronizer_->shutdown();
  synchronizer_.reset();
  mover_.reset();
  std::error_code ignored;
  if (!runtime_dir_.empty()) std::filesystem::remove_all(runtime_dir_, ignored);
}

}  // namespace refit::sync
