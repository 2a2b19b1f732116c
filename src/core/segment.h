// Segment: strided bytes without meaning. What a transport may know of a tensor.
#pragma once
#include <cstdint>

#include "core/box.h"

namespace refit {

// The bytes at region `region`, `offset` + Σ i_k·strides[k], each step moving `run_bytes` contiguous bytes.
// Order: row-major over extents; packed size = run_bytes × Π extents.
struct Segment {
  std::uint32_t region = 0;
  std::int64_t offset = 0;     // bytes, of the element with all indices 0
  std::int64_t run_bytes = 0;  // contiguous bytes at each step, ≥ 0
  Dims extents;                // steps per loop axis, outermost first
  Dims strides;                // bytes per step, may be negative or 0
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Lowest and one-past-highest byte that a segment touches, relative to its region; {0,0} when it is empty.
// Errors: kInvalid on negative extents, differing ranks, or overflow.
struct ByteRange {
  std::int64_t lo = 0, hi = 0;
};
Result<ByteRange> touched(const Segment& s);
Result<std::int64_t> packed_bytes(const Segment& s);

}  // namespace refit
