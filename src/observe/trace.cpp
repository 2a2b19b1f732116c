#include "observe/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace refit::observe {
namespace {

using nlohmann::ordered_json;

// A process of the picture is an instance, its threads are the ranks: the same numbers in every file of a job.
int pid_of(const MemberName& who) {
  const Side side = side_of(who);
  if (side == Side::kCoordinator) return 1;
  return side == Side::kSource ? 2 + static_cast<int>(who.instance) : 1000 + static_cast<int>(who.instance);
}

double micros(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

ordered_json event(const char* kind, std::string_view name, const MemberName& who, std::int64_t at_ns) {
  return {{"name", name},        {"ph", kind},         {"cat", to_string(side_of(who))},
          {"ts", micros(at_ns)}, {"pid", pid_of(who)}, {"tid", who.rank}};
}

ordered_json ids(const Txn& txn, const MemberName& who) {
  return {{"member", name_of(who)},
          {"round", txn.counter},
          {"epoch", txn.epoch.value},
          {"trace_id", trace_id(txn)},
          {"span_id", span_id(txn, who)}};
}

std::string boot() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(in, line);
  return line;
}

// Text of peers' errors need not be UTF-8.
std::string text_of(const ordered_json& event) {
  return event.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<Trace>> Trace::open(const std::string& path) {
  // Names of members and texts of errors are its owner's business.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "w");
  if (file == nullptr) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    return Error(Code::kInvalid, "--trace " + path + ": " + why);
  }
  std::fputs("[\n", file);
  std::fflush(file);
  return std::unique_ptr<Trace>(new Trace(file));
}
Trace::~Trace() { std::fclose(file_); }

// The array is never closed: viewers allow it, and a killed process could not.
void Trace::write(const std::string& line) {
  std::fputs((line + ",\n").c_str(), file_);
  std::fflush(file_);
}

void Trace::introduce(const MemberName& who) {
  if (!introduced_.emplace(who, 0).second) return;
  const Side side = side_of(who);
  const std::string process =
      side == Side::kCoordinator ? "coordinator" : std::string(to_string(side)) + ":" + std::to_string(who.instance);
  ordered_json m{{"name", "process_name"}, {"ph", "M"}, {"pid", pid_of(who)}, {"tid", who.rank}};
  m["args"] = {{"name", process}};
  write(text_of(m));
  m["name"] = "thread_name";
  m["args"] = {{"name", side == Side::kCoordinator ? "rounds" : "rank " + std::to_string(who.rank)}};
  write(text_of(m));
  m["name"] = "refit_clock";
  m["args"] = {{"member", name_of(who)}, {"clock", "CLOCK_MONOTONIC"}, {"boot", boot()}};
  write(text_of(m));
}

void Trace::on(const PhaseEvent& e, const Spans::Seen& seen) {
  if (!seen.first) return;  // progress inside a phase
  const std::lock_guard lock(mutex_);
  introduce(e.who);
  ordered_json instant = event("i", to_string(e.phase), e.who, e.at_ns);
  instant["s"] = "t";
  instant["args"] = ids(e.txn, e.who);
  write(text_of(instant));
  for (const Span& s : seen.ended) {
    if (s.kind->whole) continue;
    ordered_json x = event("X", s.kind->name, e.who, s.start_ns);
    x["dur"] = micros(s.end_ns - s.start_ns);
    x["args"] = ids(e.txn, e.who);
    if (s.bytes > 0) x["args"]["bytes"] = s.bytes;
    if (s.buckets > 0) x["args"]["buckets"] = s.buckets;
    write(text_of(x));
  }
}

void Trace::report(const MemberName& who, const agent::AgentReport& r) {
  const std::lock_guard lock(mutex_);
  introduce(who);
  if (r.version.number <= introduced_[who]) return;
  introduced_[who] = r.version.number;
  ordered_json i = event("i", "report", who, monotonic_ns());
  i["s"] = "t";
  i["args"] = ids(r.txn, who);
  i["args"].update({{"version", r.version.number}, {"step", r.version.step}, {"bytes_needed", r.bytes_needed}});
  if (who.role == Role::kTarget)
    i["args"].update({{"stage_ns", r.stage_ns},
                      {"verify_ns", r.verify_ns},
                      {"unpack_ns", r.unpack_ns},
                      {"copy_ns", r.copy_ns},
                      {"last_from", r.last_from}});
  else
    i["args"].update({{"seal_ns", r.seal_ns},
                      {"pack_ns", r.encoded.pack_ns},
                      {"encode_ns", r.encoded.encode_ns},
                      {"send_ns", r.encoded.send_ns}});
  write(text_of(i));
}

void Trace::round(const sync::SyncReport& report) {
  const MemberName who{Role::kClient, 0, 0};
  const coordinator::RoundResult& r = report.round;
  const std::int64_t end = monotonic_ns();
  const std::lock_guard lock(mutex_);
  introduce(who);
  const auto ns = static_cast<std::int64_t>(report.seconds * 1e9);
  ordered_json x = event("X", "round", who, end - ns);
  x["dur"] = micros(ns);
  x["args"] = ids(r.txn, who);
  x["args"].update({{"outcome", wire::to_string(r.outcome)},
                    {"version", r.number},
                    {"pause_ns", r.max_pause_ns},
                    {"proof", report.proof},
                    {"error", r.error ? ordered_json(r.error->to_string()) : ordered_json(nullptr)}});
  write(text_of(x));
}

}  // namespace refit::observe
