// refit keygen: the keys of one job, a file a process.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "transport/transport.h"

namespace refit::cli {
namespace {

struct KeygenOptions {
  std::string out;
  std::uint32_t sources = 1, replicas = 1, target_ranks = 1, clients = 1;
};

Status keygen(Context& context, const KeygenOptions& o) {
  constexpr std::uint64_t kMost = 16384;  // of an allow-list that is read back within its bound
  const std::uint64_t all = std::uint64_t{o.sources} + std::uint64_t{o.replicas} * o.target_ranks + o.clients;
  if (all > kMost)
    return Error(Code::kInvalid, "a job of more than 16384 keys")
        .amounts(static_cast<std::int64_t>(kMost), static_cast<std::int64_t>(all));
  std::vector<MemberName> members;
  for (std::uint32_t r = 0; r < o.sources; ++r) members.push_back({Role::kSource, 0, r});
  for (std::uint32_t i = 0; i < o.replicas; ++i)
    for (std::uint32_t r = 0; r < o.target_ranks; ++r) members.push_back({Role::kTarget, i, r});
  for (std::uint32_t c = 0; c < o.clients; ++c) members.push_back({Role::kClient, 0, c});
  Env& env = system_env();
  const Hash128 job{env.random_u64(), env.random_u64()};
  REFIT_TRY(transport::write_key_files(o.out, job, members));
  if (context.json) {
    nlohmann::json files = nlohmann::json::array({transport::key_file_name(std::nullopt)});
    for (const MemberName& m : members) files.push_back(transport::key_file_name(m));
    fmt::print(
        "{}\n",
        nlohmann::json{
            {"ok", true}, {"directory", o.out}, {"job", job.hex()}, {"keys", files}, {"allow_list", "members.pub"}}
            .dump());
    return {};
  }
  fmt::print("job {}: {} keys in {}\n", job.hex(), members.size() + 1, o.out);
  fmt::print(
      "  coordinator.key and members.pub belong to refit coordinator; each other file to one process and nobody "
      "else\n");
  return {};
}

void setup_keygen(CLI::App& app, Context& context) {
  auto o = std::make_shared<KeygenOptions>();
  CLI::App* c =
      app.add_subcommand("keygen", "The keys of one job over TCP: a file for each process, and the allow-list");
  c->add_option("--out", o->out, "Directory, made with mode 0700; it must not exist or be empty")->required();
  const auto count = [c](const char* name, std::uint32_t& value, const char* help) {
    c->add_option(name, value, help)->check(CLI::Range(1u, 16384u))->capture_default_str();
  };
  count("--sources", o->sources, "Ranks of the trainer");
  count("--replicas", o->replicas, "Rollout engines");
  count("--target-ranks", o->target_ranks, "Ranks of each");
  count("--clients", o->clients, "Keys for refit status and refit verify");
  c->add_flag("--json", context.json, "Print one JSON object");
  c->callback([o, &context] {
    const Status s = keygen(context, *o);
    if (!s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("keygen", setup_keygen);

}  // namespace
}  // namespace refit::cli
