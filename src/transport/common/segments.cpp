#include "transport/common/segments.h"

namespace refit::transport {

Result<std::int64_t> check_segments(BucketId bucket, std::span<const Segment> segments,
                                    std::span<const std::int64_t> region_bytes) {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    const auto refuse = [&](const std::string& why) {
      return Error(Code::kInvalid,
                   "segment " + std::to_string(i) + " of bucket " + std::to_string(bucket.value) + " " + why);
    };
    if (s.region >= region_bytes.size())
      return refuse("names region " + std::to_string(s.region) + " of " + std::to_string(region_bytes.size()));
    REFIT_ASSIGN(const ByteRange range, touched(s));
    if (range.lo < 0 || range.hi > region_bytes[s.region])
      return refuse("leaves its region").amounts(range.lo < 0 ? range.lo : range.hi, region_bytes[s.region]);
    REFIT_ASSIGN(const std::int64_t bytes, packed_bytes(s));
    const auto sum = checked_add(total, bytes);
    if (!sum) return refuse("makes the bucket overflow");
    total = *sum;
  }
  return total;
}

void gather(const Segment& s, const std::byte* region, Bytes& out) {
  each_run(s, [&](std::int64_t at) { out.insert(out.end(), region + at, region + at + s.run_bytes); });
}

}  // namespace refit::transport
