// Megatron's pipelines: which stage and virtual chunk has which layers.
#pragma once
#include <string>
#include <string_view>

#include "model/sides/side.h"

namespace refit::model {

// A layout as Megatron writes it without its commas ("Ettt|(tt|)*29m|L": E embedding, t decoder layer, m draft layer,
// L loss), with equal stages and runs of layers counted: equal for texts that mean the same. Errors: kInvalid.
Result<std::string> canonical_pipeline(std::string_view text);

// Fills in vpp, which a layout implies. Errors: kInvalid for a layout whose stages are no multiple of pp, or that comes
// with another key for the same.
Status complete_pipeline(Spec& spec);

// Errors: kInvalid naming the key and the configuration's number of layers.
Result<Pipeline> megatron_pipeline(const Spec& spec, const ModelConfig& config);

}  // namespace refit::model
