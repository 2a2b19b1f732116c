// run(): cuts a batch into pieces of equal bytes, and each job's share of a piece into blocks for the bodies in ops.h.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "kernel/cast.h"
#include "kernel/movers.h"

namespace refit::kernel {
namespace {

__extension__ using Wide = __int128;  // products of two byte counts

constexpr std::int64_t kPieceBytes = 256 << 10;  // below this a thread costs more than it saves
constexpr std::int64_t kPiecesPerThread = 8;     // evens out pieces of unequal cost
constexpr std::int64_t kStreamBytes = 1 << 20;   // smaller batches are likely to be read again from cache

// What all pieces share. Digests of jobs cut in two meet here; sums mod 2^32 come out the same in any order.
struct Batch {
  std::span<const Job> jobs;
  std::span<Digest> digests;
  std::span<const std::int64_t> ends;  // running sum of bytes
  bool large = false;
  std::mutex mutex;
  std::vector<std::size_t> inexact;
};

std::int64_t job_bytes(const Job& job) {
  return job_elements(job) * std::max({item_size(job.src_dtype), item_size(job.wire_dtype),
                                       job.dst == nullptr ? 1 : item_size(job.dst_dtype)});
}

// Share [lo, hi) of `bytes` of one job.
void run_share(Batch& batch, std::size_t j, std::int64_t lo, std::int64_t hi, std::int64_t bytes) {
  const Job& job = batch.jobs[j];
  const bool digest = job.keys != nullptr && !batch.digests.empty();
  const Loops loops = normalise(job, digest);
  if (loops.shape == Shape::kEmpty || (!digest && job.dst == nullptr && !loops.casts())) return;
  const std::int64_t units = unit_count(loops);
  const auto unit = [&](std::int64_t at) { return static_cast<std::int64_t>(static_cast<Wide>(units) * at / bytes); };
  const std::int64_t first = unit(lo), last = unit(hi);
  if (first == last) return;
  Moved moved;
  move_units(loops, first, last, batch.large, moved);
  if (!moved.exact) {
    const std::lock_guard lock(batch.mutex);
    batch.inexact.push_back(j);
  }
  if (!digest) return;
  const Digest part{moved.acc.fold(), static_cast<std::uint64_t>(moved.elements)};
  if (first == 0 && last == units) {
    batch.digests[j] = part;
    return;
  }
  const std::lock_guard lock(batch.mutex);
  batch.digests[j] += part;
}

void run_piece(Batch& batch, std::int64_t lo, std::int64_t hi) {
  auto j = static_cast<std::size_t>(std::upper_bound(batch.ends.begin(), batch.ends.end(), lo) - batch.ends.begin());
  for (; j < batch.jobs.size(); ++j) {
    const std::int64_t begin = j == 0 ? 0 : batch.ends[j - 1], end = batch.ends[j];
    if (begin >= hi) break;
    if (begin < end) run_share(batch, j, std::max(lo, begin) - begin, std::min(hi, end) - begin, end - begin);
  }
  ops().fence();
}

// Bytes [lo, hi) of the batch by all threads.
void run_window(const Exec& exec, Batch& batch, std::int64_t lo, std::int64_t hi) {
  const std::int64_t threads = exec.pool == nullptr ? 1 : exec.pool->threads();
  const std::int64_t bytes = hi - lo;
  const std::int64_t pieces =
      threads == 1 ? 1 : std::clamp<std::int64_t>(bytes / kPieceBytes, 1, threads * kPiecesPerThread);
  const auto edge = [&](std::int64_t p) {
    return lo + static_cast<std::int64_t>(static_cast<Wide>(bytes) * p / pieces);
  };
  if (pieces == 1)
    run_piece(batch, lo, hi);
  else
    exec.pool->parallel_for(pieces, [&](std::int64_t p) { run_piece(batch, edge(p), edge(p + 1)); });
}

// A second, element-wise look at a job that lost values; its sources are untouched.
std::int64_t first_inexact(const Job& job) {
  std::array<std::int64_t, kMaxLoops> at{};
  const std::size_t loops = job.extents.size();
  const char* src = static_cast<const char*>(job.src);
  for (std::int64_t linear = 0, n = job_elements(job); linear < n; ++linear) {
    unsigned char wire[8] = {}, out[8] = {};
    bool exact = job.src_dtype == job.wire_dtype || cast_scalar(job.src_dtype, job.wire_dtype, wire, src, 1);
    if (job.src_dtype == job.wire_dtype) std::memcpy(wire, src, static_cast<std::size_t>(item_size(job.src_dtype)));
    if (job.dst != nullptr && job.wire_dtype != job.dst_dtype)
      exact &= cast_scalar(job.wire_dtype, job.dst_dtype, out, wire, 1);
    if (!exact) return linear;
    for (std::size_t k = loops; k-- > 0;) {
      src += job.src_strides[k];
      if (++at[k] < job.extents[k]) break;
      src -= job.extents[k] * job.src_strides[k];
      at[k] = 0;
    }
  }
  return -1;
}

std::vector<Inexact> report(Batch& batch) {
  std::sort(batch.inexact.begin(), batch.inexact.end());
  batch.inexact.erase(std::unique(batch.inexact.begin(), batch.inexact.end()), batch.inexact.end());
  std::vector<Inexact> out;
  for (const std::size_t j : batch.inexact) out.push_back({j, first_inexact(batch.jobs[j])});
  return out;
}

}  // namespace

std::vector<Inexact> run(const Exec& exec, std::span<const Job> jobs, std::span<Digest> digests) {
  REFIT_CHECK(digests.empty() || digests.size() == jobs.size());
  thread_local std::vector<std::int64_t> ends;  // kept: no allocation in steady state
  ends.clear();
  std::int64_t total = 0;
  for (const Job& job : jobs) ends.push_back(total += job_bytes(job));
  std::fill(digests.begin(), digests.end(), Digest{});
  if (total == 0) return {};
  Batch batch{
      .jobs = jobs, .digests = digests, .ends = ends, .large = total >= kStreamBytes, .mutex = {}, .inexact = {}};
  const std::int64_t window = exec.progress == nullptr ? total : std::max<std::int64_t>(1, exec.progress->every_bytes);
  for (std::int64_t lo = 0; lo < total;) {
    const std::int64_t hi = total - lo > window ? lo + window : total;
    run_window(exec, batch, lo, hi);
    if (exec.progress != nullptr && exec.progress->done) exec.progress->done(hi - lo);
    lo = hi;
  }
  return report(batch);
}

void copy_flat(const Exec& exec, void* dst, const void* src, std::int64_t bytes) {
  if (bytes <= 0) return;
  const std::int64_t extent[] = {bytes}, stride[] = {1};
  Job job;
  job.src = src;
  job.dst = dst;
  job.extents = extent;
  job.src_strides = job.dst_strides = stride;
  job.src_dtype = job.wire_dtype = job.dst_dtype = DType::kU8;
  run(exec, std::span(&job, 1), {});
}

void transpose(const Exec& exec, void* dst, std::int64_t dst_stride, const void* src, std::int64_t src_stride,
               std::int64_t rows, std::int64_t columns, std::int64_t item) {
  REFIT_CHECK(item == 1 || item == 2 || item == 4 || item == 8);
  const DType type = item == 1 ? DType::kU8 : item == 2 ? DType::kI16 : item == 4 ? DType::kI32 : DType::kI64;
  const std::int64_t extents[] = {columns, rows}, from[] = {item, src_stride}, to[] = {dst_stride, item};
  Job job;
  job.src = src;
  job.dst = dst;
  job.extents = extents;
  job.src_strides = from;
  job.dst_strides = to;
  job.src_dtype = job.wire_dtype = job.dst_dtype = type;
  run(exec, std::span(&job, 1), {});
}

}  // namespace refit::kernel
