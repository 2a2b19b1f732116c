// The demo's processes and the synchronizer that steers them.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo/child.h"
#include "cli/demo/demo_options.h"
#include "sync/sync.h"

namespace refit::cli {

class Fleet {
 public:
  static Result<std::unique_ptr<Fleet>> start(const DemoOptions& options, std::shared_ptr<const model::Layout> source,
                                              std::shared_ptr<const model::Layout> target, Observer observer = {});
  ~Fleet();

  sync::WeightSynchronizer& synchronizer() { return host_->synchronizer(); }
  const std::string& address() const { return host_->address(); }
  std::size_t sources() const { return sources_; }
  std::size_t size() const { return children_.size(); }
  MemberName name(std::size_t member) const { return shape_.name(static_cast<std::uint32_t>(member)); }
  Child& child(std::size_t member) { return children_[member]; }

  // Sends a line to every member of a role (both: no role) that runs, then collects each answer as JSON by member.
  // A member that does not answer by the deadline has a null.
  std::vector<nlohmann::json> ask(const std::string& line, std::optional<Role> role, Deadline deadline);
  // Starts again what has died. Returns the names.
  Result<std::vector<std::string>> revive();
  // How members that no longer run ended.
  std::vector<std::string> dead();
  // Trainers that are started from now on have done this many steps.
  void stepped(std::int64_t steps) { steps_done_ = steps; }
  Status stop();
  // With --metrics: where each member answers.
  const std::map<std::string, std::string>& metrics() const { return metrics_; }
  // With --trace: the files that members wrote, restarted ones each their own.
  const std::vector<std::string>& trace_parts() const { return trace_parts_; }

 private:
  Fleet() = default;
  Result<Child> launch(std::uint32_t member, bool with_kill);
  std::string metrics_address(std::uint32_t member) const;
  std::string trace_part(std::uint32_t member) const;

  DemoOptions options_;
  std::vector<Kill> kills_;
  coordinator::Shape shape_;
  std::int64_t budget_bytes_ = 0;
  std::int64_t steps_done_ = 0;
  std::size_t sources_ = 0;
  std::map<std::string, std::string> metrics_;
  std::vector<std::string> trace_parts_;
  std::unique_ptr<sync::Host> host_;
  std::vector<Child> children_;
};

}  // namespace refit::cli
