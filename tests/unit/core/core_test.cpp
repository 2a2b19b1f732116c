#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/core.h"

namespace refit {
namespace {

TEST(Result, ErrorFieldsKeepTheInnermostValue) {
  Error e = Error(Code::kCorrupt, "bad length").at_peer("source:0.1").at_peer("outer").at_bucket("7").amounts(10, 4);
  EXPECT_EQ(e.to_string(), "corrupt: bad length [peer=source:0.1 bucket=7 need=10 have=4]");
}

TEST(Result, AFieldMayBeAddedToANamedError) {
  Error e(Code::kCorrupt, "a message long enough to live on the heap");
  e = std::move(e).at_peer("source:0.1");
  EXPECT_EQ(e.message, "a message long enough to live on the heap");
  EXPECT_EQ(e.peer, "source:0.1");
}

Status fails() { return Error(Code::kBusy, "no"); }
Result<int> forwards() {
  REFIT_TRY(fails());
  return 1;
}
TEST(Result, TryForwardsTheError) { EXPECT_EQ(forwards().error().code, Code::kBusy); }

TEST(Deadline, TakesAnyDouble) {
  for (double none : {std::nan(""), -1.0, -HUGE_VAL, 0.0}) EXPECT_TRUE(Deadline::after_s(none).over()) << none;
  for (double far : {HUGE_VAL, 1e300, 1e10}) {
    const std::int64_t left = Deadline::after_s(far).left_ns();
    EXPECT_GT(left, Deadline::kFarthestNs - kNsPerSecond * 60) << far;
    EXPECT_LE(left, Deadline::kFarthestNs) << far;
  }
  EXPECT_FALSE(Deadline::after_s(60).over());
}

TEST(Checked, ZeroExtentDoesNotHideAnOverflow) {
  const Dims hides = {std::int64_t{1} << 62, 0, 4};
  EXPECT_FALSE(checked_extent_product(hides).has_value());
  EXPECT_FALSE((narrow<std::uint32_t>(std::int64_t{-1})).has_value());
  EXPECT_EQ((narrow<std::uint32_t>(std::int64_t{7})), 7u);
}

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto t = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_string(to_string(t)), t);
  }
  EXPECT_FALSE(dtype_from_string("float").has_value());
}

TEST(View, StepsAndValidation) {
  const View v{{{2, 4, 3}, {5}}};
  EXPECT_TRUE(v.validate({24, 5}).ok());
  EXPECT_EQ(v.steps(), (Dims{12, 3, 1, 1}));
  EXPECT_EQ(v.extents(), (Dims{2, 4, 3, 5}));
  EXPECT_FALSE(v.validate({23, 5}).ok());
  EXPECT_FALSE((View{{{1 << 20, 1 << 20, 1 << 30}}}.validate({0}).ok()));
  EXPECT_TRUE((View{{{0, 4}}}.validate({0}).ok()));
}

TEST(Box, EmptyAndZeroDim) {
  EXPECT_EQ(elements(Box{}), 1);
  EXPECT_FALSE(empty(Box{}));
  EXPECT_TRUE(empty(intersect(Box{{0, 2}}, Box{{2, 4}})));
}

TEST(Segment, TouchedRangeHandlesNegativeStridesAndOverflow) {
  const Segment s{.region = 0, .offset = 100, .run_bytes = 4, .extents = {3, 2}, .strides = {-10, 20}};
  const auto r = touched(s);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->lo, 80);
  EXPECT_EQ(r->hi, 124);
  EXPECT_FALSE(
      touched({.region = 0, .offset = 0, .run_bytes = 1, .extents = {std::int64_t{1} << 62}, .strides = {8}}).ok());
}

TEST(Hash, HexRoundTripAndLengthPrefix) {
  const Hash128 h = hash128("refit");
  EXPECT_EQ(Hash128::from_hex(h.hex()), h);
  EXPECT_NE(Hasher().add_text("ab").add_text("c").finish(), Hasher().add_text("a").add_text("bc").finish());
  Hasher parts;
  parts.add(std::as_bytes(std::span("re", 2))).add(std::as_bytes(std::span("fit", 3)));
  EXPECT_EQ(parts.finish(), h);
}

TEST(ThreadPool, RunsEachIndexOnceOverManyCalls) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> seen(17);
    pool.parallel_for(17, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
    for (const auto& s : seen) ASSERT_EQ(s.load(), 1);
  }
}

class EnvTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/refit-core-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_F(EnvTest, ListenReclaimsDeadSocketAndKeepsRegularFile) {
  Env& env = system_env();
  const std::string path = dir_ + "/s";
  { ASSERT_TRUE(env.listen(path).ok()); }  // closed: its socket file stays behind, dead
  auto live = env.listen(path);
  ASSERT_TRUE(live.ok()) << live.error().to_string();
  EXPECT_EQ(env.listen(path).error().code, Code::kBusy);
  const std::string regular = dir_ + "/file";
  std::ofstream(regular) << "keep me";
  EXPECT_EQ(env.listen(regular).error().code, Code::kInvalid);
  EXPECT_TRUE(std::filesystem::is_regular_file(regular));
}

TEST_F(EnvTest, ConnectEndsByItsDeadline) {
  const auto start = monotonic_ns();
  const auto r = system_env().connect(dir_ + "/nobody", Deadline::after_s(0.05));
  EXPECT_EQ(r.error().code, Code::kPeerLost);
  EXPECT_LT(monotonic_ns() - start, 2 * kNsPerSecond);
}

TEST_F(EnvTest, FileLockAndReservedSpaceKeepLength) {
  Env& env = system_env();
  auto f = env.file(dir_ + "/journal");
  ASSERT_TRUE(f.ok());
  ASSERT_TRUE((*f)->lock().ok());
  ASSERT_TRUE((*f)->reserve(4096).ok());
  ASSERT_TRUE((*f)->append(std::as_bytes(std::span("abc", 3))).ok());
  ASSERT_TRUE((*f)->sync().ok());
  EXPECT_EQ((*f)->read_all()->size(), 3u);
  EXPECT_EQ((*f)->read_from(2)->front(), std::byte{'c'});
  EXPECT_TRUE((*f)->read_from(3)->empty());
  EXPECT_TRUE((*f)->read_from(4)->empty());
  auto second = env.file(dir_ + "/journal");
  EXPECT_EQ((*second)->lock().error().code, Code::kBusy);
}

}  // namespace
}  // namespace refit
