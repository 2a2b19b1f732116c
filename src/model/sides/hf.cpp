// hf: the checkpoint itself, one rank, every tensor whole.
#include "model/sides/side.h"

namespace refit::model {

const Side& hf_side() {
  using namespace op;
  static const Side side{.name = "hf",
                         .names = Names::kFused,
                         .name_of = fused_names,
                         .keys = {{"naming", 1, "per-expert|fused"}},
                         .grids = [](const Spec&) { return std::vector<std::vector<Mesh::Axis>>{{}}; },
                         .rules =
                             [](const Spec& spec, const ModelConfig&) {
                               std::vector<SideRule> rules;
                               const auto add = [&](Kind kind, Program stacked) {
                                 if (spec.fused() && is_per_expert(kind))
                                   rules.push_back({kind, Per::kStack, std::move(stacked)});
                                 else
                                   rules.push_back({kind, Per::kTensor, {load(0)}});
                               };
                               for (int k = 0; k < kKindCount; ++k)
                                 if (static_cast<Kind>(k) == Kind::kExpertGateUp)
                                   add(Kind::kExpertGateUp, {load(0), load(1), concat(0, 2), stack()});
                                 else
                                   add(static_cast<Kind>(k), {load(0), stack()});
                               return rules;
                             },
                         .check = [](const Spec&, const ModelConfig&) { return Status(); }};
  return side;
}

}  // namespace refit::model
