// Checked 64-bit arithmetic for every length, offset, count and product that comes from outside.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

namespace refit {

inline std::optional<std::int64_t> checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<std::int64_t> checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<std::uint64_t> checked_add_u(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<std::uint64_t> checked_mul_u(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
// Product of non-negative extents in which a zero counts as 1, so that a zero extent cannot hide an overflow.
inline std::optional<std::int64_t> checked_extent_product(std::span<const std::int64_t> extents) {
  std::int64_t r = 1;
  for (std::int64_t e : extents) {
    if (e < 0) return std::nullopt;
    if (__builtin_mul_overflow(r, e == 0 ? 1 : e, &r)) return std::nullopt;
  }
  return r;
}
// Value-preserving integer conversion.
template <typename To, typename From>
std::optional<To> narrow(From v) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const To r = static_cast<To>(v);
  if (static_cast<From>(r) != v || ((r < To{}) != (v < From{}))) return std::nullopt;
  return r;
}
inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

}  // namespace refit
