// Pages of this room's mappings: rounding, alignment to huge pages, faulting in. Private to memory.
#pragma once
#include "core/core.h"

namespace refit::memory {

std::int64_t page_bytes();
// `bytes` rounded up to whole pages. kInvalid when negative or past what the address space can hold.
Result<std::int64_t> round_to_pages(std::int64_t bytes, std::string_view what);
// mmap whose start is aligned to 2 MiB when the length reaches it, so that huge pages can back all of it.
Result<std::byte*> map_pages(std::int64_t bytes, int protection, int flags, int fd, std::string_view what);
// Makes every page present now, on several threads when large. kExhausted when the machine cannot provide them.
enum class Fault : std::uint8_t { kRead, kWrite };
Status fault_in(std::byte* data, std::int64_t bytes, Fault how, std::string_view what);

}  // namespace refit::memory
