// Inside model: explicit layouts as text, in the form of layout files.
#pragma once
#include <string>
#include <vector>

#include "model/layout.h"

namespace refit::model {

// One entry a tensor and a holding, as files have it; or with series of them, as it travels.
enum class Text : std::uint8_t { kOneByOne, kSeries };

std::string write_explicit(const Catalogue& catalogue, const std::vector<RankLayout>& ranks, std::int64_t instances,
                           Text form);

}  // namespace refit::model
