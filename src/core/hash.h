// Stable 128-bit hash (XXH3-128 of the xxHash library, canonical byte order). Same bytes, same hash on every machine.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace refit {

struct Hash128 {
  std::uint64_t hi = 0, lo = 0;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  // 32 lower-case hex digits, canonical order.
  std::string hex() const;
  static std::optional<Hash128> from_hex(std::string_view text);
};

Hash128 hash128(std::span<const std::byte> bytes);
Hash128 hash128(std::string_view text);

// Streaming form. *thread-compatible*.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  Hasher& add(std::span<const std::byte> bytes);
  // Length-prefixed, so that ("ab","c") and ("a","bc") differ.
  Hasher& add_text(std::string_view text);
  Hasher& add_u64(std::uint64_t v);  // little-endian
  Hasher& add_i64(std::int64_t v) { return add_u64(static_cast<std::uint64_t>(v)); }
  Hash128 finish() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace refit
