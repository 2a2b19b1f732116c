// Seat: what one member of a job needs round its agent in its own process: movers, kernel threads, a memory budget.
#pragma once
#include <memory>
#include <string>

#include "agent/agent.h"

namespace refit::agent {

struct SeatOptions {
  Hash128 job;
  MemberName name;
  std::uint32_t member = 0;  // its slot in the job's shape
  std::string runtime_dir, control_address;
  std::optional<transport::ControlKeys> control_keys{};  // where that address is tcp://
  std::string transport = "shm";
  std::int64_t staging_bytes = 256 << 20;  // `refit.staging_bytes`
  std::int64_t budget_bytes = 0;           // the most this member may hold for Refit
  int threads = 1;                         // of kernels, the caller's included
  bool snapshot = false;                   // `refit.snapshot`
  std::string baseline_dir{};              // as in AgentOptions
  transport::NetOptions net{};             // movers that use the network
  std::int64_t progress_bytes = 64 << 20;  // as in AgentOptions
  Observer observer{};
};

// *thread-compatible*. The agent made from options() must go before it.
class Seat {
 public:
  static Result<std::unique_ptr<Seat>> make(SeatOptions options);
  const AgentOptions& options() const { return agent_; }
  const memory::Budget& budget() const { return budget_; }
  memory::Budget& budget() { return budget_; }
  // Shuts the movers down, both even if one fails; the first error.
  Status close(Deadline deadline);

 private:
  explicit Seat(const SeatOptions& options) : pool_(options.threads), budget_(options.budget_bytes) {}
  ThreadPool pool_;
  memory::Budget budget_;
  std::unique_ptr<transport::Mover> data_, control_;
  AgentOptions agent_;
};

}  // namespace refit::agent
