#include "model/sides/side.h"

namespace refit::model {

std::vector<std::string> names_of(const Row& row, std::string_view own, Per per) {
  std::vector<std::string> out;
  if (!own.empty())
    for (std::string_view name : split(own, '|')) out.emplace_back(name);
  // One name for each member, or for each parameter of a row whose own rules make several.
  const bool apart = per == Per::kTensor || per == Per::kStackEach;
  if (out.empty() || (apart && out.size() != row.members.size())) {
    out.clear();
    for (const Member& m : row.members) out.emplace_back(m.name);
    if (!apart) out.resize(1);
  }
  return out;
}

std::vector<std::string> fused_names(const Spec&, const ModelConfig&, const Row& row, Per per) {
  return names_of(row, per == Per::kStack ? row.fused : std::string_view(), per);
}

}  // namespace refit::model
