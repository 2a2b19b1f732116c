// Element types of logical tensors and of storage.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace refit {

enum class DType : std::uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64, kF8E4M3, kF8E5M2 };
inline constexpr int kDTypeCount = 12;

// Bytes of one element: 1, 2, 4 or 8.
std::int64_t item_size(DType t);
// Names of layout files: "bool", "u8", …, "bf16", "f8_e4m3".
std::string_view to_string(DType t);
std::optional<DType> dtype_from_string(std::string_view name);
bool is_float(DType t);

}  // namespace refit
