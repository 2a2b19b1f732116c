// Watchers: what an agent and a coordinator report, as values in a book.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/agent.h"
#include "memory/memory.h"
#include "observe/book.h"
#include "observe/spans.h"
#include "sync/sync.h"
#include "transport/transport.h"

namespace refit::observe {

// One rank. The observer may be called from any thread; look() from one.
class MemberWatcher {
 public:
  // The book must outlive it.
  MemberWatcher(Book& book, const MemberName& name);
  void on(const Span& ended);
  void look(const agent::AgentReport& report, bool busy, const memory::Budget& budget,
            const transport::Counters& counters);

 private:
  void committed(const agent::AgentReport& r);
  void phase(const char* name, std::int64_t ns);

  Book& book_;
  const MemberName who_;
  const std::string name_;
  std::uint64_t version_ = 0;
  std::int64_t plan_ns_ = 0;
};

// The coordinator. on() from any thread; the others from one.
class CoordinatorWatcher {
 public:
  explicit CoordinatorWatcher(Book& book);
  void on(const Span& ended);
  void round(const sync::SyncReport& report);
  // `status` is the coordinator's status as JSON.
  void look(const std::string& status, bool stale);

 private:
  Book& book_;
  bool failed_ = false;                              // the last round did not commit whole
  std::map<std::string, std::uint64_t> incarnations_;  // of members that are heard
};

}  // namespace refit::observe
