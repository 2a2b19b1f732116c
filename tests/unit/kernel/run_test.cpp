// run() against run_reference(): same bytes, same digests, same reports, for every instruction set and thread count.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "unit/kernel/helpers.h"

namespace refit::kernel::testing {
namespace {

void expect_equal(Batch& got, Batch& want, const std::vector<Digest>& got_digests,
                  const std::vector<Digest>& want_digests) {
  for (std::size_t i = 0; i < want.owned.size(); ++i) {
    EXPECT_TRUE(got.owned[i].dst == want.owned[i].dst) << "bytes of job " << i;
    EXPECT_EQ(got_digests[i], want_digests[i]) << "digest of job " << i;
  }
}

void compare(std::uint64_t seed, int count, std::int64_t most, bool casts) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Batch want = random_batch(seed, count, most, casts);
  std::vector<Job> want_jobs = want.jobs();
  std::vector<Digest> want_digests(want_jobs.size());
  const std::vector<Inexact> want_inexact = run_reference(want_jobs, want_digests);
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(force_isa(isa).ok());
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(isa + " threads " + std::to_string(threads));
      ThreadPool pool(threads);
      Batch got = random_batch(seed, count, most, casts);
      std::vector<Job> jobs = got.jobs();
      std::vector<Digest> digests(jobs.size());
      // Windows that end anywhere, also inside a job and an element, change nothing.
      std::int64_t told = 0, longest = 0;
      const Progress progress{.every_bytes = 777 * threads, .done = [&](std::int64_t n) {
                                told += n;
                                longest = std::max(longest, n);
                              }};
      const std::vector<Inexact> inexact = run(Exec{&pool, threads == 1 ? nullptr : &progress}, jobs, digests);
      EXPECT_LE(longest, progress.every_bytes);
      EXPECT_TRUE(threads == 1 || told > 0);
      expect_equal(got, want, digests, want_digests);
      ASSERT_EQ(inexact.size(), want_inexact.size());
      for (std::size_t i = 0; i < inexact.size(); ++i) {
        EXPECT_EQ(inexact[i].job, want_inexact[i].job);
        EXPECT_EQ(inexact[i].linear, want_inexact[i].linear);
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

TEST(Run, ManySmallJobsEqualTheReference) {
  const std::uint64_t seed = test_seed(0x5eed01);
  for (std::uint64_t i = 0; i < 30; ++i) compare(seed + i, 20, 2000, false);
}
TEST(Run, CastingJobsEqualTheReference) {
  const std::uint64_t seed = test_seed(0x5eed02);
  for (std::uint64_t i = 0; i < 20; ++i) compare(seed + i, 20, 1500, true);
}
TEST(Run, LargeBatchesStreamAndEqualTheReference) {
  const std::uint64_t seed = test_seed(0x5eed03);
  for (std::uint64_t i = 0; i < 3; ++i) compare(seed + i, 12, 300000, i == 2);
}

// One matrix of `rows` x `columns`; `turned` says whether a side stores it transposed.
OwnedJob matrix(Random& random, std::int64_t rows, std::int64_t columns, DType type, bool src_turned, bool dst_turned,
                std::int64_t shift, std::int64_t gap) {
  OwnedJob out;
  const std::int64_t item = item_size(type);
  out.extents = {rows, columns};
  out.axis = {0, 1};
  out.steps = {1, 1};
  out.origin = {3, std::vector<std::int64_t>{250, 256, 320}[static_cast<std::size_t>(random.below(3))]};
  out.shape = {rows + 10, columns + 400};
  out.from = out.wire = out.to = type;
  const auto strides = [&](bool turned) {
    return turned ? Dims{item, rows * item + gap} : Dims{columns * item + gap, item};
  };
  out.src_strides = strides(src_turned);
  out.dst_strides = strides(dst_turned);
  const std::int64_t bytes = (rows + 1) * (columns + 1) * item + (rows + columns) * gap + 256;
  out.src = random_bytes(random, bytes);
  out.dst = random_bytes(random, bytes);
  const auto align = [](const std::vector<char>& v) {
    return static_cast<std::int64_t>((64 - reinterpret_cast<std::uintptr_t>(v.data()) % 64) % 64);
  };
  out.src_at = align(out.src) + shift % 3;
  out.dst_at = align(out.dst) + shift;
  return out;
}

TEST(Run, TailsAndAlignmentsOfRowsAndTransposes) {
  const std::uint64_t seed = test_seed(0x5eed04);
  Random random(seed);
  for (const DType type : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (int i = 0; i < 60; ++i) {
      const bool large = i % 30 == 0;  // past the threshold of streaming stores
      const std::int64_t rows = large ? 900 + random.below(60) : 1 + random.below(100);
      const std::int64_t columns =
          large ? (std::int64_t{1} << 20) / (900 * item_size(type)) + random.below(9) : 1 + random.below(100);
      const std::int64_t shift = random.chance(50) ? random.below(64) : random.below(8) * 8,
                         gap = random.chance(50) ? random.below(3) * 64 : random.below(9);
      const bool src_turned = random.chance(50), dst_turned = random.chance(50);
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " case " << i << " type " << to_string(type) << " "
                                        << rows << "x" << columns << " shift " << shift << " gap " << gap << " turned "
                                        << src_turned << dst_turned);
      OwnedJob base = matrix(random, rows, columns, type, src_turned, dst_turned, shift, gap);
      const DigestKeys keys = DigestKeys::make(seed, "m", base.shape);
      const std::vector<char> before = base.dst;
      const Job job = base.job(&keys);
      Digest want, got;
      run_reference(std::span(&job, 1), std::span(&want, 1));
      const std::vector<char> expected = base.dst;
      for (const std::string& isa : available_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        std::copy(before.begin(), before.end(), base.dst.begin());
        run({}, std::span(&job, 1), std::span(&got, 1));
        EXPECT_TRUE(base.dst == expected) << isa;
        EXPECT_EQ(got, want) << isa;
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

// Line-aligned destinations, where one body digests and streams: long rows, short rows, tails of every length.
TEST(Run, DigestAndStreamFromTheSameRegisters) {
  const std::uint64_t seed = test_seed(0x5eed07);
  Random random(seed);
  for (const DType type : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t item = item_size(type), columns = (i % 2 == 0 ? 256 : 9000) / item + random.below(80),
                         gap = 64 * ceil_div(columns * item, 64) - columns * item;
      const std::int64_t rows = (std::int64_t{1} << 20) / (columns * item) + 2;
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " type " << to_string(type) << " " << rows << "x"
                                        << columns);
      OwnedJob base = matrix(random, rows, columns, type, false, false, 0, gap);
      base.origin[1] = 64 * random.below(5);
      base.src_at += random.below(5);
      const DigestKeys keys = DigestKeys::make(seed, "m", base.shape);
      const Job job = base.job(&keys);
      Digest want, got;
      run_reference(std::span(&job, 1), std::span(&want, 1));
      const std::vector<char> expected = base.dst;
      for (const std::string& isa : available_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (std::int64_t r = 0; r < rows; ++r)
          std::memset(base.dst.data() + base.dst_at + r * base.dst_strides[0], 0,
                      static_cast<std::size_t>(columns * item));
        run({}, std::span(&job, 1), std::span(&got, 1));
        EXPECT_TRUE(base.dst == expected) << isa;
        EXPECT_EQ(got, want) << isa;
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

// Jobs big enough to be cut between threads, in each of the shapes: their digests are sums over pieces.
TEST(Run, JobsCutBetweenThreadsGiveTheSameBytesAndDigests) {
  const std::uint64_t seed = test_seed(0x5eed08);
  Random random(seed);
  for (int shape = 0; shape < 4; ++shape) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " shape " << shape);
    // Rows, one long run, a transpose, and single items with a cast.
    const std::int64_t rows = shape == 1 ? 1 : 1003, columns = shape == 1 ? 1003 * 1009 : 1009;
    OwnedJob base = matrix(random, rows, columns, DType::kBF16, false, shape == 2, 0, shape == 1 ? 0 : 6);
    if (shape == 3) {
      base.to = DType::kF32;
      for (std::int64_t& stride : base.dst_strides) stride *= 2;
      base.dst.resize(2 * base.dst.size());
    }
    const DigestKeys keys = DigestKeys::make(seed, "m", base.shape);
    const Job job = base.job(&keys);
    Digest want;
    run_reference(std::span(&job, 1), std::span(&want, 1));
    const std::vector<char> expected = base.dst;
    for (const int threads : {1, 2, 3, 5}) {
      ThreadPool pool(threads);
      std::fill(base.dst.begin(), base.dst.end(), char{0});
      Digest got;
      run(Exec{&pool}, std::span(&job, 1), std::span(&got, 1));
      EXPECT_EQ(got, want) << threads;
      for (std::int64_t i = 0; i < rows; i += 13)
        for (std::int64_t j = 0; j < columns; j += 7) {
          const std::int64_t at = base.dst_at + i * base.dst_strides[0] + j * base.dst_strides[1];
          ASSERT_EQ(std::memcmp(base.dst.data() + at, expected.data() + at, 2), 0)
              << threads << " threads, " << i << "," << j;
        }
    }
  }
}

// Memory that ends (or begins) at an inaccessible page.
class Guarded {
 public:
  explicit Guarded(std::int64_t bytes) : page_(::sysconf(_SC_PAGESIZE)) {
    inside_ = ceil_div(bytes, page_) * page_;
    void* p =
        ::mmap(nullptr, static_cast<std::size_t>(inside_ + 2 * page_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base_ = static_cast<char*>(p);
    EXPECT_EQ(::mprotect(base_ + page_, static_cast<std::size_t>(inside_), PROT_READ | PROT_WRITE), 0);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { ::munmap(base_, static_cast<std::size_t>(inside_ + 2 * page_)); }
  char* first() const { return base_ + page_; }
  char* last(std::int64_t bytes) const { return base_ + page_ + inside_ - bytes; }

 private:
  std::int64_t page_, inside_ = 0;
  char* base_ = nullptr;
};

TEST(Run, NeverTouchesAByteOutsideItsBoxes) {
  const std::uint64_t seed = test_seed(0x5eed05);
  Random random(seed);
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(force_isa(isa).ok());
    for (int i = 0; i < 60; ++i) {
      const bool large = i % 20 == 0;
      const std::int64_t item = std::int64_t{1} << random.below(4), rows = large ? 1100 : 1 + random.below(70),
                         columns = large ? 1000 : 1 + random.below(70);
      SCOPED_TRACE(::testing::Message() << isa << " seed " << seed << " case " << i << " item " << item << " " << rows
                                        << "x" << columns);
      const std::int64_t bytes = rows * columns * item;
      const Guarded from(bytes), to(bytes);
      const DType type = item == 1 ? DType::kF8E4M3 : item == 2 ? DType::kF16 : item == 4 ? DType::kI32 : DType::kF64;
      const DigestKeys keys = DigestKeys::make(seed, "g", {rows, columns});
      const Dims extents{rows, columns}, plain{columns * item, item}, turned{item, rows * item}, steps{1, 1},
          origin{0, 0};
      const std::vector<int> axis{0, 1};
      for (const bool at_end : {false, true}) {
        for (const Dims& dst_strides : {plain, turned}) {
          Job job;
          job.src = at_end ? from.last(bytes) : from.first();
          job.dst = at_end ? to.last(bytes) : to.first();
          job.extents = extents;
          job.src_strides = plain;
          job.dst_strides = dst_strides;
          job.axis = axis;
          job.steps = steps;
          job.origin = origin;
          job.src_dtype = job.wire_dtype = job.dst_dtype = type;
          job.keys = &keys;
          Digest digest;
          run({}, std::span(&job, 1), std::span(&digest, 1));
          EXPECT_EQ(digest.count, static_cast<std::uint64_t>(rows * columns));
        }
      }
    }
  }
  ASSERT_TRUE(force_isa(available_isas().front()).ok());
}

TEST(Run, CopyFlatAndTranspose) {
  const std::uint64_t seed = test_seed(0x5eed06);
  Random random(seed);
  ThreadPool pool(2);
  for (const std::int64_t bytes : {0, 1, 63, 64, 65, 4097, 3 << 20}) {
    const std::vector<char> src = random_bytes(random, bytes);
    std::vector<char> dst(src.size());
    copy_flat(Exec{&pool}, dst.data(), src.data(), bytes);
    EXPECT_TRUE(dst == src) << bytes;
  }
  for (const std::int64_t item : {1, 2, 4, 8}) {
    const std::int64_t rows = 517, columns = 701;
    const std::vector<char> src = random_bytes(random, rows * columns * item);
    std::vector<char> dst(src.size()), back(src.size());
    transpose(Exec{&pool}, dst.data(), rows * item, src.data(), columns * item, rows, columns, item);
    transpose(Exec{&pool}, back.data(), columns * item, dst.data(), rows * item, columns, rows, item);
    EXPECT_TRUE(back == src) << item;
    EXPECT_EQ(std::memcmp(dst.data() + (5 * rows + 7) * item, src.data() + (7 * columns + 5) * item,
                          static_cast<std::size_t>(item)),
              0);
  }
}

TEST(Run, EmptyBatchAndEmptyJobs) {
  EXPECT_TRUE(run({}, {}, {}).empty());
  const std::int64_t extents[] = {3, 0}, strides[] = {2, 2};
  Job job;
  job.extents = extents;
  job.src_strides = job.dst_strides = strides;
  Digest digest{{1, 2, 3, 4}, 5};
  EXPECT_TRUE(run({}, std::span(&job, 1), std::span(&digest, 1)).empty());
  EXPECT_EQ(digest, Digest{});
}

}  // namespace
}  // namespace refit::kernel::testing
