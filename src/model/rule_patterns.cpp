// Patterns of a rule layout: each row is run once per coordinate that its rule reads, not once per rank or layer.
#include <algorithm>

#include "model/rule_layout.h"

namespace refit::model {
namespace {

// A box on the ranks `first` + the free axes, strides in elements.
struct Lying {
  Lie lie;
  std::uint32_t first = 0;
};
using Lyings = std::vector<Lying>;

bool same(const Lie& a, const Lie& b) { return a.view == b.view && a.box == b.box && a.strides == b.strides; }

// One buffer and one call: this runs once per rank of the largest layouts.
Hash128 key_of(const Lie& lie) {
  std::vector<std::int64_t> words;
  words.reserve(3 + 6 * lie.box.size());
  for (const Dims& axis : lie.view.radices) {
    words.push_back(static_cast<std::int64_t>(axis.size()));
    words.insert(words.end(), axis.begin(), axis.end());
  }
  for (const Interval& i : lie.box) words.insert(words.end(), {i.lo, i.hi});
  words.insert(words.end(), lie.strides.begin(), lie.strides.end());
  return hash128(std::as_bytes(std::span(words)));
}

PatternShard shard(const Lie& lie, DType dtype, std::uint32_t first,
                   const std::vector<std::pair<std::uint32_t, std::uint32_t>>& free) {
  PatternShard out{
      .view = lie.view, .box = lie.box, .strides = lie.strides, .dtype = dtype, .first = first, .progressions = free};
  for (std::int64_t& s : out.strides) s *= item_size(dtype);
  return out;
}

// Equal boxes at evenly spaced ranks become one shard.
std::vector<PatternShard> gather(Lyings lyings, DType dtype,
                                 const std::vector<std::pair<std::uint32_t, std::uint32_t>>& free) {
  std::vector<std::pair<Hash128, std::size_t>> order;
  for (std::size_t i = 0; i < lyings.size(); ++i) order.emplace_back(key_of(lyings[i].lie), i);
  // Groups keep the order of their first rank; inside a group ranks ascend since coordinates were walked in order.
  std::sort(order.begin(), order.end());
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order[i].first != order[i - 1].first) groups.emplace_back();
    groups.back().push_back(order[i].second);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<PatternShard> out;
  for (const auto& group : groups) {
    const auto first = [&](std::size_t k) { return lyings[group[k]].first; };
    bool even = group.size() > 1 && first(1) > first(0);
    for (std::size_t k = 2; k < group.size() && even; ++k) even = first(k) - first(k - 1) == first(1) - first(0);
    for (std::size_t k = 1; k < group.size(); ++k) REFIT_CHECK(same(lyings[group[0]].lie, lyings[group[k]].lie));
    if (!even) {
      for (std::size_t k = 0; k < group.size(); ++k) out.push_back(shard(lyings[group[k]].lie, dtype, first(k), free));
      continue;
    }
    auto progressions = free;
    progressions.emplace_back(static_cast<std::uint32_t>(group.size()), first(1) - first(0));
    std::sort(progressions.begin(), progressions.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
    out.push_back(shard(lyings[group[0]].lie, dtype, first(0), progressions));
  }
  return out;
}

Hash128 key_of(const Pattern& pattern) {
  Hasher h;
  for (std::int64_t n : pattern.shape) h.add_i64(n);
  h.add_u64(static_cast<std::uint64_t>(pattern.dtype));
  for (const PatternShard& s : pattern.shards) {
    h.add_text(key_of(Lie{s.view, s.box, s.strides, 0}).hex())
        .add_u64(static_cast<std::uint64_t>(s.dtype))
        .add_u64(s.first)
        .add_u64(s.progressions.size());
    for (const auto& [count, step] : s.progressions) h.add_u64(count).add_u64(step);
  }
  return h.finish();
}

}  // namespace

Status RuleLayout::build_patterns() const {
  std::map<Hash128, std::uint32_t> known;
  pattern_of_.assign(catalogue_.tensors.size(), 0);
  for (const ActiveRow& row : rows_) {
    std::vector<bool> read(mesh_.axes().size(), false);
    for (const Op& op : row.rule.program)
      if (op.code == OpCode::kCut) mesh_.mark(op.cut.over, read);
    const auto free = mesh_.free_axes(read);
    // Tensors of a row that can differ: members, and experts where the rule stacks them.
    const auto experts = static_cast<std::size_t>(row.rule.per == Per::kStack ? row.experts : 1);
    std::vector<Lyings> lyings(experts * row.shapes.size());
    std::optional<DType> cast;
    for (Coordinates at(mesh_.axes().size(), 0);;) {
      REFIT_ASSIGN(const std::vector<Template> made, templates(row, at));
      const auto first = static_cast<std::uint32_t>(mesh_.rank(at));
      for (const Template& t : made) {
        cast = t.cast;
        for (const Template::Part& part : t.parts) {
          Lyings& list = lyings[static_cast<std::size_t>(std::max<std::int64_t>(part.expert, 0)) * row.shapes.size() +
                                static_cast<std::size_t>(part.member)];
          list.insert(list.end(), row.copies(), {part.lie, first});
        }
      }
      std::size_t a = at.size();
      while (a-- > 0)
        if (read[a] && ++at[a] < mesh_.axes()[a].size)
          break;
        else
          at[a] = 0;
      if (a == static_cast<std::size_t>(-1)) break;
    }
    for (std::size_t which = 0; which < lyings.size(); ++which) {
      const std::size_t member = which % row.shapes.size();
      std::map<DType, std::uint32_t> by_dtype;
      const auto pattern_index = [&](DType dtype) -> std::uint32_t {
        const auto found = by_dtype.find(dtype);
        if (found != by_dtype.end()) return found->second;
        Pattern pattern{row.shapes[member], dtype, gather(lyings[which], cast.value_or(dtype), free)};
        const auto [at, fresh] = known.emplace(key_of(pattern), static_cast<std::uint32_t>(patterns_.size()));
        if (fresh) patterns_.push_back(std::move(pattern));
        return by_dtype[dtype] = at->second;
      };
      for (std::size_t l = 0; l < row.layers.size(); ++l)
        for (std::int64_t e = 0; e < row.experts; ++e) {
          if (experts > 1 && static_cast<std::size_t>(e) != which / row.shapes.size()) continue;
          const TensorId id = ids_[row.index(l, e, static_cast<int>(member))];
          pattern_of_[id.value] = pattern_index(catalogue_.tensors[id.value].dtype);
        }
    }
  }
  return {};
}

}  // namespace refit::model
