#include <algorithm>

#include "memory/memory.h"

namespace refit::memory {

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::kHost:
      return "host";
    case Kind::kHostShared:
      return "host_shared";
    case Kind::kDevice:
      break;
  }
  return "device";
}

Budget::Budget(std::int64_t limit_bytes) : limit_(std::max<std::int64_t>(0, limit_bytes)) {}

Status Budget::take(std::int64_t bytes, std::string_view what) {
  if (bytes < 0) return Error(Code::kInvalid, "negative size for " + std::string(what));
  std::int64_t used = used_.load();
  do {
    if (bytes > limit_ - used)
      return Error(Code::kExhausted, "memory budget has no room for " + std::string(what))
          .amounts(bytes, limit_ - used);
  } while (!used_.compare_exchange_weak(used, used + bytes));
  std::int64_t peak = peak_.load();
  while (used + bytes > peak && !peak_.compare_exchange_weak(peak, used + bytes)) {
  }
  return {};
}

void Budget::give(std::int64_t bytes) {
  const std::int64_t before = used_.fetch_sub(bytes);
  REFIT_CHECK(bytes >= 0 && before >= bytes);
}

}  // namespace refit::memory
