#include "model/layout.h"

#include <algorithm>
#include <numeric>

namespace refit::model {
namespace {
// Holdings of one tensor among holdings ordered by tensor.
std::span<const Holding> of_tensor(const std::vector<Holding>& all, TensorId tensor) {
  const auto range = std::equal_range(all.begin(), all.end(), tensor, [](const auto& a, const auto& b) {
    if constexpr (std::is_same_v<std::decay_t<decltype(a)>, TensorId>)
      return a < b.tensor;
    else
      return a.tensor < b;
  });
  return {range.first, range.second};
}
}  // namespace

std::int64_t Catalogue::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const LogicalTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors.end() && at->name == name ? at - tensors.begin() : -1;
}

std::int64_t PatternShard::owners() const {
  std::int64_t n = 1;
  for (const auto& [count, step] : progressions) n *= count;
  return n;
}

std::vector<Rank> PatternShard::list() const {
  std::vector<Rank> out{Rank(first)};
  if (owners() == 0) return {};
  for (const auto& [count, step] : progressions) {
    const std::size_t base = out.size();
    out.reserve(base * count);
    for (std::uint32_t i = 1; i < count; ++i)
      for (std::size_t k = 0; k < base; ++k) out.push_back(Rank(out[k].value + i * step));
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool PatternShard::owned_by(Rank rank) const {
  if (rank.value < first) return false;
  // Depth first over the generators, largest step first as they are written; almost always one path.
  const auto search = [&](const auto& self, std::size_t k, std::uint32_t left) -> bool {
    if (k == progressions.size()) return left == 0;
    const auto [count, step] = progressions[k];
    if (count == 0) return false;
    if (step == 0) return self(self, k + 1, left);
    std::uint64_t reach = 0;
    for (std::size_t j = k + 1; j < progressions.size(); ++j)
      reach += std::uint64_t{progressions[j].second} * (progressions[j].first - 1);
    const std::uint32_t most = std::min(left / step, count - 1);
    for (std::uint32_t i = most + 1; i-- > 0;) {
      if (left - i * step > reach) return false;
      if (self(self, k + 1, left - i * step)) return true;
    }
    return false;
  };
  return search(search, 0, rank.value - first);
}

bool PatternShard::same_place(const Holding& h) const {
  return dtype == h.dtype && box == h.box && strides == h.strides && view == h.view;
}

Result<std::vector<std::uint32_t>> Layout::alike() const {
  std::vector<std::uint32_t> out(static_cast<std::size_t>(world()));
  std::iota(out.begin(), out.end(), 0u);
  return out;
}

Result<std::vector<Place>> Layout::places(Rank rank, std::span<const TensorId> tensors) const {
  REFIT_ASSIGN(const RankLayout mine, expand(rank));
  return places_in(*this, mine, tensors);
}

Result<std::vector<Place>> places_in(const Layout& layout, const RankLayout& mine, std::span<const TensorId> tensors) {
  std::vector<Place> out;
  for (TensorId t : tensors) {
    const auto held = of_tensor(mine.holdings, t);
    std::vector<bool> used(held.size());
    for (const PatternShard& shard : layout.patterns()[layout.pattern_of()[t.value]].shards) {
      if (!shard.owned_by(mine.rank)) continue;
      std::size_t i = 0;
      while (i < held.size() && (used[i] || !shard.same_place(held[i]))) ++i;
      if (i == held.size())
        return Error(Code::kInternal,
                     "rank " + std::to_string(mine.rank.value) + " lacks a shard that its pattern names")
            .at_tensor(layout.catalogue().tensors[t.value].name);
      used[i] = true;
      out.push_back({held[i].buffer, held[i].offset});
    }
  }
  return out;
}

}  // namespace refit::model
