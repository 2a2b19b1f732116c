// What publish and serve share: the options of a member's process, and the seats of the ranks that live in it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "cli/command.h"
#include "cli/demo/model_source.h"
#include "cli/parts/events.h"
#include "cli/watch/watch.h"
#include "sync/sync.h"

namespace refit::cli {

struct PartOptions {
  std::string address, keys, model, spec, transport = "tcp", runtime_dir, config;
  std::vector<std::string> sets;
  std::string security_bulk, port_range, advertise;  // empty: the configuration's
  int rank = -1;                                     // -1: all of this instance
  int streams = 2, threads = 1;
  double join_timeout_s = 120;
  std::uint64_t seed = 1;
  double share = 0.01;
  WatchOptions watch;
};
void declare(CLI::App& command, Context& context, PartOptions& options);
// Either a job (ADDR, --keys and the options of `job`, all given) or a store. Errors: kInvalid naming what is missing
// or too much.
Status either(const PartOptions& options, const std::string& url, const std::string& url_option,
              const std::vector<std::pair<std::string, const std::string*>>& job);

// Everything that the ranks of one process have in common.
struct Part {
  PartOptions options;
  ModelSource model;
  std::shared_ptr<const model::Layout> layout;
  sync::Config config;
  engine::StepRule rule;
  std::uint32_t ranks_per_instance = 0;
};
Result<Part> open_part(const PartOptions& options);

// The key of a rank, checked against its name and (all ranks of a process) against one job.
Result<std::unique_ptr<agent::Seat>> take_seat(const Part& part, const MemberName& name, Watch& watch);
// Opens what the part was asked to show, and tells where.
Result<std::unique_ptr<Watch>> open_watch(const Part& part, Events& events);

// Runs `body` for every rank that this process has, each on a thread of its own, until all return, one fails, or the
// process is asked to end (`stop` is raised). The first error, naming its rank.
using RankBody = std::function<Status(const MemberName& name, const std::atomic<bool>& stop)>;
Status run_ranks(const Part& part, Role role, std::uint32_t instance, const RankBody& body);

// Serves the protocol for a slice, and fails when the coordinator has not admitted this process by the join deadline.
class Slices {
 public:
  Slices(agent::Agent& agent, const agent::Seat& seat, double join_timeout_s, Events& events, Watch& watch,
         MemberName who)
      : agent_(agent), seat_(seat), deadline_(Deadline::after_s(join_timeout_s)), events_(events), watch_(watch),
        who_(who) {}
  Result<agent::AgentReport> run();

 private:
  agent::Agent& agent_;
  const agent::Seat& seat_;
  const Deadline deadline_;
  Events& events_;
  Watch& watch_;
  const MemberName who_;
  bool joined_ = false;
};

// One rank of a part, on its own thread: what publish and serve do alike.
template <typename Options>
class RankOfPart {
 public:
  RankOfPart(const Options& options, const Part& part, const MemberName& name, Events& events, Watch& watch)
      : options_(options), part_(part), name_(name), events_(events), watch_(watch) {}

 protected:
  void tell(const std::string& what, const nlohmann::ordered_json& fields) {
    events_.tell(name_.to_string(), what, fields);
  }
  Slices slices(agent::Agent& agent) { return {agent, *seat_, options_.join_timeout_s, events_, watch_, name_}; }
  Status close(agent::Agent& agent) {
    const Status closed = agent.close(Deadline::after_s(2));
    const Status movers = seat_->close(Deadline::after_s(4));
    return closed.ok() ? movers : closed;
  }

  const Options& options_;
  const Part& part_;
  const MemberName name_;
  Events& events_;
  Watch& watch_;
  std::unique_ptr<agent::Seat> seat_;
  std::uint64_t told_ = 0;  // version
};

// The newest of the checkpoint directories PARENT/…N, by the number that its name ends with. Names that begin with a
// dot are left out, so that one may be written under such a name and renamed.
struct Numbered {
  std::int64_t number = -1;  // none
  std::string path;
};
Result<Numbered> newest_directory(const std::string& parent);

// The newest directory, while it can't be read as a checkpoint that fits: it may be half written. Looked at again when
// something in it changes; `tell` hears "waits" once for each directory, and "skips" when nothing changed for
// `timeout_s`.
class HalfWritten {
 public:
  using Tell = std::function<void(const std::string& what, const nlohmann::ordered_json& fields)>;
  HalfWritten(double timeout_s, Tell tell) : timeout_s_(timeout_s), tell_(std::move(tell)) {}
  // False: `path` is what could not be read, and nothing in it changed since. Call it before reading.
  bool changed(const std::string& path);
  // What changed() was last asked about can't be read.
  void keep(const Error& error);

 private:
  const double timeout_s_;
  const Tell tell_;
  std::string path_, looked_at_;
  std::uint64_t contents_ = 0, looked_at_contents_ = 0;
  Deadline unchanged_ = Deadline::after_ns(0);
  nlohmann::ordered_json what_;  // null: told
};

}  // namespace refit::cli
