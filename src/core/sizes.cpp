#include "core/sizes.h"

#include <charconv>
#include <cmath>

namespace refit {
namespace {

struct SizeUnit {
  const char* name;
  std::int64_t bytes;
};
constexpr SizeUnit kSizeUnits[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", std::int64_t{1} << 40},
                                   {"B", 1},         {"", 1}};

}  // namespace

Result<std::int64_t> parse_bytes(const std::string& text, const std::string& option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  for (const SizeUnit& u : kSizeUnits) {
    if (error != std::errc() || unit != u.name) continue;
    const double bytes = value * static_cast<double>(u.bytes);
    if (bytes >= 1 && bytes < 9e18 && bytes == std::floor(bytes)) return static_cast<std::int64_t>(bytes);
  }
  return Error(Code::kInvalid, option + ": '" + text + "' is not a positive size such as 4096, 32MiB or 1.5GiB");
}

}  // namespace refit
