#include "plan/owners.h"

#include <algorithm>

namespace refit::plan {

OwnerTable::OwnerTable(const Composite& composite) {
  for (const model::Pattern* p : composite) {
    auto& member = ranks_.emplace_back();
    for (const model::PatternShard& s : p->shards) {
      Ranks ranks;
      for (Rank r : s.list()) ranks.push_back(r.value);
      member.push_back(std::move(ranks));
    }
  }
}

std::vector<Owner> OwnerTable::of(const Cell& cell, const std::vector<Flat>& flats) const {
  std::vector<Owner> out;
  for (std::uint32_t part : cell.parts)
    for (std::uint32_t rank : of(flats[part])) out.push_back({rank, part});
  if (cell.parts.size() == 1) return out;
  std::sort(out.begin(), out.end(),
            [](const Owner& a, const Owner& b) { return std::pair(a.rank, a.part) < std::pair(b.rank, b.part); });
  out.erase(std::unique(out.begin(), out.end(), [](const Owner& a, const Owner& b) { return a.rank == b.rank; }),
            out.end());
  return out;
}

std::uint32_t RankSets::intern(const Ranks& ranks) {
  std::uint64_t key = ranks.size();
  for (std::uint32_t r : ranks) key = (key ^ r) * 0x9E3779B97F4A7C15ull + (key >> 29);
  const auto [first, last] = known_.equal_range(key);
  for (auto at = first; at != last; ++at)
    if (sets_[at->second] == ranks) return at->second;
  sets_.push_back(ranks);
  known_.emplace(key, size() - 1);
  return size() - 1;
}

bool RankSets::contains(std::uint32_t id, std::uint32_t rank) const {
  return std::binary_search(sets_[id].begin(), sets_[id].end(), rank);
}

Hosts Hosts::of(const model::Layout& source, const model::Layout& target) {
  Hosts out;
  std::unordered_map<std::string, std::int32_t> names;
  const auto rank = [](std::int64_t r) { return Rank(static_cast<std::uint32_t>(r)); };
  for (std::int64_t r = 0; r < source.world(); ++r) {
    const std::string host = source.host(rank(r));
    out.source.push_back(host.empty() ? -1
                                      : names.emplace(host, static_cast<std::int32_t>(names.size())).first->second);
  }
  for (std::int64_t r = 0; r < target.world(); ++r) {
    const auto at = names.find(target.host(rank(r)));
    out.target.push_back(at == names.end() ? -1 : at->second);
    out.shared = out.shared || at != names.end();
  }
  return out;
}

}  // namespace refit::plan
