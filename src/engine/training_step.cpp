#include "engine/training_step.h"

#include <cstring>

namespace refit::engine {
namespace {

// Finaliser of splitmix64 (public domain constants): a bijection with good avalanche, cheap per element.
inline std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
inline std::uint64_t at(std::uint64_t key, std::int64_t linear) {
  return mix(key + static_cast<std::uint64_t>(linear) * 0x9e3779b97f4a7c15ull);
}

std::uint64_t key_of(std::uint64_t seed, std::uint64_t salt, std::string_view tensor) {
  return Hasher().add_u64(seed).add_u64(salt).add_text(tensor).finish().lo;
}

// T: unsigned bits of the float; Exponent: mask of its exponent field. The magnitude moves, sign stays.
template <typename T, T kExponent>
void step_elements(std::uint64_t key, std::uint64_t threshold, std::int64_t linear, std::byte* data,
                   std::int64_t count) {
  constexpr T kSign = static_cast<T>(T{1} << (sizeof(T) * 8 - 1));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t h = at(key, linear + i);
    if ((h & 0xffffffffu) >= threshold) continue;
    T bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    const T magnitude = static_cast<T>(bits & static_cast<T>(~kSign));
    const T exponent = static_cast<T>(magnitude & kExponent);
    if (exponent == kExponent || exponent == 0) continue;
    const T ulps = static_cast<T>(1 + (h >> 33) % 3);
    const bool up = (h >> 32) & 1u;
    const T moved = static_cast<T>(up ? magnitude + ulps : magnitude - ulps);
    const T moved_exponent = static_cast<T>(moved & kExponent);
    if (moved_exponent == kExponent || moved_exponent == 0) continue;
    const T out = static_cast<T>((bits & kSign) | moved);
    std::memcpy(data + i * static_cast<std::int64_t>(sizeof(T)), &out, sizeof(T));
  }
}

// Uniform bits → a value in about ±0.05 with varied exponents: sign, exponent 2^-5…2^-9, random mantissa.
float small_value(std::uint64_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h >> 63) << 31;
  const std::uint32_t exponent = 127u - 5u - static_cast<std::uint32_t>((h >> 60) & 3u);
  const std::uint32_t bits = sign | exponent << 23 | static_cast<std::uint32_t>(h & 0x7f0000u);  // exact in bf16
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

template <typename T>
void put(std::byte* data, std::int64_t i, T value) {
  std::memcpy(data + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

void apply_step(const StepRule& rule, std::int64_t step, std::string_view tensor, DType dtype, std::int64_t linear,
                std::byte* data, std::int64_t count) {
  const std::uint64_t key = key_of(rule.seed, static_cast<std::uint64_t>(step) + 1, tensor);
  const auto threshold = static_cast<std::uint64_t>(rule.share * 4294967296.0);
  if (dtype == DType::kBF16) return step_elements<std::uint16_t, 0x7f80>(key, threshold, linear, data, count);
  if (dtype == DType::kF16) return step_elements<std::uint16_t, 0x7c00>(key, threshold, linear, data, count);
  if (dtype == DType::kF32) return step_elements<std::uint32_t, 0x7f800000u>(key, threshold, linear, data, count);
}

void initial_values(std::uint64_t seed, std::string_view tensor, DType dtype, std::int64_t linear, std::byte* data,
                    std::int64_t count) {
  const std::uint64_t key = key_of(seed, 0, tensor);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t h = at(key, linear + i);
    const float f = small_value(h);
    std::uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if (dtype == DType::kBF16) {
      put(data, i, static_cast<std::uint16_t>(bits >> 16));
    } else if (dtype == DType::kF32) {
      put(data, i, bits);
    } else if (dtype == DType::kF16) {
      // Same value: exponent rebased from 127 to 15, seven mantissa bits fit in ten.
      const auto exponent = static_cast<std::uint16_t>(((bits >> 23) & 0xffu) - 112u);
      put(data, i,
          static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | static_cast<std::uint32_t>(exponent << 10) |
                                     (bits >> 13 & 0x3ffu)));
    } else {
      const std::int64_t item = item_size(dtype);
      std::memcpy(data + i * item, &h, static_cast<std::size_t>(item));
      if (dtype == DType::kBool) put(data, i, static_cast<std::uint8_t>(h & 1u));
    }
  }
}

}  // namespace refit::engine
