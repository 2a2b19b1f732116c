#include "core/segment.h"

#include "core/checked.h"

namespace refit {

Result<std::int64_t> packed_bytes(const Segment& s) {
  if (s.extents.size() != s.strides.size())
    return Error(Code::kInvalid, "segment has different numbers of extents and strides");
  if (s.run_bytes < 0) return Error(Code::kInvalid, "segment has a negative run length");
  const auto steps = checked_extent_product(s.extents);
  const auto bytes = steps ? checked_mul(*steps, s.run_bytes) : std::nullopt;
  if (!bytes) return Error(Code::kInvalid, "segment size overflows 63 bits or an extent is negative");
  for (std::int64_t e : s.extents)
    if (e == 0) return std::int64_t{0};
  return *bytes;
}

Result<ByteRange> touched(const Segment& s) {
  REFIT_ASSIGN(const std::int64_t bytes, packed_bytes(s));
  if (bytes == 0) return ByteRange{};
  const Error overflow(Code::kInvalid, "segment address overflows 63 bits");
  std::int64_t lo = s.offset, hi = s.offset;
  for (std::size_t k = 0; k < s.extents.size(); ++k) {
    const auto span = checked_mul(s.extents[k] - 1, s.strides[k]);
    if (!span) return overflow;
    const auto moved = checked_add(*span < 0 ? lo : hi, *span);
    if (!moved) return overflow;
    (*span < 0 ? lo : hi) = *moved;
  }
  const auto end = checked_add(hi, s.run_bytes);
  if (!end) return overflow;
  return ByteRange{lo, *end};
}

}  // namespace refit
