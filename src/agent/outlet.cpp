#include "agent/outlet.h"

#include "agent/lower.h"
#include "agent/member.h"

namespace refit::agent {
namespace {

constexpr std::size_t kPosted = 32;        // buckets lent to the lane at a time
constexpr std::size_t kPackedSlots = 4;    // of them, buckets that had to be packed
constexpr std::int64_t kPollNs = 200'000;  // between two looks at completions when none came
constexpr std::int64_t kShortestRun =
    256;  // bytes, on average; shorter runs cost more as a scatter list than as a copy

class Lending final : public Outlet {
 public:
  explicit Lending(const Context& c) : c_(c) {}
  Result<wire::Bytes> open(const transport::LaneId& id) override {
    REFIT_TRY(close(Deadline::after_s(1)));
    REFIT_ASSIGN(lane_, c_.mover->open_pull(id, c_.planned->peers));
    return lane_->expose(c_.lent);
  }
  Status send(std::int64_t, TaskProgress&, const std::atomic<bool>&) override { return {}; }
  // A lane that cannot be withdrawn any more has failed already; its readers fail with it.
  void withdraw() override {
    if (lane_) [[maybe_unused]]
      const Status s = lane_->withdraw();
  }
  Status close(Deadline deadline) override {
    if (!lane_) return {};
    const Status s = lane_->close(deadline);
    lane_.reset();
    return s;
  }

 private:
  const Context c_;
  std::unique_ptr<transport::PullLane> lane_;
};

class Sending final : public Outlet {
 public:
  explicit Sending(const Context& c) : c_(c) {}

  // Buckets whose pieces are short runs travel from a packed copy; its memory is taken once per plan.
  Status prepare() {
    const plan::RankPlan& plan = c_.planned->plan;
    std::int64_t largest = 0;
    for (const plan::Bucket& b : plan.buckets) {
      std::int64_t runs = 0;
      for (std::uint32_t i = 0; i < b.pieces; ++i) runs += runs_of(segment(plan.pieces[b.first_piece + i]));
      packed_.push_back(runs > 0 && b.bytes / runs < kShortestRun);
      if (packed_.back()) largest = std::max(largest, packed_layout(plan, b).bytes);
    }
    for (std::size_t i = 0; largest > 0 && i < kPackedSlots; ++i) {
      REFIT_ASSIGN(memory::Arena slot, memory::Arena::make(largest, c_.budget, "packing slot"));
      slots_.push_back(std::move(slot));
      free_.push_back(i);
    }
    return {};
  }

  Result<wire::Bytes> open(const transport::LaneId& id) override {
    REFIT_TRY(close(Deadline::after_s(1)));
    REFIT_ASSIGN(lane_, c_.mover->open_push(id, c_.planned->peers));
    return wire::Bytes{};
  }

  Status send(std::int64_t page_bytes, TaskProgress& progress, const std::atomic<bool>& stop) override {
    if (!lane_) return {};
    const plan::RankPlan& plan = c_.planned->plan;
    out_.clear();
    first_.reset();
    std::vector<std::uint32_t> readers;
    for (const auto& [rank, hash] : plan.shared_with) readers.push_back(c_.planned->member_of_rank[rank]);
    if (!readers.empty()) {
      const std::span<const std::byte> page(c_.lent.back().data, static_cast<std::size_t>(page_bytes));
      REFIT_TRY(post(kManifestBucket, {&page, 1}, readers, 0, kNoSlot));
    }
    std::size_t next = 0;
    while (next < plan.buckets.size() || !out_.empty()) {
      if (stop) return Error(Code::kCancelled, "the round ended before everything was sent");
      bool moved = collect(progress);
      if (first_) return *first_;
      while (next < plan.buckets.size() && has_room(next)) {
        REFIT_TRY(post_bucket(next++));
        moved = true;
      }
      if (!moved) system_env().wait(Deadline::after_ns(kPollNs));
    }
    return {};
  }

  void withdraw() override { [[maybe_unused]] const Status s = close(Deadline::after_s(1)); }
  Status close(Deadline deadline) override {
    if (!lane_) return {};
    const Status s = lane_->close(deadline);
    lane_.reset();
    for (const auto& [ticket, post] : out_)
      if (post.slot != kNoSlot) free_.push_back(post.slot);
    out_.clear();
    return s;
  }

 private:
  static constexpr std::size_t kNoSlot = ~std::size_t{0};
  struct Posted {
    std::size_t owed = 0;  // completions
    std::int64_t bytes = 0;
    std::size_t slot = kNoSlot;
  };

  Segment segment(const plan::Piece& p) const {
    return segment_of(c_.planned->plan.geometries[p.geometry], p.src_buffer, p.src_offset);
  }
  bool has_room(std::size_t bucket) const { return out_.size() < kPosted && (!packed_[bucket] || !free_.empty()); }

  Status post(BucketId id, std::span<const std::span<const std::byte>> parts, std::span<const std::uint32_t> to,
              std::int64_t bytes, std::size_t slot) {
    Result<std::uint64_t> ticket = lane_->post(id, parts, to);
    if (!ticket.ok()) return Error(std::move(ticket).error()).at_stage("transfer").at_bucket(std::to_string(id.value));
    out_[*ticket] = {to.size(), bytes, slot};
    return {};
  }

  Status post_bucket(std::size_t index) {
    const plan::RankPlan& plan = c_.planned->plan;
    const plan::Bucket& b = plan.buckets[index];
    std::vector<std::uint32_t> to;
    for (Rank r : b.recipients) to.push_back(c_.planned->member_of_rank[r.value]);
    const PackedLayout layout = packed_layout(plan, b);
    if (packed_[index]) return post_packed(b, layout, to);
    parts_.clear();
    std::int64_t at = 0;
    for (std::uint32_t i = 0; i < b.pieces; ++i) {
      static constexpr std::array<std::byte, 16> kPad{};
      const Segment s = segment(plan.pieces[b.first_piece + i]);
      if (layout.starts[i] > at) parts_.emplace_back(kPad.data(), static_cast<std::size_t>(layout.starts[i] - at));
      append_runs(s, c_.lent[s.region].data, parts_);
      at = layout.ends[i];
    }
    return post(b.id, parts_, to, b.bytes, kNoSlot);
  }

  Status post_packed(const plan::Bucket& b, const PackedLayout& layout, std::span<const std::uint32_t> to) {
    const plan::RankPlan& plan = c_.planned->plan;
    const std::size_t slot = free_.back();
    std::vector<Dims> strides(b.pieces);
    std::vector<kernel::Job> jobs;
    for (std::uint32_t i = 0; i < b.pieces; ++i) {
      const plan::Piece& p = plan.pieces[b.first_piece + i];
      const plan::Geometry& g = plan.geometries[p.geometry];
      strides[i] = packed_strides(g.extents, item_size(g.src_dtype));
      kernel::Job j;
      j.src = c_.lent[p.src_buffer].data + p.src_offset;
      j.dst = slots_[slot].data() + layout.starts[i];
      j.extents = g.extents;
      j.src_strides = g.src_strides;
      j.dst_strides = strides[i];
      j.src_dtype = j.wire_dtype = j.dst_dtype = g.src_dtype;
      jobs.push_back(j);
    }
    [[maybe_unused]] const auto exact = kernel::run(c_.exec, jobs, {});
    free_.pop_back();
    const std::span<const std::byte> all(slots_[slot].data(), static_cast<std::size_t>(layout.bytes));
    const Status s = post(b.id, {&all, 1}, to, b.bytes, slot);
    if (!s.ok()) free_.push_back(slot);
    return s;
  }

  // Completions that came; the first error ends the sending.
  bool collect(TaskProgress& progress) {
    std::array<transport::Completion, 16> done;
    bool any = false;
    for (std::size_t n = lane_->poll(done); n > 0; n = lane_->poll(done)) {
      any = true;
      for (std::size_t i = 0; i < n; ++i) {
        if (done[i].error && !first_) first_ = std::move(done[i].error);
        const auto posted = out_.find(done[i].ticket);
        if (posted == out_.end() || --posted->second.owed > 0) continue;
        progress.bucket_done(posted->second.bytes);
        if (posted->second.slot != kNoSlot) free_.push_back(posted->second.slot);
        out_.erase(posted);
      }
    }
    return any;
  }

  const Context c_;
  std::unique_ptr<transport::PushLane> lane_;
  std::vector<bool> packed_;  // per bucket of the plan
  std::vector<memory::Arena> slots_;
  std::vector<std::size_t> free_;
  std::map<std::uint64_t, Posted> out_;            // by ticket
  std::vector<std::span<const std::byte>> parts_;  // scratch
  std::optional<Error> first_;
};

}  // namespace

bool Outlet::needs_shared(const transport::Mover& mover) { return mover.capabilities().mapped; }

Result<std::unique_ptr<Outlet>> Outlet::make(const Context& context) {
  const transport::Capabilities can = context.mover->capabilities();
  if (can.pull && can.mapped) return std::unique_ptr<Outlet>(std::make_unique<Lending>(context));
  if (!can.push)
    return Error(Code::kUnsupported,
                 "this transport neither maps a source's memory nor sends buckets: choose shm or tcp");
  auto sending = std::make_unique<Sending>(context);
  REFIT_TRY(sending->prepare());
  return std::unique_ptr<Outlet>(std::move(sending));
}

}  // namespace refit::agent
