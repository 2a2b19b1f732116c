#include "coordinator/driver.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

namespace refit::coordinator {
namespace {
constexpr std::int64_t kTickNs = 20'000'000;
constexpr int kMostMissedLooks = 6;  // half a minute
constexpr std::int64_t kWaitNs = 2'000'000;  // longest sleep in the lane: how late a call from another thread is seen
}  // namespace

Driver::Driver(DriverOptions options, std::unique_ptr<transport::ControlLane> lane, JournalFile journal)
    : options_(std::move(options)), lane_(std::move(lane)), address_(lane_->address()), journal_(std::move(journal)) {}

Result<std::unique_ptr<Driver>> Driver::start(DriverOptions options, std::unique_ptr<transport::ControlLane> lane) {
  Env& env = *options.env;
  REFIT_ASSIGN(JournalFile journal, open_journal(env, options.journal_path, options.config.job, options.compact_bytes));
  const JournalState recovered = journal.recovered;
  const Lineage fresh{env.random_u64(), env.random_u64()};
  const std::uint64_t seed = env.random_u64();
  std::unique_ptr<Driver> d(new Driver(std::move(options), std::move(lane), std::move(journal)));
  Step first = coordinator::start(d->options_.config, recovered, fresh, seed, monotonic_ns());
  d->state_ = std::move(first.state);
  for (Action& a : first.todo) std::visit([&](auto& x) { d->perform(x); }, a);
  d->thread_ = std::thread([driver = d.get()] { driver->run(); });
  ::pthread_setname_np(d->thread_.native_handle(), "refit-coord");
  return d;
}

Driver::~Driver() { [[maybe_unused]] const Status s = shutdown(Deadline::after_s(1)); }

Status Driver::shutdown(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!lane_) return {};
  const auto lane = std::move(lane_);
  return lane->close(deadline);
}

void Driver::run() {
  std::int64_t last_tick = 0;
  while (true) {
    Result<transport::ControlMessage> message = lane_->next(Deadline::after_ns(kWaitNs));
    if (!message.ok() && message.error().code != Code::kTimeout) options_.env->wait(Deadline::after_ns(kWaitNs));
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    if (message.ok()) {
      Result<wire::Envelope> envelope = wire::decode(message->bytes);
      if (envelope.ok())
        feed(Received{message->peer, std::move(*envelope), message->proven});
      else
        ++state_.dropped.unexpected;
    } else if (message.error().code != Code::kTimeout && !failed_) {
      failed_ = Error(std::move(message).error()).at_stage("control");
    }
    state_.dropped.connections = lane_->refused();
    for (const transport::Liveness& l : lane_->liveness())
      if (l.event == transport::PeerEvent::kGone) feed(Gone{l.peer});
    while (!calls_.empty()) {
      EventKind call = std::move(calls_.front());
      calls_.pop_front();
      feed(std::move(call));
    }
    if (const std::int64_t now = monotonic_ns(); now - last_tick >= kTickNs) {
      last_tick = now;
      feed(Tick{});
    }
    changed_.notify_all();
  }
}

void Driver::feed(EventKind what) {
  events_.push_back(std::move(what));
  while (!events_.empty()) {
    Event event{monotonic_ns(), std::move(events_.front())};
    events_.pop_front();
    std::vector<Action> todo = step(state_, event);
    for (Action& a : todo) std::visit([&](auto& x) { perform(x); }, a);
  }
}

void Driver::perform(Send& a) {
  const Result<wire::Bytes> bytes = wire::encode(a.envelope);
  if (!bytes.ok()) {
    if (!failed_) failed_ = bytes.error();
    return;
  }
  // A full queue or a lost peer is the same as a lost message: the protocol repeats what matters.
  const Status s = lane_->send(a.connection, *bytes);
  if (!s.ok() && s.error().code == Code::kInvalid && !failed_) failed_ = s.error();  // too large: it would never arrive
}

Status Driver::append(const Append& a) {
  if (a.reserve_bytes > 0) REFIT_TRY(journal_.file->reserve(a.reserve_bytes));
  return journal_.append(*options_.env, a.records);
}

void Driver::perform(Append& a) {
  Status s = append(a);
  if (!s.ok())
    events_.push_back(AppendFailed{a.ticket, Error(std::move(s).error()).at_stage("journal")});
  else
    events_.push_back(Appended{a.ticket});
}

void Driver::perform(ReadEpoch&) {
  const Result<Epoch> highest = journal_.highest(*options_.env);
  if (highest.ok()) {
    missed_looks_ = 0;
    events_.push_back(EpochRead{*highest});
    return;
  }
  // A look beside running work may fail for a moment (descriptors, a file server); one that work waits for may not.
  if (!state_.reading_epoch && ++missed_looks_ < kMostMissedLooks) return;
  if (!failed_) failed_ = highest.error();
}

void Driver::perform(Report& a) {
  if (abandoned_) {
    abandoned_ = calling_ = false;
    return;
  }
  result_ = std::move(a.result);
}
void Driver::perform(Finished& a) { finished_.push_back(a); }
void Driver::perform(Verdict& a) { verdicts_.push_back(std::move(a)); }
void Driver::perform(Stop& a) {
  if (!failed_) failed_ = std::move(a.reason);
}
void Driver::perform(Observe& a) {
  if (options_.observer)
    options_.observer({.phase = a.phase,
                       .who = {Role::kClient, 0, 0},
                       .txn = a.txn,
                       .at_ns = monotonic_ns(),
                       .bytes = 0,
                       .buckets = 0});
}

bool Driver::wait_changed(std::unique_lock<std::mutex>& lock, Deadline deadline) const {
  return changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns())) == std::cv_status::no_timeout ||
         !deadline.over();
}

Result<RoundResult> Driver::sync(const BeginRound& call) {
  std::unique_lock lock(mutex_);
  if (failed_) return *failed_;
  if (stop_) return Error(Code::kCancelled, "the coordinator was shut down");
  if (calling_) return Error(Code::kBusy, "another call of sync_weights is in hand");
  calling_ = true;
  result_.reset();
  calls_.push_back(call);
  // The step function ends the call by the call's own total; the margin only guards against a stuck driver thread.
  const Deadline guard = Deadline::after_ns(call.total_ns + options_.config.join_ns + 10 * kNsPerSecond);
  while (!result_ && !failed_ && !stop_) {
    if (!wait_changed(lock, guard)) break;
  }
  if (result_) {
    calling_ = false;
    return *result_;
  }
  if (failed_ || stop_)
    calling_ = false;
  else
    abandoned_ = true;
  RoundResult lost;
  lost.outcome = wire::Outcome::kInDoubt;
  lost.error = failed_ ? *failed_ : Error(Code::kTimeout, "the coordinator did not end the round within its deadline");
  return lost;
}

Result<std::string> Driver::verify(wire::Domain domain, std::int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  if (failed_) return *failed_;
  // Numbers of clients' requests come from the clients; ours have the highest bit set.
  const std::uint64_t request = ++requests_ | std::uint64_t{1} << 63;
  calls_.push_back(AskVerify{request, domain, timeout_ns});
  const Deadline guard = Deadline::after_ns(timeout_ns + 2 * kNsPerSecond);
  const auto mine = [&](const Verdict& v) { return v.request == request; };
  while (!failed_ && !stop_) {
    const auto it = std::find_if(verdicts_.begin(), verdicts_.end(), mine);
    if (it != verdicts_.end()) {
      std::string json = std::move(it->json);
      verdicts_.erase(it);
      return json;
    }
    if (!wait_changed(lock, guard))
      return Error(Code::kTimeout, "the members did not answer the request to verify in time");
  }
  return failed_ ? *failed_ : Error(Code::kCancelled, "the coordinator was shut down");
}

std::string Driver::status() const {
  const std::lock_guard lock(mutex_);
  return status_json(state_);
}

Status Driver::wait_ready(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  while (true) {
    if (failed_) return *failed_;
    if (state_.rebuild && state_.rebuild->blocked) return *state_.rebuild->blocked;
    std::string missing;
    for (std::uint32_t m = 0; m < state_.slots.size(); ++m) {
      const Slot& slot = state_.slots[m];
      const std::string name = options_.config.shape.name(m).to_string();
      if (!slot.refused.empty()) return Error(slot.refused.front()).at_peer(name).at_stage("plan");
      if (!slot.present())
        missing += " " + name + " (not here)";
      else if (!slot.ready)
        missing += " " + name + " (planning)";
    }
    if (missing.empty()) return {};
    if (deadline.over()) return Error(Code::kTimeout, "members are not ready:" + missing).at_stage("join");
    wait_changed(lock, deadline);
  }
}

std::vector<Finished> Driver::finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

Status Driver::health() const {
  const std::lock_guard lock(mutex_);
  return failed_ ? Status(*failed_) : Status{};
}

Version Driver::newest() const {
  const std::lock_guard lock(mutex_);
  if (!state_.journal.newest) return {};
  return state_.journal.newest->version;
}

}  // namespace refit::coordinator
