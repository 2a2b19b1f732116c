// refit serve: the ranks of one rollout replica in a process of their own, with the reference engine.
#include "cli/command.h"
#include "cli/parts/member.h"
#include "cli/parts/stores.h"

namespace refit::cli {
namespace {

struct ServeOptions : PartOptions {
  std::uint32_t replica = 0;
  std::int64_t until_step = -1;
  bool check = false;
  std::string watch;
};

// One target rank.
class Server : RankOfPart<ServeOptions> {
 public:
  using RankOfPart::RankOfPart;

  Status run(const std::atomic<bool>& stop) {
    REFIT_TRY(open());
    Slices slice = slices(*agent_);
    while (!stop) {
      REFIT_ASSIGN(const agent::AgentReport report, slice.run());
      const Version v = engine_->version();
      if (v.number != told_ && v.number > 0 && report.state == "Serving") {
        told_ = v.number;
        REFIT_TRY(tell_served(v, report));
      }
      if (options_.until_step >= 0 && told_ > 0 && v.step >= options_.until_step && report.state == "Serving" &&
          !agent_->busy())
        break;
    }
    engine_->stop_serving();
    const engine::ServeCounts c = engine_->counts();
    tell("served", {{"forwards", c.forwards}, {"torn", c.torn}, {"stale_cache", c.stale_cache}});
    const Status closed = close(*agent_);
    if (c.torn > 0 || c.stale_cache > 0)
      return Error(Code::kInternal, "a forward pass saw weights of two versions, or a stale cache");
    return closed;
  }

 private:
  Status open() {
    REFIT_ASSIGN(seat_, take_seat(part_, name_, watch_));
    const Rank rank(name_.instance * part_.ranks_per_instance + name_.rank);
    REFIT_ASSIGN(engine_, engine::ReferenceEngine::make(part_.layout, rank, &seat_->budget()));
    REFIT_ASSIGN(agent_, agent::make_target_agent(seat_->options(), *engine_, *engine_));
    engine_->start_serving();
    return {};
  }

  Status tell_served(const Version& v, const agent::AgentReport& report) {
    nlohmann::ordered_json fields{{"version", v.number},
                                  {"step", v.step},
                                  {"digest", v.digest.hex()},
                                  {"transfer_seconds", static_cast<double>(report.stage_ns) * 1e-9},
                                  {"bytes", report.bytes_staged}};
    if (options_.check) {
      REFIT_ASSIGN(const Witness w, compare(v));
      fields["compared_bytes"] = w.bytes;
    }
    tell("serves", fields);
    return {};
  }

  // An independent reading of what the trainer should have sent.
  Result<Witness> compare(const Version& v) {
    if (options_.watch.empty() || v.step == 0)
      return compare_live(part_.model, options_.seed, part_.rule, v.step, *engine_);
    REFIT_ASSIGN(const Numbered newest, newest_directory(options_.watch));
    if (newest.number != v.step)
      return Error(Code::kMismatch,
                   "--watch " + options_.watch + " has no longer the checkpoint of step " + std::to_string(v.step));
    REFIT_ASSIGN(const ModelSource model, ModelSource::open(newest.path));
    return compare_live(model, options_.seed, part_.rule, 0, *engine_);
  }

  std::unique_ptr<engine::ReferenceEngine> engine_;
  std::unique_ptr<agent::Agent> agent_;
};

Status serve(Context& context, const ServeOptions& o) {
  (void)asked_to_end();
  REFIT_ASSIGN(const Part part, open_part(o));
  if (o.replica >= static_cast<std::uint32_t>(part.layout->instances()))
    return Error(Code::kInvalid, "--replica " + std::to_string(o.replica) + ": '" + o.spec + "' has " +
                                     std::to_string(part.layout->instances()) + " (replicas=N in --target)");
  Events events(context.json);
  REFIT_ASSIGN(const std::unique_ptr<Watch> watch, open_watch(part, events));
  return run_ranks(part, Role::kTarget, o.replica, [&](const MemberName& name, const std::atomic<bool>& stop) {
    return Server(o, part, name, events, *watch).run(stop);
  });
}

void setup_serve(CLI::App& app, Context& context) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* c = app.add_subcommand("serve", "The ranks of one rollout replica, with the reference engine");
  declare(*c, context, *o);
  c->add_option("--target", o->spec, "Layout of all rollout engines, e.g. vllm:tp=2,replicas=2");
  c->add_option("--replica", o->replica, "Which of them this process is")->capture_default_str();
  c->add_option("--until-step", o->until_step, "End when this step or a later one is served")
      ->check(CLI::NonNegativeNumber);
  c->add_flag("--check", o->check,
              "Compare every version byte for byte with --model and the same steps, and fail when they differ");
  c->add_option("--watch", o->watch, "With --check: the directory that the trainer watches");
  auto from = std::make_shared<FollowStoreOptions>();
  declare(*c, "--follow", "Instead of ADDR: take versions out of a store, s3://BUCKET/PREFIX or file:///DIRECTORY",
          from->store);
  c->add_option("--state", from->state,
                "With --follow: directory that keeps the weights and how far this follower came over restarts");
  c->add_option(
      "--trust", from->trust,
      "With --follow: Ed25519 public key (PEM) of the publisher; without it the first signer seen is kept to");
  c->add_option("--lease", from->lease,
                "With --follow: name of this follower's lease (random without it; none: it writes nothing)");
  c->add_option("--proof-every", from->proof_every,
                "With --follow: every so many versions are read again where they lie")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--poll-s", from->poll_s, "With --follow: between two looks at the store")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_flag("--once", from->once, "With --follow: install the newest version, or fail, and end");
  c->callback([o, from, &context] {
    if (o->address.empty())
      if (const Status s = from_config(o->config, o->sets, from->store, nullptr); !s.ok())
        return fail(context, s.error());
    if (const Status s = either(*o, from->store.url, "--follow", {{"--target", &o->spec}, {"--model", &o->model}});
        !s.ok())
      return fail(context, s.error());
    if (from->store.url.empty()) {
      if (const Status s = serve(context, *o); !s.ok()) fail(context, s.error());
      return;
    }
    from->spec = o->spec, from->model = o->model, from->watch = o->watch, from->replica = o->replica;
    from->until_step = o->until_step, from->check = o->check, from->seed = o->seed, from->share = o->share;
    from->threads = o->threads, from->json = context.json;
    if (const Status s = follow_store(*from); !s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("serve", setup_serve);

}  // namespace
}  // namespace refit::cli
