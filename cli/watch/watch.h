// What a process of the command line shows of itself while it runs: metrics, a trace, structured logs.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "agent/agent.h"
#include "observe/observe.h"
#include "sync/sync.h"

namespace refit::cli {

struct WatchOptions {
  std::string metrics, metrics_token, trace, log;
  bool metrics_public = false;
  bool any() const { return !metrics.empty() || !trace.empty() || !log.empty(); }
  observe::ListenOptions listen(const std::string& token) const {
    return {.address = metrics, .token = token, .everybody = metrics_public};
  }
};
void declare(CLI::App& command, WatchOptions& options);
// The same options as arguments, for a process that this one starts: another address and file.
std::vector<std::string> arguments(const WatchOptions& options);

// *thread-safe*; look() of one member from one thread. Does nothing where nothing was asked for.
class Watch {
 public:
  static Result<std::unique_ptr<Watch>> open(const WatchOptions& options);
  // Of a member, or of the coordinator; then whatever `more` does.
  Observer observer(Observer more = {});
  void look(const MemberName& who, agent::Agent& agent, const agent::AgentReport& report, const agent::Seat& seat);
  void look(sync::WeightSynchronizer& synchronizer);
  void round(const sync::SyncReport& report);
  std::string metrics_url() const { return listener_ ? listener_->url() : ""; }

 private:
  explicit Watch(const WatchOptions& options) : options_(options) {}
  void on(const PhaseEvent& event);
  observe::MemberWatcher& member(const MemberName& who);
  observe::CoordinatorWatcher& coordinator();

  const WatchOptions options_;
  std::unique_ptr<observe::Book> book_;  // before who writes into it and who reads it
  std::mutex mutex_;                     // watchers
  std::map<MemberName, std::unique_ptr<observe::MemberWatcher>> members_;
  std::unique_ptr<observe::CoordinatorWatcher> coordinator_;
  observe::Spans spans_;
  std::unique_ptr<observe::Trace> trace_;
  std::unique_ptr<observe::Listener> listener_;  // goes first
};

}  // namespace refit::cli
