// Which tensor of one side is which of the other: names, ties, shapes and dtypes.
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "plan/planner.h"

namespace refit::plan {
namespace {

using model::Catalogue;
using model::LogicalTensor;

std::string describe(const LogicalTensor& t) {
  std::string out(to_string(t.dtype));
  out += " [";
  for (std::size_t i = 0; i < t.shape.size(); ++i) out += (i ? ", " : "") + std::to_string(t.shape[i]);
  return out + "]";
}

bool held(const model::Layout& layout, std::uint32_t tensor) {
  return !layout.patterns()[layout.pattern_of()[tensor]].shards.empty();
}

// First owner of any part of a tensor, for messages.
std::string holder(const model::Layout& layout, std::uint32_t tensor) {
  const auto& shards = layout.patterns()[layout.pattern_of()[tensor]].shards;
  if (shards.empty()) return "no rank";
  const auto ranks = shards[0].list();
  return ranks.empty() ? "no rank" : "rank " + std::to_string(ranks[0].value);
}

// Union of two catalogues in byte order, and where each entry stands on either side.
struct Union {
  std::vector<std::int64_t> source, target;
};
Union unite(const Catalogue& a, const Catalogue& b, Catalogue& out) {
  Union u;
  std::size_t i = 0, j = 0;
  out.tensors.reserve(std::max(a.tensors.size(), b.tensors.size()));
  while (i < a.tensors.size() || j < b.tensors.size()) {
    const int order = i == a.tensors.size()   ? 1
                      : j == b.tensors.size() ? -1
                                              : a.tensors[i].name.compare(b.tensors[j].name);
    out.tensors.push_back(order <= 0 ? a.tensors[i] : b.tensors[j]);
    u.source.push_back(order <= 0 ? static_cast<std::int64_t>(i++) : -1);
    u.target.push_back(order >= 0 ? static_cast<std::int64_t>(j++) : -1);
  }
  out.tied = a.tied;
  out.tied.insert(out.tied.end(), b.tied.begin(), b.tied.end());
  std::sort(out.tied.begin(), out.tied.end());
  out.tied.erase(std::unique(out.tied.begin(), out.tied.end()), out.tied.end());
  return u;
}

// For each name of the union, the lowest one that ties make it equal to. A name in no catalogue may link two others.
std::vector<std::uint32_t> tie_roots(const Catalogue& all) {
  std::vector<std::uint32_t> root(all.tensors.size());
  std::iota(root.begin(), root.end(), 0u);
  std::unordered_map<std::string, std::uint32_t> absent;
  const auto index = [&](const std::string& name) {
    const std::int64_t at = all.find(name);
    if (at >= 0) return static_cast<std::uint32_t>(at);
    const auto [it, fresh] = absent.emplace(name, static_cast<std::uint32_t>(root.size()));
    if (fresh) root.push_back(it->second);
    return it->second;
  };
  const auto find = [&](std::uint32_t i) {
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
  };
  for (const auto& [a, b] : all.tied) {
    const std::uint32_t x = find(index(a)), y = find(index(b));
    root[std::max(x, y)] = std::min(x, y);
  }
  for (std::uint32_t i = 0; i < root.size(); ++i) root[i] = find(i);
  return root;
}

}  // namespace

void Planner::match_names(Findings& out) {
  catalogue_ = std::make_shared<Catalogue>();
  const Union both = unite(source_->catalogue(), target_->catalogue(), *catalogue_);
  const auto root = tie_roots(*catalogue_);
  std::vector<std::uint32_t> group_of(root.size(), kNone);
  std::vector<bool> disagrees;
  for (std::uint32_t i = 0; i < catalogue_->tensors.size(); ++i) {
    if (group_of[root[i]] == kNone) {
      group_of[root[i]] = static_cast<std::uint32_t>(groups_.size());
      groups_.push_back({i, {}, {}});
      disagrees.push_back(false);
    }
    Group& g = groups_[group_of[root[i]]];
    const LogicalTensor& first = catalogue_->tensors[g.ordinal];
    const auto join = [&](std::int64_t at, const model::Layout& side, const char* which,
                          std::vector<std::uint32_t>& list) {
      if (at < 0) return;
      const LogicalTensor& t = side.catalogue().tensors[static_cast<std::size_t>(at)];
      if (t.shape == first.shape && t.dtype == first.dtype) return list.push_back(static_cast<std::uint32_t>(at));
      disagrees[group_of[root[i]]] = true;
      const std::int64_t other = both.source[g.ordinal] >= 0 ? both.source[g.ordinal] : both.target[g.ordinal];
      const model::Layout& other_side = both.source[g.ordinal] >= 0 ? *source_ : *target_;
      out.add(std::string("disagreement: ") + which + " " + holder(side, static_cast<std::uint32_t>(at)) + " holds " +
                  t.name + " as " + describe(t) + ", " + (&other_side == source_ ? "source " : "target ") +
                  holder(other_side, static_cast<std::uint32_t>(other)) + " holds " + first.name + " as " +
                  describe(first),
              t.name);
    };
    join(both.source[i], *source_, "source", g.source);
    join(both.target[i], *target_, "target", g.target);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& g = groups_[i];
    if (disagrees[i]) continue;
    const auto any = [](const model::Layout& side, const std::vector<std::uint32_t>& list) {
      return std::any_of(list.begin(), list.end(), [&](std::uint32_t t) { return held(side, t); });
    };
    const bool offered = any(*source_, g.source), wants = any(*target_, g.target);
    if (wants && g.source.empty())
      out.add("unknown name: target " + holder(*target_, g.target[0]) + " holds " + name(g) + ", which no source names",
              name(g));
    if (offered && !wants) {
      unwanted_.push_back(name(g));
      if (!options_.files && !options_.partial)
        out.add("unwanted name: source " + holder(*source_, g.source[0]) + " holds " + name(g) +
                    ", which no target wants (declare the target partial to allow it)",
                name(g));
    }
  }
}

}  // namespace refit::plan
