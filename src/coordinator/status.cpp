#include "coordinator/status.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/machine.h"

namespace refit::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Text from peers need not be UTF-8; what isn't is replaced.
std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json error_json(const Error& e) {
  return {{"code", to_string(e.code)}, {"peer", e.peer},     {"stage", e.stage},
          {"bucket", e.bucket},        {"tensor", e.tensor}, {"message", e.message}};
}
std::string digest_hex(const wire::Digest4& d) { return wire::fold(d).hex(); }
Json proof_json(const wire::ProofCounts& p) {
  return {{"placed_staged", p.placed_staged},
          {"placed_live", p.placed_live},
          {"handed_over", p.handed_over},
          {"probed", p.probed}};
}
std::string_view word_name(wire::Word w) {
  return w == wire::Word::kNone ? "none" : w == wire::Word::kCopying ? "copying" : "applied";
}

Json member_json(const State& s, std::uint32_t m) {
  const Slot& slot = s.slots[m];
  Json j{{"name", s.config.shape.name(m).to_string()},
         {"member", m},
         {"incarnation", slot.incarnation.value},
         {"connected", slot.present()}};
  j["state"] = slot.present() ? Json(wire::to_string(slot.heartbeat.state)) : Json(nullptr);
  j["silent_ns"] = slot.present() ? Json(s.now_ns - slot.heard_ns) : Json(nullptr);
  j["version"] = slot.holds.number;
  j["digest"] = slot.live ? Json(digest_hex(*slot.live)) : Json(nullptr);
  j["buckets_done"] = slot.heartbeat.buckets_done;
  j["bytes_done"] = slot.heartbeat.bytes_done;
  if (m < s.config.shape.sources())
    j["published"] = slot.present() && slot.heartbeat.published >= 0 ? Json(slot.heartbeat.published) : Json(nullptr);
  return j;
}

// A replica has the least advanced state of its ranks, Fenced if one is, Empty if one is missing.
std::string_view replica_state(const State& s, std::uint32_t instance) {
  const Shape& shape = s.config.shape;
  wire::MemberState worst = wire::MemberState::kServing;
  auto weight = [](wire::MemberState m) {
    switch (m) {
      case wire::MemberState::kFenced:
        return 6;
      case wire::MemberState::kEmpty:
        return 5;
      case wire::MemberState::kLagging:
        return 4;
      case wire::MemberState::kReceiving:
        return 3;
      case wire::MemberState::kVoted:
        return 2;
      case wire::MemberState::kApplying:
        return 1;
      default:
        return 0;
    }
  };
  for (std::uint32_t r = 0; r < shape.target_ranks; ++r) {
    const Slot& slot = s.slots[shape.sources() + instance * shape.target_ranks + r];
    const wire::MemberState state = slot.present() ? slot.heartbeat.state : wire::MemberState::kEmpty;
    if (weight(state) > weight(worst)) worst = state;
  }
  return wire::to_string(worst);
}

// The version that all its ranks hold; 0 when they hold none or different ones.
std::uint64_t replica_version(const State& s, std::uint32_t instance) {
  const Shape& shape = s.config.shape;
  const std::uint32_t first = shape.sources() + instance * shape.target_ranks;
  for (std::uint32_t m = first; m < first + shape.target_ranks; ++m)
    if (!s.slots[m].present() || s.slots[m].holds != s.slots[first].holds) return 0;
  return s.slots[first].holds.number;
}

Json result_json(const RoundResult& r) {
  Json j{{"outcome", wire::to_string(r.outcome)}, {"number", r.number}, {"pause_ns", r.max_pause_ns}};
  j["error"] = r.error ? error_json(*r.error) : Json(nullptr);
  for (const MemberName& n : r.missing) j["missing"].push_back(n.to_string());
  for (const MemberName& n : r.evicted) j["evicted"].push_back(n.to_string());
  return j;
}

}  // namespace

std::string status_json(const State& s) {
  Json j{{"lineage", s.journal.lineage.hex()},
         {"epoch", s.epoch.value},
         {"membership_epoch", s.journal.membership_epoch},
         {"layout_epoch", s.layout_epoch.value},
         {"plan", s.plan.hex()},
         {"stage", to_string(s.stage)}};
  j["version"] = nullptr;
  if (s.journal.newest) {
    const Version& v = s.journal.newest->version;
    j["version"] = {{"number", v.number}, {"digest", v.digest.hex()}, {"step", v.step}};
  }
  j["txn"] = s.round ? Json(s.round->record.txn.to_string()) : Json(nullptr);
  j["members"] = Json::array();
  for (std::uint32_t m = 0; m < s.slots.size(); ++m) j["members"].push_back(member_json(s, m));
  j["replicas"] = Json::array();
  for (std::uint32_t i = 0; i < s.config.shape.target_instances; ++i)
    j["replicas"].push_back({{"instance", i}, {"state", replica_state(s, i)}, {"version", replica_version(s, i)}});
  j["last"] = s.last ? result_json(*s.last) : Json(nullptr);
  j["rebuilding"] = s.rebuild.has_value();
  const Dropped& d = s.dropped;
  j["dropped"] = {{"foreign_job", d.foreign_job}, {"wrong_party", d.wrong_party},
                  {"old_epoch", d.old_epoch},     {"old_incarnation", d.old_incarnation},
                  {"old_txn", d.old_txn},         {"unexpected", d.unexpected},
                  {"wrong_key", d.wrong_key},     {"connections", d.connections}};
  j["queues"] = {{"journal", s.pending.size()}, {"verify", s.verifies.size()}};
  j["stopped"] = s.stopped ? error_json(*s.stopped) : Json(nullptr);
  return dump(j);
}

namespace {

// Every rank proves the newest version, and each replica's numbers add up to the version's.
bool proves(const State& s, const VerifyCall& call) {
  if (!s.journal.newest || call.reports.empty()) return false;
  std::map<std::uint32_t, wire::Digest4> sums;
  for (const auto& [member, report] : call.reports) {
    if (!report || !report->errors.empty() || report->version != s.journal.newest->version ||
        report->word.word != wire::Word::kApplied)
      return false;
    sums[s.config.shape.name(member).instance] += report->counted;
  }
  return std::all_of(sums.begin(), sums.end(),
                     [&](const auto& one) { return wire::fold(one.second) == s.journal.newest->version.digest; });
}

Error absence(const State& s, std::uint32_t member) {
  const bool present = s.slots[member].present();
  return Error(present ? Code::kTimeout : Code::kPeerLost,
               present ? "no report within the deadline" : "is not connected")
      .at_peer(s.config.shape.name(member).to_string());
}

}  // namespace

std::string verify_json(const State& s, const VerifyCall& call) {
  Json j{{"ok", proves(s, call)}};
  j["version"] = s.journal.newest ? Json(s.journal.newest->version.number) : Json(nullptr);
  j["digest"] = s.journal.newest ? Json(s.journal.newest->version.digest.hex()) : Json(nullptr);
  j["members"] = Json::array();
  for (const auto& [member, report] : call.reports) {
    Json m{{"name", s.config.shape.name(member).to_string()}};
    if (report) {
      m["version"] = report->version.number;
      m["digest"] = digest_hex(report->counted);
      m["domain"] = wire::to_string(report->domain);
      m["full"] = report->full;
      m["word"] = word_name(report->word.word);
      m["proof"] = proof_json(report->proof);
      m["errors"] = Json::array();
      for (const Error& e : report->errors) m["errors"].push_back(error_json(e));
    } else {
      m["errors"] = Json::array({error_json(absence(s, member))});
    }
    j["members"].push_back(std::move(m));
  }
  return dump(j);
}

void Machine::client(std::uint32_t connection, const wire::Envelope& e) {
  if (const auto* status = std::get_if<wire::StatusRequest>(&e.message))
    return send(connection, {}, wire::StatusReply{status->request, true, status_json(s_)});
  const auto* verify = std::get_if<wire::VerifyRequest>(&e.message);
  if (verify == nullptr) return void(++s_.dropped.wrong_party);
  VerifyCall call;
  call.request = verify->request;
  call.connection = connection;
  call.domain = verify->domain;
  call.deadline_ns = s_.now_ns + s_.config.gate_ns;
  ask_verify(std::move(call));
}

void Machine::on(const AskVerify& e) {
  VerifyCall call;
  call.request = e.request;
  call.domain = e.domain;
  call.deadline_ns = s_.now_ns + e.timeout_ns;
  ask_verify(std::move(call));
}

void Machine::ask_verify(VerifyCall call) {
  constexpr std::size_t kMaxCalls = 16;
  if (s_.verifies.size() >= kMaxCalls) return void(++s_.dropped.unexpected);
  // Fresh over restarts too, so that an old report answers nothing.
  call.nonce = s_.epoch.value << 32 | ++s_.nonces;
  for (std::uint32_t m = s_.config.shape.sources(); m < s_.slots.size(); ++m) call.reports[m] = std::nullopt;
  s_.verifies.push_back(std::move(call));
}

void Machine::receive(std::uint32_t member, const wire::Envelope&, const wire::VerifyReport& m) {
  for (VerifyCall& call : s_.verifies)
    if (call.nonce == m.nonce && call.domain == m.domain) {
      call.reports[member] = m;
      return;
    }
  ++s_.dropped.unexpected;
}

void Machine::advance_verifies() {
  for (VerifyCall& call : s_.verifies) {
    if (call.sent_ns != 0 && s_.now_ns - call.sent_ns < s_.config.resend_ns) continue;
    call.sent_ns = s_.now_ns;
    for (const auto& [member, report] : call.reports)
      if (!report) send_member(member, {}, wire::Verify{call.nonce, call.domain});
  }
  for (std::size_t i = 0; i < s_.verifies.size();) {
    const VerifyCall& call = s_.verifies[i];
    // Nobody waits for a member that is not here.
    const bool all = std::all_of(call.reports.begin(), call.reports.end(),
                                 [&](const auto& r) { return r.second || !s_.slots[r.first].present(); });
    if (!all && s_.now_ns <= call.deadline_ns) {
      ++i;
      continue;
    }
    const std::string json = verify_json(s_, call);
    const bool ok = proves(s_, call);
    if (call.connection == kNoConnection)
      todo_.push_back(Verdict{call.request, json, ok});
    else
      send(call.connection, {}, wire::StatusReply{call.request, ok, json});
    s_.verifies.erase(s_.verifies.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace refit::coordinator
