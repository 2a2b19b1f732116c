// fsdp, tp and their products: DTensor shards of the module's own tensors. TP chunks first (Shard(0) or Shard(1) by the
// usual plan), FSDP2 then chunks axis 0 of what TP left. Chunks are ceil-sized, so later ranks may be short or empty.
// With flat= a FlatLayout takes the place of these rules.
#include "model/sides/side.h"

namespace refit::model {
namespace {

std::vector<std::vector<Mesh::Axis>> mesh_axes(const Spec& spec) {
  std::vector<Mesh::Axis> axes;
  for (const std::string& name : spec.axes) axes.push_back({name, spec.number(name)});
  return {axes};
}

std::vector<SideRule> sharded_rules(const Spec& spec, const ModelConfig&) {
  using namespace op;
  const Op tp_rows = cut(0, CutRule::kChunk, "tp"), tp_columns = cut(1, CutRule::kChunk, "tp"),
           fsdp = cut(0, CutRule::kChunk, "fsdp");
  std::vector<SideRule> rules;
  const auto add = [&](Program program, std::initializer_list<Kind> kinds) {
    for (Kind kind : kinds) rules.push_back({kind, Per::kTensor, program});
  };
  add({load(0), fsdp}, {Kind::kReplicated});
  add({load(0), tp_rows, fsdp},
      {Kind::kVocabulary, Kind::kQkv, Kind::kGatedQkv, Kind::kColumn, Kind::kGateUp, Kind::kUp, Kind::kStacked});
  add({load(0), tp_columns, fsdp}, {Kind::kRowParallel, Kind::kMlpDown});
  if (spec.fused()) {
    // Stacked modules are cut on the expert axis.
    rules.push_back({Kind::kExpertGateUp, Per::kStack, {load(0), load(1), concat(0, 2), stack(), tp_rows, fsdp}});
    rules.push_back({Kind::kExpertUp, Per::kStack, {load(0), stack(), tp_rows, fsdp}});
    rules.push_back({Kind::kExpertDown, Per::kStack, {load(0), stack(), tp_rows, fsdp}});
  } else {
    add({load(0), tp_rows, fsdp}, {Kind::kExpertGateUp, Kind::kExpertUp});
    add({load(0), tp_columns, fsdp}, {Kind::kExpertDown});
  }
  return rules;
}

}  // namespace

const Side& sharded_side() {
  static const Side side{
      .name = "fsdp",
      .names = Names::kFused,
      .name_of = fused_names,
      .keys = {{"fsdp", 1}, {"tp", 1}, {"naming", 1, "per-expert|fused"}, {"flat", 1, "fsdp1|fsdp1_orig|zero3"}},
      .ordered = true,
      .grids = mesh_axes,
      .rules = sharded_rules,
      .check = [](const Spec&, const ModelConfig&) { return Status(); }};
  return side;
}

}  // namespace refit::model
