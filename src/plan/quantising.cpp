#include "plan/quantising.h"

#include <algorithm>
#include <optional>
#include <set>

namespace refit::plan {
namespace {

constexpr std::int64_t kQuantAlign = 64;  // of what kernels write

// Neighbouring indices of one axis that lie at one stride.
struct AxisRun {
  Interval at;
  std::int64_t offset = 0, stride = 0;
};

// The innermost factors that are whole, and whose strides nest, are one run; those outside are counted through.
std::vector<AxisRun> runs_of(const Dims& radices, std::span<const Interval> box, std::span<const std::int64_t> strides) {
  std::size_t first = radices.size() - 1;
  std::int64_t extent = radices[first], unit = strides[first];  // of what is one run so far
  while (first > 0) {
    const bool full = box[first] == Interval{0, radices[first]};
    // The stride of a run of one index means nothing.
    const bool nests = extent == 1 || strides[first - 1] == unit * extent || box[first - 1].size() == 1;
    if (!full || !nests) break;
    --first;
    if (extent == 1) unit = strides[first];
    extent *= radices[first];
  }
  std::int64_t inner = 1, stride = strides.back(), worth = 1;
  for (std::size_t f = 0; f < radices.size(); ++f) {
    worth *= radices[f];  // of the whole axis, at the end
    if (f > first) inner *= radices[f];
    if (f >= first && radices[f] > 1) stride = strides[f];  // of a factor of one index it means nothing
  }
  std::vector<AxisRun> out{{{0, 0}, 0, stride}};
  for (std::size_t f = 0; f < first; ++f) {
    worth /= radices[f];
    std::vector<AxisRun> next;
    for (const AxisRun& r : out)
      for (std::int64_t i = box[f].lo; i < box[f].hi; ++i)
        next.push_back({{r.at.lo + i * worth, 0}, r.offset + (i - box[f].lo) * strides[f], stride});
    out = std::move(next);
  }
  for (AxisRun& r : out) {
    const std::int64_t from = r.at.lo;
    r.at = {from + box[first].lo * inner, from + box[first].hi * inner};
  }
  return out;
}

// Blocks of an axis whose first element lies in the interval. `block` 0: one for the whole axis.
Interval begun_in(Interval at, std::int64_t block) {
  if (block == 0) return {0, at.lo == 0 && at.hi > 0 ? 1 : 0};
  return {ceil_div(at.lo, block), ceil_div(at.hi, block)};
}
// Blocks that it touches.
Interval touched(Interval at, std::int64_t block) {
  if (block == 0) return {0, at.empty() ? 0 : 1};
  return {at.lo / block, ceil_div(at.hi, block)};
}
bool whole_blocks(Interval at, std::int64_t block, std::int64_t extent) {
  if (block == 0) return at.lo == 0 && at.hi == extent;
  return at.lo % block == 0 && (at.hi % block == 0 || at.hi == extent);
}
Interval extent_of(std::int64_t number, std::int64_t block, std::int64_t extent) {
  return block == 0 ? Interval{0, extent} : Interval{number * block, std::min((number + 1) * block, extent)};
}

bool before_in(const model::Holding& a, const model::Holding& b) {
  for (std::size_t k = 0; k < std::min(a.box.size(), b.box.size()); ++k)
    if (a.box[k].lo != b.box[k].lo) return a.box[k].lo < b.box[k].lo;
  return a.offset < b.offset;
}

}  // namespace

std::vector<Rect> rects_of(const model::PatternShard& shard) {
  const std::vector<Dims>& radices = shard.view.radices;
  std::vector<AxisRun> axes[2];
  std::size_t at = 0;
  for (std::size_t a = 0; a < 2; ++a) {
    const std::size_t n = radices[a].size();
    axes[a] = runs_of(radices[a], std::span(shard.box).subspan(at, n), std::span(shard.strides).subspan(at, n));
    at += n;
  }
  std::vector<Rect> out;
  for (const AxisRun& r : axes[0])
    for (const AxisRun& c : axes[1]) out.push_back({r.at, c.at, r.offset + c.offset, r.stride, c.stride});
  return out;
}

// The source with codes in the place of its matrices.
class QuantisedSource final : public model::Layout {
 public:
  // `named`: by name, the format and the shape and name of the scales.
  struct Named {
    const model::BlockFormat* format;
    model::LogicalTensor scales;
  };
  static Result<std::shared_ptr<const QuantisedSource>> make(const model::Layout& inner,
                                                             const std::map<std::string, Named>& named) {
    auto out = std::make_shared<QuantisedSource>(inner);
    REFIT_TRY(out->build(named));
    return std::shared_ptr<const QuantisedSource>(std::move(out));
  }
  explicit QuantisedSource(const model::Layout& inner) : inner_(inner) {}

  const model::Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t world() const override { return inner_.world(); }
  std::int64_t instances() const override { return inner_.instances(); }
  Hash128 digest() const override { return inner_.digest(); }
  std::string host(Rank rank) const override { return inner_.host(rank); }
  std::span<const model::Pattern> patterns() const override { return patterns_; }
  std::span<const std::uint32_t> pattern_of() const override { return pattern_of_; }
  const model::Recipe* recipe() const override { return inner_.recipe(); }
  std::string serialise() const override { return inner_.serialise(); }

  const std::vector<Quantising>& quantising() const { return quantising_; }
  const model::LogicalTensor& matrix(std::size_t i) const {
    return inner_.catalogue().tensors[quantising_[i].tensor.value];
  }
  TensorId codes(std::size_t i) const { return codes_[i]; }
  TensorId scales(std::size_t i) const { return scales_[i]; }

  Result<model::RankLayout> expand(Rank rank) const override {
    REFIT_ASSIGN(model::RankLayout out, inner_.expand(rank));
    REFIT_ASSIGN(const QuantWork work, work_of(rank));
    const auto buffer = static_cast<std::uint32_t>(out.buffers.size());
    out.buffers.push_back({.name = "codes", .bytes = work.bytes, .fill = 0, .file = {}});
    out.parameters.clear();
    std::vector<model::Holding> held;
    for (model::Holding& h : out.holdings) {
      if (is_codes(h.tensor)) continue;
      h.tensor = id_of_[h.tensor.value];
      held.push_back(std::move(h));
    }
    for (const QuantPart& p : work.parts) {
      held.push_back(codes_holding(p, buffer));
      if (!p.block_rows.empty() && !p.block_cols.empty()) held.push_back(scales_holding(p, buffer));
    }
    std::sort(held.begin(), held.end(), [](const model::Holding& a, const model::Holding& b) {
      return a.tensor != b.tensor ? a.tensor < b.tensor : before_in(a, b);
    });
    out.holdings = std::move(held);
    return out;
  }

  Result<std::vector<model::Place>> places(Rank rank, std::span<const TensorId> tensors) const override {
    std::vector<TensorId> plain;
    for (TensorId t : tensors)
      if (origin_[t.value].quantising < 0) plain.push_back(origin_[t.value].inner);
    REFIT_ASSIGN(const std::vector<model::Place> stored, inner_.places(rank, plain));
    std::optional<QuantWork> work;
    std::uint32_t buffer = 0;
    if (plain.size() != tensors.size()) {
      REFIT_ASSIGN(work, work_of(rank, Only::kPlaces));
      REFIT_ASSIGN(buffer, buffers(rank));
    }
    std::vector<model::Place> out;
    std::size_t at = 0;
    for (TensorId t : tensors) {
      const Origin& from = origin_[t.value];
      if (from.quantising < 0) {
        for (const model::PatternShard& s : inner_.patterns()[inner_.pattern_of()[from.inner.value]].shards)
          if (s.owned_by(rank)) out.push_back(stored.at(at++));
        continue;
      }
      const auto parts = std::ranges::equal_range(work->parts, static_cast<std::uint32_t>(from.quantising), {},
                                                  &QuantPart::tensor);
      for (const QuantPart& p : parts)
        if (!from.scales)
          out.push_back({buffer, p.codes});
        else if (!p.block_rows.empty() && !p.block_cols.empty())
          out.push_back({buffer, p.scales});
    }
    return out;
  }

  // Parts in the order of pattern shards, which places() relies on.
  // kPlaces: where codes and scales go; nothing of where values are stored and of what is exchanged, which only the rank
  // itself needs.
  enum class Only { kAll, kPlaces };
  Result<QuantWork> work_of(Rank rank, Only only = Only::kAll) const {
    QuantWork out;
    std::vector<model::Place> stored;
    if (only == Only::kAll) {
      std::vector<TensorId> tensors;
      for (const Quantising& q : quantising_) tensors.push_back(q.tensor);
      REFIT_ASSIGN(stored, inner_.places(rank, tensors));
    }
    std::size_t at = 0;
    const auto take = [&](std::int64_t bytes) {
      const std::int64_t from = out.bytes;
      out.bytes = ceil_div(from + bytes, kQuantAlign) * kQuantAlign;
      return from;
    };
    for (std::size_t i = 0; i < quantising_.size(); ++i) {
      const Quantising& q = quantising_[i];
      const std::size_t first = out.parts.size();
      for (const model::PatternShard& s : shards(q.tensor)) {
        if (!s.owned_by(rank)) continue;
        REFIT_CHECK(only == Only::kPlaces || at < stored.size());
        const model::Place place = only == Only::kAll ? stored[at++] : model::Place{};
        for (const Rect& r : rects_of(s)) {
          if (r.rows.empty() || r.cols.empty()) continue;
          QuantPart p{.tensor = static_cast<std::uint32_t>(i),
                      .rows = r.rows,
                      .cols = r.cols,
                      .stored = s.dtype,
                      .buffer = place.buffer,
                      .offset = place.offset + r.offset,
                      .row_stride = r.row_stride,
                      .col_stride = r.col_stride,
                      .codes = take(r.rows.size() * r.cols.size()),
                      .block_rows = begun_in(r.rows, q.format->rows),
                      .block_cols = begun_in(r.cols, q.format->cols),
                      .scales = 0};
          p.scales = take(p.block_rows.size() * p.block_cols.size() * item_size(q.format->scale));
          out.parts.push_back(p);
        }
      }
      if (q.exchange && only == Only::kAll)
        REFIT_TRY(add_shared(static_cast<std::uint32_t>(i), std::span(out.parts).subspan(first), out.shared));
    }
    if (static_cast<std::int64_t>(out.shared.size()) > kMaxSharedBlocks)
      return Error(Code::kExhausted, "source rank " + std::to_string(rank.value) +
                                         " shares more blocks with other ranks than one exchange carries: cut the "
                                         "trainer's matrices at whole blocks, over more ranks (fsdp, pp), or use a "
                                         "format with larger blocks")
          .at_tensor(matrix(out.shared.back().tensor).name)
          .amounts(static_cast<std::int64_t>(out.shared.size()), kMaxSharedBlocks);
    return out;
  }

 private:
  struct Origin {
    TensorId inner;
    std::int64_t quantising = -1;
    bool scales = false;
  };

  std::span<const model::PatternShard> shards(TensorId inner) const {
    return inner_.patterns()[inner_.pattern_of()[inner.value]].shards;
  }
  bool is_codes(TensorId inner) const { return origin_[id_of_[inner.value].value].quantising >= 0; }
  Result<std::uint32_t> buffers(Rank rank) const {
    // As many on each rank where rules made the layout; the agents compare what is lent with it.
    REFIT_ASSIGN(const model::RankLayout held, inner_.expand(inner_.recipe() ? Rank(0) : rank));
    return static_cast<std::uint32_t>(held.buffers.size());
  }

  Status build(const std::map<std::string, Named>& named) {
    struct Entry {
      model::LogicalTensor tensor;
      Origin from;
    };
    const std::vector<model::LogicalTensor>& tensors = inner_.catalogue().tensors;
    std::vector<Entry> all;
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      all.push_back({tensors[t], {.inner = TensorId(t)}});
      const auto at = named.find(tensors[t].name);
      if (at == named.end()) continue;
      const auto number = static_cast<std::int64_t>(quantising_.size());
      quantising_.push_back({TensorId(t), at->second.format, false});
      all.back().tensor.dtype = DType::kF8E4M3;
      all.back().from.quantising = number;
      all.push_back({at->second.scales, {.inner = TensorId(t), .quantising = number, .scales = true}});
    }
    std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.tensor.name < b.tensor.name; });
    codes_.resize(quantising_.size());
    scales_.resize(quantising_.size());
    id_of_.resize(tensors.size());
    patterns_.assign(inner_.patterns().begin(), inner_.patterns().end());
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      const Origin& from = all[i].from;
      if (!from.scales) id_of_[from.inner.value] = TensorId(i);
      if (from.quantising >= 0)
        (from.scales ? scales_ : codes_)[static_cast<std::size_t>(from.quantising)] = TensorId(i);
      pattern_of_.push_back(pattern(all[i].tensor, from));
      catalogue_.tensors.push_back(std::move(all[i].tensor));
      origin_.push_back(from);
    }
    catalogue_.tied = inner_.catalogue().tied;
    for (Quantising& q : quantising_) q.exchange = splits(q);
    return {};
  }

  bool splits(const Quantising& q) {
    const auto [at, fresh] = splits_.try_emplace({inner_.pattern_of()[q.tensor.value], q.format}, false);
    if (!fresh) return at->second;
    const Dims& shape = inner_.catalogue().tensors[q.tensor.value].shape;
    for (const model::PatternShard& s : shards(q.tensor))
      for (const Rect& r : rects_of(s))
        if (!r.rows.empty() && !r.cols.empty() &&
            !(whole_blocks(r.rows, q.format->rows, shape[0]) && whole_blocks(r.cols, q.format->cols, shape[1])))
          return at->second = true;
    return false;
  }

  std::uint32_t pattern(const model::LogicalTensor& tensor, const Origin& from) {
    const std::uint32_t stored = inner_.pattern_of()[from.inner.value];
    if (from.quantising < 0) return stored;
    const model::BlockFormat* format = quantising_[static_cast<std::size_t>(from.quantising)].format;
    const auto [at, fresh] = made_.try_emplace({stored, format, from.scales}, static_cast<std::uint32_t>(patterns_.size()));
    if (!fresh) return at->second;
    model::Pattern p{tensor.shape, tensor.dtype, {}};
    for (const model::PatternShard& s : inner_.patterns()[stored].shards)
      for (const Rect& r : rects_of(s)) {
        if (r.rows.empty() || r.cols.empty()) continue;
        model::PatternShard shard;
        shard.first = s.first;
        shard.progressions = s.progressions;
        const Interval rows = from.scales ? begun_in(r.rows, format->rows) : r.rows,
                       cols = from.scales ? begun_in(r.cols, format->cols) : r.cols;
        if (rows.empty() || cols.empty()) continue;
        place(tensor, rows, cols, shard.view, shard.box, shard.strides);
        shard.dtype = tensor.dtype;
        p.shards.push_back(std::move(shard));
      }
    patterns_.push_back(std::move(p));
    return at->second;
  }

  // Dense rows of codes or scales; one axis only where there is one scale of all.
  static void place(const model::LogicalTensor& tensor, Interval rows, Interval cols, View& view, Box& box,
                    Dims& strides) {
    const std::int64_t item = item_size(tensor.dtype);
    view = View::trivial(tensor.shape);
    if (tensor.shape.size() == 1) {
      box = {rows};
      strides = {item};
    } else {
      box = {rows, cols};
      strides = {cols.size() * item, item};
    }
  }
  model::Holding codes_holding(const QuantPart& p, std::uint32_t buffer) const {
    model::Holding h;
    h.tensor = codes_[p.tensor];
    h.buffer = buffer;
    h.offset = p.codes;
    h.dtype = DType::kF8E4M3;
    place(catalogue_.tensors[h.tensor.value], p.rows, p.cols, h.view, h.box, h.strides);
    return h;
  }
  model::Holding scales_holding(const QuantPart& p, std::uint32_t buffer) const {
    model::Holding h;
    h.tensor = scales_[p.tensor];
    h.buffer = buffer;
    h.offset = p.scales;
    const model::LogicalTensor& t = catalogue_.tensors[h.tensor.value];
    h.dtype = t.dtype;
    place(t, p.block_rows, p.block_cols, h.view, h.box, h.strides);
    return h;
  }

  // Blocks of which the rank's parts together hold some elements, not all.
  Status add_shared(std::uint32_t tensor, std::span<const QuantPart> parts, std::vector<SharedBlock>& out) const {
    const model::BlockFormat& f = *quantising_[tensor].format;
    const Dims &shape = matrix(tensor).shape, grid = f.scales(shape);
    const std::int64_t across = grid.size() == 1 ? 1 : grid[1];
    std::map<std::int64_t, std::int64_t> held;  // block -> elements
    std::set<std::pair<Interval, Interval>> seen;
    for (const QuantPart& p : parts) {
      if (!seen.emplace(p.rows, p.cols).second) continue;  // a box that the rank holds twice
      for (const auto& [rows, cols] : seen)
        if (std::pair(rows, cols) != std::pair(p.rows, p.cols) && !intersect(rows, p.rows).empty() &&
            !intersect(cols, p.cols).empty())
          return Error(Code::kUnsupported,
                       "a source rank holds overlapping boxes of a matrix whose blocks are cut over ranks; it can "
                       "not be quantised there")
              .at_tensor(matrix(tensor).name);
      const Interval rows = touched(p.rows, f.rows), cols = touched(p.cols, f.cols);
      for (std::int64_t r = rows.lo; r < rows.hi; ++r)
        for (std::int64_t c = cols.lo; c < cols.hi; ++c)
          held[r * across + c] += intersect(p.rows, extent_of(r, f.rows, shape[0])).size() *
                                  intersect(p.cols, extent_of(c, f.cols, shape[1])).size();
    }
    for (const auto& [block, elements] : held) {
      const Interval rows = extent_of(block / across, f.rows, shape[0]), cols = extent_of(block % across, f.cols, shape[1]);
      if (elements != rows.size() * cols.size()) out.push_back({tensor, static_cast<std::uint32_t>(block)});
    }
    return {};
  }

  const model::Layout& inner_;
  std::vector<Quantising> quantising_;  // by tensor of the inner layout
  model::Catalogue catalogue_;
  std::vector<Origin> origin_;    // by tensor of this layout
  std::vector<TensorId> id_of_;   // by tensor of the inner one
  std::vector<TensorId> codes_, scales_;  // by quantising
  std::vector<model::Pattern> patterns_;
  std::vector<std::uint32_t> pattern_of_;
  std::map<std::tuple<std::uint32_t, const model::BlockFormat*, bool>, std::uint32_t> made_;
  std::map<std::pair<std::uint32_t, const model::BlockFormat*>, bool> splits_;
};

namespace {

Error unquantised(const std::string& name, const std::string& why) {
  return Error(Code::kUnsupported, name + ": the target holds codes of it, and " + why).at_tensor(name);
}

// Errors of a source tensor that stands in values and is wanted in codes.
Status can_quantise(const model::Layout& source, const model::LogicalTensor& t) {
  if (t.shape.size() != 2 || t.shape[0] == 0 || t.shape[1] == 0) return unquantised(t.name, "it is no matrix");
  if (t.dtype != DType::kBF16 && t.dtype != DType::kF32)
    return unquantised(t.name, "only bf16 and f32 are quantised, not " + std::string(to_string(t.dtype)));
  for (const auto& [a, b] : source.catalogue().tied)
    if (a == t.name || b == t.name) return unquantised(t.name, "it is tied to " + (a == t.name ? b : a));
  return {};
}

}  // namespace

Result<Quantised> Quantised::make(const model::Layout& source, const model::Layout& target,
                                  const model::Layout& stored) {
  Quantised out;
  std::map<std::string, QuantisedSource::Named> named;
  for (const model::QuantisedWeight& q : target.quantised()) {
    const model::LogicalTensor &codes = target.catalogue().tensors[q.codes.value],
                               &scales = target.catalogue().tensors[q.scales.value];
    const std::int64_t at = source.catalogue().find(codes.name);
    if (at < 0) continue;  // the names' check tells
    const model::LogicalTensor& held = source.catalogue().tensors[static_cast<std::size_t>(at)];
    if (held.dtype == codes.dtype || held.shape != codes.shape || source.catalogue().find(scales.name) >= 0) continue;
    REFIT_TRY(can_quantise(source, held));
    if (scales.shape != q.format->scales(codes.shape) || scales.dtype != q.format->scale)
      return unquantised(codes.name, scales.name + " has another shape than its blocks");
    named.emplace(codes.name, QuantisedSource::Named{q.format, scales});
  }
  if (named.empty()) return out;
  for (const auto& [tensor, value] : stored.values())
    if (const std::string& name = stored.catalogue().tensors[tensor.value].name; named.contains(name))
      return unquantised(name,
                         "the source stores it through the value transform '" + std::string(value) + "'");
  REFIT_ASSIGN(out.source_, QuantisedSource::make(source, named));
  return out;
}

const model::Layout& Quantised::source() const { return *source_; }

std::vector<QuantTensor> Quantised::tensors(const model::Catalogue& plan) const {
  std::vector<QuantTensor> out;
  const auto in_plan = [&](TensorId own) {
    const std::int64_t at = plan.find(source_->catalogue().tensors[own.value].name);
    REFIT_CHECK(at >= 0);
    return TensorId(static_cast<std::uint32_t>(at));
  };
  for (std::size_t i = 0; i < source_->quantising().size(); ++i) {
    const Quantising& q = source_->quantising()[i];
    const model::LogicalTensor& t = source_->matrix(i);
    out.push_back({in_plan(source_->codes(i)), in_plan(source_->scales(i)), q.format, t.shape, t.dtype, q.exchange});
  }
  return out;
}

Result<QuantWork> Quantised::work_of(Rank rank) const { return source_->work_of(rank); }

bool RankPlan::exchanges() const {
  return std::ranges::any_of(quantised, [](const QuantTensor& t) { return t.exchange; });
}

}  // namespace refit::plan
