#include "cli/watch/trace_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>

#include "observe/observe.h"

namespace refit::cli {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ordered_json& e, const char* key) {
  const auto it = e.find(key);
  return it != e.end() && it->is_string() ? it->get<std::string>() : std::string();
}
std::string arg(const ordered_json& e, const char* key) {
  const auto it = e.find("args");
  return it != e.end() && it->is_object() ? text_of(*it, key) : std::string();
}
double at(const ordered_json& e) { return e.value("ts", 0.0); }

bool understood(const ordered_json& e) {
  return e.is_object() && e.contains("ph") && e["ph"].is_string() && e.contains("name") && e["name"].is_string() &&
         (!e.contains("ts") || e["ts"].is_number()) && (!e.contains("dur") || e["dur"].is_number()) &&
         (!e.contains("args") || e["args"].is_object());
}

Result<std::vector<ordered_json>> read_one(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error(Code::kInvalid, path + ": " + std::strerror(errno));
  std::stringstream all;
  all << in.rdbuf();
  const std::string text = all.str();
  std::vector<ordered_json> out;
  const auto take = [&](ordered_json e) {
    if (understood(e)) out.push_back(std::move(e));
  };
  // A merged file is one object; one that a process writes is a line an event, the array left open.
  if (ordered_json whole = ordered_json::parse(text, nullptr, false); whole.is_object()) {
    const auto events = whole.find("traceEvents");
    if (events != whole.end() && events->is_array())
      for (ordered_json& e : *events) take(std::move(e));
  } else {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.pop_back();
      take(ordered_json::parse(line, nullptr, false));
    }
  }
  if (out.empty() && text == "[\n") return out;  // nothing has happened in that process
  const bool ours = std::any_of(out.begin(), out.end(), [](const ordered_json& e) { return e["name"] == "refit_clock"; });
  if (!ours) return Error(Code::kInvalid, path + ": is no trace that --trace wrote");
  return out;
}

// What a message ties together: the phase of the one who sent it, then that of who got it.
struct Cause {
  const char* sender_side;
  const char* sender_phase;
  const char* receiver_side;
  const char* receiver_phase;
};
constexpr Cause kCauses[] = {
    {"coordinator", "begin", "source", "begin"},      {"coordinator", "begin", "target", "begin"},
    {"source", "lend", "coordinator", "lend"},        {"coordinator", "lend", "target", "transfer"},
    {"target", "staged", "coordinator", "voted"},     {"source", "voted", "coordinator", "decided"},
    {"coordinator", "decided", "target", "decided"},  {"coordinator", "decided", "source", "decided"},
    {"target", "reopened", "coordinator", "reopened"}};

struct Instant {
  std::string boot;
  double ts;
};
using Instants = std::map<std::tuple<std::string, std::string, std::string>, std::vector<Instant>>;  // round, side, phase

Result<ClockOffset> offset_of(const std::string& boot, const std::string& reference, const Instants& instants) {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  for (const auto& [key, sent] : instants) {
    const auto& [round, side, phase] = key;
    for (const Cause& c : kCauses) {
      if (side != c.sender_side || phase != c.sender_phase) continue;
      const auto got = instants.find({round, c.receiver_side, c.receiver_phase});
      if (got == instants.end()) continue;
      for (const Instant& a : sent)
        for (const Instant& b : got->second) {
          if (a.boot == reference && b.boot == boot) low = std::max(low, a.ts - b.ts);
          if (a.boot == boot && b.boot == reference) high = std::min(high, b.ts - a.ts);
        }
    }
  }
  if (low == -std::numeric_limits<double>::infinity() || high == std::numeric_limits<double>::infinity())
    return Error(Code::kMismatch, "a trace is of another host than the coordinator's, and no round ties their clocks "
                                  "together: give the traces of the same rounds, the coordinator's among them");
  // A low above the high: a clock drifted between the rounds by more than the messages took.
  return ClockOffset{boot, (low + high) / 2, std::abs(high - low) / 2};
}

}  // namespace

Result<TraceFile> TraceFile::read(const std::vector<std::string>& paths) {
  TraceFile out;
  Instants instants;
  std::string reference;
  std::set<std::string> boots;
  std::vector<std::string> boot_of;  // by event
  for (const std::string& path : paths) {
    REFIT_ASSIGN(std::vector<ordered_json> events, read_one(path));
    std::string boot;
    for (ordered_json& e : events) {
      if (e["name"] == "refit_clock") {
        boot = arg(e, "boot");
        boots.insert(boot);
        if (arg(e, "member") == "coordinator") reference = boot;
      }
      if (e["ph"] == "i" && e["name"] != "report")
        instants[{arg(e, "trace_id"), text_of(e, "cat"), text_of(e, "name")}].push_back({boot, at(e)});
      boot_of.push_back(boot);
      out.events_.push_back(std::move(e));
    }
  }
  if (boots.empty()) return out;
  if (reference.empty()) reference = *boots.begin();
  std::map<std::string, double> shift;
  for (const std::string& boot : boots) {
    if (boot == reference) continue;
    REFIT_ASSIGN(const ClockOffset o, offset_of(boot, reference, instants));
    shift[boot] = o.offset_us;
    out.offsets_.push_back(o);
  }
  for (std::size_t i = 0; i < out.events_.size(); ++i) {
    const auto s = shift.find(boot_of[i]);
    if (s == shift.end()) continue;
    ordered_json& e = out.events_[i];
    if (e.contains("ts")) e["ts"] = at(e) + s->second;
    if (e["name"] == "refit_clock") e["args"]["boot"] = reference, e["args"]["shifted_us"] = s->second;
  }
  return out;
}

Status TraceFile::write(const std::string& path) const {
  ordered_json clocks = ordered_json::array();
  for (const ClockOffset& o : offsets_)
    clocks.push_back({{"boot", o.boot}, {"offset_us", o.offset_us}, {"uncertain_us", o.uncertain_us}});
  std::ofstream out(path);
  out << R"({"displayTimeUnit":"ms","otherData":{"clock":"CLOCK_MONOTONIC of the coordinator's host","offsets":)"
      << clocks.dump() << "},\"traceEvents\":[\n";
  for (std::size_t i = 0; i < events_.size(); ++i) out << events_[i].dump() << (i + 1 < events_.size() ? ",\n" : "\n");
  out << "]}\n";
  out.flush();
  if (!out) return Error(Code::kInvalid, "--trace " + path + ": " + std::strerror(errno));
  return {};
}

namespace {

struct MemberSpan {
  std::string member, name;
  double start_us, end_us;
};

// In a phase of the round: whose span ended last.
const MemberSpan* last_of(const std::vector<MemberSpan>& spans, std::string_view side, std::string_view name) {
  const MemberSpan* last = nullptr;
  for (const MemberSpan& s : spans)
    if (s.member.starts_with(side) && s.name == name && (last == nullptr || s.end_us > last->end_us)) last = &s;
  return last;
}

ordered_json last_json(const std::vector<MemberSpan>& spans, std::string_view side, std::string_view name) {
  const MemberSpan* last = last_of(spans, side, name);
  if (last == nullptr) return nullptr;
  double first_end = last->end_us;
  for (const MemberSpan& s : spans)
    if (s.member.starts_with(side) && s.name == name) first_end = std::min(first_end, s.end_us);
  return {{"member", last->member},
          {"seconds", (last->end_us - last->start_us) * 1e-6},
          {"behind_the_first_seconds", (last->end_us - first_end) * 1e-6}};
}

struct RoundOf {
  std::optional<ordered_json> whole;  // the coordinator's span of it
  std::vector<MemberSpan> spans;
  std::map<std::string, std::string> last_from;  // by target
};

ordered_json round_json(const std::string& id, const RoundOf& r) {
  ordered_json out{{"trace_id", id}};
  if (r.whole) {
    const ordered_json& a = (*r.whole)["args"];
    for (const char* key : {"round", "version", "outcome", "error"})
      if (a.contains(key)) out[key] = a[key];
    out["seconds"] = r.whole->value("dur", 0.0) * 1e-6;
  }
  out["phases"] = ordered_json::object();
  for (const MemberSpan& s : r.spans)
    if (s.member == "coordinator") out["phases"][s.name] = (s.end_us - s.start_us) * 1e-6;
  out["last"] = {{"seal", last_json(r.spans, "source", "seal")},
                 {"transfer", last_json(r.spans, "target", "transfer")},
                 {"drain", last_json(r.spans, "target", "drain")},
                 {"copy", last_json(r.spans, "target", "copy")}};
  out["last_link"] = nullptr;
  if (const MemberSpan* last = last_of(r.spans, "target", "transfer")) {
    const auto from = r.last_from.find(last->member);
    if (from != r.last_from.end() && !from->second.empty())
      out["last_link"] = {{"from", from->second}, {"to", last->member}};
  }
  ordered_json members = ordered_json::object();
  for (const MemberSpan& s : r.spans)
    if (s.member != "coordinator") members[s.member][s.name] = (s.end_us - s.start_us) * 1e-6;
  out["members"] = std::move(members);
  return out;
}

}  // namespace

ordered_json summarise(const TraceFile& trace) {
  std::map<std::string, RoundOf> rounds;
  std::vector<std::string> order;
  for (const ordered_json& e : trace.events()) {
    const std::string id = arg(e, "trace_id"), member = arg(e, "member");
    if (id.empty()) continue;
    const auto [it, fresh] = rounds.try_emplace(id);
    if (fresh) order.push_back(id);
    RoundOf& r = it->second;
    if (e["ph"] == "X" && e["name"] == "round")
      r.whole = e;
    else if (e["ph"] == "X")
      r.spans.push_back({member, text_of(e, "name"), at(e), at(e) + e.value("dur", 0.0)});
    else if (e["name"] == "report")
      r.last_from[member] = arg(e, "last_from");
  }
  ordered_json out{{"ok", true}, {"rounds", ordered_json::array()}};
  double whole = 0;
  std::map<std::string, double> phases;
  for (const std::string& id : order) {
    out["rounds"].push_back(round_json(id, rounds[id]));
    const ordered_json& r = out["rounds"].back();
    whole += r.value("seconds", 0.0);
    for (const auto& [name, seconds] : r["phases"].items()) phases[name] += seconds.get<double>();
  }
  out["seconds"] = whole;
  out["phases"] = phases;
  out["clocks"] = ordered_json::array();
  for (const ClockOffset& o : trace.offsets())
    out["clocks"].push_back({{"boot", o.boot}, {"offset_us", o.offset_us}, {"uncertain_us", o.uncertain_us}});
  return out;
}

}  // namespace refit::cli
