#include "core/hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // picks the widest vector form at run time; same digest
#endif

#include <array>
#include <bit>

namespace refit {
namespace {
Hash128 from_xxh(XXH128_hash_t h) { return {h.high64, h.low64}; }
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}
}  // namespace

std::string Hash128::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(32);
  for (std::uint64_t word : {hi, lo})
    for (int shift = 60; shift >= 0; shift -= 4) out.push_back(kDigits[(word >> shift) & 15u]);
  return out;
}

std::optional<Hash128> Hash128::from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  std::array<std::uint64_t, 2> words{};
  for (std::size_t i = 0; i < 32; ++i) {
    const int d = hex_digit(text[i]);
    if (d < 0) return std::nullopt;
    words[i / 16] = words[i / 16] << 4 | static_cast<std::uint64_t>(d);
  }
  return Hash128{words[0], words[1]};
}

Hash128 hash128(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }
Hash128 hash128(std::string_view text) { return hash128(std::as_bytes(std::span(text.data(), text.size()))); }

struct Hasher::Impl {
  XXH3_state_t* state = XXH3_createState();
  Impl() { XXH3_128bits_reset(state); }
  ~Impl() { XXH3_freeState(state); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

Hasher::Hasher() : impl_(std::make_unique<Impl>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

Hasher& Hasher::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(impl_->state, bytes.data(), bytes.size());
  return *this;
}
Hasher& Hasher::add_u64(std::uint64_t v) {
  if constexpr (std::endian::native == std::endian::big) v = __builtin_bswap64(v);
  return add(std::as_bytes(std::span(&v, 1)));
}
Hasher& Hasher::add_text(std::string_view text) {
  add_u64(text.size());
  return add(std::as_bytes(std::span(text.data(), text.size())));
}
Hash128 Hasher::finish() const { return from_xxh(XXH3_128bits_digest(impl_->state)); }

}  // namespace refit
