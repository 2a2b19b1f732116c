// Segments of a request, checked against the lengths that were lent, and gathered into packed bytes.
#pragma once
#include <span>

#include "transport/transport.h"

namespace refit::transport {

// Packed bytes of all segments. kInvalid, naming the segment, when one leaves its region or the sum overflows.
Result<std::int64_t> check_segments(BucketId bucket, std::span<const Segment> segments,
                                    std::span<const std::int64_t> region_bytes);
// Appends the bytes of a checked segment whose region starts at `region`.
void gather(const Segment& segment, const std::byte* region, Bytes& out);

}  // namespace refit::transport
