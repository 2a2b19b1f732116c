#include <algorithm>
#include <cstdlib>

#include "unit/kernel/helpers.h"

namespace refit::kernel::testing {
namespace {

TEST(Isa, ForceChoosesAndRefuses) {
  const std::vector<std::string> all = available_isas();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back(), "scalar");
  for (const std::string& name : all) {
    ASSERT_TRUE(force_isa(name).ok());
    EXPECT_EQ(chosen_isa(), name);
  }
  const Status wrong = force_isa("mmx");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
  EXPECT_NE(wrong.error().message.find("scalar"), std::string::npos);
  EXPECT_EQ(chosen_isa(), "scalar") << "a refused name changes nothing";
  ASSERT_TRUE(force_isa(all.front()).ok());
}

// Run by CTest once per name: the environment is read on first use only.
TEST(Isa, EnvironmentForces) {
  const char* forced = std::getenv("REFIT_FORCE_ISA");
  if (forced == nullptr) GTEST_SKIP() << "REFIT_FORCE_ISA is not set";
  const std::vector<std::string> all = available_isas();
  const Status status = isa_status();
  if (std::find(all.begin(), all.end(), forced) == all.end()) {
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(forced), std::string::npos);
    return;
  }
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(chosen_isa(), forced);
}

}  // namespace
}  // namespace refit::kernel::testing
