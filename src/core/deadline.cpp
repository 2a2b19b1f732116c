#include "core/deadline.h"

#include <time.h>

#include <algorithm>
#include <limits>

namespace refit {

std::int64_t monotonic_ns() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::int64_t>(ts.tv_sec) * kNsPerSecond + ts.tv_nsec;
}

Deadline Deadline::after_ns(std::int64_t ns) {
  return Deadline(monotonic_ns() + std::clamp<std::int64_t>(ns, 0, kFarthestNs));
}

// Compared before the cast, which is undefined for what an integer cannot hold.
Deadline Deadline::after_s(double seconds) {
  const double ns = seconds * 1e9;
  if (!(ns > 0)) return after_ns(0);
  return after_ns(ns < static_cast<double>(kFarthestNs) ? static_cast<std::int64_t>(ns) : kFarthestNs);
}

std::int64_t Deadline::left_ns() const { return std::max<std::int64_t>(0, at_ - monotonic_ns()); }

int Deadline::left_ms() const {
  const std::int64_t ms = (left_ns() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

}  // namespace refit
