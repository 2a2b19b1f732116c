// Trace: Chrome/Perfetto trace events of one process, one a line. A viewer reads the file at any time, also after the
// process was killed; times are CLOCK_MONOTONIC, named with the boot that they belong to.
#pragma once
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "agent/agent.h"
#include "observe/spans.h"
#include "sync/sync.h"

namespace refit::observe {

// *thread-safe*.
class Trace {
 public:
  // Makes or empties the file. kInvalid naming `--trace`.
  static Result<std::unique_ptr<Trace>> open(const std::string& path);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void on(const PhaseEvent& event, const Spans::Seen& seen);
  // What a rank's last round took, beside its spans.
  void report(const MemberName& who, const agent::AgentReport& report);
  // A round as the caller of sync_weights() saw it.
  void round(const sync::SyncReport& report);

 private:
  explicit Trace(std::FILE* file) : file_(file) {}
  void write(const std::string& line);
  void introduce(const MemberName& who);

  std::mutex mutex_;
  std::FILE* file_;
  std::map<MemberName, std::uint64_t> introduced_;  // to the version that was reported last
};

}  // namespace refit::observe
