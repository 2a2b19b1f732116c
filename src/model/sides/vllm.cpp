// vllm (0.25 and later): attention and dense layers are cut over tp only; experts by width over dp*tp, or whole per
// rank with EP.
#include "model/sides/engine.h"

namespace refit::model {
namespace {

std::vector<std::vector<Mesh::Axis>> vllm_grids(const Spec& spec) {
  const std::int64_t width = spec.number("dp") * spec.number("tp");
  return {{{"dp", spec.number("dp")}, {"tp", spec.number("tp")}}, {{spec.number("ep") > 1 ? "ep" : "moe_tp", width}}};
}

bool round_robin(const Spec& spec) {
  const auto given = spec.texts.find("placement");
  return given != spec.texts.end() && given->second == "round_robin";
}

Status vllm_check(const Spec& spec, const ModelConfig& config) {
  const std::int64_t ep = spec.number("ep"), width = spec.number("tp") * spec.number("dp");
  if (ep != 1 && ep != width)
    return Error(Code::kInvalid, "vllm: ep=" + std::to_string(ep) + " must be 1 or dp*tp = " + std::to_string(width));
  if (round_robin(spec) && ep == 1) return Error(Code::kInvalid, "vllm: placement=round_robin needs ep of at least 2");
  REFIT_TRY(engine_check("vllm", spec, config, "tp", width));
  for (const Row& row : config.family->rows)
    if (round_robin(spec) && row.kind == Kind::kStacked && config.active(row))
      return Error(Code::kUnsupported, "vllm: placement=round_robin is not built for family " +
                                           std::string(config.family->name) + ", whose checkpoints stack the experts");
  // Blocks of four-bit codes are cut whole, the last part short.
  if (ep == 1 && config.has_moe() && !config.flag("mxfp4"))
    REFIT_TRY(must_divide("vllm", config, "Im", "dp*tp", width));
  return {};
}

// A draft model has behind "model." what checkpoints have behind "mtp."; or a decoder layer in a block beside what
// joins it to the model, under the number of the checkpoint's layer.
std::string vllm_draft_parameter(const Row& row, std::string name) {
  constexpr std::string_view kApart = "mtp.", kModelPrefix = "model.", kLayersPrefix = "model.layers.";
  if (name.starts_with(kApart)) return name.replace(0, kApart.size(), kModelPrefix);
  if (row.where == "mtp" || !name.starts_with(kLayersPrefix)) return name;
  return name.insert(name.find('.', kLayersPrefix.size()) + 1, "mtp_block.");
}

}  // namespace

const Side& vllm_side() {
  static const Side side{.name = "vllm",
                         .engine = true,
                         .name_of = [](const Spec&, const ModelConfig&, const Row& row,
                                       Per per) { return names_of(row, row.engine, per); },
                         .keys = {{"tp", 1},
                                  {"ep", 1},
                                  {"dp", 1},
                                  {"placement", 1, "linear|round_robin"},
                                  kSharedKey,
                                  kQuantKeys[0],
                                  kQuantKeys[1],
                                  kQuantKeys[2],
                                  kQuantKeys[3]},
                         .grids = vllm_grids,
                         .rules =
                             [](const Spec& spec, const ModelConfig&) {
                               return engine_rules("tp", round_robin(spec) ? CutRule::kRobin : CutRule::kLinear);
                             },
                         .check = vllm_check,
                         .drafts = false,
                         .draft_parameter = vllm_draft_parameter};
  return side;
}

}  // namespace refit::model
