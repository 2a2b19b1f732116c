#include "model/block_format.h"

#include <algorithm>

namespace refit::model {

std::span<const BlockFormat> block_formats() {
  static constexpr BlockFormat kFormats[] = {{"fp8_block", "_scale_inv", 128, 128, DType::kF32},
                                             {"fp8_block_pow2", "_scale_inv", 128, 128, DType::kF32},
                                             {"fp8_channel", "_scale", 1, 0, DType::kF32},
                                             {"fp8_tensor", "_scale", 0, 0, DType::kF32},
                                             {"mxfp8", "_scale", 1, 32, DType::kU8}};
  return kFormats;
}

const BlockFormat* block_format(std::string_view name) {
  const auto all = block_formats();
  const auto at = std::ranges::find(all, name, &BlockFormat::name);
  return at == all.end() ? nullptr : &*at;
}

std::string block_format_names(char separator) {
  std::string out;
  for (const BlockFormat& f : block_formats()) out += (out.empty() ? "" : std::string(1, separator)) + std::string(f.name);
  return out;
}

Dims BlockFormat::scales(const Dims& shape) const {
  if (rows == 0 && cols == 0) return {1};
  return {rows == 0 ? 1 : ceil_div(shape[0], rows), cols == 0 ? 1 : ceil_div(shape[1], cols)};
}

}  // namespace refit::model
