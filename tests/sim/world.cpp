#include "sim/world.h"

#include <algorithm>
#include <cstdio>

#include "sim/parts.h"

namespace refit::sim {

std::string_view to_string(Break rule) {
  static constexpr std::array<std::string_view, kBreaks> kNames = {"none",
                                                                   "ungated copy",
                                                                   "no copying word",
                                                                   "fence ignored",
                                                                   "stale cleared at decision",
                                                                   "commit told before sync",
                                                                   "vote released on deadline",
                                                                   "old txn accepted",
                                                                   "seal not checked",
                                                                   "stage not compared",
                                                                   "rank opens alone",
                                                                   "stage dropped",
                                                                   "steps mixed",
                                                                   "journal forgets",
                                                                   "lost_journal blind",
                                                                   "base moved early",
                                                                   "wrong base",
                                                                   "shadow not restored"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::uint32_t weight(std::int64_t step, std::uint32_t index) {
  return static_cast<std::uint32_t>(step) * 1000003u + index * 97u + 1u;
}

wire::Digest4 digest_of(const Values& v, Slice s) {
  wire::Digest4 d;
  for (std::uint32_t i = s.lo; i < s.hi; ++i, ++d.count)
    for (std::uint32_t k = 0; k < 4; ++k) d.word[k] += v[i] * ((i * 4 + k + 1) * 2654435761u | 1u);
  return d;
}

bool equal_in(const Values& a, const Values& b, Slice s) {
  return std::equal(a.begin() + s.lo, a.begin() + s.hi, b.begin() + s.lo);
}

World::World(const Options& o) : options(o), rng_(o.seed * 0x9e3779b97f4a7c15u + 1) {
  shape.source_ranks = 1 + static_cast<std::uint32_t>(draw(2));
  shape.target_instances = 2 + static_cast<std::uint32_t>(draw(2));
  shape.target_ranks = 1 + static_cast<std::uint32_t>(draw(2));
  config.job = {7, 7};
  config.shape = shape;
  config.barrier = draw(3) == 0;
  config.continue_on_loss = draw(2) == 0;
  config.min_targets = 1 + static_cast<std::uint32_t>(draw(2));
  config.resend_ns = 60 * kMs;
  config.silence_ns = 500 * kMs;
  config.gap_ns = 300 * kMs;
  config.gate_ns = 400 * kMs;
  config.join_ns = 600 * kMs;
  config.rebuild_ns = 300 * kMs;
  config.margin_ns = 10 * kMs;
  // Some seeds are quiet but for one kind of trouble, some have all of it.
  const double troubles[] = {0, 0.02, 0.1};
  loss_ = troubles[draw(3)];
  twice_ = troubles[draw(3)];
  names_step_ = draw(2) == 0;
  const double crashes[] = {0, 0.004, 0.02};
  crash_ = crashes[draw(3)];
  exchange_ = draw(3) == 0;
  source.resize(shape.sources());
  target.resize(shape.members() - shape.sources());
}

void World::later(std::int64_t dt, Call call) { queue_.push({now + dt, ++order_, std::move(call)}); }

// Void once the process has crashed; held back while it is stopped.
void World::later_in(Process& p, std::int64_t dt, Call call) {
  later(dt, [this, &p, generation = p.generation, call = std::move(call)]() mutable {
    if (!p.alive || p.generation != generation) return;
    if (now < p.stopped_until) return later_in(p, p.stopped_until - now + 1, std::move(call));
    call();
  });
}

std::int64_t World::delay() {
  if (chance(0.02)) return static_cast<std::int64_t>(draw(300)) * kMs;
  return kMs / 10 + static_cast<std::int64_t>(draw(40)) * kMs / 10;
}

void World::trace(const std::string& line) const {
  if (options.trace) std::printf("%9.3f  %s\n", static_cast<double>(now) / 1e6, line.c_str());
}

Process& World::process(std::uint32_t member) {
  if (member < sources()) return source[member];
  return target[member - sources()];
}

void World::connect(std::uint32_t member) {
  Process& p = process(member);
  later_in(p, kMs + static_cast<std::int64_t>(draw(20)) * kMs, [this, member] {
    Process& q = process(member);
    if (q.connection != 0) return;
    if (!coord.alive) return connect(member);
    q.connection = ++connections_;
    if (member < sources())
      source_event(member, install::ConnectionUp{});
    else
      target_event(member - sources(), install::ConnectionUp{});
  });
}

// The end that remains hears of it some time later, or never (then silence tells).
void World::disconnect(std::uint32_t member, bool tell_coordinator) {
  Process& p = process(member);
  const std::uint32_t connection = p.connection;
  if (connection == 0) return;
  p.connection = 0;
  if (tell_coordinator && coord.alive && !chance(0.15))
    later_in(coord, delay(), [this, connection] { coordinator_event(coordinator::Gone{connection}); });
}

void World::transmit(std::uint32_t member, std::uint32_t connection, bool up, const wire::Envelope& e) {
  wire::Envelope sent = e;
  if (auto* hello = std::get_if<wire::Hello>(&sent.message);
      hello != nullptr && options.broken == Break::kLostJournalBlind) {
    hello->known = {};
    hello->known_version = {};
  }
  auto frame = wire::encode(sent);
  if (!frame.ok()) return checker.fail("cannot encode: " + frame.error().to_string());
  const Process& p = process(member);
  if ((up ? p.mute_until : p.deaf_until) > now && !calm) return;
  const std::uint64_t copies = chance(loss_) ? 0 : chance(twice_) ? 2 : 1;
  for (std::uint64_t i = 0; i < copies; ++i) {
    if (chance(0.001)) (*frame)[draw(frame->size())] ^= std::byte{1};
    later(delay() + static_cast<std::int64_t>(i) * static_cast<std::int64_t>(draw(200)) * kMs,
          [this, member, connection, up, bytes = *frame] { arrive(member, connection, up, bytes); });
  }
}

void World::arrive(std::uint32_t member, std::uint32_t connection, bool up, const wire::Bytes& frame) {
  Process& receiver = up ? static_cast<Process&>(coord) : process(member);
  if (!receiver.alive || process(member).connection != connection) return;
  if (now < receiver.stopped_until)
    return later_in(receiver, receiver.stopped_until - now + 1, [=, this] { arrive(member, connection, up, frame); });
  const auto e = wire::decode(frame);
  if (!e.ok()) return;  // damaged on the way: as if lost
  trace((up ? e->who() + " → " : "→ " + shape.name(member).to_string() + " ") +
        std::string(wire::kind_name(e->message)) + " " + std::to_string(e->txn.counter));
  if (up) return coordinator_event(coordinator::Received{connection, *e});
  if (member < sources()) return source_event(member, install::Received{*e});
  target_event(member - sources(), install::Received{*e});
}

// The training loop: train, mark, sync, again.
void World::drive() {
  later(20 * kMs + static_cast<std::int64_t>(draw(60)) * kMs, [this] { drive(); });
  if (!coord.alive || now < coord.stopped_until || coord.calling || coord.state.stage != coordinator::Stage::kIdle)
    return;
  train();
  coord.calling = true;
  coord.call_since = now;
  coord.round_step = coord.marked_step;
  stale(sync::StaleEvent::kRoundStart);
  ++verdict_.rounds;
  coordinator::BeginRound b;
  b.proof = draw(3) == 0;
  if (names_step_) b.step = trainer_step_;
  b.stall_ns = 400 * kMs;
  b.total_ns = 2000 * kMs;
  coordinator_event(b);
}

void World::misfortune() {
  later(30 * kMs, [this] { misfortune(); });
  if (calm) return;
  const auto member = static_cast<std::uint32_t>(draw(shape.members()));
  if (chance(crash_)) crash(member);
  if (chance(crash_ / 2)) crash_coordinator();
  if (chance(crash_))
    process(member).stopped_until =
        std::max(process(member).stopped_until, now) + static_cast<std::int64_t>(100 + draw(900)) * kMs;
  if (chance(crash_ / 2))
    coord.stopped_until = std::max(coord.stopped_until, now) + static_cast<std::int64_t>(100 + draw(900)) * kMs;
  if (chance(crash_))
    (draw(2) == 0 ? process(member).mute_until : process(member).deaf_until) =
        now + static_cast<std::int64_t>(100 + draw(900)) * kMs;
  if (chance(0.05)) scribble();
}

bool World::settled() const {
  for (const TargetHost& t : target)
    if (!t.open() || t.state.phase != install::TargetPhase::kServing || t.state.stage_held || t.state.busy != 0 ||
        !t.state.link.welcomed)
      return false;
  for (const SourceHost& s : source)
    if (s.state.phase != agent::SourcePhase::kIdle || s.exposed || s.state.held) return false;
  return !coord.calling && !coord.state.round && !sync::is_stale(coord.stale);
}

Verdict World::run() {
  for (std::uint32_t s = 0; s < source.size(); ++s) start_source(s);
  for (std::uint32_t t = 0; t < target.size(); ++t) start_target(t, false);
  start_coordinator();
  drive();
  misfortune();
  const std::int64_t trouble = 3000 * kMs, limit = trouble + 30'000 * kMs;
  while (!queue_.empty() && checker.violation.empty()) {
    const Timed next = queue_.top();
    queue_.pop();
    now = next.at;
    calm = now > trouble;
    if (now > limit) {
      checker.fail("17: faults stopped 30 s ago and the members are not at rest on one version");
      break;
    }
    next.call();
    ++verdict_.events;
    checker.every_event(*this);
    if (calm && good_ >= 1 && settled()) break;
  }
  verdict_.violation = checker.violation;
  return verdict_;
}

Verdict run(const Options& options) { return World(options).run(); }

}  // namespace refit::sim
