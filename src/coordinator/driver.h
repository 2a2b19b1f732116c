// The coordinator's driver: one thread that owns the control lane, the journal and the step function.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/journal_file.h"
#include "coordinator/status.h"
#include "coordinator/step.h"
#include "transport/transport.h"

namespace refit::coordinator {

struct DriverOptions {
  Env* env = &system_env();
  Observer observer;
  Config config;
  std::string journal_path;
  std::int64_t compact_bytes = 1 << 20;  // a longer journal is compacted at the start: some thousand rounds
};

// *thread-safe*. Calls wait on the caller's thread; the protocol runs on the driver's own ("refit-coord").
class Driver {
 public:
  // Locks and reads the journal (kBusy when another process holds it, kCorrupt for a damaged one), then starts.
  static Result<std::unique_ptr<Driver>> start(DriverOptions options, std::unique_ptr<transport::ControlLane> lane);
  ~Driver();

  // One round. The result tells the outcome as it is; an Error only when no round could be asked for (another call is
  // in hand, the coordinator has stopped).
  Result<RoundResult> sync(const BeginRound& call);
  // {"ok":…} as status.h says. kTimeout when members stayed silent.
  Result<std::string> verify(wire::Domain domain, std::int64_t timeout_ns);
  std::string status() const;
  // Waits until every expected member is present and has its plan. kTimeout naming who is missing and why; a plan that
  // a member refused is returned as that member's errors at once.
  Status wait_ready(Deadline deadline) const;
  // Rounds that were reported incomplete and have ended since, oldest first; each is returned once.
  std::vector<Finished> finished();
  Version newest() const;
  // Why it runs no longer: the control lane or the journal failed, or a coordinator of a higher epoch took over.
  // Sticky.
  Status health() const;
  std::string address() const { return address_; }  // where members connect
  Status shutdown(Deadline deadline);

 private:
  Driver(DriverOptions options, std::unique_ptr<transport::ControlLane> lane, JournalFile journal);
  void run();
  void feed(EventKind what);
  void perform(Send& a);
  void perform(Append& a);
  void perform(ReadEpoch& a);
  void perform(Report& a);
  void perform(Finished& a);
  void perform(Verdict& a);
  void perform(Observe& a);
  void perform(Stop& a);
  Status append(const Append& a);
  bool wait_changed(std::unique_lock<std::mutex>& lock, Deadline deadline) const;

  DriverOptions options_;
  std::unique_ptr<transport::ControlLane> lane_;
  const std::string address_;
  JournalFile journal_;

  // The loop holds the mutex while it steps; callers hold it while they look.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  State state_;
  std::deque<EventKind> events_;  // caused by actions
  std::deque<EventKind> calls_;   // from other threads
  bool calling_ = false;
  bool abandoned_ = false;  // the caller gave up: the report of that round is nobody's
  std::optional<RoundResult> result_;
  std::vector<Verdict> verdicts_;
  std::vector<Finished> finished_;
  std::uint64_t requests_ = 0;
  int missed_looks_ = 0;         // at the journal, one after the other
  std::optional<Error> failed_;  // the control lane or the journal: sticky
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace refit::coordinator
