// `refit bench gather` and `refit bench digest`.
#include <array>
#include <cstring>

#include "bench/bench.h"
#include "kernel/kernel.h"

namespace refit::bench {
namespace {

using kernel::DigestKeys;
using kernel::Job;

// A batch of equal jobs over successive parts of two buffers.
struct Case {
  std::string name;
  Dims extents, src, dst;                             // one job's loops
  std::int64_t jobs = 1, src_step = 0, dst_step = 0;  // addresses from job to job
  std::int64_t bytes() const {
    std::int64_t n = 2 * jobs;
    for (const std::int64_t e : extents) n *= e;
    return n;
  }
};

struct Bed {
  Buffer src, dst;
  ThreadPool pool;
  explicit Bed(int threads) : pool(threads) {}
};

std::vector<Job> jobs_of(const Case& c, const Bed& bed) {
  std::vector<Job> out;
  for (std::int64_t j = 0; j < c.jobs; ++j) {
    Job job;
    job.src = bed.src.data() + j * c.src_step;
    job.dst = bed.dst.data() + j * c.dst_step;
    job.extents = c.extents;
    job.src_strides = c.src;
    job.dst_strides = c.dst;
    out.push_back(job);
  }
  return out;
}

// Every 997th element and the ends, by address arithmetic of its own.
Status verify(const Case& c, const Bed& bed) {
  std::int64_t per_job = 1;
  for (const std::int64_t e : c.extents) per_job *= e;
  for (std::int64_t j = 0; j < c.jobs; ++j) {
    for (std::int64_t i = 0; i < per_job; i += i + 997 < per_job || i == per_job - 1 ? 997 : per_job - 1 - i) {
      std::int64_t rest = i, from = j * c.src_step, to = j * c.dst_step;
      for (std::size_t k = c.extents.size(); k-- > 0;) {
        from += rest % c.extents[k] * c.src[k];
        to += rest % c.extents[k] * c.dst[k];
        rest /= c.extents[k];
      }
      if (std::memcmp(bed.src.data() + from, bed.dst.data() + to, 2) != 0)
        return Error(Code::kInternal,
                     c.name + ": element " + std::to_string(i) + " of job " + std::to_string(j) + " is wrong");
    }
  }
  return {};
}

// bf16 shapes of a 7B-class model; each case fills the buffer with as many matrices as fit.
std::vector<Case> gather_cases(std::int64_t bytes) {
  const auto fit = [bytes](std::int64_t each) { return std::max<std::int64_t>(1, bytes / each); };
  std::vector<Case> out;
  constexpr std::int64_t kRow = 11008 * 2, kRows = 4096;
  // Upper half of the rows of 4096 x 11008.
  out.push_back(
      {"gather.row", {kRows / 2, 11008}, {kRow, 2}, {kRow, 2}, fit(kRows * kRow), kRows * kRow, kRows / 2 * kRow});
  // Query rows of an interleaved QKV: groups of (4 query heads, key, value) x 128 rows x 4096 columns.
  constexpr std::int64_t kHead = 128 * 8192;
  out.push_back({"gather.qkv",
                 {8, 4, 128, 4096},
                 {6 * kHead, kHead, 8192, 2},
                 {4 * kHead, kHead, 8192, 2},
                 fit(8 * 6 * kHead),
                 8 * 6 * kHead,
                 8 * 4 * kHead});
  // Left half of the columns of 4096 x 4096: runs of 4 KiB.
  out.push_back({"gather.column", {4096, 2048}, {8192, 2}, {4096, 2}, fit(4096 * 8192), 4096 * 8192, 4096 * 4096});
  out.push_back(
      {"gather.transpose", {11008, kRows}, {2, kRow}, {kRows * 2, 2}, fit(kRows * kRow), kRows * kRow, kRows * kRow});
  return out;
}

Result<std::int64_t> make_bed(const Options& options, Bed& bed) {
  REFIT_TRY(kernel::isa_status());
  const std::int64_t bytes = std::max<std::int64_t>(options.bytes, 4096 * 11008 * 2);
  REFIT_ASSIGN(bed.src, Buffer::make(bytes));
  REFIT_ASSIGN(bed.dst, Buffer::make(bytes));
  bed.src.fill_random(1);
  return bytes;
}

}  // namespace

Result<std::vector<Row>> bench_gather(const Options& options) {
  Bed bed(options.threads);
  REFIT_ASSIGN(const std::int64_t bytes, make_bed(options, bed));
  const kernel::Exec exec{&bed.pool};
  const std::vector<Case> cases = gather_cases(bytes);
  std::vector<std::function<void()>> works = {memcpy_work(bed.pool, bed.dst.data(), bed.src.data(), bytes),
                                              [&] { kernel::copy_flat(exec, bed.dst.data(), bed.src.data(), bytes); }};
  std::vector<std::vector<Job>> jobs;
  for (const Case& c : cases) {
    jobs.push_back(jobs_of(c, bed));
    kernel::run(exec, jobs.back(), {});
    REFIT_TRY(verify(c, bed));
  }
  for (const auto& batch : jobs) works.push_back([&batch, &exec] { kernel::run(exec, batch, {}); });
  const std::vector<double> seconds = median_seconds_in_turn(options.repeats, works);
  const double plain = gbps(bytes, seconds[0]);
  std::vector<Row> rows = {{"gather.memcpy", plain, "GB/s", std::nullopt, std::nullopt, "ceiling"},
                           against("gather.copy_flat", gbps(bytes, seconds[1]), "GB/s", plain, "memcpy")};
  for (std::size_t i = 0; i < cases.size(); ++i)
    rows.push_back(against(cases[i].name, gbps(cases[i].bytes(), seconds[i + 2]), "GB/s", plain, "memcpy"));
  return rows;
}

namespace {

// The buffer as bf16 matrices of 4096 x 11008, the last one shorter.
struct DigestCase {
  static constexpr std::int64_t kColumns = 11008;
  std::array<std::int64_t, 2> extents{}, strides{kColumns * 2, 2}, steps{1, 1}, origin{0, 0};
  std::array<int, 2> axis{0, 1};
  Job job(const Bed& bed, const DigestKeys* keys, bool writes) const {
    Job out;
    out.src = bed.src.data();
    out.dst = writes ? bed.dst.data() : nullptr;
    out.extents = extents;
    out.src_strides = strides;
    if (writes) out.dst_strides = strides;
    out.axis = axis;
    out.steps = steps;
    out.origin = origin;
    out.keys = keys;
    return out;
  }
};

// The first rows against the scalar reference, and the copy's digest against the digest of what was written.
Status verify_digest(const Bed& bed, const DigestCase& c, const DigestKeys& keys) {
  DigestCase small = c;
  small.extents[0] = 16;
  const Job first = small.job(bed, &keys, false);
  kernel::Digest got, want, copied, written;
  kernel::run({}, std::span(&first, 1), std::span(&got, 1));
  kernel::run_reference(std::span(&first, 1), std::span(&want, 1));
  if (!(got == want)) return Error(Code::kInternal, "digest.bf16: differs from the reference");
  const Job copy = c.job(bed, &keys, true);
  kernel::run({}, std::span(&copy, 1), std::span(&copied, 1));
  Job back = c.job(bed, &keys, false);
  back.src = bed.dst.data();
  kernel::run({}, std::span(&back, 1), std::span(&written, 1));
  if (!(copied == written)) return Error(Code::kInternal, "digest.copy: what was written has another digest");
  return {};
}

}  // namespace

Result<std::vector<Row>> bench_digest(const Options& options) {
  Bed bed(options.threads);
  REFIT_ASSIGN(std::int64_t bytes, make_bed(options, bed));
  const kernel::Exec exec{&bed.pool};
  DigestCase c;
  c.extents = {bytes / c.strides[0], DigestCase::kColumns};
  bytes = c.extents[0] * c.strides[0];
  const DigestKeys keys = DigestKeys::make(7, "bench", {c.extents[0], c.extents[1]});
  REFIT_TRY(verify_digest(bed, c, keys));
  const Job read = c.job(bed, &keys, false), copy = c.job(bed, nullptr, true), fused = c.job(bed, &keys, true);
  kernel::Digest digest;
  const auto run_one = [&](const Job& job) {
    return [&] { kernel::run(exec, std::span(&job, 1), std::span(&digest, 1)); };
  };
  const std::vector<std::function<void()>> works = {read_work(bed.pool, bed.src.data(), bytes), run_one(read),
                                                    run_one(copy), run_one(fused)};
  const std::vector<double> seconds = median_seconds_in_turn(options.repeats, works);
  const double scan = gbps(bytes, seconds[0]), plain = gbps(bytes, seconds[2]);
  return std::vector<Row>{{"digest.read", scan, "GB/s", std::nullopt, std::nullopt, "ceiling"},
                          against("digest.bf16", gbps(bytes, seconds[1]), "GB/s", scan, "read scan"),
                          {"digest.copy_without", plain, "GB/s", std::nullopt, std::nullopt, "ceiling"},
                          against("digest.copy", gbps(bytes, seconds[3]), "GB/s", plain, "same copy without digest")};
}

namespace {
const Registration kGather("gather", "strided copies and transposes against memcpy", bench_gather);
const Registration kDigest("digest", "the placement digest against a read, and fused into a copy", bench_digest);
}  // namespace

}  // namespace refit::bench
