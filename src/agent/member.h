// What both roles share: the control lane's loop, a worker thread for long tasks, and a thread that answers liveness.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "agent/agent.h"
#include "install/install.h"
#include "kernel/kernel.h"
#include "wire/wire.h"

namespace refit::agent {

// Counters that a running task raises; read by the loop and by the liveness thread.
struct TaskProgress {
  std::atomic<std::uint64_t> progress{0}, buckets{0};
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::uint32_t> phase{0};
  std::atomic<std::uint64_t> in_hand{kNoBucket};  // sender << 32 | bucket
  static constexpr std::uint64_t kNoBucket = ~std::uint64_t{0};
  // The task's number. Starting one takes no cancellation back from those before it, which may still run.
  std::uint64_t start(Phase p) {
    buckets = 0;
    bytes = 0;
    in_hand = kNoBucket;
    phase = static_cast<std::uint32_t>(p);
    ++progress;
    return ++started_;
  }
  void cancel_all() {  // that have been started
    const std::uint64_t all = started_.load();
    for (std::uint64_t now = cancelled_.load(); now < all && !cancelled_.compare_exchange_weak(now, all);) {
    }
  }
  bool cancelled(std::uint64_t task) const { return task <= cancelled_; }
  void bucket_done(std::int64_t n) {
    bytes += n;
    ++buckets;
    ++progress;
  }

 private:
  std::atomic<std::uint64_t> started_{0}, cancelled_{0};
};

class Member {
 public:
  Member(const AgentOptions& options);
  virtual ~Member();

 protected:
  // Runs on the loop's thread after the task: feeds its event.
  using Finish = std::function<void()>;

  Status open_lane();
  Status loop(Deadline deadline);
  Status close_threads(Deadline deadline);
  // Runs `task` on the worker, one after another.
  void work(std::function<Finish()> task);
  void send(const wire::Envelope& envelope);
  void observe(Phase phase, const Txn& txn) const;
  // The loop stores what the liveness thread repeats while the loop's thread is inside engine code; nothing while the
  // coordinator has not welcomed us, for then only Hello counts.
  void keep_alive_with(std::optional<wire::Envelope> heartbeat);
  wire::Heartbeat progress_now() const;
  // The bucket that the worker has in hand, for errors; empty between buckets.
  virtual std::string bucket_in_hand() const { return {}; }
  // The step that a source offers; -1: none. From any thread.
  virtual std::int64_t published() const { return -1; }
  // Why this process is not connected, as the control lane last said; empty once it is.
  std::string unconnected() const;
  // Queue depth and reconnections, into a report.
  void count_into(AgentReport& report) const {
    report.unconnected = unconnected();
    report.tasks = outstanding_;
    report.reconnects = reconnects_;
  }

  virtual void on_received(wire::Envelope&& envelope) = 0;
  virtual void on_connection(bool up) = 0;
  virtual void on_tick() = 0;
  virtual void on_progress(const wire::Heartbeat& now) = 0;

  kernel::Exec exec() const { return {options_.runtime.pool, &scan_progress_}; }

  AgentOptions options_;
  TaskProgress progress_;
  Txn copying_;  // round whose live copy the worker has in hand; of the worker's thread

 private:
  void work_loop();
  void scanned(std::int64_t bytes);
  void alive_loop();
  bool finish_tasks();

  Status reopen_lane();

  // Shared by the loop and the liveness thread, which may be sending when the loop opens a new one.
  std::shared_ptr<transport::ControlLane> lane_;
  bool connected_ = false;
  std::int64_t last_tick_ns_ = 0;
  std::uint64_t last_progress_ = 0;
  std::atomic<std::int64_t> last_sent_ns_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<Finish()>> tasks_;
  std::deque<Finish> finished_;
  std::atomic<int> outstanding_{0};
  std::atomic<std::uint64_t> reconnects_{0};
  std::optional<wire::Envelope> alive_;
  std::string unconnected_;          // why nothing came yet
  std::optional<Error> unsendable_;  // a message that no lane will ever take; ends the loop
  bool stop_ = false;
  kernel::Progress scan_progress_;
  std::thread worker_, alive_thread_;
};

}  // namespace refit::agent
