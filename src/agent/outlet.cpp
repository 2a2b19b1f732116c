#include "agent/outlet.h"

#include "agent/intake.h"
#include "agent/member.h"

namespace refit::agent {
namespace {

constexpr std::size_t kPosted = 32;        // buckets lent to the lane at a time
constexpr std::size_t kPackedSlots = 4;    // of them, buckets that had to be packed
constexpr std::int64_t kPollNs = 200'000;  // between two looks at completions when none came

class Lending final : public Outlet {
 public:
  explicit Lending(const Context& c) : c_(c) {}
  Result<wire::Bytes> open(const transport::LaneId& id) override {
    REFIT_TRY(close(Deadline::after_s(1)));
    REFIT_ASSIGN(lane_, c_.mover->open_pull(id, c_.planned->peers));
    return lane_->expose(c_.lent);
  }
  Status send(const Shipment&, TaskProgress&, const std::atomic<bool>&) override { return {}; }
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
  explicit Sending(const Context& c) : c_(c), packer_(*c.planned, c.lent.first(c.lent.size() - 1), c.exec) {}

  // Buckets that travel, or are compared, as a packed copy need room for it; the memory is taken once per plan.
  Status prepare() {
    std::int64_t largest = 0;
    for (std::size_t b = 0; b < plan().buckets.size(); ++b)
      if (packer_.needs_copy(b) || (c_.baseline != nullptr && !packer_.lies_packed(b)))
        largest = std::max(largest, packer_.bytes(b));
    if (!slots_.empty() && slots_[0].bytes() >= largest) return {};
    slots_.clear();
    for (std::size_t i = 0; largest > 0 && i < kPackedSlots; ++i) {
      REFIT_ASSIGN(memory::Arena slot, memory::Arena::make(largest, c_.budget, "packing slot"));
      slots_.push_back(std::move(slot));
    }
    return {};
  }

  Status rebind() override {
    packer_.rebind(c_.lent.first(c_.lent.size() - 1));
    return prepare();
  }

  Result<wire::Bytes> open(const transport::LaneId& id) override {
    REFIT_TRY(close(Deadline::after_s(1)));
    REFIT_ASSIGN(lane_, c_.mover->open_push(id, c_.planned->peers));
    free_.clear();  // also what a round that failed half-way had taken
    for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
    return wire::Bytes{};
  }

  Status send(const Shipment& shipment, TaskProgress& progress, const std::atomic<bool>& stop) override {
    if (!lane_) return {};
    const std::int64_t start = monotonic_ns();
    report_ = {};
    shipment_ = &shipment;
    out_.clear();
    first_.reset();
    std::vector<std::uint32_t> readers;
    for (const auto& [rank, hash] : plan().shared_with) readers.push_back(c_.planned->member_of_rank[rank]);
    if (!readers.empty()) {
      const std::span<const std::byte> page(c_.lent.back().data, static_cast<std::size_t>(shipment.page_bytes));
      REFIT_TRY(post(kManifestBucket, {&page, 1}, readers, {}));
    }
    std::size_t next = 0;
    while (next < plan().buckets.size() || !out_.empty()) {
      if (stop) return Error(Code::kCancelled, "the round ended before everything was sent");
      bool moved = collect(progress);
      if (first_) return *first_;
      while (next < plan().buckets.size() && has_room(next)) {
        REFIT_TRY(post_bucket(next++));
        ++progress.progress;  // comparing and packing is work, too
        moved = true;
      }
      if (!moved) system_env().wait(Deadline::after_ns(kPollNs));
    }
    report_.send_ns = monotonic_ns() - start;
    return {};
  }
  EncodeReport encoded() const override { return report_; }
  const Packer* packer() const override { return &packer_; }

  void withdraw() override { [[maybe_unused]] const Status s = close(Deadline::after_s(1)); }
  Status close(Deadline deadline) override {
    if (!lane_) return {};
    const Status s = lane_->close(deadline);
    lane_.reset();
    out_.clear();
    return s;
  }

 private:
  using Head = std::array<std::byte, wire::kBucketHeaderBytes>;
  static constexpr std::size_t kNoSlot = ~std::size_t{0};
  struct Posted {
    std::size_t owed = 0;  // completions
    std::int64_t bytes = 0;
    std::size_t slot = kNoSlot;
    std::unique_ptr<Head> head;  // travels in front, from here
  };

  const plan::RankPlan& plan() const { return c_.planned->plan; }
  bool has_room(std::size_t bucket) const {
    const bool copies = packer_.needs_copy(bucket) || (c_.baseline != nullptr && !packer_.lies_packed(bucket));
    return out_.size() < kPosted && (!copies || !free_.empty());
  }

  Status post(BucketId id, std::span<const std::span<const std::byte>> parts, std::span<const std::uint32_t> to,
              Posted posted) {
    Result<std::uint64_t> ticket = lane_->post(id, parts, to);
    if (!ticket.ok()) {
      if (posted.slot != kNoSlot) free_.push_back(posted.slot);
      return Error(std::move(ticket).error()).at_stage("transfer").at_bucket(std::to_string(id.value));
    }
    posted.owed = to.size();
    out_[*ticket] = std::move(posted);
    return {};
  }

  Status post_bucket(std::size_t index) {
    const plan::Bucket& b = plan().buckets[index];
    std::vector<std::uint32_t> complete, delta;
    const bool serves = c_.baseline != nullptr && c_.baseline->serves(index);
    for (Rank r : b.recipients) {
      const std::uint32_t member = c_.planned->member_of_rank[r.value];
      (serves && shipment_->begin.serves_delta(member) ? delta : complete).push_back(member);
    }
    report_.bytes_useful += b.bytes * static_cast<std::int64_t>(b.recipients.size());
    std::size_t slot = kNoSlot;
    if (!delta.empty()) {
      REFIT_ASSIGN(const bool shorter, post_delta(index, delta, slot));
      if (!shorter) complete.insert(complete.end(), delta.begin(), delta.end());
    }
    if (!complete.empty()) return post_complete(index, complete, slot);
    if (slot != kNoSlot) free_.push_back(slot);
    return {};
  }

  // False: complete is shorter. A slot that was filled on the way holds the packed bytes.
  Result<bool> post_delta(std::size_t index, std::span<const std::uint32_t> to, std::size_t& slot) {
    const plan::Bucket& b = plan().buckets[index];
    std::span<const std::byte> next;
    if (packer_.lies_packed(index)) {
      packer_.parts(index, parts_);
      next = parts_[0];
    } else {
      REFIT_ASSIGN(next, fill_slot(index, slot));
    }
    const std::int64_t start = monotonic_ns();
    REFIT_ASSIGN(const Baseline::Choice choice, c_.baseline->choose(index, next));
    report_.encode_ns += monotonic_ns() - start;
    for (const install::Section& s : sections_of(plan(), b)) report_.elements += s.shape.elements;
    report_.changed += choice.changed;
    if (choice.encoding == wire::Encoding::kRaw) return false;
    const bool unchanged = choice.encoding == wire::Encoding::kUnchanged;
    (unchanged ? report_.unchanged : report_.delta) += 1;
    report_.delta_bytes += static_cast<std::int64_t>(choice.payload.size());
    report_.delta_changed += unchanged ? 0 : choice.changed;
    parts_.clear();
    parts_.emplace_back();
    if (!choice.payload.empty()) parts_.push_back(choice.payload);
    REFIT_TRY(post_headed(index, choice.encoding, choice.base, to, {}));
    return true;
  }

  Status post_complete(std::size_t index, std::span<const std::uint32_t> to, std::size_t slot) {
    const plan::Bucket& b = plan().buckets[index];
    ++report_.raw;
    std::byte* const room = c_.baseline != nullptr ? c_.baseline->room(index) : nullptr;
    std::span<const std::byte> all;
    if (room != nullptr) {  // the first copy is the next base
      const std::int64_t start = monotonic_ns();
      REFIT_TRY(packer_.pack(index, room));
      report_.pack_ns += monotonic_ns() - start;
      c_.baseline->filled(index);
      all = {room, static_cast<std::size_t>(packer_.bytes(index))};
    } else if (slot != kNoSlot) {
      all = {slots_[slot].data(), static_cast<std::size_t>(packer_.bytes(index))};
    } else if (packer_.needs_copy(index)) {
      REFIT_ASSIGN(all, fill_slot(index, slot));
    }
    if (all.empty())
      packer_.parts(index, parts_);
    else
      parts_.assign(1, all);
    if (c_.baseline == nullptr) {
      report_.bytes_wire += packer_.bytes(index) * static_cast<std::int64_t>(to.size());
      return post(b.id, parts_, to, {.owed = 0, .bytes = b.bytes, .slot = slot, .head = nullptr});
    }
    parts_.insert(parts_.begin(), std::span<const std::byte>());
    return post_headed(index, wire::Encoding::kRaw, {}, to, slot);
  }

  // parts_[0] is the header's place, the others are the payload.
  Status post_headed(std::size_t index, wire::Encoding encoding, const Hash128& base, std::span<const std::uint32_t> to,
                     std::optional<std::size_t> slot) {
    const plan::Bucket& b = plan().buckets[index];
    Hasher hasher;
    std::size_t bytes = 0;
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      hasher.add(parts_[i]);
      bytes += parts_[i].size();
    }
    wire::BucketHeader h = shipment_->header;
    h.bucket = b.id;
    h.encoding = encoding;
    h.base = base;
    h.payload_bytes = bytes;
    h.logical_bytes = static_cast<std::uint64_t>(packer_.bytes(index));
    h.payload_hash = hasher.finish();
    auto head = std::make_unique<Head>(wire::encode(h));
    parts_[0] = *head;
    report_.bytes_wire += static_cast<std::int64_t>((head->size() + bytes) * to.size());
    return post(b.id, parts_, to,
                {.owed = 0, .bytes = b.bytes, .slot = slot.value_or(kNoSlot), .head = std::move(head)});
  }

  Result<std::span<const std::byte>> fill_slot(std::size_t index, std::size_t& slot) {
    slot = free_.back();
    free_.pop_back();
    const std::int64_t start = monotonic_ns();
    const Status s = packer_.pack(index, slots_[slot].data());
    report_.pack_ns += monotonic_ns() - start;
    if (!s.ok()) {
      free_.push_back(slot);
      return Error(s.error()).at_stage("transfer");
    }
    return std::span<const std::byte>(slots_[slot].data(), static_cast<std::size_t>(packer_.bytes(index)));
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
  Packer packer_;
  const Shipment* shipment_ = nullptr;  // of the send() in hand
  std::unique_ptr<transport::PushLane> lane_;
  std::vector<memory::Arena> slots_;
  std::vector<std::size_t> free_;
  std::map<std::uint64_t, Posted> out_;            // by ticket
  std::vector<std::span<const std::byte>> parts_;  // scratch
  std::optional<Error> first_;
  EncodeReport report_;
};

}  // namespace

bool Outlet::needs_shared(const transport::Mover& mover) { return mover.capabilities().mapped; }

Result<std::unique_ptr<Outlet>> Outlet::make(const Context& context) {
  const transport::Capabilities can = context.mover->capabilities();
  if (context.planned->deltas() && !can.push)
    return Error(Code::kUnsupported,
                 "deltas need a transport that sends buckets, such as tcp; with this one, encoding "
                 "must be raw");
  if (Intake::pulls(*context.mover, *context.planned))
    return std::unique_ptr<Outlet>(std::make_unique<Lending>(context));
  if (!can.push)
    return Error(Code::kUnsupported,
                 "this transport neither lends memory to readers nor sends buckets: choose shm or tcp");
  auto sending = std::make_unique<Sending>(context);
  REFIT_TRY(sending->prepare());
  return std::unique_ptr<Outlet>(std::move(sending));
}

}  // namespace refit::agent
