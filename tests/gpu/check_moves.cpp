// Gather, scatter, transposes, casts and digests against run_reference, on random jobs.
#include <memory>

#include "gpu/bench.h"
#include "unit/kernel/jobs.h"

namespace refit::gpu {
namespace {

using namespace refit::kernel;
using refit::kernel::testing::Batch;
using refit::kernel::testing::OwnedJob;
using refit::kernel::testing::Random;

// The job with its memory on the device.
struct OnDevice {
  std::vector<std::unique_ptr<Mirror>> src, dst;
  std::vector<Job> jobs;

  OnDevice(Bench& bench, std::vector<OwnedJob>& owned, std::vector<Job> host) : jobs(std::move(host)) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
      src.push_back(std::make_unique<Mirror>(bench, owned[i].src.data(), static_cast<std::int64_t>(owned[i].src.size())));
      dst.push_back(std::make_unique<Mirror>(bench, owned[i].dst.data(), static_cast<std::int64_t>(owned[i].dst.size())));
      jobs[i].src = src[i]->at() + owned[i].src_at;
      if (jobs[i].dst != nullptr) jobs[i].dst = dst[i]->at() + owned[i].dst_at;
    }
  }
  std::string fault() const {
    for (const auto& list : {&src, &dst})
      for (const auto& m : *list)
        if (!m->fault().empty()) return m->fault();
    return "";
  }
};

std::string same(const std::vector<Inexact>& got, const std::vector<Inexact>& want) {
  if (got.size() != want.size())
    return std::to_string(got.size()) + " jobs with inexact casts, not " + std::to_string(want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i].job != want[i].job || got[i].linear != want[i].linear)
      return "job " + std::to_string(want[i].job) + " is inexact at " + std::to_string(got[i].linear) + ", not " +
             std::to_string(want[i].linear);
  return "";
}

// Launched twice: the second must not remember the first.
std::string compare(Bench& bench, std::vector<OwnedJob>& owned, const std::vector<Job>& jobs) {
  OnDevice there(bench, owned, jobs);
  if (auto f = there.fault(); !f.empty()) return f;
  auto batch = DeviceBatch::make(bench.stream, there.jobs, true);
  if (!batch.ok()) return batch.error().to_string();
  std::vector<Digest> want(jobs.size()), got(jobs.size());
  const std::vector<Inexact> want_inexact = run_reference(jobs, want);
  for (int round = 0; round < 2; ++round) {
    if (auto f = text(batch->launch(bench.kernels, bench.stream)); !f.empty()) return f;
    if (auto f = bench.wait("a batch"); !f.empty()) return f;
    if (auto f = same(batch->results(got), want_inexact); !f.empty()) return f;
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (jobs[i].keys != nullptr && !(got[i] == want[i])) return "digest of job " + std::to_string(i) + " differs";
  }
  for (std::size_t i = 0; i < jobs.size(); ++i)
    if (const Bytes b = there.dst[i]->read(); std::memcmp(b.data(), owned[i].dst.data(), b.size()) != 0)
      return "bytes of job " + std::to_string(i) + " differ";
  return "";
}

void random_jobs(Bench& bench, const std::string& name, std::uint64_t seed, int rounds, int count, std::int64_t most,
                 bool casts) {
  std::string fault;
  for (int i = 0; i < rounds && fault.empty(); ++i) {
    Batch b = kernel::testing::random_batch(seed + static_cast<std::uint64_t>(i), count, most, casts);
    fault = compare(bench, b.owned, b.jobs());
    if (!fault.empty()) fault += " (seed " + std::to_string(seed + static_cast<std::uint64_t>(i)) + ")";
  }
  bench.report->check(name, fault, std::to_string(rounds * count) + " random jobs");
}

// [rows, columns] cut out of a larger matrix, each side in rows or turned, addresses shifted by `shift` bytes.
OwnedJob matrix(Random& random, std::int64_t rows, std::int64_t columns, DType type, bool src_turned, bool dst_turned,
                std::int64_t shift) {
  OwnedJob out;
  const std::int64_t item = item_size(type);
  out.extents = {rows, columns};
  out.axis = {0, 1};
  out.steps = {1, 1};
  out.origin = {random.below(600), random.below(600)};
  out.shape = {out.origin[0] + rows, out.origin[1] + columns};
  const auto strides = [&](bool turned, std::int64_t gap) {
    return turned ? Dims{item, (rows + gap) * item} : Dims{(columns + gap) * item, item};
  };
  out.src_strides = strides(src_turned, 16);
  out.dst_strides = strides(dst_turned, 8);
  out.from = out.wire = out.to = type;
  out.src_at = out.dst_at = shift;
  out.src = kernel::testing::random_bytes(random, shift + (rows + 32) * (columns + 32) * item);
  out.dst = kernel::testing::random_bytes(random, shift + (rows + 32) * (columns + 32) * item);
  return out;
}

void matrices(Bench& bench) {
  Random random(kernel::testing::test_seed(0x6b0001));
  std::vector<OwnedJob> owned;
  const std::int64_t big = bench.is_double() ? 1 : 3;
  for (const DType type : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64})
    for (const bool src_turned : {false, true})
      for (const bool dst_turned : {false, true})
        for (const std::int64_t shift : {0L, 4L, 2L, 1L})
          owned.push_back(matrix(random, random.in(1, 150) * big, random.in(1, 300) * big, type, src_turned, dst_turned, shift));
  std::vector<DigestKeys> keys;
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < owned.size(); ++i) keys.push_back(DigestKeys::make(i, "matrix", owned[i].shape));
  for (std::size_t i = 0; i < owned.size(); ++i) jobs.push_back(owned[i].job(&keys[i], i % 7 != 3));
  bench.report->check("move.matrices", compare(bench, owned, jobs), std::to_string(jobs.size()) + " matrices, turned and shifted");
  std::vector<Job> plain;
  std::vector<OwnedJob> written;
  for (std::size_t i = 0; i < owned.size(); ++i)
    if (jobs[i].dst != nullptr) written.push_back(owned[i]);
  for (OwnedJob& j : written) plain.push_back(j.job(nullptr));
  bench.report->check("move.matrices_plain", compare(bench, written, plain), "the same without digests");
}

// A damaged value must change the digest: the check can fail.
void damage(Bench& bench) {
  Random random(7);
  std::vector<OwnedJob> owned;
  owned.push_back(matrix(random, 64, 128, DType::kBF16, false, false, 0));
  const DigestKeys keys = DigestKeys::make(1, "damage", owned[0].shape);
  std::vector<Job> jobs{owned[0].job(&keys, false)};
  std::vector<Digest> want(1), got(1);
  run_reference(jobs, want);
  owned[0].src[2 * 144 + 6] = static_cast<char>(owned[0].src[2 * 144 + 6] ^ 1);
  OnDevice there(bench, owned, jobs);
  std::string fault = there.fault();
  auto batch = DeviceBatch::make(bench.stream, there.jobs, true);
  if (fault.empty()) fault = batch.ok() ? text(batch->launch(bench.kernels, bench.stream)) : batch.error().to_string();
  if (fault.empty()) fault = bench.wait("a batch");
  if (fault.empty() && (batch->results(got), got[0] == want[0])) fault = "one wrong bit was not seen";
  bench.report->check("move.damage_is_seen", fault);
}

}  // namespace

void check_moves(Bench& bench) {
  const std::uint64_t seed = kernel::testing::test_seed(0x6b5eed);
  const int more = bench.is_double() ? 1 : 4;
  random_jobs(bench, "move.small_jobs", seed, 20 * more, 20, 2000, false);
  random_jobs(bench, "move.large_jobs", seed + 1000, more, 8, bench.is_double() ? 100'000 : 3'000'000, false);
  random_jobs(bench, "move.casting_jobs", seed + 2000, 12 * more, 20, 1500, true);
  matrices(bench);
  damage(bench);
}

// Every pair of types, over all patterns of up to 16 bits and random ones of the others.
void check_casts(Bench& bench) {
  Random random(kernel::testing::test_seed(0x6bca57));
  std::vector<OwnedJob> owned;
  const std::int64_t n = bench.is_double() ? 4099 : 65536;
  for (int from = 0; from < kDTypeCount; ++from)
    for (int to = 0; to < kDTypeCount; ++to) {
      OwnedJob j;
      j.from = static_cast<DType>(from);
      j.wire = j.to = static_cast<DType>(to);
      const std::int64_t item = item_size(j.from);
      j.extents = j.shape = {n};
      j.src_strides = {item};
      j.dst_strides = {item_size(j.to)};
      j.axis = {0};
      j.steps = {1};
      j.origin = {0};
      j.src = kernel::testing::random_bytes(random, n * item);
      if (item <= 2 && n == 65536)
        for (std::int64_t i = 0; i < n; ++i) std::memcpy(j.src.data() + i * item, &i, static_cast<std::size_t>(item));
      j.dst = kernel::testing::random_bytes(random, n * item_size(j.to));
      owned.push_back(std::move(j));
    }
  const DigestKeys keys = DigestKeys::make(3, "casts", {n});
  std::vector<Job> jobs;
  for (OwnedJob& j : owned) jobs.push_back(j.job(&keys));
  bench.report->check("cast.all_pairs", compare(bench, owned, jobs), std::to_string(jobs.size()) + " pairs of types");
}

}  // namespace refit::gpu
