// The target rank's driver: performs the actions of install/target.h with the staged executor.
#pragma once
#include <memory>
#include <optional>

#include "agent/intake.h"
#include "agent/member.h"
#include "agent/planning.h"

namespace refit::agent {

class TargetDriver final : public Agent, private Member {
 public:
  static Result<std::unique_ptr<Agent>> make(const AgentOptions& options, engine::Shard& shard,
                                             engine::Instance& instance);
  ~TargetDriver() override;

  Status run(Deadline deadline) override;
  AgentReport report() const override;
  bool busy() const override { return busy_.load(); }
  Status close(Deadline deadline) override;

 private:
  TargetDriver(const AgentOptions& options, engine::Shard& shard, engine::Instance& instance,
               install::TargetState state);

  void on_received(wire::Envelope&& envelope) override { feed(install::Received{std::move(envelope)}); }
  void on_connection(bool up) override;
  void on_tick() override { feed(install::Tick{}); }
  std::string bucket_in_hand() const override;
  void on_progress(const wire::Heartbeat& now) override { feed(install::Progress{now}); }
  void feed(install::TargetEventKind what);
  void after_step();
  void done(install::Task task, const Txn& txn, const Status& status, const wire::Digest4& counted = {},
            const wire::ProofCounts& proof = {}, bool retained = false);

  void perform(install::Send& a);
  void perform(install::MakePlan& a);
  void perform(install::StartStaging& a);
  void perform(install::CancelStaging& a);
  void perform(install::ShutGate& a);
  void perform(install::SetWord& a);
  void perform(install::CopyShadowToLive& a);
  void perform(install::InvalidateCaches& a);
  void perform(install::OpenGate& a);
  void perform(install::Fence& a);
  void perform(install::DropStage& a);
  void perform(install::RunVerify& a);
  void perform(install::Observe& a);

  // On the worker.
  // `same`: plan and executor stayed.
  Status take_plan(const wire::Configure& configure, std::uint64_t digest_seed, bool& same);
  Status stage_all(const install::StartStaging& a);
  Result<std::map<std::uint32_t, Supplier>> suppliers(const install::StartStaging& a) const;
  Status take_all(const install::StartStaging& a, Intake& intake, const std::map<std::uint32_t, Supplier>& suppliers);
  Status take_manifest(const Txn& txn, const Supplier& supplier, const Intake& intake, const transport::Lease& lease);
  Status take_bucket(const Txn& txn, Intake& intake, const transport::Lease& lease,
                     const std::map<std::uint32_t, Supplier>& suppliers);
  Status take_headed(const Txn& txn, std::size_t index, const Supplier& supplier, std::span<const std::byte> bytes);
  Error late(Error error) const;
  Status check_cancel() const;

  engine::Shard& shard_;
  engine::Instance& instance_;
  install::TargetState state_;
  install::Ignored ignored_;
  std::atomic<bool> busy_{false};
  std::deque<install::TargetEventKind> events_;
  bool feeding_ = false;

  std::optional<Planned> planned_;
  Rank rank_;
  std::uint64_t seed_ = 0;  // digest seed that the executor's keys were made from
  std::unique_ptr<install::StagedExecutor> executor_;
  std::map<std::uint32_t, wire::Manifest> manifests_;  // by member, of the round in hand
  std::vector<std::byte> page_copy_;
  std::vector<install::TensorDigest> sealed_;                                // scratch
  std::uint64_t staging_ = 0;                                                // number of the worker's staging task
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> unstaged_;  // (sender, bucket) → index in the table

  std::int64_t unpack_ns_ = 0;
  std::optional<std::uint32_t> last_sender_;  // member whose bucket was staged last in this round

  mutable std::mutex report_mutex_;
  AgentReport report_;
};

}  // namespace refit::agent
