// Inside model: the rules that every explicit holding obeys.
#pragma once
#include <vector>

#include "model/layout.h"

namespace refit::model {

inline constexpr std::uint32_t kMaxExplicitRank = 1u << 20;  // ranks of explicit layouts lie below

// Errors: kInvalid naming tensor, rank, buffer and holding (by its position in the file).
Status check_catalogue(const Catalogue& catalogue);
Status check_rank(const Catalogue& catalogue, const RankLayout& rank);

}  // namespace refit::model
