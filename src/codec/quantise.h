// Quantised weights: E4M3 codes with one scale per block. Formats, formulas and their sources: schema/quantised.md.
// Blocks are those of the logical tensor: a part that begins or ends inside a block gets the whole tensor's codes once
// the amax of that block is the whole block's (block_amax of each part, the largest of each cell, scales_of,
// quantise_with).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"

namespace refit::codec {

enum class ScaleKind : std::uint8_t {
  kF32,         // amax / 448
  kPowerOfTwo,  // the least power of two ≥ amax / 448, as f32
  kE8M0,        // one byte b for 2^(b − 127), b − 127 = floor(log2 amax) − 8 (OCP MX 1.0)
};

inline constexpr float kMostE4M3 = 448;

// value ≈ code × scale of its block.
struct Quant {
  std::int64_t block_rows = 128, block_cols = 128;  // 0: as many as the tensor has
  ScaleKind scale = ScaleKind::kF32;
  std::uint8_t least_byte = 0;  // of E8M0 scales: 1 where a kernel cannot read 2^−127

  std::int64_t scale_bytes() const { return scale == ScaleKind::kE8M0 ? 1 : 4; }
};
constexpr Quant fp8_block(ScaleKind scale = ScaleKind::kF32) { return {128, 128, scale}; }
constexpr Quant fp8_channel() { return {1, 0}; }
constexpr Quant fp8_tensor() { return {0, 0}; }
constexpr Quant mxfp8(std::uint8_t least_byte = 0) { return {1, 32, ScaleKind::kE8M0, least_byte}; }

// By the names of model/block_format.h; none of that name: nothing.
std::optional<Quant> quant_named(std::string_view name);

// A box of a logical matrix [out, in], and how its elements lie in memory.
struct Part {
  std::int64_t row = 0, col = 0;    // origin in the tensor
  std::int64_t rows = 0, cols = 0;  // extent
  std::int64_t stride = 0;          // elements from one row to the next, ≥ cols
  DType dtype = DType::kBF16;       // bf16 or f32

  std::int64_t elements() const { return rows * cols; }
};
// Codes of a part are dense: [rows, cols] bytes.

// The blocks that a part touches. Grids of amax and of scales are row-major over these.
struct Cells {
  std::int64_t row = 0, col = 0;    // first block
  std::int64_t rows = 0, cols = 0;  // blocks
  REFIT_HD std::int64_t count() const { return rows * cols; }
};
Cells cells_of(const Quant&, const Part&);

// What a weight should not hold. ±inf take the largest code of their sign and NaN the NaN code; neither counts for
// amax.
struct Findings {
  std::int64_t nans = 0, infinities = 0;
  std::int64_t nan_row = -1, nan_col = -1;  // the first in row-major order, in the tensor

  void add(const Findings& other);
  friend bool operator==(const Findings&, const Findings&) = default;
};

// One table per instruction set, all with the same results. Arguments as checked by the functions below. Nothing here
// allocates or throws. *pure*, *thread-safe*.
struct QuantOps {
  const char* name;   // a name of kernel::available_isas()
  const char* needs;  // what the processor must have
  Findings (*amax)(const Quant&, const Part&, const std::byte* in, float* amax) noexcept;
  void (*encode)(const Quant&, const Part&, const std::byte* in, const std::byte* scales, std::byte* codes) noexcept;
  // Both in one pass over memory.
  Findings (*quantise)(const Quant&, const Part&, const std::byte* in, std::byte* scales, std::byte* codes) noexcept;
};
const QuantOps& quant_reference();                              // scalar, the specification
std::span<const QuantOps* const> all_quant_for_this_machine();  // best first, the reference last
const QuantOps& quant_ops();                                    // follows kernel::chosen_isa()

// Each of the following checks sizes first: kInvalid, naming the argument and the bytes needed.

// Largest finite magnitude of each block of the part, 0 where there is none.
Result<Findings> block_amax(const Quant&, const Part&, std::span<const std::byte> in, std::span<float> amax);
// One scale per amax: always finite and > 0, 1 (E8M0: least_byte) for 0. Errors: kInvalid for an amax that is negative
// or not finite, with its index.
Status scales_of(const Quant&, std::span<const float> amax, std::span<std::byte> scales);
// Codes under given scales. Errors: kInvalid for a scale that is not finite and > 0, with its cell.
Status quantise_with(const Quant&, const Part&, std::span<const std::byte> in, std::span<const std::byte> scales,
                     std::span<std::byte> codes);
// Scales and codes of a part whose blocks lie wholly in it.
Result<Findings> quantise(const Quant&, const Part&, std::span<const std::byte> in, std::span<std::byte> scales,
                          std::span<std::byte> codes);
// code × scale in f32, rounded to nearest even where the part is bf16; `out` lies as the part says. Errors as
// quantise_with.
Status dequantise(const Quant&, const Part&, std::span<const std::byte> codes, std::span<const std::byte> scales,
                  std::span<std::byte> out);

// A block size and a part that the functions above would take. Errors: kInvalid, kUnsupported.
Status check_part(const Quant&, const Part&);

// Scale of one block.
float scale_of(const Quant&, float amax);
// E4M3 of y: nearest even, beyond ±448 the largest, NaN 0x7f with y's sign.
std::uint8_t e4m3_from_float(float y);
float e4m3_to_float(std::uint8_t code);

}  // namespace refit::codec
