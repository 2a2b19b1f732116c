#include "plan/stages.h"

#include <algorithm>
#include <map>
#include <set>

namespace refit::plan {
namespace {

constexpr std::int64_t kAlign = 16;  // of shards in the value buffer

Dims row_major(const Box& box, std::int64_t item) {
  Dims out(box.size());
  for (std::size_t k = box.size(); k > 0; --k) {
    out[k - 1] = item;
    item *= box[k - 1].size();
  }
  return out;
}

bool before(const model::Holding& a, const model::Holding& b) {
  for (std::size_t k = 0; k < std::min(a.box.size(), b.box.size()); ++k)
    if (a.box[k].lo != b.box[k].lo) return a.box[k].lo < b.box[k].lo;
  return a.offset < b.offset;
}

// A layout with other dtypes for some tensors: those in which they travel.
class Travelling : public model::Layout {
 public:
  Travelling(const model::Layout& inner, const std::vector<Staging>& tensors, bool source)
      : inner_(inner), catalogue_(inner.catalogue()), patterns_(inner.patterns().begin(), inner.patterns().end()) {
    pattern_of_.assign(inner.pattern_of().begin(), inner.pattern_of().end());
    for (const Staging& s : tensors) {
      const std::uint32_t id = source ? s.source : s.target;
      catalogue_.tensors[id].dtype = s.wire;
      // A pattern's tensors may have other fates than this one: it gets a pattern of its own kind.
      const bool moved = source && s.runs();
      const auto [at, fresh] = changed_.try_emplace({pattern_of_[id], s.wire, moved},
                                                    static_cast<std::uint32_t>(patterns_.size()));
      if (fresh) patterns_.push_back(changed(patterns_[pattern_of_[id]], s.wire, moved));
      pattern_of_[id] = at->second;
    }
  }
  const model::Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t world() const override { return inner_.world(); }
  std::int64_t instances() const override { return inner_.instances(); }
  Hash128 digest() const override { return inner_.digest(); }
  Result<model::RankLayout> expand(Rank rank) const override { return inner_.expand(rank); }
  std::string host(Rank rank) const override { return inner_.host(rank); }
  std::span<const model::Pattern> patterns() const override { return patterns_; }
  std::span<const std::uint32_t> pattern_of() const override { return pattern_of_; }
  Result<std::vector<model::Place>> places(Rank rank, std::span<const TensorId> tensors) const override {
    return inner_.places(rank, tensors);
  }
  Result<std::vector<std::uint32_t>> alike() const override { return inner_.alike(); }
  std::vector<model::QuantisedWeight> quantised() const override { return inner_.quantised(); }
  const model::Recipe* recipe() const override { return inner_.recipe(); }
  std::string serialise() const override { return inner_.serialise(); }

 protected:
  const model::Layout& inner_;

 private:
  static model::Pattern changed(model::Pattern p, DType wire, bool moved) {
    p.dtype = wire;
    for (model::PatternShard& s : p.shards) {
      if (!moved) continue;
      s.strides = row_major(s.box, item_size(wire));
      s.dtype = wire;
    }
    return p;
  }

  model::Catalogue catalogue_;
  std::vector<model::Pattern> patterns_;
  std::vector<std::uint32_t> pattern_of_;
  std::map<std::tuple<std::uint32_t, DType, bool>, std::uint32_t> changed_;
};

// The source with its results in a last buffer: shard after shard of those tensors, row-major in the wire's dtype.
class StagedSource final : public Travelling {
 public:
  // `rule_buffers`: of each rank, where rules made the layout.
  StagedSource(const model::Layout& inner, const std::vector<Staging>& tensors, std::uint32_t rule_buffers)
      : Travelling(inner, tensors, true), rule_buffers_(rule_buffers) {
    for (const Staging& s : tensors)
      if (s.runs()) staged_.push_back(s);
    std::sort(staged_.begin(), staged_.end(), [](const Staging& a, const Staging& b) { return a.source < b.source; });
  }

  Result<std::vector<ValueStage>> stages(Rank rank, const model::Catalogue& plan) const {
    REFIT_ASSIGN(const model::RankLayout own, inner_.expand(rank));
    REFIT_ASSIGN(const std::uint32_t planned, buffers(rank));
    if (value_buffer(own) != planned)
      return Error(Code::kUnsupported, "rank " + std::to_string(rank.value) + " has " +
                                           std::to_string(own.buffers.size()) + " buffers, rank 0 has " +
                                           std::to_string(planned) + ": value stages need as many on each");
    std::int64_t bytes = 0;
    std::vector<ValueStage> out;
    for (const Shard& s : shards_of(rank, bytes)) {
      const model::LogicalTensor& tensor = inner_.catalogue().tensors[s.staging->source];
      const std::int64_t ordinal = plan.find(tensor.name);
      REFIT_CHECK(ordinal >= 0);
      out.push_back({.tensor = TensorId(static_cast<std::uint32_t>(ordinal)),
                     .undo = s.staging->undo,
                     .apply = s.staging->apply,
                     .logical = tensor.dtype,
                     .stored = s.stored->dtype,
                     .wire = s.staging->wire,
                     .extents = {},
                     .strides = s.stored->strides,
                     .buffer = 0,
                     .offset = 0,
                     .values = s.offset});
      for (const Interval& i : s.stored->box) out.back().extents.push_back(i.size());
    }
    // Where they are stored: asked tensor by tensor, in the order of the shards.
    std::size_t at = 0;
    for (const Staging& s : staged_) {
      const TensorId tensor(s.source);
      REFIT_ASSIGN(const std::vector<model::Place> places, inner_.places(rank, std::span(&tensor, 1)));
      for (const model::Place& p : places) {
        REFIT_CHECK(at < out.size());
        out[at].buffer = p.buffer;
        out[at++].offset = p.offset;
      }
    }
    REFIT_CHECK(at == out.size());
    std::erase_if(out, [](const ValueStage& s) { return std::ranges::find(s.extents, 0) != s.extents.end(); });
    return out;
  }
  std::int64_t value_bytes(Rank rank) const {
    std::int64_t bytes = 0;
    shards_of(rank, bytes);
    return bytes;
  }

  // One of the rank's shards: where it is stored, and where its values go.
  struct Shard {
    const Staging* staging;
    const model::PatternShard* stored;
    std::int64_t offset;
  };
  std::vector<Shard> shards_of(Rank rank, std::int64_t& bytes) const {
    std::vector<Shard> out;
    bytes = 0;
    for (const Staging& s : staged_)
      for (const model::PatternShard& shard : stored(s.source).shards) {
        if (!shard.owned_by(rank)) continue;
        out.push_back({&s, &shard, bytes});
        bytes = ceil_div(bytes + elements(shard.box) * item_size(s.wire), kAlign) * kAlign;
      }
    return out;
  }
  std::uint32_t value_buffer(const model::RankLayout& stored) const {
    return static_cast<std::uint32_t>(stored.buffers.size());
  }

  Result<model::RankLayout> expand(Rank rank) const override {
    REFIT_ASSIGN(model::RankLayout out, inner_.expand(rank));
    std::int64_t bytes = 0;
    const std::vector<Shard> shards = shards_of(rank, bytes);
    const std::uint32_t buffer = value_buffer(out);
    if (!staged_.empty()) out.buffers.push_back({.name = "values", .bytes = bytes, .fill = 0, .file = {}});
    out.parameters.clear();  // they say where values are stored, not where they go
    for (std::size_t i = 0; i < shards.size();) {
      const TensorId tensor(shards[i].staging->source);
      const auto held = std::ranges::equal_range(out.holdings, tensor, {}, &model::Holding::tensor);
      const std::span<model::Holding> range(held.begin(), held.end());
      std::vector<bool> done(range.size());
      for (; i < shards.size() && shards[i].staging->source == tensor.value; ++i) {
        std::size_t h = 0;
        while (h < range.size() && (done[h] || !shards[i].stored->same_place(range[h]))) ++h;
        if (h == range.size())
          return Error(Code::kInternal,
                       "rank " + std::to_string(rank.value) + " lacks a shard that its pattern names")
              .at_tensor(catalogue().tensors[tensor.value].name);
        done[h] = true;
        range[h].buffer = buffer;
        range[h].offset = shards[i].offset;
        range[h].dtype = shards[i].staging->wire;
        range[h].strides = row_major(range[h].box, item_size(range[h].dtype));
      }
      std::sort(range.begin(), range.end(), before);
    }
    return out;
  }

  Result<std::vector<model::Place>> places(Rank rank, std::span<const TensorId> tensors) const override {
    REFIT_ASSIGN(const std::vector<model::Place> stored, inner_.places(rank, tensors));
    std::int64_t bytes = 0;
    const std::vector<Shard> shards = shards_of(rank, bytes);
    REFIT_ASSIGN(const std::uint32_t buffer, buffers(rank));
    std::vector<model::Place> out;
    std::size_t at = 0;
    for (TensorId t : tensors) {
      const auto mine = std::ranges::equal_range(shards, t.value, {}, [](const Shard& s) { return s.staging->source; });
      std::size_t owned = mine.size();
      for (const Shard& s : mine) out.push_back({buffer, s.offset});
      if (owned == 0)
        for (const model::PatternShard& s : patterns()[pattern_of()[t.value]].shards) {
          if (!s.owned_by(rank)) continue;
          REFIT_CHECK(at + owned < stored.size());
          out.push_back(stored[at + owned++]);
        }
      at += owned;
    }
    return out;
  }

 private:
  const model::Pattern& stored(std::uint32_t tensor) const {
    return inner_.patterns()[inner_.pattern_of()[tensor]];
  }
  // Layouts from rules have as many on every rank (stages() looks at its own); explicit ones have their ranks at hand.
  Result<std::uint32_t> buffers(Rank rank) const {
    if (inner_.recipe()) return rule_buffers_;
    REFIT_ASSIGN(const model::RankLayout held, inner_.expand(rank));
    return value_buffer(held);
  }

  std::vector<Staging> staged_;  // by source tensor
  std::uint32_t rule_buffers_;
};

using NamedValues = std::map<std::string, std::string, std::less<>>;

NamedValues values_of(const model::Layout& layout) {
  NamedValues out;
  for (const auto& [tensor, value] : layout.values())
    out.emplace(layout.catalogue().tensors[tensor.value].name, std::string(value));
  return out;
}

// A tie makes one tensor of several that may be stored through different transforms.
Status check_tie(const model::Layout& layout, const std::set<std::string>& names) {
  for (const auto& [a, b] : layout.catalogue().tied)
    for (const std::string* name : {&a, &b})
      if (names.contains(*name))
        return Error(Code::kUnsupported, *name + " is stored through a value transform and tied to " +
                                             (name == &a ? b : a) + ", which no plan combines")
            .at_tensor(*name);
  return {};
}

}  // namespace

Result<Staged> stage_values(const model::Layout& source, const model::Layout& target) {
  const NamedValues from = values_of(source), to = values_of(target);
  std::set<std::string> names;
  for (const NamedValues* side : {&from, &to})
    for (const auto& [name, value] : *side) names.insert(name);
  Staged out;
  if (names.empty()) return out;
  for (const model::Layout* side : {&source, &target}) REFIT_TRY(check_tie(*side, names));
  for (const std::string& name : names) {
    const std::int64_t s = source.catalogue().find(name), t = target.catalogue().find(name);
    if (s < 0 || t < 0) continue;  // one side alone has it: a matter of names
    const model::LogicalTensor &a = source.catalogue().tensors[static_cast<std::size_t>(s)],
                               &b = target.catalogue().tensors[static_cast<std::size_t>(t)];
    if (a.shape != b.shape || a.dtype != b.dtype) continue;  // a disagreement, which the names' check tells
    const auto value = [&](const NamedValues& side) {
      const auto at = side.find(name);
      return at == side.end() ? std::string() : at->second;
    };
    Staging staging{static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(t), value(from), value(to), a.dtype};
    for (const std::string& v : {staging.undo, staging.apply})
      if (!v.empty()) REFIT_TRY(model::check_value(v, a.dtype));
    if (!staging.apply.empty()) staging.wire = DType::kF32;  // as transforms store
    out.tensors.push_back(std::move(staging));
  }
  std::uint32_t buffers = 0;
  if (source.recipe()) {
    REFIT_ASSIGN(const model::RankLayout first, source.expand(Rank(0)));
    buffers = static_cast<std::uint32_t>(first.buffers.size());
  }
  out.source = std::make_shared<StagedSource>(source, out.tensors, buffers);
  out.target = std::make_shared<Travelling>(target, out.tensors, false);
  return out;
}

Result<std::vector<ValueStage>> Staged::stages_of(Rank rank, const model::Catalogue& plan) const {
  return static_cast<const StagedSource&>(*source).stages(rank, plan);
}

std::int64_t Staged::bytes_of(Rank rank) const { return static_cast<const StagedSource&>(*source).value_bytes(rank); }

}  // namespace refit::plan
