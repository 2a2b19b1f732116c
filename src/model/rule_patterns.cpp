// Patterns of a rule layout: each row is run once per coordinate that its rule reads, not once per rank or layer.
#include <algorithm>

#include "model/rule_layout.h"

namespace refit::model {
namespace {

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
std::vector<PatternShard> gather(const Lyings& lyings, DType dtype,
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

// Those by which a whole parameter is here or there.
std::vector<bool> fixed_axes(const ActiveRow& row, const Mesh& mesh) {
  std::vector<bool> fixed(mesh.axes().size(), false);
  mesh.mark("pp", fixed);
  if (row.per == Per::kExpert && !row.picks) mesh.mark("ep", fixed);
  return fixed;
}

// Does a row lay its experts in a stack that no rank takes only a part of?
bool experts_alike(const ActiveRow& row, const Mesh& mesh) {
  const Coordinates origin(mesh.axes().size(), 0);
  bool after = false;
  for (const Op& op : row.programs[0]) {
    if (after && op.code == OpCode::kCut && mesh.part(op.cut.over, origin).count > 1) return false;
    if (after && op.code == OpCode::kPermute) return false;  // strides then depend on how many there are
    after = after || op.code == OpCode::kStack;
  }
  return after;
}

// To the next place of the axes in `walked`; false after the last.
bool advance(const Mesh& mesh, const std::vector<bool>& walked, Coordinates& at) {
  for (std::size_t a = at.size(); a-- > 0;) {
    if (!walked[a]) continue;
    if (++at[a] < mesh.axes()[a].size) return true;
    at[a] = 0;
  }
  return false;
}

}  // namespace

std::vector<bool> read_axes(const ActiveRow& row, const Mesh& mesh) {
  std::vector<bool> read(mesh.axes().size(), false);
  for (const Program& program : row.programs)
    for (const Op& op : program)
      if (op.code == OpCode::kCut || op.code == OpCode::kOnly) mesh.mark(op.cut.over, read);
  if (row.picks) mesh.mark("ep", read);
  return read;
}

// Shards at the first stage and expert rank, from which all others follow by adding to the ranks.
struct RuleLayout::RowShards {
  bool alike = false;          // no rank has other experts of a stack than another: one speaks for all
  std::vector<Lyings> lyings;  // by expert (where the array holds a stack) and member
  std::vector<std::pair<std::uint32_t, std::uint32_t>> free;
  std::vector<std::optional<DType>> casts;  // by member
};

Result<RuleLayout::RowShards> RuleLayout::row_shards(const ActiveRow& row) const {
  const Mesh& mesh = meshes_[row.grid];
  std::vector<bool> read = read_axes(row, mesh);
  const std::vector<bool> fixed = fixed_axes(row, mesh);
  std::vector<bool> taken = read;
  for (std::size_t a = 0; a < read.size(); ++a) {
    taken[a] = read[a] || fixed[a];
    read[a] = read[a] && !fixed[a];
  }
  RowShards out;
  out.free = mesh.free_axes(taken);
  out.alike = experts_alike(row, mesh);
  const std::int64_t experts = out.alike ? 1 : row.experts;
  out.lyings.resize(static_cast<std::size_t>(row.stacks ? experts : 1) * row.shapes.size());
  out.casts.resize(row.shapes.size());
  Coordinates at(mesh.axes().size(), 0);
  do {
    REFIT_ASSIGN(const std::vector<Template> made, templates(row, at, experts));
    const auto first = static_cast<std::uint32_t>(mesh.rank(at));
    for (const Template& t : made) {
      for (const Template::Part& part : t.parts) {
        out.casts[static_cast<std::size_t>(part.member)] = t.cast;  // the same on all ranks, by its table
        out.lyings[static_cast<std::size_t>(std::max<std::int64_t>(part.expert, 0)) * row.shapes.size() +
                   static_cast<std::size_t>(part.member)]
            .push_back({part.lie, first});
      }
    }
  } while (advance(mesh, read, at));
  return out;
}

Status RuleLayout::build_patterns() const {
  std::map<Hash128, std::uint32_t> known;
  pattern_of_.assign(catalogue_.tensors.size(), 0);
  for (const ActiveRow& row : rows_) {
    REFIT_ASSIGN(const RowShards made, row_shards(row));
    const auto stage_step = static_cast<std::uint32_t>(meshes_[0].step("pp"));
    const auto expert_step = static_cast<std::uint32_t>(meshes_[row.grid].step("ep"));
    const bool by_rank = row.per == Per::kExpert && !row.picks;
    const Coordinates origin(meshes_[row.grid].axes().size(), 0);
    const std::int64_t each = by_rank ? std::max<std::int64_t>(1, experts_at(row, origin).size()) : 1;
    // (which, dtype, stage, expert rank) -> pattern
    std::map<std::tuple<std::size_t, DType, std::int64_t, std::int64_t>, std::uint32_t> mine;
    const auto make_pattern = [&](std::size_t which, DType dtype, std::int64_t stage, std::int64_t expert_rank) {
      Lyings all;
      const auto add = [&](std::int64_t at_stage) {
        if (at_stage < 0) return;
        for (Lying l : made.lyings[which]) {
          l.first +=
              static_cast<std::uint32_t>(at_stage) * stage_step + static_cast<std::uint32_t>(expert_rank) * expert_step;
          all.push_back(std::move(l));
        }
      };
      add(stage);
      for (const ActiveRow::Copy& copy : row.extra) add(copy.spot.stage);
      std::stable_sort(all.begin(), all.end(), [](const Lying& a, const Lying& b) { return a.first < b.first; });
      Pattern pattern{row.shapes[which % row.shapes.size()], dtype, {}};
      if (!all.empty()) pattern.shards = gather(all, made.casts[which % row.shapes.size()].value_or(dtype), made.free);
      const auto [at, fresh] = known.emplace(key_of(pattern), static_cast<std::uint32_t>(patterns_.size()));
      if (fresh) patterns_.push_back(std::move(pattern));
      return at->second;
    };
    // Neighbours of one member nearly always have the same key.
    std::vector<decltype(mine)::const_iterator> recent(row.shapes.size(), mine.end());
    for (std::size_t l = 0; l < row.layers.size(); ++l)
      for (std::int64_t e = 0; e < row.experts; ++e)
        for (std::size_t m = 0; m < row.shapes.size(); ++m) {
          const TensorId id = ids_[row.index(l, e, static_cast<int>(m))];
          const std::size_t which =
              (row.stacks && !made.alike ? static_cast<std::size_t>(e) : 0) * row.shapes.size() + m;
          const std::tuple key(which, catalogue_.tensors[id.value].dtype, row.spots[l].stage, by_rank ? e / each : 0);
          auto& found = recent[m];
          if (found == mine.end() || found->first != key) found = mine.find(key);
          if (found == mine.end())
            found = mine.emplace(key, make_pattern(which, std::get<1>(key), std::get<2>(key), std::get<3>(key))).first;
          pattern_of_[id.value] = found->second;
        }
  }
  return {};
}

}  // namespace refit::model
