// Inside plan: that no byte of a target is written by two logical elements.
#pragma once
#include <span>

#include "plan/planner.h"

namespace refit::plan {

// Adds a finding for each pair of holdings of one rank that share bytes (holdings of one logical tensor may, where each
// byte means the same element), and for each holding that overlaps itself. Errors: kExhausted naming tensor and cap
// where strides are too tangled to decide. `group_of` maps the layout's TensorIds to logical tensors.
Status find_overlaps(const model::Layout& layout, const model::RankLayout& rank,
                     std::span<const std::uint32_t> group_of, Findings& out);

}  // namespace refit::plan
