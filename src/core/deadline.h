// Deadline: a point on a monotonic clock. Every wait takes one; none is implied.
#pragma once
#include <cstdint>

namespace refit {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// Nanoseconds of CLOCK_MONOTONIC.
std::int64_t monotonic_ns();

class Deadline {
 public:
  static Deadline at_ns(std::int64_t monotonic) { return Deadline(monotonic); }
  // Negative: over at once. Far ones end at kFarthestNs.
  static Deadline after_ns(std::int64_t ns);
  // Likewise; what is not a number is over at once. Who takes seconds from outside refuses such values by name.
  static Deadline after_s(double seconds);
  static constexpr std::int64_t kFarthestNs = std::int64_t{1} << 61;  // 73 years
  std::int64_t ns() const { return at_; }
  // Nanoseconds left, 0 when over.
  std::int64_t left_ns() const;
  // Milliseconds left for poll(2)-like calls: rounded up, within int.
  int left_ms() const;
  bool over() const { return left_ns() == 0; }
  // The earlier of the two.
  Deadline sooner(Deadline other) const { return other.at_ < at_ ? other : *this; }
  // This deadline less a margin, so that an inner error arrives before the outer one (rule L1).
  Deadline minus_ns(std::int64_t margin) const { return Deadline(at_ - margin); }

 private:
  explicit Deadline(std::int64_t at) : at_(at) {}
  std::int64_t at_;
};

}  // namespace refit
