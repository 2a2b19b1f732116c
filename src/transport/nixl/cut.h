// Cut: how a bucket's segments become descriptors of the library.
#pragma once
#include <vector>

#include "transport/transport.h"

namespace refit::transport::nixl {

// Runs of at least this many bytes have a descriptor each. Shorter ones are read together with what lies between them,
// and picked out here, unless that more than doubles the bytes.
inline constexpr std::int64_t kShortRun = 4096;
inline constexpr std::int64_t kMostOverRead = 2;
// Of one handle of the library.
inline constexpr std::int64_t kHandleBytes = 16 << 20;
inline constexpr std::size_t kHandleRuns = 4096;
inline constexpr std::size_t kMostRuns = 1 << 20;  // of one bucket

struct Run {
  std::uint32_t region = 0;
  std::int64_t from = 0, bytes = 0;
  std::int64_t to = 0;  // in the slot
};
// A segment that was read with its gaps.
struct Loose {
  Segment segment;
  std::int64_t span = 0;  // where its lowest byte lies in the slot
  std::int64_t low = 0;   // that byte's offset in the region
  std::int64_t to = 0;    // where its packed bytes belong
};
// The slot holds the packed bytes, then room for what is read with gaps.
struct Cut {
  std::vector<Run> runs;  // none longer than kHandleBytes
  std::vector<Loose> loose;
  std::int64_t packed = 0, slot = 0;
};
// Of checked segments that come to `packed` bytes. Gaps are read only as far as the slot stays within `limit`.
// kUnsupported for more than kMostRuns.
Result<Cut> cut(std::span<const Segment> segments, std::int64_t packed, std::int64_t limit);
// After the reads: packs what was read with gaps.
void pick_out(const Cut& cut, std::byte* slot);

}  // namespace refit::transport::nixl
