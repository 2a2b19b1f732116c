// fsdp, tp and their products: DTensor shards of the module's own tensors. TP chunks first (Shard(0) or Shard(1) by the
// usual plan), FSDP2 then chunks axis 0 of what TP left. Chunks are ceil-sized, so later ranks may be short or empty.
#include "model/sides/side.h"

namespace refit::model {
namespace {

std::vector<Mesh::Axis> mesh_axes(const Spec& spec) {
  std::vector<Mesh::Axis> axes;
  for (const std::string& name : spec.axes) axes.push_back({name, spec.number(name)});
  return axes;
}

std::vector<SideRule> sharded_rules(const Spec& spec) {
  using namespace op;
  const Op tp_rows = cut(0, CutRule::kChunk, "tp"), tp_columns = cut(1, CutRule::kChunk, "tp"),
           fsdp = cut(0, CutRule::kChunk, "fsdp");
  std::vector<SideRule> rules{{Kind::kVocabulary, Per::kTensor, {load(0), tp_rows, fsdp}},
                              {Kind::kReplicated, Per::kTensor, {load(0), fsdp}},
                              {Kind::kQkv, Per::kTensor, {load(0), tp_rows, fsdp}},
                              {Kind::kRowParallel, Per::kTensor, {load(0), tp_columns, fsdp}},
                              {Kind::kGateUp, Per::kTensor, {load(0), tp_rows, fsdp}}};
  if (spec.fused()) {
    // Stacked modules are cut on the expert axis.
    rules.push_back({Kind::kExpertGateUp, Per::kStack, {load(0), load(1), concat(0, 2), stack(), tp_rows, fsdp}});
    rules.push_back({Kind::kExpertDown, Per::kStack, {load(0), stack(), tp_rows, fsdp}});
  } else {
    rules.push_back({Kind::kExpertGateUp, Per::kTensor, {load(0), tp_rows, fsdp}});
    rules.push_back({Kind::kExpertDown, Per::kTensor, {load(0), tp_columns, fsdp}});
  }
  return rules;
}

}  // namespace

const Side& sharded_side() {
  static const Side side{.name = "fsdp",
                         .names = Names::kFused,
                         .keys = {{"fsdp", 1}, {"tp", 1}, {"naming", 1, "per-expert|fused"}},
                         .axes = mesh_axes,
                         .rules = sharded_rules,
                         .check = [](const Spec&, const ModelConfig&) { return Status(); }};
  return side;
}

}  // namespace refit::model
