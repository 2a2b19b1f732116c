#include <algorithm>
#include <map>
#include <tuple>

#include "model/explicit_check.h"
#include "model/explicit_json.h"
#include "model/layout.h"

namespace refit::model {
namespace {

// Total order of everything in a holding but its place; equal keys are one shard of a pattern.
auto shard_key(const Holding& h) {
  Dims flat;
  flat.push_back(static_cast<std::int64_t>(h.dtype));
  for (const Dims& axis : h.view.radices) {
    flat.push_back(static_cast<std::int64_t>(axis.size()));
    flat.insert(flat.end(), axis.begin(), axis.end());
  }
  for (const Interval& i : h.box) flat.insert(flat.end(), {i.lo, i.hi});
  flat.insert(flat.end(), h.strides.begin(), h.strides.end());
  return flat;
}

Dims lows(const Box& box) {
  Dims out;
  for (const Interval& i : box) out.push_back(i.lo);
  return out;
}

void hash_dims(Hasher& hash, const Dims& dims) {
  hash.add_u64(dims.size());
  for (std::int64_t d : dims) hash.add_i64(d);
}

// Sorted ranks as arithmetic progressions, longest first from the left.
std::vector<PatternShard> with_owners(const Holding& h, const std::vector<std::uint32_t>& ranks) {
  std::vector<PatternShard> out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    const std::uint32_t step = end < ranks.size() ? ranks[end] - ranks[i] : 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) ++end;
    PatternShard shard{
        .view = h.view, .box = h.box, .strides = h.strides, .dtype = h.dtype, .first = ranks[i], .progressions = {}};
    if (end - i > 1) shard.progressions.emplace_back(static_cast<std::uint32_t>(end - i), step);
    out.push_back(std::move(shard));
    i = end;
  }
  return out;
}

class ExplicitLayout final : public Layout {
 public:
  ExplicitLayout(Catalogue catalogue, std::vector<RankLayout> ranks, std::int64_t instances)
      : catalogue_(std::move(catalogue)), ranks_(std::move(ranks)), instances_(instances) {
    world_ = std::int64_t{ranks_.back().rank.value} + 1;
    for (const RankLayout& r : ranks_) hosts_.emplace(r.rank, &r);
    build_patterns();
    digest_ = compute_digest();
  }
  const Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t world() const override { return world_; }
  std::int64_t instances() const override { return instances_; }
  Hash128 digest() const override { return digest_; }
  Result<RankLayout> expand(Rank rank) const override {
    if (rank.value >= world_)
      return Error(Code::kInvalid,
                   "rank " + std::to_string(rank.value) + " is not in a world of " + std::to_string(world_));
    const auto at = hosts_.find(rank);
    return at == hosts_.end() ? RankLayout{.rank = rank, .host = {}, .buffers = {}, .holdings = {}, .parameters = {}}
                              : *at->second;
  }
  std::string host(Rank rank) const override {
    const auto at = hosts_.find(rank);
    return at == hosts_.end() ? std::string() : at->second->host;
  }
  std::span<const Pattern> patterns() const override { return patterns_; }
  std::span<const std::uint32_t> pattern_of() const override { return pattern_of_; }
  Result<std::vector<Place>> places(Rank rank, std::span<const TensorId> tensors) const override {
    const auto at = hosts_.find(rank);
    if (at == hosts_.end()) return std::vector<Place>{};
    return places_in(*this, *at->second, tensors);
  }
  std::string serialise() const override { return write_explicit(catalogue_, ranks_, instances_, Text::kSeries); }

 private:
  void build_patterns();
  Hash128 compute_digest() const;

  Catalogue catalogue_;
  std::vector<RankLayout> ranks_;  // ascending
  std::int64_t instances_, world_ = 0;
  std::map<Rank, const RankLayout*> hosts_;
  std::vector<Pattern> patterns_;
  std::vector<std::uint32_t> pattern_of_;
  Hash128 digest_;
};

void ExplicitLayout::build_patterns() {
  // Per tensor: (shard, how many equal ones the same rank has before it) -> ranks. A second storage of one box in one
  // rank is a shard of its own.
  struct Owners {
    const Holding* holding = nullptr;
    std::vector<std::uint32_t> ranks;
  };
  std::vector<std::map<std::pair<Dims, int>, Owners>> shards(catalogue_.tensors.size());
  for (const RankLayout& r : ranks_)
    for (const Holding& h : r.holdings) {
      std::pair<Dims, int> key{shard_key(h), 0};
      auto& mine = shards[h.tensor.value];
      for (;; ++key.second) {
        Owners& o = mine[key];
        if (!o.ranks.empty() && o.ranks.back() == r.rank.value) continue;
        if (!o.holding) o.holding = &h;
        o.ranks.push_back(r.rank.value);
        break;
      }
    }
  std::map<Hash128, std::uint32_t> known;
  for (std::size_t t = 0; t < shards.size(); ++t) {
    const LogicalTensor& tensor = catalogue_.tensors[t];
    Hasher hash;
    hash_dims(hash, tensor.shape);
    hash.add_u64(static_cast<std::uint64_t>(tensor.dtype));
    for (const auto& [key, owners] : shards[t]) {
      hash_dims(hash, key.first);
      hash.add_u64(owners.ranks.size());
      for (std::uint32_t r : owners.ranks) hash.add_u64(r);
    }
    const auto [at, fresh] = known.emplace(hash.finish(), static_cast<std::uint32_t>(patterns_.size()));
    pattern_of_.push_back(at->second);
    if (!fresh) continue;
    Pattern p{.shape = tensor.shape, .dtype = tensor.dtype, .shards = {}};
    for (const auto& [key, owners] : shards[t])
      for (PatternShard& s : with_owners(*owners.holding, owners.ranks)) p.shards.push_back(std::move(s));
    patterns_.push_back(std::move(p));
  }
}

Hash128 ExplicitLayout::compute_digest() const {
  Hasher hash;
  hash.add_text("refit layout 1").add_i64(instances_);
  for (const LogicalTensor& t : catalogue_.tensors) {
    hash.add_text(t.name).add_u64(static_cast<std::uint64_t>(t.dtype));
    hash_dims(hash, t.shape);
  }
  for (const auto& [a, b] : catalogue_.tied) hash.add_text(a).add_text(b);
  for (const RankLayout& r : ranks_) {
    hash.add_text("rank").add_u64(r.rank.value).add_text(r.host);
    for (const BufferSpec& b : r.buffers) hash.add_text(b.name).add_i64(b.bytes).add_u64(b.fill).add_text(b.file);
    for (const Holding& h : r.holdings) {
      hash.add_u64(h.tensor.value).add_u64(h.buffer).add_i64(h.offset);
      hash_dims(hash, shard_key(h));
    }
  }
  return hash.finish();
}

// Ties as a canonical list: each pair ordered, sorted, once.
void order_ties(Catalogue& catalogue) {
  for (auto& [a, b] : catalogue.tied)
    if (b < a) std::swap(a, b);
  std::sort(catalogue.tied.begin(), catalogue.tied.end());
  catalogue.tied.erase(std::unique(catalogue.tied.begin(), catalogue.tied.end()), catalogue.tied.end());
}

// Buffers by name and holdings by (tensor, origin, offset), so that equal layouts are equal bytes.
void order_rank(RankLayout& rank) {
  std::vector<std::uint32_t> order(rank.buffers.size()), place(rank.buffers.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return rank.buffers[a].name < rank.buffers[b].name; });
  std::vector<BufferSpec> buffers;
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    buffers.push_back(std::move(rank.buffers[order[i]]));
  }
  rank.buffers = std::move(buffers);
  for (Holding& h : rank.holdings) h.buffer = place[h.buffer];
  for (Parameter& p : rank.parameters)
    if (p.buffer < place.size()) p.buffer = place[p.buffer];
  std::sort(rank.holdings.begin(), rank.holdings.end(), [](const Holding& a, const Holding& b) {
    return std::tuple(a.tensor, lows(a.box), a.offset, a.buffer, shard_key(a)) <
           std::tuple(b.tensor, lows(b.box), b.offset, b.buffer, shard_key(b));
  });
}

}  // namespace

Result<std::shared_ptr<const Layout>> explicit_layout(Catalogue catalogue, std::vector<RankLayout> ranks,
                                                      std::int64_t instances) {
  REFIT_TRY(check_catalogue(catalogue));
  order_ties(catalogue);
  if (ranks.empty()) return Error(Code::kInvalid, "a layout needs at least one rank");
  std::sort(ranks.begin(), ranks.end(), [](const RankLayout& a, const RankLayout& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i && ranks[i].rank == ranks[i - 1].rank)
      return Error(Code::kInvalid, "rank " + std::to_string(ranks[i].rank.value) + " appears twice");
    REFIT_TRY(check_rank(catalogue, ranks[i]));
    order_rank(ranks[i]);
  }
  if (instances < 1 || (std::int64_t{ranks.back().rank.value} + 1) % instances != 0)
    return Error(Code::kInvalid, std::to_string(std::int64_t{ranks.back().rank.value} + 1) + " ranks do not make " +
                                     std::to_string(instances) + " equal instances");
  return std::shared_ptr<const Layout>(
      std::make_shared<ExplicitLayout>(std::move(catalogue), std::move(ranks), instances));
}

}  // namespace refit::model
