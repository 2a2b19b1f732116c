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
  std::shared_ptr<const Catalogue> all;
  std::vector<std::int64_t> source, target;
};

// A side's own catalogue where the other names nothing else: names are copied only where they must be.
std::shared_ptr<const Catalogue> as_held(const model::Layout& side, std::size_t names, const auto& tied) {
  std::shared_ptr<const Catalogue> held = side.shared_catalogue();
  if (!held || held->tensors.size() != names) return nullptr;
  auto own = held->tied;
  std::sort(own.begin(), own.end());
  own.erase(std::unique(own.begin(), own.end()), own.end());
  return own == tied ? held : nullptr;
}

Union unite(const model::Layout& source, const model::Layout& target) {
  const Catalogue &a = source.catalogue(), &b = target.catalogue();
  Union u;
  u.source.reserve(std::max(a.tensors.size(), b.tensors.size()));
  u.target.reserve(u.source.capacity());
  bool equal = true;  // where both have a tensor
  std::size_t i = 0, j = 0;
  while (i < a.tensors.size() || j < b.tensors.size()) {
    const int order = i == a.tensors.size()   ? 1
                      : j == b.tensors.size() ? -1
                                              : a.tensors[i].name.compare(b.tensors[j].name);
    if (order == 0)
      equal = equal && a.tensors[i].dtype == b.tensors[j].dtype && a.tensors[i].shape == b.tensors[j].shape;
    u.source.push_back(order <= 0 ? static_cast<std::int64_t>(i++) : -1);
    u.target.push_back(order >= 0 ? static_cast<std::int64_t>(j++) : -1);
  }
  auto tied = a.tied;
  tied.insert(tied.end(), b.tied.begin(), b.tied.end());
  std::sort(tied.begin(), tied.end());
  tied.erase(std::unique(tied.begin(), tied.end()), tied.end());
  u.all = as_held(source, u.source.size(), tied);
  if (!u.all && equal) u.all = as_held(target, u.source.size(), tied);
  if (u.all) return u;
  auto all = std::make_shared<Catalogue>();
  all->tensors.reserve(u.source.size());
  for (std::size_t k = 0; k < u.source.size(); ++k)
    all->tensors.push_back(u.source[k] >= 0 ? a.tensors[static_cast<std::size_t>(u.source[k])]
                                            : b.tensors[static_cast<std::size_t>(u.target[k])]);
  all->tied = std::move(tied);
  u.all = std::move(all);
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
  const Union both = unite(*source_, *target_);
  catalogue_ = both.all;
  const std::size_t names = catalogue_->tensors.size();
  const auto root = tie_roots(*catalogue_);
  std::vector<std::uint32_t> group_of(root.size(), kNone), group(names);
  for (std::uint32_t i = 0; i < names; ++i) {
    std::uint32_t& g = group_of[root[i]];
    if (g == kNone) {
      g = static_cast<std::uint32_t>(groups_.size());
      groups_.push_back({i, {}, {}});
    }
    group[i] = g;
  }
  std::vector<bool> disagrees(groups_.size(), false);
  // Per group its members of the source, then those of the target; names of a tie lie apart, so they are counted first.
  std::vector<std::uint32_t> count(2 * groups_.size() + 1, 0);
  std::vector<std::int64_t> at_source = both.source, at_target = both.target;  // less those that disagree
  for (std::uint32_t i = 0; i < names; ++i) {
    const Group& g = groups_[group[i]];
    const LogicalTensor& first = catalogue_->tensors[g.ordinal];
    const auto join = [&](std::int64_t& at, const model::Layout& side, const char* which, std::size_t slot) {
      if (at < 0) return;
      const LogicalTensor& t = side.catalogue().tensors[static_cast<std::size_t>(at)];
      if (t.dtype == first.dtype && t.shape == first.shape) return void(++count[slot + 1]);
      disagrees[group[i]] = true;
      const std::int64_t other = both.source[g.ordinal] >= 0 ? both.source[g.ordinal] : both.target[g.ordinal];
      const model::Layout& other_side = both.source[g.ordinal] >= 0 ? *source_ : *target_;
      out.add(std::string("disagreement: ") + which + " " + holder(side, static_cast<std::uint32_t>(at)) + " holds " +
                  t.name + " as " + describe(t) + ", " + (&other_side == source_ ? "source " : "target ") +
                  holder(other_side, static_cast<std::uint32_t>(other)) + " holds " + first.name + " as " +
                  describe(first),
              t.name);
      at = -1;
    };
    join(at_source[i], *source_, "source", 2 * std::size_t{group[i]});
    join(at_target[i], *target_, "target", 2 * std::size_t{group[i]} + 1);
  }
  std::partial_sum(count.begin(), count.end(), count.begin());
  members_.resize(count.back());
  std::vector<std::uint32_t> next(count.begin(), count.end() - 1);
  for (std::uint32_t i = 0; i < names; ++i) {
    if (at_source[i] >= 0) members_[next[2 * std::size_t{group[i]}]++] = static_cast<std::uint32_t>(at_source[i]);
    if (at_target[i] >= 0) members_[next[2 * std::size_t{group[i]} + 1]++] = static_cast<std::uint32_t>(at_target[i]);
  }
  const std::span<const std::uint32_t> all(members_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].source = all.subspan(count[2 * g], count[2 * g + 1] - count[2 * g]);
    groups_[g].target = all.subspan(count[2 * g + 1], count[2 * g + 2] - count[2 * g + 1]);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& g = groups_[i];
    if (disagrees[i]) continue;
    const auto any = [](const model::Layout& side, std::span<const std::uint32_t> list) {
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
