#include "cli/demo/fleet.h"

namespace refit::cli {
namespace {
constexpr double kStartS = 300;  // a member reads its part of the checkpoint before it says that it is ready
}

Result<Child> Fleet::launch(std::uint32_t member, bool with_kill) {
  const MemberName who = shape_.name(member);
  MemberOptions m;
  m.model = options_.model;
  m.source_spec = options_.source;
  m.target_spec = options_.target;
  m.transport = options_.transport;
  m.role = who.role;
  m.instance = who.instance;
  m.rank = who.rank;
  m.member = member;
  m.runtime_dir = host_->runtime_dir();
  m.control = host_->address();
  m.job = host_->card().job.hex();
  m.seed = options_.seed;
  m.share = options_.share;
  m.staging_bytes = options_.staging_bytes;
  m.budget_bytes = budget_bytes_;
  m.threads = options_.threads;
  m.snapshot = options_.snapshot;
  m.security_bulk = options_.security_bulk;
  m.port_range = options_.port_range;
  m.advertise_address = options_.advertise_address;
  m.streams = options_.streams;
  m.baseline_dir = options_.baseline_dir;
  m.stall_timeout_s = options_.stall_timeout_s;
  m.steps_done = steps_done_;
  m.watch = options_.watch;
  if (!m.watch.metrics.empty()) m.watch.metrics = metrics_address(member);
  if (!m.watch.trace.empty()) m.watch.trace = trace_parts_.emplace_back(trace_part(member));
  for (const Kill& k : kills_)
    if (with_kill && k.who == who) {
      m.kill_at = k.phase;
      m.kill_stops = k.stop;
      m.kill_bytes = k.bytes;
    }
  return Child::start(who.to_string(), m.arguments());
}

// The coordinator listens at PORT, members at the ports after it; 0: each at any.
std::string Fleet::metrics_address(std::uint32_t member) const {
  const std::string& at = options_.watch.metrics;
  const std::size_t colon = at.rfind(':');
  const std::int64_t port = std::strtoll(at.c_str() + colon + 1, nullptr, 10);
  return at.substr(0, colon + 1) + (port == 0 ? "0" : std::to_string(port + 1 + member));
}

// A file for each process and each of its lives.
std::string Fleet::trace_part(std::uint32_t member) const {
  return options_.watch.trace + ".part" + std::to_string(member) + "." + std::to_string(trace_parts_.size());
}

Result<std::unique_ptr<Fleet>> Fleet::start(const DemoOptions& options, std::shared_ptr<const model::Layout> source,
                                            std::shared_ptr<const model::Layout> target, Observer observer) {
  std::unique_ptr<Fleet> f(new Fleet);
  f->options_ = options;
  f->shape_.source_ranks = static_cast<std::uint32_t>(source->world());
  f->shape_.target_instances = static_cast<std::uint32_t>(target->instances());
  f->shape_.target_ranks = static_cast<std::uint32_t>(target->world() / target->instances());
  f->sources_ = f->shape_.sources();
  for (const bool stop : {false, true})
    for (const std::string& k : stop ? options.stop : options.kill) {
      REFIT_ASSIGN(Kill kill, parse_kill(k));
      kill.stop = stop;
      if (!f->shape_.slot(kill.who))
        return Error(Code::kInvalid, "--kill " + k + ": there is no " + kill.who.to_string());
      f->kills_.push_back(kill);
    }

  std::int64_t largest = 0;
  for (const auto& layout : {source, target})
    for (std::int64_t r = 0; r < layout->world(); ++r) {
      REFIT_ASSIGN(const model::RankLayout rank, layout->expand(Rank(static_cast<std::uint32_t>(r))));
      std::int64_t bytes = 0;
      for (const model::BufferSpec& b : rank.buffers) bytes += b.bytes;
      largest = std::max(largest, bytes);
    }
  // A rank may hold its shard, one copy of it (shadow or snapshot) and the staging budget; never more.
  f->budget_bytes_ = 2 * largest + options.staging_bytes;
  // With deltas: the base and the deltas of one round, packing slots, a message and an unpacked bucket.
  if (options.encoding_in_use() != "raw") f->budget_bytes_ += largest + largest / 4 + 8 * options.bucket_bytes;

  sync::HostOptions h;
  h.label = "demo";
  h.transport = options.transport;
  h.snapshot = options.snapshot;
  h.net = {.advertise_address = options.advertise_address,
           .port_range = options.port_range,
           .security = options.security_bulk,
           .streams = options.streams};
  sync::SyncOptions& s = h.sync;
  s.observer = std::move(observer);
  s.shape = f->shape_;
  s.plan = {.bucket_bytes = options.bucket_bytes,
            .staging_bytes = options.staging_bytes,
            .partial = false,
            .files = false,
            .allow_cast = options.allow_cast};
  s.encoding = options.encoding_in_use();
  s.proof_every = options.proof_every;
  s.on_target_loss = options.on_loss_continue ? sync::OnTargetLoss::kContinue : sync::OnTargetLoss::kFail;
  s.stall_timeout_s = options.stall_timeout_s;
  s.total_timeout_s = options.total_timeout_s;
  REFIT_ASSIGN(f->host_, sync::Host::make(std::move(h)));

  for (std::uint32_t m = 0; m < f->shape_.members(); ++m) {
    REFIT_ASSIGN(Child child, f->launch(m, true));
    f->children_.push_back(std::move(child));
  }
  for (Child& c : f->children_) {
    Result<std::string> line = c.socket().receive(Deadline::after_s(kStartS));
    if (!line.ok()) return Error(std::move(line).error()).at_peer(c.name()).at_stage("start");
    const nlohmann::json j = nlohmann::json::parse(*line, nullptr, false);
    if (!j.is_object() || !j.value("ok", false))
      return Error(Code::kInvalid, j.is_object() ? j.value("error", std::string("did not start")) : "did not start")
          .at_peer(c.name())
          .at_stage("start");
    if (const std::string url = j.value("metrics", std::string()); !url.empty()) f->metrics_[c.name()] = url;
  }
  return f;
}

Fleet::~Fleet() { children_.clear(); }  // before the host, which removes their directory

std::vector<nlohmann::json> Fleet::ask(const std::string& line, std::optional<Role> role, Deadline deadline) {
  std::vector<nlohmann::json> out(children_.size());
  std::vector<bool> asked(children_.size());
  for (std::size_t m = 0; m < children_.size(); ++m)
    asked[m] = (!role || name(m).role == *role) && children_[m].running() && !children_[m].stopped() &&
               children_[m].socket().send(line).ok();
  for (std::size_t m = 0; m < children_.size(); ++m) {
    if (!asked[m]) continue;
    const Result<std::string> answer = children_[m].socket().receive(deadline);
    if (answer.ok()) out[m] = nlohmann::json::parse(*answer, nullptr, false);
  }
  return out;
}

std::vector<std::string> Fleet::dead() {
  std::vector<std::string> out;
  // A process that stands still is as good as dead; ending it is what an operator would do.
  for (Child& c : children_)
    if (c.stopped()) c.kill_and_reap();
  for (Child& c : children_)
    if (!c.running()) out.push_back(c.name() + " (" + c.ending() + ")");
  return out;
}

Result<std::vector<std::string>> Fleet::revive() {
  std::vector<std::string> out;
  for (std::uint32_t m = 0; m < children_.size(); ++m) {
    if (children_[m].running()) continue;
    REFIT_ASSIGN(children_[m], launch(m, false));
    Result<std::string> line = children_[m].socket().receive(Deadline::after_s(kStartS));
    if (!line.ok()) return Error(std::move(line).error()).at_peer(children_[m].name()).at_stage("restart");
    const nlohmann::json j = nlohmann::json::parse(*line, nullptr, false);
    if (!j.is_object() || !j.value("ok", false))
      return Error(Code::kInvalid, j.is_object() ? j.value("error", std::string("did not start")) : "did not start")
          .at_peer(children_[m].name())
          .at_stage("restart");
    out.push_back(children_[m].name());
  }
  return out;
}

Status Fleet::stop() {
  Status first;
  for (Child& c : children_)
    if (c.stopped())
      c.kill_and_reap();
    else if (c.running()) [[maybe_unused]]
      const Status s = c.socket().send("quit");
  for (Child& c : children_) {
    const Status s = c.wait(Deadline::after_s(10));
    if (!s.ok() && first.ok()) first = s;
  }
  const Status s = host_->synchronizer().shutdown();
  return first.ok() ? s : first;
}

}  // namespace refit::cli
