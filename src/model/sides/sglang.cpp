// sglang: with dp the attention and the vocabulary are cut over tp, all else over the whole server of dp*tp ranks (its
// DP attention). ep groups of neighbours hold whole shares of the experts, each cut by width inside its group.
#include "model/sides/engine.h"

namespace refit::model {
namespace {

constexpr std::string_view kServer = "dp*tp";

std::vector<std::vector<Mesh::Axis>> sglang_grids(const Spec& spec) {
  const std::int64_t width = spec.number("dp") * spec.number("tp"), ep = spec.number("ep");
  return {{{"dp", spec.number("dp")}, {"tp", spec.number("tp")}}, {{"ep", ep}, {"moe_tp", width / ep}}};
}

Status sglang_check(const Spec& spec, const ModelConfig& config) {
  const std::int64_t ep = spec.number("ep"), width = spec.number("tp") * spec.number("dp");
  REFIT_TRY(must_divide("sglang", "dp*tp =", width, "ep", ep));
  REFIT_TRY(engine_check("sglang", spec, config, kServer, width));
  if (!config.has_moe()) return {};
  REFIT_TRY(must_divide("sglang", config, "E", "ep", ep));
  if (config.flag("mxfp4")) return {};  // cut by blocks, the last part short
  return must_divide("sglang", config, "Im", "dp*tp/ep", width / ep);
}

}  // namespace

const Side& sglang_side() {
  static const Side side{
      .name = "sglang",
      .engine = true,
      .names = Names::kSglang,
      .name_of = [](const Spec&, const ModelConfig&, const Row& row,
                    Per per) { return names_of(row, row.sglang.empty() ? row.engine : row.sglang, per); },
      .keys = {{"tp", 1}, {"ep", 1}, {"dp", 1}, kSharedKey, kQuantKeys[0], kQuantKeys[1], kQuantKeys[2], kQuantKeys[3]},
      .grids = sglang_grids,
      .rules = [](const Spec&, const ModelConfig&) { return engine_rules(kServer); },
      .check = sglang_check,
      .drafts = false};
  return side;
}

}  // namespace refit::model
