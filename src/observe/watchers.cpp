#include "observe/watchers.h"

#include <nlohmann/json.hpp>

namespace refit::observe {
namespace {

using nlohmann::json;

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }
double number(std::int64_t v) { return static_cast<double>(v); }
double number(std::uint64_t v) { return static_cast<double>(v); }

}  // namespace

MemberWatcher::MemberWatcher(Book& book, const MemberName& name) : book_(book), who_(name), name_(name.to_string()) {
  for (const Metric m : {Metric::kBytesNeeded, Metric::kBytesMoved, Metric::kReconnects}) book_.add(m, {name_}, 0);
  if (name.role == Role::kTarget) book_.add(Metric::kBytesInstalled, {name_}, 0);
}

void MemberWatcher::on(const Span& ended) {
  book_.observe(Metric::kPhaseSeconds, {name_, std::string(ended.kind->name)}, ended.seconds());
}

void MemberWatcher::phase(const char* name, std::int64_t ns) {
  if (ns > 0) book_.observe(Metric::kPhaseSeconds, {name_, name}, seconds(ns));
}

void MemberWatcher::committed(const agent::AgentReport& r) {
  book_.add(Metric::kBytesNeeded, {name_}, number(r.bytes_needed));
  book_.add(Metric::kBytesMoved, {name_}, number(r.bytes_moved));
  if (who_.role == Role::kTarget) {
    book_.add(Metric::kBytesInstalled, {name_}, number(r.bytes_installed));
    phase("verify", r.verify_ns);
    phase("unpack", r.unpack_ns);
    phase("apply", r.copy_ns);
    return;
  }
  const agent::EncodeReport& e = r.encoded;
  phase("digest", r.seal_ns);
  phase("pack", e.pack_ns);
  phase("encode", e.encode_ns);
  phase("send", e.send_ns);
  if (e.unchanged + e.delta + e.raw == 0) return;
  book_.add(Metric::kBuckets, {name_, "unchanged"}, number(e.unchanged));
  book_.add(Metric::kBuckets, {name_, "delta"}, number(e.delta));
  book_.add(Metric::kBuckets, {name_, "raw"}, number(e.raw));
  if (e.delta_changed > 0)
    book_.set(Metric::kBitsPerChanged, {name_}, 8 * number(e.delta_bytes) / number(e.delta_changed));
}

void MemberWatcher::look(const agent::AgentReport& r, bool busy, const memory::Budget& budget,
                         const transport::Counters& c) {
  if (r.plan_ns != plan_ns_) {
    plan_ns_ = r.plan_ns;
    phase("plan", r.plan_ns);
  }
  // A round is counted when all that it reports is in: the version is this rank's, and nothing is in hand.
  if (r.version.number > version_ && !busy) {
    version_ = r.version.number;
    committed(r);
  }
  book_.set(Metric::kMemberVersion, {name_}, number(r.version.number));
  book_.set(Metric::kMemberFenced, {name_}, r.state.starts_with("Fenced") ? 1 : 0);
  book_.set(Metric::kMemberBusy, {name_}, busy ? 1 : 0);
  book_.set(Metric::kMemberQueue, {name_}, number(std::int64_t{r.tasks}));
  book_.raise(Metric::kReconnects, {name_}, number(r.reconnects));
  book_.set(Metric::kMemoryUsed, {name_}, number(budget.used()));
  book_.set(Metric::kMemoryPeak, {name_}, number(budget.peak()));
  book_.set(Metric::kMemoryLimit, {name_}, number(budget.limit()));
  book_.raise(Metric::kBytesWire, {name_, "out"}, number(c.bytes_out));
  book_.raise(Metric::kBytesWire, {name_, "in"}, number(c.bytes_in));
  book_.raise(Metric::kFramesForeign, {name_}, number(c.frames_foreign));
  book_.raise(Metric::kFramesBad, {name_}, number(c.frames_bad));
  book_.raise(Metric::kFramesDuplicate, {name_}, number(c.frames_duplicate));
  book_.raise(Metric::kConnectionsRefused, {name_}, number(c.connections_refused));
  book_.set(Metric::kTransportThreads, {name_}, c.threads);
}

CoordinatorWatcher::CoordinatorWatcher(Book& book) : book_(book) {
  book_.set(Metric::kVersion, {}, 0);
  book_.set(Metric::kStep, {}, -1);
  book_.set(Metric::kStale, {}, 1);
  book_.add(Metric::kRetries, {}, 0);
  for (const wire::Outcome o : {wire::Outcome::kCommitted, wire::Outcome::kAborted, wire::Outcome::kCommittedIncomplete,
                                wire::Outcome::kInDoubt})
    book_.add(Metric::kRounds, {std::string(wire::to_string(o))}, 0);
}

void CoordinatorWatcher::on(const Span& ended) {
  book_.observe(Metric::kRoundPhaseSeconds, {std::string(ended.kind->name)}, ended.seconds());
}

void CoordinatorWatcher::round(const sync::SyncReport& report) {
  const coordinator::RoundResult& r = report.round;
  book_.add(Metric::kRounds, {std::string(wire::to_string(r.outcome))});
  book_.observe(Metric::kRoundSeconds, {}, report.seconds);
  if (report.ok()) book_.observe(Metric::kRoundPauseSeconds, {}, seconds(r.max_pause_ns));
  for (const MemberName& n : r.evicted) book_.add(Metric::kEvictions, {n.to_string()});
  if (failed_) book_.add(Metric::kRetries, {});
  failed_ = !report.ok();
}

void CoordinatorWatcher::look(const std::string& status, bool stale) {
  book_.set(Metric::kStale, {}, stale ? 1 : 0);
  const json s = json::parse(status, nullptr, false);
  if (!s.is_object()) return;
  if (const json& v = s.value("version", json()); v.is_object()) {
    book_.set(Metric::kVersion, {}, v.value("number", 0.0));
    book_.set(Metric::kStep, {}, v.value("step", -1.0));
  }
  for (const json& r : s.value("replicas", json::array())) {
    const std::string replica = std::to_string(r.value("instance", 0u));
    book_.set(Metric::kReplicaVersion, {replica}, r.value("version", 0.0));
    book_.set(Metric::kReplicaFenced, {replica}, r.value("state", std::string()) == "Fenced" ? 1 : 0);
  }
  for (const json& m : s.value("members", json::array())) {
    const std::string name = m.value("name", std::string());
    const bool connected = m.value("connected", false);
    const auto incarnation = m.value("incarnation", std::uint64_t{0});
    book_.set(Metric::kMemberConnected, {name}, connected ? 1 : 0);
    std::uint64_t& known = incarnations_[name];
    book_.add(Metric::kMemberLosses, {name}, known != 0 && (!connected || known != incarnation) ? 1 : 0);
    known = connected ? incarnation : 0;
  }
  const json dropped = s.value("dropped", json::object());
  for (const auto& [reason, count] : dropped.items()) {
    if (reason == "connections")
      book_.raise(Metric::kControlRefused, {}, count.get<double>());
    else
      book_.raise(Metric::kControlDropped, {reason}, count.get<double>());
  }
  const json queues = s.value("queues", json::object());
  for (const auto& [queue, depth] : queues.items()) book_.set(Metric::kCoordinatorQueue, {queue}, depth.get<double>());
}

}  // namespace refit::observe
