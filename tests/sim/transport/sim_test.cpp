// The simulated network: same seed, same history; faults only when asked; exactly one completion whatever happens.
#include <algorithm>

#include "conformance/beds.h"
#include "conformance/push_suite.h"

namespace refit::conformance {
namespace {

constexpr std::uint32_t kBuckets = 40;

class FaultyBed final : public NamedBed {
 public:
  FaultyBed(std::uint64_t seed, SimFaults faults) : NamedBed("sim"), seed_(seed), faults_(faults) {
    job = hash128("sim " + std::to_string(seed));
  }
  Result<std::unique_ptr<Mover>> mover(const MoverOptions& options) override {
    MoverOptions seeded = options;
    seeded.seed = seed_;
    REFIT_ASSIGN(auto made, NamedBed::mover(seeded));
    REFIT_TRY(sim_faults(job, faults_));
    return made;
  }
  void turn() override { (void)sim_step(job); }

 private:
  std::uint64_t seed_;
  SimFaults faults_;
};

struct History {
  std::vector<std::uint32_t> order;  // buckets as they arrived
  std::size_t wrong = 0, completed = 0, failed = 0;
  std::uint64_t duplicates = 0;
  friend bool operator==(const History&, const History&) = default;
};

Result<History> play(std::uint64_t seed, const SimFaults& faults) {
  FaultyBed bed(seed, faults);
  REFIT_ASSIGN(auto p, PushPair::make(bed));
  std::vector<Expected> expected;
  std::vector<Bytes> sent;
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    expected.push_back({BucketId(b), kSource, 100});
    sent.push_back(payload(100, b));
    REFIT_TRY(post_one(*p.out, b, sent[b]));
  }
  REFIT_TRY(p.in->expect(expected));
  History h;
  while (true) {
    const auto lease = p.in->next(Deadline::after_s(1));
    if (!lease.ok()) break;
    const std::uint32_t b = lease->bucket().value;
    h.order.push_back(b);
    if (!std::equal(lease->packed().begin(), lease->packed().end(), sent[b].begin(), sent[b].end())) ++h.wrong;
  }
  REFIT_TRY(p.out->close(p.patience()));
  for (const Completion& c : drain(*p.out)) ++(c.error ? h.failed : h.completed);
  h.duplicates = p.target->counters().frames_duplicate;
  return h;
}

TEST(Sim, SameSeedSameHistory) {
  const SimFaults faults{.drop = 0.1, .duplicate = 0.2, .corrupt = 0.1, .max_delay = 12};
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const auto a = play(seed, faults), b = play(seed, faults);
    ASSERT_TRUE(a.ok() && b.ok()) << "seed " << seed;
    EXPECT_EQ(*a, *b) << "seed " << seed;
    EXPECT_EQ(a->completed + a->failed, kBuckets) << "seed " << seed;  // one each, lost frames included
    EXPECT_EQ(a->completed, a->order.size()) << "seed " << seed;
  }
  EXPECT_NE(play(1, faults)->order, play(2, faults)->order);
}

TEST(Sim, FramesOvertakeEachOtherAndNothingElseHappensUnasked) {
  const auto h = play(3, {.max_delay = 12});
  ASSERT_TRUE(h.ok()) << h.error().to_string();
  EXPECT_EQ(h->order.size(), kBuckets);
  EXPECT_FALSE(std::is_sorted(h->order.begin(), h->order.end()));
  EXPECT_EQ(h->wrong + h->failed + h->duplicates, 0u);
  const auto ordered = play(3, {.max_delay = 0});
  EXPECT_TRUE(std::is_sorted(ordered->order.begin(), ordered->order.end()));
}

TEST(Sim, EachFaultHappensWhenAsked) {
  EXPECT_GT(play(4, {.drop = 0.5})->failed, 0u);
  EXPECT_GT(play(4, {.duplicate = 0.5})->duplicates, 0u);
  EXPECT_GT(play(4, {.corrupt = 0.5})->wrong, 0u);
  EXPECT_EQ(sim_faults(hash128("no such job"), {}).error().code, Code::kInvalid);
  EXPECT_FALSE(sim_step(hash128("no such job")));
}

}  // namespace
}  // namespace refit::conformance
