// Formats in which engines hold quantised weights, as layouts see them: codes in the matrix's shape, and a scale for
// each block beside them. The arithmetic stands in codec/quantise.h under the same names.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/core.h"

namespace refit::model {

struct BlockFormat {
  std::string_view name;
  std::string_view suffix;          // of the scales, behind the weight's name
  std::int64_t rows = 0, cols = 0;  // of a block; 0: as many as the matrix has
  DType scale = DType::kF32;

  // Of the scales of a matrix: a number for each block, {1} for one of all. `shape` has two axes.
  Dims scales(const Dims& shape) const;
};

// fp8_block, fp8_block_pow2, fp8_channel, fp8_tensor, mxfp8.
std::span<const BlockFormat> block_formats();
const BlockFormat* block_format(std::string_view name);  // null: none of that name
std::string block_format_names(char separator);

}  // namespace refit::model
