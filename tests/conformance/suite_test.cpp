// Tests of the suites themselves: a broken mover must fail at least one check, a right one none.
#include "broken.h"
#include "control_suite.h"
#include "pull_suite.h"
#include "push_suite.h"

namespace refit::conformance {
namespace {

// The checks that fail; the first one only, since one is enough and the waits add up.
std::vector<std::string> failing(const std::vector<Check>& checks, Fault fault) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    if (!names.empty()) break;
    TempDir dir;
    BrokenBed bed(fault);
    bed.runtime_dir = dir.path();
    if (!check.run(bed).ok()) names.emplace_back(check.name);
  }
  return names;
}
std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += " " + n;
  return out;
}
void expect_noticed(const std::vector<Check>& checks, std::initializer_list<Fault> faults) {
  EXPECT_EQ(joined(failing(checks, Fault::kNone)), "");
  for (Fault fault : faults) {
    const auto names = failing(checks, fault);
    const char* what = kFaultNames[static_cast<std::size_t>(fault)];
    EXPECT_FALSE(names.empty()) << "no check notices a mover that " << what;
    std::printf("  %-20s noticed by%s\n", what, joined(names).c_str());
  }
}

TEST(Suite, PushNoticesBrokenMovers) {
  expect_noticed(push_checks(), {Fault::kDrop, Fault::kLoseCompletion, Fault::kRepeat, Fault::kRepeatCompletion,
                                 Fault::kMixUp, Fault::kCorrupt, Fault::kEarly, Fault::kForgetError,
                                 Fault::kIgnoreIdentity, Fault::kHideLoss, Fault::kOverrun});
}
TEST(Suite, PullNoticesBrokenMovers) {
  expect_noticed(pull_checks(), {Fault::kDrop, Fault::kLoseCompletion, Fault::kRepeat, Fault::kRepeatCompletion,
                                 Fault::kMixUp, Fault::kCorrupt, Fault::kEarly, Fault::kForgetError,
                                 Fault::kIgnoreEpoch, Fault::kIgnoreIdentity, Fault::kHideLoss, Fault::kOverrun});
}
TEST(Suite, ControlNoticesBrokenMovers) {
  expect_noticed(control_checks(), {Fault::kDrop, Fault::kRepeat, Fault::kMixUp, Fault::kCorrupt, Fault::kForgetError,
                                    Fault::kHideLoss, Fault::kOverrun});
}

}  // namespace
}  // namespace refit::conformance
