// Sizes as people write them.
#pragma once
#include <cstdint>
#include <string>

#include "core/result.h"

namespace refit {

// "32MiB", "1.5GiB", "4096" in bytes. Errors: kInvalid naming the option.
Result<std::int64_t> parse_bytes(const std::string& text, const std::string& option);

}  // namespace refit
