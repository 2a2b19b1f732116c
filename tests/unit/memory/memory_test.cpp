#include "memory/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

namespace refit::memory {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kHuge = 2 << 20;

std::size_t open_descriptors() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

// An Env whose shared memory is wrong in a chosen way.
class FaultyEnv final : public Env {
 public:
  enum class Fault : std::uint8_t { kNone, kRefuse, kUnsealable };
  Fault fault = Fault::kNone;
  std::int64_t now_ns() override { return system_env().now_ns(); }
  void wait(Deadline until) override { system_env().wait(until); }
  Status random(std::span<std::byte> out) override { return system_env().random(out); }
  Result<Fd> shm(std::string_view label, std::int64_t bytes) override {
    if (fault == Fault::kRefuse) return Error(Code::kExhausted, "no shared memory left");
    if (fault == Fault::kNone) return system_env().shm(label, bytes);
    Fd fd(::memfd_create("unsealable", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
    return fd;
  }
  Result<std::unique_ptr<File>> file(const std::string& path) override { return system_env().file(path); }
  Status replace(const std::string& from, const std::string& to) override { return system_env().replace(from, to); }
  Result<Fd> listen(const std::string& path) override { return system_env().listen(path); }
  Result<Fd> connect(const std::string& path, Deadline d) override { return system_env().connect(path, d); }
  Result<int> spawn(const std::vector<std::string>& argv) override { return system_env().spawn(argv); }
};

TEST(Budget, CountsUsedAndPeakAndRefusesWithAmounts) {
  Budget budget(100);
  ASSERT_TRUE(budget.take(60, "staging").ok());
  const Status over = budget.take(41, "shadow");
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().code, Code::kExhausted);
  EXPECT_EQ(over.error().need, 41);
  EXPECT_EQ(over.error().have, 40);
  EXPECT_NE(over.error().message.find("shadow"), std::string::npos);
  EXPECT_TRUE(budget.take(40, "rest").ok());
  budget.give(100);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 100);
  EXPECT_EQ(budget.take(-1, "negative").error().code, Code::kInvalid);
  EXPECT_EQ(budget.take(std::numeric_limits<std::int64_t>::max(), "huge").error().code, Code::kExhausted);
}

TEST(Budget, NeverPassesItsLimitUnderThreads) {
  Budget budget(10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i)
        if (budget.take(3, "t").ok()) budget.give(3);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(budget.used(), 0);
  EXPECT_LE(budget.peak(), 9);
}

TEST(Arena, IsZeroedAlignedAndCharged) {
  Budget budget(64 << 20);
  {
    auto arena = Arena::make(3 * kHuge + 1, &budget, "staging");
    ASSERT_TRUE(arena.ok()) << arena.error().to_string();
    EXPECT_EQ(arena->bytes(), 3 * kHuge + 1);
    EXPECT_EQ(budget.used(), 3 * kHuge + kPage);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % kHuge, 0u);
    for (std::int64_t i = 0; i < arena->bytes(); i += 1000) ASSERT_EQ(arena->data()[i], std::byte{0});
    Arena moved = std::move(*arena);
    EXPECT_EQ(arena->data(), nullptr);
    moved = Arena();
    EXPECT_EQ(budget.used(), 0);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 3 * kHuge + kPage);
}

TEST(Arena, LargeOnesAreFaultedInByThreadsAndFullyPresent) {
  auto arena = Arena::make(80 << 20, nullptr, "large");
  ASSERT_TRUE(arena.ok());
  std::vector<unsigned char> present((80 << 20) / kPage);
  ASSERT_EQ(::mincore(arena->data(), 80 << 20, present.data()), 0);
  for (unsigned char p : present) ASSERT_EQ(p & 1, 1);
}

TEST(Arena, FailuresGiveTheBudgetBack) {
  Budget budget(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(Arena::make(-1, &budget, "negative").error().code, Code::kInvalid);
  EXPECT_EQ(Arena::make(std::numeric_limits<std::int64_t>::max(), &budget, "overflow").error().code, Code::kInvalid);
  EXPECT_EQ(Arena::make(std::int64_t{1} << 60, &budget, "too large").error().code, Code::kExhausted);
  EXPECT_EQ(budget.used(), 0);
  auto empty = Arena::make(0, &budget, "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->data(), nullptr);
}

TEST(SharedRegion, ExportCanBeReadButNotWritten) {
  Budget budget(1 << 20);
  auto region = SharedRegion::make(system_env(), 10000, &budget, "weights");
  ASSERT_TRUE(region.ok()) << region.error().to_string();
  EXPECT_EQ(budget.used(), 3 * kPage);
  auto fd = region->export_fd();
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(::mmap(nullptr, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0), MAP_FAILED);
  // Also not through the owner's own descriptor, a write, a resize or a hole.
  EXPECT_EQ(::mmap(nullptr, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd(), 0), MAP_FAILED);
  EXPECT_LT(::pwrite(region->fd(), "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(region->fd(), 5000), 0);
  EXPECT_NE(::fallocate(region->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), 0);
  auto mapped = MappedRegion::map(std::move(*fd), 10000);
  ASSERT_TRUE(mapped.ok()) << mapped.error().to_string();
  std::memset(region->data(), 0x5a, 10000);  // the owner's map stays writable and is seen at once
  EXPECT_EQ(mapped->data()[9999], std::byte{0x5a});
  EXPECT_NE(::mprotect(const_cast<std::byte*>(mapped->data()), kPage, PROT_READ | PROT_WRITE), 0);
}

TEST(SharedRegion, ReadersKeepThePagesOfADeadOwner) {
  auto region = SharedRegion::make(system_env(), kPage, nullptr, "weights");
  ASSERT_TRUE(region.ok());
  region->data()[7] = std::byte{7};
  auto fd = region->export_fd();
  ASSERT_TRUE(fd.ok());
  auto mapped = MappedRegion::map(std::move(*fd), kPage);
  ASSERT_TRUE(mapped.ok());
  *region = SharedRegion();
  EXPECT_EQ(mapped->data()[7], std::byte{7});
}

TEST(SharedRegion, FailuresGiveBudgetAndDescriptorsBack) {
  Budget budget(8 * kPage);
  FaultyEnv env;
  const std::size_t before = open_descriptors();
  env.fault = FaultyEnv::Fault::kRefuse;
  EXPECT_EQ(SharedRegion::make(env, kPage, &budget, "a").error().code, Code::kExhausted);
  env.fault = FaultyEnv::Fault::kUnsealable;
  EXPECT_EQ(SharedRegion::make(env, kPage, &budget, "b").error().code, Code::kUnsupported);
  env.fault = FaultyEnv::Fault::kNone;
  EXPECT_EQ(SharedRegion::make(env, 0, &budget, "c").error().code, Code::kInvalid);
  EXPECT_EQ(SharedRegion::make(env, 9 * kPage, &budget, "d").error().code, Code::kExhausted);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(SharedRegion::make(env, 8 * kPage, &budget, "e").ok());
}

TEST(MappedRegion, RefusesShortUnsealedAndForeignFiles) {
  auto region = SharedRegion::make(system_env(), kPage, nullptr, "weights");
  ASSERT_TRUE(region.ok());
  const auto fresh = [&] { return std::move(region->export_fd()).value(); };
  const auto shorter = MappedRegion::map(fresh(), kPage + 1);
  ASSERT_FALSE(shorter.ok());
  EXPECT_EQ(shorter.error().code, Code::kCorrupt);
  EXPECT_EQ(shorter.error().have, kPage);
  EXPECT_EQ(MappedRegion::map(fresh(), -1).error().code, Code::kInvalid);
  EXPECT_EQ(MappedRegion::map(fresh(), 0)->data(), nullptr);
  auto unsealed = system_env().shm("unsealed", kPage);
  ASSERT_TRUE(unsealed.ok());
  EXPECT_EQ(MappedRegion::map(std::move(*unsealed), kPage).error().code, Code::kCorrupt);
  EXPECT_EQ(MappedRegion::map(Fd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), kPage).error().code, Code::kCorrupt);
  EXPECT_EQ(MappedRegion::map(Fd(), kPage).error().code, Code::kCorrupt);
}

TEST(Contains, ChecksBothEndsWithoutOverflow) {
  auto region = SharedRegion::make(system_env(), kPage, nullptr, "weights");
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(contains(*region, region->data(), kPage));
  EXPECT_TRUE(contains(*region, region->data() + kPage, 0));
  EXPECT_FALSE(contains(*region, region->data() + 1, kPage));
  EXPECT_FALSE(contains(*region, region->data(), std::numeric_limits<std::int64_t>::max()));
  EXPECT_FALSE(contains(*region, region->data(), -1));
  int elsewhere = 0;
  EXPECT_FALSE(contains(*region, reinterpret_cast<std::byte*>(&elsewhere), 1));
  EXPECT_FALSE(contains(SharedRegion(), nullptr, 0));
}

}  // namespace
}  // namespace refit::memory
