#include "coordinator/step.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "coordinator/machine.h"

namespace refit::coordinator {

std::string_view to_string(Stage stage) {
  static constexpr std::array<std::string_view, 10> kNames = {
      "opening", "idle", "joining", "begin", "seal", "transfer", "source votes", "deciding", "applying", "stopped"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::optional<std::uint32_t> Shape::slot(const MemberName& n) const {
  if (n.role == Role::kSource && n.instance < source_instances && n.rank < source_ranks)
    return n.instance * source_ranks + n.rank;
  if (n.role == Role::kTarget && n.instance < target_instances && n.rank < target_ranks)
    return sources() + n.instance * target_ranks + n.rank;
  return std::nullopt;
}

MemberName Shape::name(std::uint32_t member) const {
  if (member < sources()) return {Role::kSource, member / source_ranks, member % source_ranks};
  return {Role::kTarget, (member - sources()) / target_ranks, (member - sources()) % target_ranks};
}

namespace {

bool same_slot(const Slot& a, const Slot& b) {
  return std::tie(a.connection, a.incarnation, a.hello, a.heartbeat, a.inside, a.ready, a.plan, a.base, a.refused) ==
         std::tie(b.connection, b.incarnation, b.hello, b.heartbeat, b.inside, b.ready, b.plan, b.base, b.refused);
}

}  // namespace

// A committed round that a former coordinator left unfinished: its yes-votes are in the journal's word, so every rank
// stands at Voted at least; repeats tell how far each really got.
Round unfinished(const Config& config, const JournalState& journal, std::int64_t now_ns) {
  Round r;
  r.record = *journal.open;
  r.version = journal.newest->version;
  r.digest = journal.newest->digest;
  r.committed = r.recovered = r.reported = true;
  r.stage_since_ns = now_ns;
  for (const Seat& seat : r.record.members) {
    Part p;
    p.member = seat.member;
    p.incarnation = seat.incarnation;
    p.at = Progressed::kVoted;
    p.progress_ns = now_ns;
    r.parts.push_back(p);
    if (seat.member < config.shape.sources()) continue;
    const std::uint32_t instance = config.shape.name(seat.member).instance;
    const bool out = std::binary_search(journal.evicted.begin(), journal.evicted.end(), seat);
    if (r.replicas.empty() || r.replicas.back().instance != instance) {
      Replica replica;
      replica.instance = instance;
      replica.gate_deadline_ns = now_ns + config.gate_ns;
      r.replicas.push_back(replica);
    }
    if (out) {
      r.replicas.back().failed = Error(Code::kPeerLost, "evicted before the coordinator restarted")
                                     .at_peer(config.shape.name(seat.member).to_string());
      r.replicas.back().out_told = true;
    }
  }
  return r;
}

bool same(const State& a, const State& b) {
  auto key = [](const State& s) {
    return std::tie(s.stage, s.journal, s.highest_number, s.epoch, s.by_connection, s.layout_epoch, s.roster, s.seated,
                    s.plan, s.out, s.call, s.round, s.pending, s.reading_epoch);
  };
  return key(a) == key(b) && std::equal(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end(), same_slot);
}

Step start(Config config, const JournalState& recovered, const Lineage& fresh_lineage, std::uint64_t fresh_seed,
           std::int64_t now_ns) {
  Step out;
  State& s = out.state;
  s.config = std::move(config);
  s.journal = recovered;
  s.epoch = Epoch(recovered.epoch.value + 1);
  s.highest_number = recovered.number;
  s.out = recovered.evicted;
  s.slots.resize(s.config.shape.members());
  s.now_ns = s.last_tick_ns = now_ns;
  for (Slot& slot : s.slots) slot.gone_ns = now_ns;
  if (recovered.open && recovered.open_committed) s.round = unfinished(s.config, recovered, now_ns);
  const bool fresh = recovered.epoch.value == 0;
  std::vector<RecordBody> bodies;
  bodies.push_back(
      EpochRecord{s.config.job, fresh ? fresh_lineage : recovered.lineage, fresh ? fresh_seed : recovered.digest_seed});
  // Presumed abort: a round without a decision in the journal has none and will never have another (invariant 4).
  if (recovered.open && !recovered.open_committed) bodies.push_back(AbortRecord{recovered.open->txn});
  Machine machine(s);
  machine.append(Purpose::kOpen, std::move(bodies));
  out.todo = machine.take();
  return out;
}

std::vector<Action> step(State& state, const Event& event) {
  Machine machine(state);
  state.now_ns = event.now_ns;
  if (state.stage != Stage::kStopped) {
    std::visit([&](const auto& e) { machine.on(e); }, event.what);
    machine.advance();
  } else if (std::holds_alternative<BeginRound>(event.what)) {
    machine.on(std::get<BeginRound>(event.what));
  }
  return machine.take();
}

void Machine::advance() {
  if (!running()) return;
  advance_rebuild();
  configure_if_needed();
  begin_if_ready();
  if (s_.round) s_.round->committed ? advance_replicas() : advance_round();
  advance_verifies();
}

void Machine::on(const Tick&) {
  const std::int64_t gap = s_.now_ns - s_.last_tick_ns;
  s_.last_tick_ns = s_.now_ns;
  if (!running()) return;
  if (gap > s_.config.gap_ns) {
    // We were stopped, not they: nobody is blamed for the time that we did not look, and another coordinator may have
    // taken over meanwhile (L2).
    for (Slot& slot : s_.slots) slot.heard_ns += gap, slot.gone_ns += gap;
    s_.join_deadline_ns += gap;
    if (s_.rebuild) s_.rebuild->deadline_ns += gap;
    for (VerifyCall& call : s_.verifies) call.deadline_ns += gap;
    if (s_.round) {
      for (Part& p : s_.round->parts) p.progress_ns += gap;
      for (Replica& r : s_.round->replicas) r.gate_deadline_ns += gap;
      s_.round->stage_since_ns += gap;
      s_.round->total_deadline_ns += gap;
    }
    s_.reading_epoch = true;
  }
  if (gap > s_.config.gap_ns || s_.now_ns - s_.looked_ns >= s_.config.look_ns) {
    s_.looked_ns = s_.now_ns;
    todo_.push_back(ReadEpoch{});
  }
  if (s_.reading_epoch) return;
  watch_silence();
  watch_deadlines();
  resend();
}

Error Machine::overtaken(const std::string& how) const {
  return Error(Code::kMismatch, how + ", this coordinator is of epoch " + std::to_string(s_.epoch.value) + " and ends");
}

void Machine::on(const EpochRead& e) {
  if (e.highest > s_.epoch)
    return stop(overtaken("the journal says that a coordinator of epoch " + std::to_string(e.highest.value) +
                          " has taken over"));
  if (e.highest < s_.journal.epoch)
    return stop(overtaken("the journal was replaced: it knows of epoch " + std::to_string(e.highest.value)));
  s_.reading_epoch = false;
}

void Machine::append(Purpose purpose, std::vector<RecordBody> bodies, std::int64_t reserve_bytes) {
  Pending p;
  p.ticket = ++s_.tickets;
  p.purpose = purpose;
  for (RecordBody& body : bodies) p.records.push_back({s_.epoch, std::move(body)});
  todo_.push_back(Append{p.ticket, p.records, reserve_bytes});
  s_.pending.push_back(std::move(p));
}

void Machine::on(const Appended& e) {
  if (s_.pending.empty() || s_.pending.front().ticket != e.ticket) return void(++s_.dropped.unexpected);
  const Pending done = std::move(s_.pending.front());
  s_.pending.erase(s_.pending.begin());
  for (const Record& r : done.records)
    if (Status applied = apply(s_.journal, r); !applied.ok()) return stop(std::move(applied).error());
  switch (done.purpose) {
    case Purpose::kOpen:
      s_.stage = Stage::kIdle;
      return;
    case Purpose::kBegin:
      return begun();
    case Purpose::kCommit:
      return committed();
    case Purpose::kAbort:
      return;
    case Purpose::kEvict:
      return evicted();
    case Purpose::kEnd:
      return ended();
    case Purpose::kRebuild:
      return rebuilt_durably();
  }
}

void Machine::on(const AppendFailed& e) {
  if (s_.pending.empty()) return void(++s_.dropped.unexpected);
  const Purpose purpose = s_.pending.front().purpose;
  const Error error = Error(e.error).at_peer("coordinator").at_stage("journal");
  // The record may or may not be there: nobody is told either way, only reading decides (C14).
  if (s_.call && s_.round && !s_.round->reported) {
    RoundResult r = result(purpose == Purpose::kCommit || deciding() ? wire::Outcome::kInDoubt
                           : s_.round->committed                     ? wire::Outcome::kCommittedIncomplete
                                                                     : wire::Outcome::kAborted);
    r.error = error;
    report(std::move(r));
  }
  stop(error);
}

void Machine::stop(Error reason) {
  if (s_.call) {
    RoundResult r = result(deciding()                        ? wire::Outcome::kInDoubt
                           : s_.round && s_.round->committed ? wire::Outcome::kCommittedIncomplete
                                                             : wire::Outcome::kAborted);
    r.error = reason;
    report(std::move(r));
  }
  s_.stage = Stage::kStopped;
  s_.stopped = reason;
  todo_.push_back(Stop{std::move(reason)});
}

bool speaks_for(const MemberName& key, const wire::Envelope& e) {
  if (e.party != wire::party_of(key.role)) return false;
  return key.role == Role::kClient || key == e.name();
}

void Machine::on(const Received& e) {
  const wire::Envelope& env = e.envelope;
  if (!running()) return void(++s_.dropped.unexpected);
  if (e.proven && !speaks_for(*e.proven, env)) {
    ++s_.dropped.wrong_key;
    return refuse(e.connection,
                  Error(Code::kInvalid, "the key of " + e.proven->to_string() + " may not speak for " + env.who())
                      .at_peer(env.who()),
                  false);
  }
  // A client knows the address, not the job: a zero job asks whoever listens here.
  const bool asks_anyone = env.party == wire::Party::kClient && env.job == Hash128{};
  if (env.job != s_.config.job && !asks_anyone) return void(++s_.dropped.foreign_job);
  if (env.party == wire::Party::kClient) return client(e.connection, env);
  if (env.party == wire::Party::kCoordinator) return void(++s_.dropped.wrong_party);
  const auto* hello_message = std::get_if<wire::Hello>(&env.message);
  if (hello_message != nullptr && rebuilds(env, *hello_message)) return hear(e.connection, env, *hello_message);
  const bool our_lineage = hello_message == nullptr || hello_message->lineage == s_.journal.lineage;
  if (env.epoch > s_.epoch && our_lineage)
    return stop(overtaken("it follows a coordinator of epoch " + std::to_string(env.epoch.value)).at_peer(env.who()));
  if (hello_message != nullptr) return hello(e.connection, env, *hello_message);
  const auto member = sender(e.connection, env);
  if (!member) return;
  s_.slots[*member].heard_ns = s_.now_ns;
  std::visit([&](const auto& m) { receive(*member, env, m); }, env.message);
  s_.slots[*member].sequence = std::max(s_.slots[*member].sequence, env.sequence);
}

// ---- shared
// -----------------------------------------------------------------------------------------------------------

void Machine::send(std::uint32_t connection, const Txn& txn, wire::Message message) {
  if (connection == kNoConnection) return;
  wire::Envelope e;
  e.job = s_.config.job;
  e.epoch = s_.epoch;
  e.txn = txn;
  e.party = wire::Party::kCoordinator;
  e.incarnation = s_.config.incarnation;
  e.message = std::move(message);
  todo_.push_back(Send{connection, std::move(e)});
}

void Machine::send_member(std::uint32_t member, const Txn& txn, wire::Message message) {
  send(s_.slots[member].connection, txn, std::move(message));
}

Part* Machine::part(std::uint32_t member, const Txn& txn) {
  if (!s_.round || s_.round->record.txn != txn) return nullptr;
  for (Part& p : s_.round->parts)
    if (p.member == member) return p.incarnation == s_.slots[member].incarnation ? &p : nullptr;
  return nullptr;
}

Replica* Machine::replica_of(std::uint32_t member) {
  for (Replica& r : s_.round->replicas)
    if (r.instance == instance(member)) return &r;
  return nullptr;
}

std::vector<Part*> Machine::ranks_of(const Replica& replica) {
  std::vector<Part*> out;
  for (Part& p : s_.round->parts)
    if (!is_source(p.member) && instance(p.member) == replica.instance) out.push_back(&p);
  return out;
}

void Machine::progressed(Part& p, Progressed at) {
  if (at <= p.at) return;
  p.at = at;
  p.progress_ns = s_.now_ns;
  p.sent_ns = 0;
}

bool Machine::out(const Seat& seat) const {
  return std::any_of(s_.out.begin(), s_.out.end(),
                     [&](const Seat& x) { return x == seat || (x.member == seat.member && x.incarnation.value == 0); });
}

}  // namespace refit::coordinator
