// F01: identity and replicas.
#include <gmock/gmock.h>

#include "cases/plan/desk.h"

namespace refit::testing {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

class F01 : public Desk {
 protected:
  static std::vector<model::LogicalTensor> layers(int from, int to) {
    std::vector<model::LogicalTensor> out;
    for (int i = from; i < to; ++i) out.push_back({"layers." + std::to_string(i) + ".w", {4, 4}, DType::kBF16});
    return out;
  }
  static std::string layer(int i) { return "layers." + std::to_string(i) + ".w"; }
  static LayoutPtr two_sources(int second) {
    Draft d(layers(0, 8));
    for (int i = 0; i < 4; ++i) d.add(0, layer(i), {{0, 4}, {0, 4}});
    for (int i = 0; i < 4; ++i) d.add(1, layer(second + i), {{0, 4}, {0, 4}});
    return d.done();
  }
  static LayoutPtr target(int count) {
    Draft d(layers(0, count));
    for (int i = 0; i < count; ++i) d.add(0, layer(i), {{0, 4}, {0, 4}});
    return d.done();
  }
};

TEST_F(F01, GlobalNumbersInstallAllLayers) { expect_moved(two_sources(4), target(8)); }

TEST_F(F01, LocalNumbersLeaveTheOtherHalfWithoutASource) {
  const auto source = two_sources(0);
  write_sources(*source);
  EXPECT_THAT(refusal(source, target(8)),
              AllOf(HasSubstr("hole"), HasSubstr("layers.4.w"), HasSubstr("layers.7.w"), HasSubstr("target rank 0")));
}

TEST_F(F01, EqualOwnersAreOneUnequalOwnersAreRefused) {
  const auto source = two_sources(0);
  expect_moved(source, target(4));
  auto bytes = reference(*source, 1)[0];
  bytes[70] ^= 1;  // in layers.2.w of rank 1 only
  write(data(1), bytes);
  EXPECT_THAT(refusal(source, target(4)), AllOf(HasSubstr("ranks 0 and 1"), HasSubstr("layers.2.w")));
}

TEST_F(F01, BothListsStandInOneError) {
  Draft s(layers(0, 2)), t(layers(1, 4));
  for (int i = 0; i < 2; ++i) s.add(0, layer(i), {{0, 4}, {0, 4}});
  for (int i = 1; i < 4; ++i) t.add(0, layer(i), {{0, 4}, {0, 4}});
  plan::Options live;
  const auto w = plan::make_world(*s.done(), *t.done(), live);
  ASSERT_FALSE(w.ok());
  EXPECT_THAT(w.error().message,
              AllOf(HasSubstr("unwanted name: source rank 0 holds layers.0.w"),
                    HasSubstr("unknown name: target rank 0 holds layers.2.w"), HasSubstr("layers.3.w")));
}

// An expert's local number is not its identity: two owners of expert 0 and none of expert 2.
TEST_F(F01, LocalExpertNumbersAreReported) {
  std::vector<model::LogicalTensor> experts;
  for (int e = 0; e < 4; ++e) experts.push_back({"experts." + std::to_string(e), {2, 2}, DType::kF32});
  Draft s(experts), t(experts);
  for (std::uint32_t r = 0; r < 2; ++r)
    for (int j = 0; j < 2; ++j) s.add(r, "experts." + std::to_string(j), {{0, 2}, {0, 2}});
  for (int e = 0; e < 4; ++e) t.add(0, "experts." + std::to_string(e), {{0, 2}, {0, 2}});
  const auto source = s.done();
  write_sources(*source);
  EXPECT_THAT(refusal(source, t.done()),
              AllOf(HasSubstr("experts.2"), HasSubstr("experts.3"), HasSubstr("no source rank holds any of it")));
}

TEST_F(F01, ManyFindingsStandInOneReport) {
  Draft s(layers(0, 1)), t(layers(0, 40));
  s.add(0, layer(0), {{0, 4}, {0, 4}});
  for (int i = 0; i < 40; ++i) t.add(0, layer(i), {{0, 4}, {0, 4}});
  const auto w = plan::make_world(*s.done(), *t.done(), options_);
  ASSERT_FALSE(w.ok());
  EXPECT_THAT(w.error().message, HasSubstr("39 findings in all"));
}

}  // namespace
}  // namespace refit::testing
