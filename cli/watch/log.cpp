#include "cli/watch/log.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/parts/events.h"

namespace refit::cli {
namespace {

using nlohmann::ordered_json;

std::string wall_clock() {  // for people; durations are on the monotonic clock
  const auto now = std::chrono::system_clock::now();
  const auto ns = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  char text[32], out[48];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(out, sizeof out, "%s.%06dZ", text, static_cast<int>(ns));
  return out;
}

ordered_json head(const char* level, const char* event, const MemberName& who, const Txn& txn, std::int64_t at_ns) {
  return {{"time", wall_clock()},
          {"level", level},
          {"event", event},
          {"who", observe::name_of(who)},
          {"trace_id", observe::trace_id(txn)},
          {"span_id", observe::span_id(txn, who)},
          {"round", txn.counter},
          {"epoch", txn.epoch.value},
          {"monotonic_ns", at_ns}};
}

// One write a line: lines of several processes that share the terminal do not mix. A reader that stands still must not
// hold up the thread that the round is on: lines that find no room are dropped and counted in the next one that does.
void put(ordered_json j) {
  constexpr int kPatienceMs = 100;
  static std::atomic<std::uint64_t> dropped{0};
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&room, 1, kPatienceMs) != 1 || (room.revents & POLLOUT) == 0) {
    ++dropped;
    return;
  }
  if (const std::uint64_t lost = dropped.exchange(0); lost > 0) j["lines_dropped"] = lost;
  const std::string line = j.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void log_phase(const PhaseEvent& e, const observe::Spans::Seen& seen) {
  ordered_json j = head("info", "phase", e.who, e.txn, e.at_ns);
  j["phase"] = to_string(e.phase);
  if (e.bytes > 0) j["bytes"] = e.bytes;
  for (const observe::Span& s : seen.ended) j["seconds"][std::string(s.kind->name)] = s.seconds();
  put(j);
}

void log_round(const sync::SyncReport& report) {
  const coordinator::RoundResult& r = report.round;
  ordered_json j = head(report.ok() ? "info" : "error", "round", {Role::kClient, 0, 0}, r.txn, monotonic_ns());
  j["outcome"] = wire::to_string(r.outcome);
  j["version"] = r.number;
  j["seconds"] = report.seconds;
  j["pause_seconds"] = static_cast<double>(r.max_pause_ns) * 1e-9;
  j["error"] = r.error ? to_event(*r.error) : ordered_json(nullptr);
  put(j);
}

}  // namespace refit::cli
