// Inside model: explicit layouts as text, in the form of layout files.
#pragma once
#include <string>
#include <vector>

#include "model/layout.h"

namespace refit::model {

std::string write_explicit(const Catalogue& catalogue, const std::vector<RankLayout>& ranks, std::int64_t instances);

}  // namespace refit::model
