#include "transport/nixl/cut.h"

#include <algorithm>
#include <cstring>

#include "transport/common/segments.h"

namespace refit::transport::nixl {
namespace {

class Cutter {
 public:
  explicit Cutter(std::int64_t packed) { out_.packed = out_.slot = packed; }
  // Joined with the run before it where both sides go on.
  void run(std::uint32_t region, std::int64_t from, std::int64_t bytes, std::int64_t to) {
    if (!out_.runs.empty()) {
      Run& last = out_.runs.back();
      if (last.region == region && last.from + last.bytes == from && last.to + last.bytes == to) {
        last.bytes += bytes;
        return;
      }
    }
    if (!over()) out_.runs.push_back({region, from, bytes, to});
  }
  bool over() const { return out_.runs.size() > kMostRuns; }
  std::int64_t slot() const { return out_.slot; }
  void loose(const Segment& s, const ByteRange& range, std::int64_t to) {
    out_.loose.push_back({s, out_.slot, range.lo, to});
    run(s.region, range.lo, range.hi - range.lo, out_.slot);
    out_.slot += range.hi - range.lo;
  }
  Cut take() {
    std::vector<Run> whole = std::move(out_.runs);
    out_.runs.clear();
    for (Run r : whole)
      while (r.bytes > 0) {
        const std::int64_t n = std::min(r.bytes, kHandleBytes);
        out_.runs.push_back({r.region, r.from, n, r.to});
        r.from += n, r.to += n, r.bytes -= n;
      }
    return std::move(out_);
  }

 private:
  Cut out_;
};

}  // namespace

Result<Cut> cut(std::span<const Segment> segments, std::int64_t packed, std::int64_t limit) {
  Cutter cutter(packed);
  std::int64_t to = 0;
  for (const Segment& s : segments) {
    REFIT_ASSIGN(const std::int64_t bytes, packed_bytes(s));
    if (bytes == 0) continue;
    REFIT_ASSIGN(const ByteRange range, touched(s));
    const std::int64_t span = range.hi - range.lo;
    // One run, or runs that touch: nothing is read too much.
    if (s.run_bytes < kShortRun && s.run_bytes < bytes && span <= kMostOverRead * bytes &&
        span <= limit - cutter.slot()) {
      cutter.loose(s, range, to);
    } else {
      each_run(s, [&, at = to](std::int64_t from) mutable {
        cutter.run(s.region, from, s.run_bytes, at);
        at += s.run_bytes;
      });
    }
    to += bytes;
  }
  if (cutter.over())
    return Error(Code::kUnsupported, "the bucket has more than " + std::to_string(kMostRuns) +
                                         " runs of bytes for nixl: lower refit.bucket_bytes, or use tcp");
  return cutter.take();
}

void pick_out(const Cut& cut, std::byte* slot) {
  for (const Loose& l : cut.loose) {
    std::byte* to = slot + l.to;
    each_run(l.segment, [&](std::int64_t from) {
      std::memcpy(to, slot + l.span + (from - l.low), static_cast<std::size_t>(l.segment.run_bytes));
      to += l.segment.run_bytes;
    });
  }
}

}  // namespace refit::transport::nixl
