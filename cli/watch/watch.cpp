#include "cli/watch/watch.h"

#include "cli/watch/log.h"

namespace refit::cli {

void declare(CLI::App& c, WatchOptions& o) {
  c.add_option("--metrics", o.metrics,
               "HOST:PORT: answer GET /metrics there in Prometheus' format (port 0: any); loopback, or with a token");
  c.add_option("--metrics-token", o.metrics_token,
               "File (0600) whose first line a scraper must send as its bearer token");
  c.add_flag("--metrics-public", o.metrics_public, "Let everybody who reaches --metrics read it");
  c.add_option("--trace", o.trace, "File for Chrome/Perfetto trace events of every round (refit trace summary FILE)");
  c.add_option("--log", o.log, "json: one JSON object a line on stderr for every step of a round, with its ids")
      ->check(CLI::IsMember({"json"}));
}

std::vector<std::string> arguments(const WatchOptions& o) {
  std::vector<std::string> out;
  if (!o.metrics.empty()) out.insert(out.end(), {"--metrics", o.metrics});
  if (!o.metrics_token.empty()) out.insert(out.end(), {"--metrics-token", o.metrics_token});
  if (o.metrics_public) out.push_back("--metrics-public");
  if (!o.trace.empty()) out.insert(out.end(), {"--trace", o.trace});
  if (!o.log.empty()) out.insert(out.end(), {"--log", o.log});
  return out;
}

Result<std::unique_ptr<Watch>> Watch::open(const WatchOptions& o) {
  if (o.metrics.empty() && (!o.metrics_token.empty() || o.metrics_public))
    return Error(Code::kInvalid, "--metrics-token and --metrics-public belong to --metrics HOST:PORT, which is missing");
  std::unique_ptr<Watch> w(new Watch(o));
  if (!o.trace.empty()) {
    REFIT_ASSIGN(w->trace_, observe::Trace::open(o.trace));
  }
  if (o.metrics.empty()) return w;
  std::string token;
  if (!o.metrics_token.empty()) {
    REFIT_ASSIGN(token, observe::read_token(o.metrics_token));
  }
  w->book_ = std::make_unique<observe::Book>();
  w->book_->set(observe::Metric::kBuild, {REFIT_VERSION}, 1);
  REFIT_ASSIGN(w->listener_,
               observe::Listener::start(o.listen(token), [book = w->book_.get()] { return book->text(); }));
  return w;
}

Observer Watch::observer(Observer more) {
  if (!options_.any()) return more;
  return [this, more = std::move(more)](const PhaseEvent& e) {
    on(e);
    if (more) more(e);
  };
}

void Watch::on(const PhaseEvent& e) {
  const observe::Spans::Seen seen = spans_.on(e);
  if (trace_) trace_->on(e, seen);
  if (!options_.log.empty() && seen.first) log_phase(e, seen);
  if (!book_) return;
  const bool hub = observe::side_of(e.who) == observe::Side::kCoordinator;
  for (const observe::Span& s : seen.ended) hub ? coordinator().on(s) : member(e.who).on(s);
}

observe::MemberWatcher& Watch::member(const MemberName& who) {
  const std::lock_guard lock(mutex_);
  auto& m = members_[who];
  if (!m) m = std::make_unique<observe::MemberWatcher>(*book_, who);
  return *m;
}
observe::CoordinatorWatcher& Watch::coordinator() {
  const std::lock_guard lock(mutex_);
  if (!coordinator_) coordinator_ = std::make_unique<observe::CoordinatorWatcher>(*book_);
  return *coordinator_;
}

void Watch::look(const MemberName& who, agent::Agent& agent, const agent::AgentReport& report,
                 const agent::Seat& seat) {
  if (trace_ && report.version.number > 0 && !agent.busy()) trace_->report(who, report);
  if (book_) member(who).look(report, agent.busy(), seat.budget(), seat.options().data->counters());
}

void Watch::look(sync::WeightSynchronizer& s) {
  if (book_) coordinator().look(s.status(), s.is_stale());
}

void Watch::round(const sync::SyncReport& report) {
  // The round's end as the caller saw it: the coordinator's own events end with the decision.
  if (options_.any() && report.round.txn.counter > 0 && report.round.outcome != wire::Outcome::kAborted)
    on({.phase = Phase::kReopened, .who = {Role::kClient, 0, 0}, .txn = report.round.txn, .at_ns = monotonic_ns()});
  if (trace_) trace_->round(report);
  if (!options_.log.empty()) log_round(report);
  if (book_) coordinator().round(report);
}

}  // namespace refit::cli
