// hf: the checkpoint itself, one rank, every tensor whole.
#include "model/sides/side.h"

namespace refit::model {

const Side& hf_side() {
  using namespace op;
  static const Side side{
      .name = "hf",
      .names = Names::kFused,
      .keys = {{"naming", 1, "per-expert|fused"}},
      .axes = [](const Spec&) { return std::vector<Mesh::Axis>{}; },
      .rules =
          [](const Spec& spec) {
            const Program whole{load(0)};
            std::vector<SideRule> rules;
            for (int k = 0; k < kKindCount; ++k) rules.push_back({static_cast<Kind>(k), Per::kTensor, whole});
            if (!spec.fused()) return rules;
            rules[static_cast<std::size_t>(Kind::kExpertGateUp)] = {
                Kind::kExpertGateUp, Per::kStack, {load(0), load(1), concat(0, 2), stack()}};
            rules[static_cast<std::size_t>(Kind::kExpertDown)] = {Kind::kExpertDown, Per::kStack, {load(0), stack()}};
            return rules;
          },
      .check = [](const Spec&, const ModelConfig&) { return Status(); }};
  return side;
}

}  // namespace refit::model
