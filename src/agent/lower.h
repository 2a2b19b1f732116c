// Lowering: from a rank's plan to what its executor works with.
#pragma once
#include "install/install.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "plan/plan.h"

namespace refit::agent {

// The strided bytes of a piece at its sender: what a pull lane asks for.
Segment segment_of(const plan::Geometry& geometry, std::uint32_t buffer, std::int64_t offset);

// A target's landing table. `member_of` maps a source rank to its member number.
install::LandingTable lower_target(const plan::RankPlan& plan, const model::Layout& target,
                                   const model::RankLayout& rank, const std::vector<std::uint32_t>& member_of,
                                   const plan::Options& options);

// Byte ranges of buffer `buffer` where no holding lies.
std::vector<std::pair<std::int64_t, std::int64_t>> gaps_of(const model::RankLayout& rank, std::uint32_t buffer);

}  // namespace refit::agent
