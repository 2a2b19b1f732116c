#include "transport/nixl/engine.h"

#include <algorithm>
#include <cstdio>

#include "transport/nixl/at_exit.h"

namespace refit::transport::nixl {
namespace {

// Between two looks at reads that are under way: the library has nothing to wait on.
constexpr std::int64_t kLookNs = 50'000;
constexpr std::int64_t kLeftNs = 2'000'000;  // for reads that nobody waits for
constexpr std::int64_t kTickNs = 100'000'000;
constexpr std::int64_t kOwnGapNs = kNsPerSecond;  // a turn that took longer: this process stood still itself

// Names the library's agents; unique in a job, since an incarnation is.
std::string name_of_agent(const MoverOptions& o, const std::string& part) {
  char id[64];
  (void)std::snprintf(id, sizeof id, "%u-%016llx-", o.member, static_cast<unsigned long long>(o.incarnation.value));
  return "refit-" + o.job.hex().substr(0, 16) + "-" + id + part;
}

}  // namespace

Error LaneState::fail(Error error) {
  Error in_force = ledger.fail(std::move(error));
  const std::lock_guard lock(mutex);
  inbox.clear();
  changed.notify_all();
  return in_force;
}

Engine::Engine(const MoverOptions& o, const Api& api)
    : options_(o),
      api_(api),
      exports_(api, name_of_agent(o, "lends"), o.net.nixl, std::max<std::uint64_t>(o.env->random_u64() >> 1, 1)) {}

Result<std::shared_ptr<Engine>> Engine::start(const MoverOptions& options, const Api& api) {
  std::shared_ptr<Engine> engine(new Engine(options, api));
  REFIT_ASSIGN(Wake wake, Wake::make());
  engine->wake_ = std::make_shared<const Wake>(std::move(wake));
  engine->staging_ = std::make_shared<Staging>(options.staging_bytes, options.budget, engine->wake_);
  REFIT_ASSIGN(engine->door_, Door::open(options));
  engine->last_turn_ns_ = engine->now();
  REFIT_ASSIGN(engine->thread_, start_thread("refit-nixl", [e = engine.get()] { e->loop(); }));
  end_at_exit(engine.get(), [weak = std::weak_ptr(engine)] {
    if (const auto e = weak.lock()) e->stop();
  });
  return engine;
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  forget_at_exit(this);
  stop_.store(true);
  // Either is missing where start() failed.
  if (wake_ != nullptr) wake_->raise();
  if (thread_.joinable()) thread_.join();
  if (door_ != nullptr) door_->close();
  // The loop is gone; what it owned is ours.
  const Error over(Code::kCancelled, "the mover is shut down");
  for (Work& w : works_) {
    (void)w.ask.lane->fail(over);
    w.flying.clear();
  }
  for (const Ask& a : asks_) (void)a.lane->fail(over);
  for (Asked& q : questions_) q.told(over);
  for (auto& [member, link] : links_) link->lose(over);
  for (Orphan& o : orphans_) o.flying.clear();
  agent_.reset();  // before the slots: bytes may still be coming
  stuck_.clear();
  reading_agents_ = 0, staged_regions_ = 0;
  works_.clear();
  orphans_.clear();
  spoilt_.clear();
  links_.clear();
  exports_.stop();
}

Counters Engine::counters() const {
  Counters c;
  c.frames_foreign = foreign_.load() + door_->foreign();
  c.frames_bad = bad_.load() + door_->bad();
  c.bytes_in = bytes_in_.load();
  c.registrations = exports_.registrations() + staged_regions_.load();
  if (!stop_.load())
    c.threads = static_cast<std::uint32_t>(1 + api_.agent_threads * (exports_.agents() + reading_agents_.load()));
  return c;
}

void Engine::submit(Ask ask) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      asks_.push_back(std::move(ask));
      wake_->raise();
      return;
    }
  }
  (void)ask.lane->fail(Error(Code::kCancelled, "the mover is shut down"));
}

Result<bool> Engine::question(const Peer& peer, MemoryEpoch epoch, Deadline deadline, const Ledger* lane) {
  struct Waiter {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<bool>> answer;
  };
  const auto waiter = std::make_shared<Waiter>();  // shared with the loop, which may answer after we have left
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return Error(Code::kCancelled, "the mover is shut down");
    questions_.push_back({peer, epoch, [waiter](const Result<bool>& r) {
                            const std::lock_guard held(waiter->mutex);
                            waiter->answer = r;
                            waiter->changed.notify_all();
                          }});
  }
  wake_->raise();
  std::unique_lock lock(waiter->mutex);
  while (!waiter->answer) {
    if (lane != nullptr) REFIT_TRY(lane->check());
    if (deadline.over()) return Error(Code::kTimeout, "no answer from the peer").at_peer(peer.name);
    waiter->changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::int64_t>(deadline.left_ns(), kTickNs)));
  }
  return *waiter->answer;
}

std::string Engine::agent_name(const std::string& part) const { return name_of_agent(options_, part); }

void Engine::loop() {
  while (!stop_.load()) {
    take_commands();
    advance();
    look_at_orphans();
    judge();
    release_idle();
    poll_once();
  }
}

void Engine::poll_once() {
  std::vector<pollfd> polled{{wake_->fd(), POLLIN, 0}};
  door_->add_to(polled, now());
  const std::size_t door_end = polled.size();
  std::vector<std::shared_ptr<Link>> links;
  for (const auto& [member, link] : links_) {
    links.push_back(link);
    polled.push_back(link->wanted());
  }
  const bool moving = flying() > 0, left = !orphans_.empty() || !stuck_.empty();
  const bool waits = !works_.empty() || std::any_of(links.begin(), links.end(), [](auto& l) { return l->owes(); });
  const std::int64_t ns = moving ? kLookNs : left ? kLeftNs : waits ? kTickNs : kTickNs * 10;
  const timespec timeout{ns / kNsPerSecond, ns % kNsPerSecond};
  const int n = ::ppoll(polled.data(), polled.size(), &timeout, nullptr);
  const std::int64_t at = now();
  if (at - last_turn_ns_ > kOwnGapNs + ns) since_ns_ = at;
  last_turn_ns_ = at;
  if (n <= 0) {
    for (pollfd& p : polled) p.revents = 0;
  }
  if (polled[0].revents != 0) wake_->lower();
  door_->serve(std::span(polled).subspan(1, door_end - 1), exports_, at);
  for (std::size_t i = 0; i < links.size(); ++i) links[i]->move(polled[door_end + i].revents, at);
}

void Engine::take_commands() {
  std::deque<Ask> asks;
  std::deque<Asked> questions;
  {
    const std::lock_guard lock(mutex_);
    asks.swap(asks_);
    questions.swap(questions_);
  }
  for (Ask& a : asks) {
    works_.emplace_back();
    works_.back().ask = std::move(a);
  }
  for (Asked& q : questions) link_to(q.peer)->ask(q.epoch, now(), std::move(q.told));
}

std::shared_ptr<Link> Engine::link_to(const Peer& peer) {
  auto& link = links_[peer.member];
  if (link == nullptr || link->peer().incarnation != peer.incarnation || link->peer().card != peer.card) {
    if (link != nullptr) {
      link->lose(Error(Code::kPeerLost, "another process has taken its place"));
      forget(*link);
    }
    link = std::make_shared<Link>(peer, options_.net.stall_ns);
  }
  return link;
}

std::size_t Engine::flying() const {
  std::size_t n = 0;
  for (const Work& w : works_) n += w.flying.size();
  return n;
}

void Engine::judge() {
  const std::int64_t at = now();
  for (const auto& [member, link] : std::map(links_)) link->judge(at, since_ns_);
  const auto stalled = [&](const Flying& f) { return at - std::max(f.since_ns, since_ns_) > options_.net.stall_ns; };
  bool any = false;
  for (Work& w : works_) {
    if (w.phase == Phase::kOver || std::none_of(w.flying.begin(), w.flying.end(), stalled)) continue;
    any = true;
    const Peer& peer = w.ask.lane->peers.at(w.ask.sender);
    fail(w, Error(Code::kPeerLost, "no byte has come for " + std::to_string(options_.net.stall_ns / 1'000'000) + " ms")
                .at_peer(peer.name));
  }
  for (const Orphan& o : orphans_) any = any || std::any_of(o.flying.begin(), o.flying.end(), stalled);
  if (any || !spoilt_.empty()) set_aside();
}

}  // namespace refit::transport::nixl
