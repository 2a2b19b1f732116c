// refit status ADDR and refit verify ADDR: questions to a running coordinator.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "transport/transport.h"
#include "wire/wire.h"

namespace refit::cli {
namespace {

using nlohmann::json;

struct RemoteOptions {
  std::string address, key;
  double timeout_s = 30;
  bool watch = false;
};

// A client's conversation with a coordinator. Requests are repeated: the network may lose them.
class Client {
 public:
  static Result<std::unique_ptr<Client>> connect(const RemoteOptions& o) {
    transport::ControlAddress at{.address = o.address};
    auto c = std::make_unique<Client>();
    if (o.address.starts_with("tcp://")) {
      REFIT_ASSIGN(transport::KeyFile key, client_key(o));
      at.keys = std::move(key.keys);
    } else if (o.address.starts_with("ipc://")) {
      if (!std::filesystem::exists(o.address.substr(6)))
        return Error(Code::kPeerLost, "nobody listens at " + o.address + ": there is no such socket")
            .at_peer("coordinator");
    } else {
      return Error(Code::kInvalid, "ADDR '" + o.address + "' is neither ipc:///… nor tcp://HOST:PORT");
    }
    Env& env = system_env();
    c->incarnation_ = Incarnation(env.random_u64());
    REFIT_ASSIGN(c->mover_, transport::make_mover("zmq", {.runtime_dir = {},
                                                          .job = {},
                                                          .member = ~0u,
                                                          .incarnation = c->incarnation_,
                                                          .name = "client",
                                                          .env = &env}));
    REFIT_ASSIGN(c->lane_, c->mover_->open_control(at));
    return c;
  }
  Result<json> ask(const wire::Message& question, std::uint64_t request, Deadline deadline) {
    wire::Envelope e;
    e.party = wire::Party::kClient;
    e.incarnation = incarnation_;
    e.message = question;
    REFIT_ASSIGN(const wire::Bytes bytes, wire::encode(e));
    std::string why = "the coordinator did not answer in time";
    while (!deadline.over()) {
      REFIT_TRY(lane_->send(0, bytes));
      const Deadline again = Deadline::after_s(1).sooner(deadline);
      while (!again.over()) {
        Result<transport::ControlMessage> m = lane_->next(again);
        if (!m.ok() && m.error().code == Code::kTimeout) {
          why = m.error().message;
          break;
        }
        if (!m.ok()) return Error(std::move(m).error()).at_peer("coordinator");
        REFIT_ASSIGN(const wire::Envelope answer, wire::decode(m->bytes));
        if (const auto* reply = std::get_if<wire::StatusReply>(&answer.message); reply && reply->request == request) {
          json j = json::parse(reply->json, nullptr, false);
          if (!j.is_object())
            return Error(Code::kCorrupt, "the coordinator's answer is not JSON").at_peer("coordinator");
          return j;
        }
        if (const auto* refused = std::get_if<wire::Refused>(&answer.message))
          return Error(refused->error).at_peer("coordinator");
      }
    }
    return Error(Code::kTimeout, "no answer: " + why).at_peer("coordinator");
  }

 private:
  static Result<transport::KeyFile> client_key(const RemoteOptions& o) {
    if (o.key.empty())
      return Error(Code::kInvalid, "ADDR '" + o.address +
                                       "' is on a network, where only keys are believed: give --key FILE, "
                                       "the client-0.0.key that refit keygen made for this job");
    REFIT_ASSIGN(transport::KeyFile key, transport::read_key_file(o.key));
    if (!key.owner || key.owner->role != Role::kClient)
      return Error(Code::kInvalid, "--key " + o.key + " belongs to " +
                                       (key.owner ? key.owner->to_string() : "the coordinator") +
                                       "; only a client's key may ask");
    return key;
  }

  Incarnation incarnation_;
  std::unique_ptr<transport::Mover> mover_;
  std::unique_ptr<transport::ControlLane> lane_;
};

std::string field(const json& j, const char* key) {
  if (!j.contains(key) || j[key].is_null()) return "-";
  return j[key].is_string() ? j[key].get<std::string>() : j[key].dump();
}

void print_status(const json& s) {
  const json version = s.value("version", json::object());
  fmt::print("version {} step {} digest {}   stage {}\n", field(version, "number"), field(version, "step"),
             field(version, "digest"), field(s, "stage"));
  for (const json& r : s.value("replicas", json::array()))
    fmt::print("replica {:<3} {:<12} version {}\n", field(r, "instance"), field(r, "state"), field(r, "version"));
  fmt::print("{:<14} {:<10} {:>8} {:>9} {:>8} {:>12}\n", "member", "state", "version", "connected", "buckets", "bytes");
  for (const json& m : s.value("members", json::array()))
    fmt::print("{:<14} {:<10} {:>8} {:>9} {:>8} {:>12}\n", field(m, "name"), field(m, "state"), field(m, "version"),
               field(m, "connected"), field(m, "buckets_done"), field(m, "bytes_done"));
  const json last = s.value("last", json());
  if (last.is_object())
    fmt::print("last round: {} version {}{}\n", field(last, "outcome"), field(last, "number"),
               last.contains("error") && !last["error"].is_null() ? "  " + last["error"].dump() : "");
}

Status status(Context& context, const RemoteOptions& o) {
  REFIT_ASSIGN(const std::unique_ptr<Client> client, Client::connect(o));
  for (std::uint64_t request = 1;; ++request) {
    REFIT_ASSIGN(const json s, client->ask(wire::StatusRequest{request}, request, Deadline::after_s(o.timeout_s)));
    if (o.watch && !context.json) fmt::print("\033[H\033[2J");
    if (context.json)
      fmt::print("{}\n", s.dump());
    else
      print_status(s);
    std::fflush(stdout);
    if (!o.watch) return {};
    system_env().wait(Deadline::after_s(1));
  }
}

Status verify(Context& context, const RemoteOptions& o) {
  REFIT_ASSIGN(const std::unique_ptr<Client> client, Client::connect(o));
  REFIT_ASSIGN(const json v,
               client->ask(wire::VerifyRequest{1, wire::Domain::kLive}, 1, Deadline::after_s(o.timeout_s)));
  const bool proven = v.contains("ok") && v["ok"] == true;
  if (!proven) context.exit_code = 1;
  if (context.json) {
    fmt::print("{}\n", v.dump());
    return {};
  }
  fmt::print("version {} digest {}: {}\n", field(v, "version"), field(v, "digest"),
             proven ? "every member proves it" : "NOT proven");
  for (const json& m : v.value("members", json::array()))
    fmt::print("{:<14} version {:<4} {} {:<9} proof {}{}\n", field(m, "name"), field(m, "version"), field(m, "digest"),
               field(m, "domain"), field(m, "proof"),
               m.contains("errors") && !m["errors"].empty() ? "  " + m["errors"].dump() : "");
  return {};
}

template <Status (*kRun)(Context&, const RemoteOptions&)>
void setup(CLI::App* c, Context& context, bool watch) {
  auto o = std::make_shared<RemoteOptions>();
  c->add_option("ADDR", o->address, "The coordinator's control address, e.g. what `refit demo --hold` printed")
      ->required();
  c->add_option("--key", o->key, "A client's key file (refit keygen), for an ADDR that begins with tcp://");
  c->add_option("--timeout-s", o->timeout_s, "How long to wait for the answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (watch) c->add_flag("--watch", o->watch, "Repeat every second");
  c->add_flag("--json", context.json, "Print one JSON object");
  c->callback([o, &context] {
    const Status s = kRun(context, *o);
    if (!s.ok()) fail(context, s.error());
  });
}

const Registration status_registration("status", [](CLI::App& app, Context& context) {
  setup<status>(app.add_subcommand("status", "Versions, states and rates of a running job, per member"), context, true);
});
const Registration verify_registration("verify", [](CLI::App& app, Context& context) {
  setup<verify>(app.add_subcommand("verify", "Ask every member of a running job to prove what it holds"), context,
                false);
});

}  // namespace
}  // namespace refit::cli
