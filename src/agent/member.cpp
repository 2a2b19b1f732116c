#include "agent/member.h"

#include <pthread.h>

#include <chrono>

namespace refit::agent {
namespace {
constexpr std::int64_t kIdleWaitNs = 10'000'000;  // how long the loop sleeps in the lane when nothing is running
constexpr std::int64_t kBusyWaitNs = 300'000;     // while a task runs, so that its end is told promptly
constexpr std::int64_t kTickNs = 20'000'000;
}  // namespace

Member::Member(const AgentOptions& options) : options_(options) {
  scan_progress_ = {.every_bytes = options_.progress_bytes, .done = [this](std::int64_t bytes) { scanned(bytes); }};
  worker_ = std::thread([this] { work_loop(); });
  alive_thread_ = std::thread([this] { alive_loop(); });
  ::pthread_setname_np(worker_.native_handle(), "refit-work");
  ::pthread_setname_np(alive_thread_.native_handle(), "refit-alive");
}

Member::~Member() { [[maybe_unused]] const Status s = close_threads(Deadline::after_s(1)); }

Status Member::close_threads(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  progress_.cancel_all();
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
  if (alive_thread_.joinable()) alive_thread_.join();
  if (!lane_) return {};
  const auto lane = std::exchange(lane_, nullptr);
  return lane->close(deadline);
}

Status Member::open_lane() {
  REFIT_ASSIGN(std::shared_ptr<transport::ControlLane> fresh,
               options_.control->open_control(
                   {.address = options_.control_address, .listen = false, .keys = options_.control_keys}));
  const std::lock_guard lock(mutex_);
  lane_ = std::move(fresh);
  return {};
}

// A lane whose coordinator is gone never comes back; a fresh one finds the coordinator that follows.
Status Member::reopen_lane() {
  connected_ = false;
  ++reconnects_;
  on_connection(false);
  if (lane_) REFIT_TRY(lane_->close(Deadline::after_s(1)));
  return open_lane();
}

void Member::work(std::function<Finish()> task) {
  ++outstanding_;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_all();
}

void Member::work_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Finish finish = task();
    lock.lock();
    finished_.push_back(std::move(finish));
  }
}

bool Member::finish_tasks() {
  bool any = false;
  while (true) {
    Finish finish;
    {
      const std::lock_guard lock(mutex_);
      if (finished_.empty()) return any;
      finish = std::move(finished_.front());
      finished_.pop_front();
    }
    --outstanding_;
    finish();
    any = true;
  }
}

void Member::keep_alive_with(std::optional<wire::Envelope> heartbeat) {
  const std::lock_guard lock(mutex_);
  alive_ = std::move(heartbeat);
}

wire::Heartbeat Member::progress_now() const {
  wire::Heartbeat h;
  h.phase = static_cast<Phase>(progress_.phase.load());
  h.progress = progress_.progress.load();
  h.buckets_done = progress_.buckets.load();
  h.bytes_done = progress_.bytes.load();
  h.bucket = bucket_in_hand();
  h.published = published();
  return h;
}

std::string Member::unconnected() const {
  const std::lock_guard lock(mutex_);
  return unconnected_;
}

// Says that the process lives and how far its worker is, whatever the loop's thread is doing in engine code.
void Member::alive_loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, std::chrono::nanoseconds(options_.heartbeat_ns), [&] { return stop_; });
    if (stop_ || !alive_ || !lane_) continue;
    if (monotonic_ns() - last_sent_ns_.load() < 2 * options_.heartbeat_ns) continue;
    wire::Envelope envelope = *alive_;
    lock.unlock();
    if (auto* heartbeat = std::get_if<wire::Heartbeat>(&envelope.message)) {
      const wire::MemberState state = heartbeat->state;
      *heartbeat = progress_now();
      heartbeat->state = state;
    }
    send(envelope);
    lock.lock();
  }
}

void Member::send(const wire::Envelope& envelope) {
  const Result<wire::Bytes> bytes = wire::encode(envelope);
  std::shared_ptr<transport::ControlLane> lane;
  {
    const std::lock_guard lock(mutex_);
    lane = lane_;
  }
  if (bytes.ok() && !lane) return;
  Status sent = bytes.ok() ? lane->send(0, *bytes) : Status(bytes.error());
  if (sent.ok()) {
    last_sent_ns_ = monotonic_ns();
  } else if (sent.error().code == Code::kInvalid) {
    const std::lock_guard lock(mutex_);
    unsendable_ = Error(std::move(sent).error()).at_stage("control");
  }
  // Else a full queue or a lost peer: the same as a lost message, the protocol repeats what matters.
}

// On the worker, in the middle of a scan or copy: stall is judged on the counter (L3).
void Member::scanned(std::int64_t bytes) {
  ++progress_.progress;
  if (copying_.counter == 0) return;
  progress_.bytes += bytes;
  observe(Phase::kCopying, copying_);
}

void Member::observe(Phase phase, const Txn& txn) const {
  const bool inside = progress_.phase.load() == static_cast<std::uint32_t>(phase);  // counters are of the task's phase
  options_.runtime.observe({.phase = phase,
                            .who = options_.name,
                            .txn = txn,
                            .at_ns = monotonic_ns(),
                            .bytes = inside ? progress_.bytes.load() : 0,
                            .buckets = inside ? static_cast<std::int64_t>(progress_.buckets.load()) : 0});
}

Status Member::loop(Deadline deadline) {
  if (!lane_) return Error(Code::kCancelled, "the agent is closed");
  do {
    finish_tasks();
    {
      const std::lock_guard lock(mutex_);
      if (unsendable_) return *unsendable_;
    }
    const std::int64_t now = monotonic_ns();
    if (now - last_tick_ns_ >= kTickNs) {
      last_tick_ns_ = now;
      if (const std::uint64_t p = progress_.progress.load(); p != last_progress_) {
        last_progress_ = p;
        on_progress(progress_now());
      }
      on_tick();
    }
    bool gone = false;
    for (const transport::Liveness& l : lane_->liveness()) {
      gone = l.event == transport::PeerEvent::kGone;
      if (!gone && !connected_) on_connection(connected_ = true);
    }
    if (gone) REFIT_TRY(reopen_lane());
    const std::int64_t wait = outstanding_.load() > 0 ? kBusyWaitNs : kIdleWaitNs;
    Result<transport::ControlMessage> message = lane_->next(Deadline::after_ns(wait).sooner(deadline));
    if (!message.ok()) {
      if (message.error().code == Code::kTimeout) {
        const std::lock_guard lock(mutex_);
        unconnected_ = connected_ ? std::string() : message.error().message;
        continue;
      }
      if (message.error().code != Code::kPeerLost) return Error(std::move(message).error()).at_stage("control");
      REFIT_TRY(reopen_lane());
      continue;
    }
    Result<wire::Envelope> envelope = wire::decode(message->bytes);
    if (envelope.ok()) on_received(std::move(*envelope));
  } while (!deadline.over());
  return {};
}

}  // namespace refit::agent
