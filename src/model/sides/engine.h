// What vLLM and SGLang have in common: fused qkv and gate_up, K and V heads shared by neighbours when there are more
// ranks than heads, vocabulary padded to 64, experts in one array.
#pragma once
#include "model/sides/side.h"

namespace refit::model {

// `mlp`: the mesh axes over which dense and shared MLPs are cut.
// `placement`: which experts a rank has (kLinear or kRobin).
std::vector<SideRule> engine_rules(std::string_view mlp, CutRule placement = CutRule::kLinear);
// Heads and vocabulary over tp, MLP widths over `width` ranks, draft layers. `label` names the engine.
Status engine_check(std::string_view label, const Spec& spec, const ModelConfig& config, std::string_view mlp,
                    std::int64_t width);
// shared=fused: the shared expert stands behind a rank's routed ones, in their arrays.
inline constexpr SpecKey kSharedKey{"shared", 1, "fused"};

// quant=: matrices are held in codes with scales (block_format.h); keep=, a word in the names of those that are not, or
// several with + between them; keep_first=, keep_last=: so many layers at either end are not.
inline constexpr SpecKey kQuantKeys[] = {{"quant", 1, "fp8_block|fp8_block_pow2|fp8_channel|fp8_tensor|mxfp8"},
                                         {"keep", 1, "*+"},
                                         {"keep_first", 0},
                                         {"keep_last", 0}};

}  // namespace refit::model
