#include "agent/intake.h"

namespace refit::agent {
namespace {

constexpr std::size_t kWindow = 4;  // requests in flight; mapped leases hold no staging memory

class Reading final : public Intake {
 public:
  Reading(Context c, std::unique_ptr<transport::PullLane> lane) : c_(std::move(c)), lane_(std::move(lane)) {}

  Status ask_pages() {
    for (const auto& [member, supplier] : c_.suppliers) {
      const Segment page{
          .region = supplier.page_region, .offset = 0, .run_bytes = supplier.page_bytes, .extents = {}, .strides = {}};
      const auto ticket = lane_->request(kManifestBucket, member, supplier.lend->descriptor, {&page, 1});
      if (!ticket.ok()) return Error(ticket.error()).at_peer(c_.planned->name_of(member)).at_stage("lend");
    }
    return ask();
  }
  Result<transport::Lease> next(Deadline deadline) override { return lane_->next(deadline); }
  Result<std::span<const std::byte>> page(const transport::Lease& lease) const override {
    const auto supplier = c_.suppliers.find(lease.sender());
    if (supplier == c_.suppliers.end() || lease.bases().size() != 1)
      return Error(Code::kMismatch, "the lane answered with another bucket");
    return std::span(lease.bases()[0], static_cast<std::size_t>(supplier->second.page_bytes));
  }
  Result<std::span<const std::byte* const>> bases(const transport::Lease& lease, const install::BucketTable&) override {
    return lease.bases();
  }
  Status staged() override {
    ++staged_;
    std::array<transport::Completion, 16> done;
    while (lane_->poll(done) > 0) {
    }
    return ask();
  }
  Status recheck(std::uint32_t member) override { return lane_->recheck(member); }
  Status close(Deadline deadline) override { return lane_->close(deadline); }

 private:
  Status ask() {
    for (; asked_ < c_.buckets->size() && asked_ - staged_ < kWindow; ++asked_) {
      const install::BucketTable& b = (*c_.buckets)[asked_];
      const auto ticket = lane_->request(b.id, b.sender, c_.suppliers.at(b.sender).lend->descriptor, b.segments);
      if (!ticket.ok())
        return Error(ticket.error())
            .at_peer(c_.planned->name_of(b.sender))
            .at_stage("transfer")
            .at_bucket(std::to_string(b.id.value));
    }
    return {};
  }
  const Context c_;
  std::unique_ptr<transport::PullLane> lane_;
  std::size_t asked_ = 0, staged_ = 0;
};

class Receiving final : public Intake {
 public:
  Receiving(Context c, std::unique_ptr<transport::PushLane> lane) : c_(std::move(c)), lane_(std::move(lane)) {}

  Status expect() {
    std::vector<transport::Expected> all;
    for (const auto& [member, supplier] : c_.suppliers) all.push_back({kManifestBucket, member, supplier.page_bytes});
    const std::int64_t header = c_.planned->deltas() ? static_cast<std::int64_t>(wire::kBucketHeaderBytes) : 0;
    for (const install::BucketTable& b : *c_.buckets) all.push_back({b.id, b.sender, header + b.packed_bytes});
    return lane_->expect(all);
  }
  Result<transport::Lease> next(Deadline deadline) override { return lane_->next(deadline); }
  Result<std::span<const std::byte>> page(const transport::Lease& lease) const override { return lease.packed(); }
  Result<std::span<const std::byte* const>> bases(const transport::Lease& lease,
                                                  const install::BucketTable& b) override {
    if (static_cast<std::int64_t>(lease.packed().size()) != b.packed_bytes)
      return Error(Code::kMismatch, "bucket has another size than the plan")
          .amounts(b.packed_bytes, static_cast<std::int64_t>(lease.packed().size()));
    bases_.clear();
    for (std::int64_t start : b.packed_starts) bases_.push_back(lease.packed().data() + start);
    return std::span<const std::byte* const>(bases_);
  }
  Status staged() override { return {}; }
  Status recheck(std::uint32_t) override { return {}; }  // what has arrived is this side's own copy
  Status close(Deadline deadline) override { return lane_->close(deadline); }

 private:
  const Context c_;
  std::unique_ptr<transport::PushLane> lane_;
  std::vector<const std::byte*> bases_;
};

}  // namespace

bool Intake::packed(const transport::Mover& mover) { return !mover.capabilities().mapped; }

Result<std::unique_ptr<Intake>> Intake::open(Context c) {
  for (const install::BucketTable& b : *c.buckets)
    if (!c.suppliers.contains(b.sender))
      return Error(Code::kMismatch, "a planned sender lent nothing")
          .at_peer(c.planned->name_of(b.sender))
          .at_stage("lend");
  const transport::Capabilities can = c.mover->capabilities();
  if (can.pull && can.mapped && !c.planned->deltas()) {
    REFIT_ASSIGN(auto lane, c.mover->open_pull(c.id, c.planned->peers));
    auto reading = std::make_unique<Reading>(std::move(c), std::move(lane));
    REFIT_TRY(reading->ask_pages());
    return std::unique_ptr<Intake>(std::move(reading));
  }
  if (!can.push)
    return Error(Code::kUnsupported,
                 "this transport neither maps a source's memory nor sends buckets: choose shm or tcp");
  REFIT_ASSIGN(auto lane, c.mover->open_push(c.id, c.planned->peers));
  auto receiving = std::make_unique<Receiving>(std::move(c), std::move(lane));
  REFIT_TRY(receiving->expect());
  return std::unique_ptr<Intake>(std::move(receiving));
}

}  // namespace refit::agent
