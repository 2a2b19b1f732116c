// refit publish: the ranks of a trainer in a process of their own. Offers a checkpoint, then training-like steps or the
// checkpoints that appear in a directory, each until every replica serves it.
#include "cli/command.h"
#include "cli/parts/member.h"
#include "cli/parts/stores.h"

namespace refit::cli {
namespace {

constexpr double kGuardS = 600;  // how long a write waits for the round that holds the weights

struct PublishOptions : PartOptions {
  std::int64_t steps = 0, from_step = 0;
  std::string watch;
  double watch_timeout_s = 60;
  bool hold = false;
};

// One source rank.
class Publisher : RankOfPart<PublishOptions> {
 public:
  using RankOfPart::RankOfPart;

  Status run(const std::atomic<bool>& stop) {
    REFIT_TRY(open());
    Slices slice = slices(*agent_);
    while (!stop) {
      REFIT_ASSIGN(const agent::AgentReport report, slice.run());
      if (report.version.number != told_ && report.version.number > 0) {
        told_ = report.version.number;
        tell("committed", {{"version", told_}, {"step", report.version.step}, {"digest", report.version.digest.hex()}});
      }
      const bool served = told_ > 0 && report.version.step == step_;
      if (options_.watch.empty()) {
        if (served && step_ == options_.steps && !options_.hold) break;
        if (served && step_ < options_.steps) REFIT_TRY(train(stop));
      } else {
        REFIT_TRY(look(stop));
      }
    }
    return close(*agent_);
  }

 private:
  Status open() {
    REFIT_ASSIGN(seat_, take_seat(part_, name_, watch_));
    REFIT_ASSIGN(trainer_,
                 engine::ReferenceTrainer::make(system_env(), part_.layout, Rank(name_.rank), &seat_->budget()));
    REFIT_TRY(part_.model.fill(*trainer_, options_.seed));
    for (std::int64_t s = 1; s <= options_.from_step; ++s) trainer_->step(part_.rule, s);
    REFIT_ASSIGN(agent_, agent::make_source_agent(seat_->options(), *trainer_));
    offer(options_.from_step);
    return {};
  }

  void offer(std::int64_t step) {
    step_ = step;
    agent_->publish(step, "policy");
    tell("offers", {{"step", step}});
  }

  // Waits until no round holds the weights, serving it meanwhile.
  Result<bool> free_to_write(const std::atomic<bool>& stop) {
    const Deadline deadline = Deadline::after_s(kGuardS);
    Status free = agent_->guard(Deadline::after_ns(0));
    while (!free.ok() && !deadline.over() && !stop) {
      REFIT_TRY(agent_->run(Deadline::after_ns(20'000'000)));
      free = agent_->guard(Deadline::after_ns(0));
    }
    if (stop) return false;
    REFIT_TRY(free);
    return true;
  }

  Status train(const std::atomic<bool>& stop) {
    REFIT_ASSIGN(const bool free, free_to_write(stop));
    if (!free) return {};
    trainer_->step(part_.rule, step_ + 1);
    offer(step_ + 1);
    return {};
  }

  // A newer checkpoint takes the place of what is offered, served or not: all ranks see the same one in the end.
  Status look(const std::atomic<bool>& stop) {
    REFIT_ASSIGN(const Numbered newest, newest_directory(options_.watch));
    if (newest.number <= step_) return {};
    if (!half_.changed(newest.path)) return {};
    Result<ModelSource> model = ModelSource::open(newest.path);
    const Status fits = model.ok() ? check(*model) : Status(model.error());
    if (!fits.ok()) {  // the former one stays on offer
      half_.keep(fits.error());
      return {};
    }
    REFIT_ASSIGN(const bool free, free_to_write(stop));
    if (!free) return {};
    REFIT_TRY(model->fill(*trainer_, options_.seed));
    offer(newest.number);
    return {};
  }

  Status check(const ModelSource& model) const {
    REFIT_ASSIGN(const auto layout, model.layout(options_.spec));
    if (layout->digest() != part_.layout->digest()) return Error(Code::kMismatch, "its layout is not that of --model");
    return model.covers(*part_.layout);
  }

  std::unique_ptr<engine::ReferenceTrainer> trainer_;
  std::unique_ptr<agent::SourceAgent> agent_;
  std::int64_t step_ = 0;
  HalfWritten half_{options_.watch_timeout_s,
                    [this](const std::string& what, const nlohmann::ordered_json& fields) { tell(what, fields); }};
};

Status publish(Context& context, const PublishOptions& o) {
  if (!o.watch.empty() && o.steps > 0)
    return Error(Code::kInvalid, "--steps and --watch both say what comes next: give one");
  if (o.watch.empty() && o.from_step > o.steps) return Error(Code::kInvalid, "--from-step lies beyond --steps");
  (void)asked_to_end();
  REFIT_ASSIGN(const Part part, open_part(o));
  if (part.layout->instances() != 1)
    return Error(Code::kInvalid, "--source '" + o.spec + "' has replicas; there is one trainer");
  Events events(context.json);
  REFIT_ASSIGN(const std::unique_ptr<Watch> watch, open_watch(part, events));
  return run_ranks(part, Role::kSource, 0, [&](const MemberName& name, const std::atomic<bool>& stop) {
    return Publisher(o, part, name, events, *watch).run(stop);
  });
}

void setup_publish(CLI::App& app, Context& context) {
  auto o = std::make_shared<PublishOptions>();
  CLI::App* c =
      app.add_subcommand("publish", "The ranks of a trainer: offers a checkpoint's weights, and what follows them");
  declare(*c, context, *o);
  c->add_option("--source", o->spec, "Layout of the trainer, e.g. fsdp=2,tp=2");
  c->add_option("--steps", o->steps, "Training-like steps, each offered when the one before is served")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--from-step", o->from_step, "Begin after so many steps, as a restarted trainer does")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option(
      "--watch", o->watch,
      "Directory of checkpoint directories whose names end in a number: the highest is offered, under that step");
  c->add_option(
       "--watch-timeout-s", o->watch_timeout_s,
       "With --watch: a directory that is no whole checkpoint is told when nothing changed in it for so long; it "
       "is taken up when it is whole")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_flag("--hold", o->hold, "Stay, and offer the last step again to whoever comes back");
  auto to = std::make_shared<PublishStoreOptions>();
  declare(*c, "--to", "Instead of ADDR: bring versions to a store, s3://BUCKET/PREFIX or file:///DIRECTORY", to->store);
  c->add_option("--anchor-every", to->anchor_every, "With --to: every so many versions one is complete")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--keep", to->keep, "With --to: newest versions that stay")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--encoding", to->encoding, "With --to: form of deltas, undoable without it; xor means the same")
      ->check(CLI::IsMember({"undoable", "xor", "overwrite"}));
  c->add_option("--chunk-bytes", to->chunk_bytes, "With --to, for a new store: what can be fetched alone")
      ->capture_default_str();
  c->add_option("--object-bytes", to->object_bytes, "With --to: size of data objects (64MiB)");
  c->add_option("--sign", to->sign, "With --to: Ed25519 private key (PEM) that signs manifests");
  c->add_option("--lease-s", to->lease_s, "With --to: a follower that shows no life for so long has left")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option("--grace-s", to->grace_s, "With --to: how long a version that nobody needs stays before it is removed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--poll-s", to->poll_s, "With --to: between two looks at --watch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->callback([o, to, &context] {
    if (o->address.empty())
      if (const Status s = from_config(o->config, o->sets, to->store, to.get()); !s.ok())
        return fail(context, s.error());
    if (const Status s = either(*o, to->store.url, "--to", {{"--source", &o->spec}, {"--model", &o->model}}); !s.ok())
      return fail(context, s.error());
    if (to->store.url.empty()) {
      if (const Status s = publish(context, *o); !s.ok()) fail(context, s.error());
      return;
    }
    to->model = o->model, to->watch = o->watch, to->watch_timeout_s = o->watch_timeout_s, to->steps = o->steps,
    to->from_step = o->from_step;
    to->seed = o->seed, to->share = o->share, to->threads = o->threads, to->hold = o->hold, to->json = context.json;
    if (const Status s = publish_to_store(*to); !s.ok()) fail(context, s.error());
  });
}
REFIT_COMMAND("publish", setup_publish);

}  // namespace
}  // namespace refit::cli
