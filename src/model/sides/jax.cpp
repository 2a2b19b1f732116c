// jax: Flax NNX trees. Linear kernels are (in, out), so matrices are transposed; embeddings and norms keep their bytes;
// experts are stacked in torch's order. Column-parallel kernels are cut on their second axis, row-parallel ones on
// their first, experts over ep and by width.
#include <algorithm>

#include "model/sides/side.h"

namespace refit::model {
namespace {

std::vector<std::vector<Mesh::Axis>> jax_grids(const Spec& spec) {
  std::vector<Mesh::Axis> axes, experts;
  for (const std::string& name : spec.axes) axes.push_back({name, spec.number(name)});
  for (Mesh::Axis axis : axes) experts.push_back({axis.name == "tp" ? "moe_tp" : axis.name, axis.size});
  return {axes, experts};
}

std::vector<SideRule> jax_rules(const Spec&, const ModelConfig& config) {
  using namespace op;
  const bool cuts = config.family->jax_cut;
  const Op turn = op::permute("reverse");
  const auto matrix = [&](int axis) -> Program {
    if (!cuts) return {load(0), turn};
    return {load(0), cut(axis, CutRule::kEven, "tp"), turn};
  };
  const Op expert_rows = cut(0, CutRule::kEven, "moe_tp"), expert_columns = cut(1, CutRule::kEven, "moe_tp"),
           own_experts = cut(0, CutRule::kEven, "ep");
  std::vector<SideRule> rules{{Kind::kReplicated, Per::kTensor, {load(0), turn}},
                              {Kind::kExpertGateUp, Per::kStackEach, {load(0), expert_rows, stack(), own_experts}},
                              {Kind::kExpertDown, Per::kStackEach, {load(0), expert_columns, stack(), own_experts}}};
  for (Kind kind : {Kind::kVocabulary, Kind::kQkv, Kind::kGatedQkv, Kind::kColumn, Kind::kGateUp, Kind::kUp})
    rules.push_back({kind, Per::kTensor, matrix(0)});
  for (Kind kind : {Kind::kRowParallel, Kind::kMlpDown}) rules.push_back({kind, Per::kTensor, matrix(1)});
  return rules;
}

// Leaf names: `kernel` of a matrix, the family's own of a norm; all others as they are.
std::vector<std::string> jax_names(const Spec&, const ModelConfig& config, const Row& row, Per per) {
  if (!row.jax.empty()) return names_of(row, row.jax, per);
  std::vector<std::string> out = names_of(row, {}, per);
  for (std::size_t m = 0; m < out.size(); ++m) {
    if (!out[m].ends_with(".weight")) continue;
    const bool matrix = row.members[m].shape.find(',') != std::string_view::npos;
    out[m].replace(out[m].size() - 7, 7, matrix ? ".kernel" : config.family->jax_norm);
  }
  return out;
}

Status jax_check(const Spec& spec, const ModelConfig& config) {
  const std::int64_t tp = spec.number("tp"), ep = spec.number("ep");
  if (!config.family->jax)
    return Error(Code::kUnsupported, "jax: family " + std::string(config.family->name) + " has no NNX tree");
  REFIT_TRY(check_preset(spec, config));
  if (spec.number("vocab_multiple") > 1 && (!spec.given("preset") || spec.texts.find("preset")->second == "tunix"))
    return Error(Code::kInvalid, "jax: vocab_multiple= is for preset=maxtext");
  if (spec.given("scan_axis") && (!spec.given("preset") || spec.texts.find("preset")->second != "maxtext_scanned"))
    return Error(Code::kInvalid, "jax: scan_axis= is for preset=maxtext_scanned");
  if (ep > 1 && !config.has_moe())
    return Error(Code::kInvalid, "jax: ep=" + std::to_string(ep) + " needs experts, and this model has none");
  if (config.has_moe()) {
    REFIT_TRY(must_divide("jax", config, "E", "ep", ep));
    // Stacked experts lie whole on every rank.
    const auto& rows = config.family->rows;
    if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return is_per_expert(row.kind); }))
      REFIT_TRY(must_divide("jax", config, "Im", "tp", tp));
  }
  if (config.family->jax_cut && config.has_dense()) REFIT_TRY(must_divide("jax", config, "I", "tp", tp));
  return {};
}

}  // namespace

const Side& jax_side() {
  static const Side side{.name = "jax",
                         .names = Names::kJax,
                         .name_of = jax_names,
                         .keys = {{"dp", 1},
                                  {"tp", 1},
                                  {"ep", 1},
                                  {"vocab_multiple", 1, {}, false},
                                  {"preset", 1, "tunix|maxtext|maxtext_scanned"},
                                  {"scan_axis", 1, "0|1"}},
                         .ordered = true,
                         .presets = jax_presets,
                         .grids = jax_grids,
                         .rules = jax_rules,
                         .check = jax_check};
  return side;
}

}  // namespace refit::model
