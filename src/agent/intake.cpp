#include "agent/intake.h"

namespace refit::agent {
namespace {

constexpr std::size_t kWindow = 4;  // requests in flight; those that find no room in staging wait in the lane

// A bucket's bytes where they arrived packed: an address per piece.
Result<std::span<const std::byte* const>> packed_bases(const transport::Lease& lease, const install::BucketTable& b,
                                                       std::vector<const std::byte*>& bases) {
  if (static_cast<std::int64_t>(lease.packed().size()) != b.packed_bytes)
    return Error(Code::kMismatch, "bucket has another size than the plan")
        .amounts(b.packed_bytes, static_cast<std::int64_t>(lease.packed().size()));
  bases.clear();
  for (std::int64_t start : b.packed_starts) bases.push_back(lease.packed().data() + start);
  return std::span<const std::byte* const>(bases);
}

// Segments whose packed bytes lie as the plan packs: where a piece must start aligned, its first bytes are read once
// more to fill the gap before it, which is shorter than one of its items.
Result<std::vector<Segment>> padded(const install::BucketTable& b) {
  std::vector<Segment> out;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < b.segments.size(); ++i) {
    const Segment& s = b.segments[i];
    REFIT_ASSIGN(const std::int64_t bytes, packed_bytes(s));
    if (const std::int64_t gap = b.packed_starts[i] - at; gap > 0)
      out.push_back(
          {.region = s.region, .offset = bytes > 0 ? s.offset : 0, .run_bytes = gap, .extents = {}, .strides = {}});
    out.push_back(s);
    at = b.packed_starts[i] + bytes;
  }
  return out;
}

class Reading final : public Intake {
 public:
  Reading(Context c, std::unique_ptr<transport::PullLane> lane, bool mapped)
      : c_(std::move(c)), lane_(std::move(lane)), mapped_(mapped) {}

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
    if (!mapped_) return lease.packed();
    if (supplier == c_.suppliers.end() || lease.bases().size() != 1)
      return Error(Code::kMismatch, "the lane answered with another bucket");
    return std::span(lease.bases()[0], static_cast<std::size_t>(supplier->second.page_bytes));
  }
  Result<std::span<const std::byte* const>> bases(const transport::Lease& lease,
                                                  const install::BucketTable& b) override {
    if (!mapped_) return packed_bases(lease, b, bases_);
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
      std::vector<Segment> segments;
      if (!mapped_) {
        REFIT_ASSIGN(segments, padded(b));
      }
      const auto ticket = lane_->request(b.id, b.sender, c_.suppliers.at(b.sender).lend->descriptor,
                                         mapped_ ? std::span(b.segments) : std::span<const Segment>(segments));
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
  const bool mapped_;
  std::vector<const std::byte*> bases_;
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
    return packed_bases(lease, b, bases_);
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

bool Intake::pulls(const transport::Mover& mover, const Planned& planned) {
  const transport::Capabilities can = mover.capabilities();
  // A mover that can do both sends, unless reading saves a copy.
  return can.pull && (can.mapped || !can.push) && !planned.deltas();
}
bool Intake::packed(const transport::Mover& mover) { return !mover.capabilities().mapped; }

Result<std::unique_ptr<Intake>> Intake::open(Context c) {
  for (const install::BucketTable& b : *c.buckets)
    if (!c.suppliers.contains(b.sender))
      return Error(Code::kMismatch, "a planned sender lent nothing")
          .at_peer(c.planned->name_of(b.sender))
          .at_stage("lend");
  const transport::Capabilities can = c.mover->capabilities();
  if (pulls(*c.mover, *c.planned)) {
    REFIT_ASSIGN(auto lane, c.mover->open_pull(c.id, c.planned->peers));
    auto reading = std::make_unique<Reading>(std::move(c), std::move(lane), can.mapped);
    REFIT_TRY(reading->ask_pages());
    return std::unique_ptr<Intake>(std::move(reading));
  }
  if (!can.push)
    return Error(Code::kUnsupported,
                 "this transport neither reads a source's memory nor sends buckets: choose shm or tcp");
  REFIT_ASSIGN(auto lane, c.mover->open_push(c.id, c.planned->peers));
  auto receiving = std::make_unique<Receiving>(std::move(c), std::move(lane));
  REFIT_TRY(receiving->expect());
  return std::unique_ptr<Intake>(std::move(receiving));
}

}  // namespace refit::agent
