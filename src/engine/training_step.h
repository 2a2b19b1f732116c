// A training-like change of the weights: a pure function of (seed, step, tensor name, logical index), so that any rank,
// layout or witness computes the same bytes. A stated share of the elements moves by 1 to 3 units in the last place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/core.h"

namespace refit::engine {

struct StepRule {
  std::uint64_t seed = 1;
  double share = 0.01;  // of the elements, in [0, 1]
};

// Applies step `step` to `count` consecutive logical elements of `tensor` starting at `linear`. Types f32, bf16, f16
// change; others stay. Zeros, subnormals, infinities and NaNs stay; nothing becomes one of them.
void apply_step(const StepRule& rule, std::int64_t step, std::string_view tensor, DType dtype, std::int64_t linear,
                std::byte* data, std::int64_t count);

// Initial weights without a checkpoint: values of roughly ±0.05, by (seed, tensor, index).
void initial_values(std::uint64_t seed, std::string_view tensor, DType dtype, std::int64_t linear, std::byte* data,
                    std::int64_t count);

}  // namespace refit::engine
