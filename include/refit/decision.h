// Decision: what a training configuration means, judged by the same tables as `refit check`; Phases: the order in which
// a sync drives both sides.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "refit/error.h"

namespace refit::api {

struct DecisionRequest {
  std::string path{};  // a YAML file; empty: `text` is its content (JSON is YAML too)
  std::string text{};
  std::vector<std::string> sets{};               // "path=value" over it
  std::string algorithm{};                       // grpo, ppo, distillation; empty: from the top-level sections
  std::int64_t max_colocated_worker_groups = 0;  // 0: not known
};

class Decision {
 public:
  // kInvalid listing every key that is wrong, each with its place. A configuration that is refused by the constraint
  // table is no error here: the JSON says so.
  explicit Decision(const DecisionRequest& request);

  // One object, as `refit check --json` prints it.
  std::string json() const;
  // What happens to kv_scales that a call brings, known before any phase: "none", "carried", "ignored" or "refused".
  std::string judge_kv_scales(bool any) const;

 private:
  friend class Phases;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// One walk through the phases of a sync. After a failure the rest of the work is skipped; the clean-up half always
// runs.
class Phases {
 public:
  explicit Phases(const Decision& decision);
  ~Phases();
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;

  // The phase to run now; none: the sync has ended.
  std::optional<std::string> running() const;
  // The running phase ended, well or not.
  void ended(bool well);
  // The first phase that failed.
  std::optional<std::string> failed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit::api
