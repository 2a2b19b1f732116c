// The source rank's driver: performs the actions of agent/source.h.
#pragma once
#include <memory>
#include <optional>

#include "agent/member.h"
#include "agent/outlet.h"
#include "agent/planning.h"
#include "agent/quantising.h"
#include "agent/sealer.h"
#include "agent/value_stages.h"

namespace refit::agent {

class SourceDriver final : public SourceAgent, private Member {
 public:
  static Result<std::unique_ptr<SourceAgent>> make(const AgentOptions& options, engine::Shard& shard);
  ~SourceDriver() override;

  Status run(Deadline deadline) override;
  AgentReport report() const override;
  bool busy() const override { return busy_.load(); }
  Status close(Deadline deadline) override;
  void publish(std::int64_t step, const std::string& weight_set) override;
  Status guard(Deadline deadline) override;

 private:
  SourceDriver(const AgentOptions& options, engine::Shard& shard, install::Identity identity);

  std::int64_t published() const override;
  void on_received(wire::Envelope&& envelope) override { feed(install::Received{std::move(envelope)}); }
  void on_connection(bool up) override;
  void on_tick() override;
  void on_progress(const wire::Heartbeat& now) override { feed(install::Progress{now}); }
  void feed(SourceEventKind what);

  void perform(install::Send& a);
  void perform(install::MakePlan& a);
  void perform(install::Observe& a);
  void perform(Prepare& a);
  void perform(Quantise& a);
  void perform(Expose& a);
  void perform(CheckSeal& a);
  void perform(MoveBase& a);
  void perform(Withdraw& a);
  void perform(Release& a);

  // On the worker.
  // Up to the largest magnitudes of the blocks that this rank shares with others; none where nothing is quantised.
  Result<wire::BlockAmax> prepare(std::uint64_t task, const wire::Begin& begin);
  Result<SealDone> seal(const Txn& txn, const wire::Begin& begin, std::uint32_t member, std::span<const float> amax);
  Finish sealed(const Txn& txn, Result<SealDone> r);
  Status take_plan(const wire::Configure& configure, std::uint64_t digest_seed);
  Status lend_regions();
  Status lend_values();
  Status lend_codes();
  // What is sealed and sent next lies where the shard's regions lie now.
  Status follow_regions();
  void send_all(const Txn& txn);
  Result<wire::WrittenManifest> write_page(const Seal& sealed, const Txn& txn, const wire::Begin& begin,
                                           std::uint32_t member);

  engine::Shard& shard_;
  SourceState state_;
  install::Ignored ignored_;
  std::atomic<bool> busy_{false};
  std::deque<SourceEventKind> events_;
  bool feeding_ = false;

  // Of the plan; touched by the worker between tasks of one round, by the loop otherwise.
  std::optional<Planned> planned_;
  std::unique_ptr<Sealer> sealer_;
  std::unique_ptr<ValueStages> stages_;         // of the plan, where some run
  memory::SharedRegion values_;                 // their results
  std::unique_ptr<Quantising> quantising_;      // of the plan, where the targets hold codes
  memory::SharedRegion codes_;                  // and their scales
  memory::SharedRegion page_;                   // the lent manifest
  std::vector<memory::SharedRegion> snapshot_;  // where the shard's memory is not lent itself
  std::vector<memory::RegionRef> lent_;         // weights; values where stages run; codes where some are; the page
  std::unique_ptr<Baseline> baseline_;          // of the plan, where buckets go as deltas
  std::unique_ptr<Outlet> outlet_;              // of the plan
  bool moved_ = false;                          // the outlet does not follow the regions yet
  Shipment shipment_;                           // of the round in hand
  std::uint64_t seed_ = 0;                      // of the digests in the baseline
  std::atomic<bool> withdrawn_{false};          // the round in hand: its sending stops
  std::optional<Error> unsent_;                 // why the round's buckets did not all go out
  std::uint64_t sealed_writes_ = 0;
  std::vector<float> sealed_amax_;  // what the codes of the round in hand were made with
  std::int64_t sealed_step_ = -1, snapshot_bytes_ = 0, prepare_ns_ = 0, quantise_ns_ = 0;  // of the round in hand
  std::string sealed_set_;
  bool snapshotting_ = false;

  mutable std::mutex publish_mutex_;  // published_, held_, report_
  std::condition_variable published_changed_;
  std::int64_t published_step_ = -1;
  std::string weight_set_;
  Txn transfer_seen_;  // the round whose transfer was observed
  std::uint64_t published_writes_ = 0;
  bool published_ = false, held_ = false;
  AgentReport report_;
};

}  // namespace refit::agent
