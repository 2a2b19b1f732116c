// Segments of a request, checked against the lengths that were lent, and gathered into packed bytes.
#pragma once
#include <span>

#include "transport/transport.h"

namespace refit::transport {

// Packed bytes of all segments. kInvalid, naming the segment, when one leaves its region or the sum overflows.
Result<std::int64_t> check_segments(BucketId bucket, std::span<const Segment> segments,
                                    std::span<const std::int64_t> region_bytes);
// Calls f(offset) for every run of a checked segment that is not empty, in its order.
template <typename F>
void each_run(const Segment& s, F&& f) {
  for (std::int64_t e : s.extents)
    if (e == 0) return;
  if (s.run_bytes == 0) return;
  Dims index(s.extents.size(), 0);
  std::int64_t at = s.offset;
  while (true) {
    f(at);
    // The next step in row-major order: the last axis that is not at its end advances, those behind it start over.
    std::size_t k = s.extents.size();
    while (k > 0 && index[k - 1] + 1 == s.extents[k - 1]) {
      --k;
      at -= index[k] * s.strides[k];
      index[k] = 0;
    }
    if (k == 0) return;
    ++index[k - 1];
    at += s.strides[k - 1];
  }
}
// Appends the bytes of a checked segment whose region starts at `region`.
void gather(const Segment& segment, const std::byte* region, Bytes& out);

}  // namespace refit::transport
