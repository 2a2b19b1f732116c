// Seeded runs of the whole protocol. Replay one:  sim_protocol --seed N [--break RULE] (prints the trace).
// REFIT_SIM_SEEDS sets how many seeds the test runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sim/world.h"
#include "support/sanitized.h"

namespace refit::sim {
namespace {

std::uint64_t seeds() {
  const char* text = std::getenv("REFIT_SIM_SEEDS");
  constexpr std::uint64_t kDefault = test::kSanitized ? 150 : 2500;
  return text != nullptr ? std::strtoull(text, nullptr, 10) : kDefault;
}

// Seeds that once found a mistake. They stay.
constexpr std::uint64_t kFound[] = {16, 20, 35, 49, 142, 154, 191, 217, 119, 404, 936};

TEST(Sim, SeedsThatFoundMistakes) {
  for (std::uint64_t seed : kFound) EXPECT_EQ(run({seed}).violation, "") << "replay: sim_protocol --seed " << seed;
}

TEST(Sim, EveryInvariantHolds) {
  Verdict sum;
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    const Verdict v = run({seed});
    sum.events += v.events;
    sum.rounds += v.rounds;
    sum.commits += v.commits;
    sum.aborts += v.aborts;
    sum.incomplete += v.incomplete;
    sum.crashes += v.crashes;
    sum.lost_journals += v.lost_journals;
    sum.deltas += v.deltas;
    sum.crash_points.insert(v.crash_points.begin(), v.crash_points.end());
    EXPECT_EQ(v.violation, "") << "replay: sim_protocol --seed " << seed;
    if (!v.violation.empty() && ++failed == 8) break;
  }
  std::printf(
      "%llu seeds, %llu events, %llu rounds: %llu committed, %llu incomplete, %llu aborted; %llu crashes at %zu named "
      "points, %llu with the journal; %llu stages with deltas\n",
      static_cast<unsigned long long>(seeds()), static_cast<unsigned long long>(sum.events),
      static_cast<unsigned long long>(sum.rounds), static_cast<unsigned long long>(sum.commits),
      static_cast<unsigned long long>(sum.incomplete), static_cast<unsigned long long>(sum.aborts),
      static_cast<unsigned long long>(sum.crashes), sum.crash_points.size(),
      static_cast<unsigned long long>(sum.lost_journals), static_cast<unsigned long long>(sum.deltas));
  EXPECT_GT(sum.commits, 0u);
  EXPECT_GT(sum.aborts, 0u);
  EXPECT_GT(sum.deltas, 0u);
  if (seeds() < 2500) return;  // the rare points need that many
  for (const char* point : {"coordinator host loss: journal gone", "journal rebuilt: a commit to be finished",
                            "journal rebuilt: an undecided round aborted", "coordinator@compaction, before the rename",
                            "coordinator@compaction, after the rename", "journal rebuilt: members evicted",
                            "source@before the base moves", "source@base moved"})
    EXPECT_TRUE(sum.crash_points.contains(point)) << point;
}

TEST(Sim, SameSeedSameRun) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(run({seed}).events, run({seed}).events);
}

class Broken : public testing::TestWithParam<int> {};

// The checker is checked: a broken rule must show.
TEST_P(Broken, IsFound) {
  const auto rule = static_cast<Break>(GetParam());
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const std::string violation = run({seed, rule}).violation;
    if (violation.empty()) continue;
    std::printf("%s: seed %llu: %s\n", std::string(to_string(rule)).c_str(), static_cast<unsigned long long>(seed),
                violation.c_str());
    return;
  }
  FAIL() << "no seed of 400 shows the broken rule: " << to_string(rule);
}
INSTANTIATE_TEST_SUITE_P(Sim, Broken, testing::Range(1, kBreaks));

int replay(int argc, char** argv) {
  Options o;
  o.trace = true;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--seed") o.seed = std::strtoull(argv[i + 1], nullptr, 10);
    for (int b = 0; option == "--break" && b < kBreaks; ++b)
      if (to_string(static_cast<Break>(b)) == argv[i + 1]) o.broken = static_cast<Break>(b);
  }
  const Verdict v = run(o);
  std::printf("%s\n", v.violation.empty() ? "no violation" : v.violation.c_str());
  return v.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace refit::sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 2 && std::string(argv[1]) == "--seed") return refit::sim::replay(argc, argv);
  return RUN_ALL_TESTS();
}
