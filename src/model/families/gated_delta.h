// What Qwen3-Next and Qwen3.5 share: gated attention in some layers, gated delta nets in the others, experts with one
// shared expert and its gate, draft layers under `mtp.`.
#pragma once
#include "model/families/family.h"

namespace refit::model::gated_delta {

inline constexpr std::string_view kFull = "!linear|mtp", kLinear = "linear", kAll = "*|mtp";

std::vector<ConfigKey> sizes();
LayerTrait linear_trait();
std::vector<Row> attention();  // of full layers
std::vector<Row> delta_net();  // of linear layers, less their input projections
std::vector<Row> shared_expert(std::string_view where);
std::vector<Row> drafts();

}  // namespace refit::model::gated_delta
