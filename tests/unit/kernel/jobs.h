// Random jobs with memory around them, for the kernel tests and the GPU check.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernel/kernel.h"

namespace refit::kernel::testing {

// Seed of a randomised test: REFIT_TEST_SEED repeats a run.
inline std::uint64_t test_seed(std::uint64_t fallback) {
  const char* text = std::getenv("REFIT_TEST_SEED");
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 0);
}

struct Random {
  explicit Random(std::uint64_t seed) : engine(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n)); }
  std::int64_t in(std::int64_t lo, std::int64_t hi) { return lo + below(hi - lo + 1); }
  bool chance(int percent) { return below(100) < percent; }
  std::mt19937_64 engine;
};

inline std::vector<char> random_bytes(Random& random, std::int64_t n) {
  std::vector<char> out(static_cast<std::size_t>(n));
  for (char& c : out) c = static_cast<char>(random.engine());
  return out;
}

// A job that owns what its spans point at.
struct OwnedJob {
  Dims extents, src_strides, dst_strides, steps, origin;
  std::vector<int> axis;
  std::vector<char> src, dst;
  std::int64_t src_at = 0, dst_at = 0;
  DType from = DType::kBF16, wire = DType::kBF16, to = DType::kBF16;
  Dims shape;

  Job job(const DigestKeys* keys, bool writes = true) {
    Job j;
    j.src = src.data() + src_at;
    j.dst = writes ? dst.data() + dst_at : nullptr;
    j.extents = extents;
    j.src_strides = src_strides;
    if (writes) j.dst_strides = dst_strides;
    j.axis = axis;
    j.steps = steps;
    j.origin = origin;
    j.src_dtype = from;
    j.wire_dtype = wire;
    j.dst_dtype = to;
    j.keys = keys;
    return j;
  }
};

// Storage for `extents` in a random order of axes with random gaps and directions: strides, first address, size.
struct Storage {
  Dims strides;
  std::int64_t at = 0, bytes = 0;
};
inline Storage random_storage(Random& random, const Dims& extents, std::int64_t item, bool may_flip) {
  Storage out;
  out.strides.assign(extents.size(), 0);
  std::vector<std::size_t> order(extents.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (random.chance(60)) std::shuffle(order.begin(), order.end(), random.engine);
  out.at = random.chance(50) ? random.below(70) : random.below(2) * 64;
  std::int64_t span = item;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t k = order[i];
    if (random.chance(25)) span += random.below(5) * item;
    if (random.chance(10)) span += random.below(7);
    out.strides[k] = span;
    if (may_flip && random.chance(15)) {
      out.at += span * (extents[k] - 1);
      out.strides[k] = -span;
    }
    span *= extents[k];
  }
  out.bytes = 2 * span + out.at + 80;
  return out;
}

inline std::int64_t log_uniform(Random& random, std::int64_t limit) {
  std::int64_t n = 1 + random.below(3);
  while (n < limit && random.chance(70)) n = n * 2 + random.below(2);
  return std::min(n, limit);
}

// Random shape, some axes factored in two loops, random storage on both sides.
inline OwnedJob random_job(Random& random, std::int64_t most, bool casts) {
  OwnedJob out;
  const std::int64_t axes = random.in(0, 4);
  std::int64_t budget = most;
  for (std::int64_t a = 0; a < axes; ++a) {
    const std::int64_t length = random.chance(10) ? 1 : log_uniform(random, std::max<std::int64_t>(1, budget));
    budget = std::max<std::int64_t>(1, budget / length);
    const std::int64_t inner = length % 2 == 0 && random.chance(30) ? length / 2 : length;
    if (inner != length) {
      out.extents.push_back(2);
      out.axis.push_back(static_cast<int>(a));
      out.steps.push_back(inner);
    }
    out.extents.push_back(inner);
    out.axis.push_back(static_cast<int>(a));
    out.steps.push_back(1);
    out.origin.push_back(length == 1 && random.chance(50) ? 0 : random.below(700));
    out.shape.push_back(length == 1 && out.origin.back() == 0 ? 1 : out.origin.back() + length + random.below(9));
  }
  if (random.chance(3) && !out.extents.empty()) out.extents[0] = 0;
  out.from = static_cast<DType>(random.below(kDTypeCount));
  out.wire = casts && random.chance(60) ? static_cast<DType>(random.below(kDTypeCount)) : out.from;
  out.to = casts && random.chance(60) ? static_cast<DType>(random.below(kDTypeCount)) : out.wire;
  const Storage src = random_storage(random, out.extents, item_size(out.from), true);
  const Storage dst = random_storage(random, out.extents, item_size(out.to), true);
  out.src_strides = src.strides;
  out.dst_strides = dst.strides;
  if (random.chance(10) && !out.extents.empty())
    out.src_strides[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(out.extents.size())))] = 0;
  out.src_at = src.at;
  out.dst_at = dst.at;
  out.src = random_bytes(random, src.bytes);
  out.dst = random_bytes(random, dst.bytes);
  return out;
}

struct Batch {
  std::vector<OwnedJob> owned;
  std::vector<DigestKeys> keys;
  std::vector<bool> writes;
  std::vector<Job> jobs() {
    std::vector<Job> out;
    for (std::size_t i = 0; i < owned.size(); ++i)
      out.push_back(owned[i].job(i % 5 == 4 ? nullptr : &keys[i], writes[i]));
    return out;
  }
};

inline Batch random_batch(std::uint64_t seed, int count, std::int64_t most, bool casts) {
  Random random(seed);
  Batch out;
  for (int i = 0; i < count; ++i) {
    out.owned.push_back(random_job(random, most, casts));
    out.keys.push_back(DigestKeys::make(seed % 3, "t" + std::to_string(i), out.owned.back().shape));
    out.writes.push_back(!random.chance(15));
  }
  return out;
}

}  // namespace refit::kernel::testing
