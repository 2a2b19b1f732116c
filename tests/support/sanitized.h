// True where a sanitizer makes code three to ten times slower: tests that draw many cases draw fewer there.
#pragma once

namespace refit::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace refit::test
