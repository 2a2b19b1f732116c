// Random pairs of explicit layouts, small enough to be checked element by element.
#pragma once
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "model/model.h"

namespace refit::testing {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t upto(std::int64_t lo, std::int64_t hi) {
    return lo + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(hi - lo + 1));
  }
  bool one_in(std::int64_t n) { return upto(1, n) == 1; }
  template <typename T>
  const T& pick(const std::vector<T>& v) {
    return v[static_cast<std::size_t>(upto(0, static_cast<std::int64_t>(v.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

struct RandomOptions {
  bool views = true, overlaps = true, ties = true, hosts = true, zero_strides = true;
};

// Values are a function of (logical tensor, index), except that `flat` axes do not count: a source may hold them with
// stride 0.
struct RandomPair {
  std::shared_ptr<const model::Layout> source, target;
  std::vector<std::set<int>> flat;  // by tensor of the catalogue
};

class LayoutMaker {
 public:
  LayoutMaker(std::uint64_t seed, RandomOptions options) : dice_(seed), options_(options) {}

  Result<RandomPair> make() {
    make_catalogue();
    RandomPair out;
    out.flat = flat_;
    REFIT_ASSIGN(out.source, side(true));
    REFIT_ASSIGN(out.target, side(false));
    return out;
  }

 private:
  void make_catalogue() {
    static const std::vector<std::int64_t> kExtents{1, 2, 3, 4, 5, 6, 8, 12};
    const auto count = dice_.upto(1, 4);
    for (std::int64_t t = 0; t < count; ++t) {
      Dims shape;
      for (std::int64_t a = dice_.upto(0, 3); a > 0; --a) shape.push_back(dice_.one_in(20) ? 0 : dice_.pick(kExtents));
      static const std::vector<DType> kTypes{DType::kU8, DType::kBF16, DType::kF32, DType::kI64};
      catalogue_.tensors.push_back({"t" + std::to_string(t), shape, dice_.pick(kTypes)});
      flat_.emplace_back();
      for (int a = 0; a < static_cast<int>(shape.size()); ++a)
        if (options_.zero_strides && dice_.one_in(6)) flat_.back().insert(a);
    }
    if (options_.ties && dice_.one_in(2)) {
      catalogue_.tensors.push_back({"z", catalogue_.tensors[0].shape, catalogue_.tensors[0].dtype});
      catalogue_.tied.emplace_back("t0", "z");
      flat_.push_back(flat_[0]);
    }
  }

  View random_view(const Dims& shape) {
    View v;
    for (std::int64_t n : shape) {
      Dims radices;
      std::int64_t left = n;
      while (options_.views && left > 1 && dice_.one_in(2)) {
        std::vector<std::int64_t> divisors;
        for (std::int64_t d = 2; d < left; ++d)
          if (left % d == 0) divisors.push_back(d);
        if (divisors.empty()) break;
        const std::int64_t d = dice_.pick(divisors);
        radices.push_back(d);
        left /= d;
      }
      radices.push_back(left);
      v.radices.push_back(radices);
    }
    return v;
  }

  // Cuts a box at random into disjoint boxes.
  void partition(Box box, std::vector<Box>& out, int depth) {
    std::vector<std::size_t> wide;
    for (std::size_t k = 0; k < box.size(); ++k)
      if (box[k].size() > 1) wide.push_back(k);
    if (depth == 0 || wide.empty() || dice_.one_in(4)) return out.push_back(box);
    const std::size_t k = dice_.pick(wide);
    const std::int64_t at = dice_.upto(box[k].lo + 1, box[k].hi - 1);
    Box low = box, high = box;
    low[k].hi = high[k].lo = at;
    partition(low, out, depth - 1);
    partition(high, out, depth - 1);
  }

  // Appends storage for a box to a rank: axes in any order, padded, some backwards; a source may repeat flat axes.
  void hold(model::RankLayout& rank, std::uint32_t tensor, const View& view, const Box& box, bool source) {
    const model::LogicalTensor& t = catalogue_.tensors[tensor];
    auto& buffer =
        rank.buffers[static_cast<std::size_t>(dice_.upto(0, static_cast<std::int64_t>(rank.buffers.size()) - 1))];
    model::Holding h{.tensor = TensorId(tensor),
                     .buffer = static_cast<std::uint32_t>(&buffer - rank.buffers.data()),
                     .view = view,
                     .box = box,
                     .offset = buffer.bytes + dice_.upto(0, 3),
                     .strides = Dims(box.size()),
                     .dtype = t.dtype};
    std::vector<std::size_t> order(box.size());
    for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
    if (!dice_.one_in(3))
      for (std::size_t k = order.size(); k > 1; --k)
        std::swap(order[k - 1], order[static_cast<std::size_t>(dice_.upto(0, static_cast<std::int64_t>(k) - 1))]);
    else
      std::reverse(order.begin(), order.end());
    const std::vector<int> axis = view.axis_of();
    std::int64_t span = item_size(t.dtype);
    for (std::size_t k : order) {
      const std::int64_t n = box[k].size();
      const bool repeat = source && flat_[tensor].contains(axis[k]) && dice_.one_in(2);
      const std::int64_t stride = repeat ? 0 : span + (dice_.one_in(4) ? dice_.upto(1, 5) : 0);
      const bool back = dice_.one_in(6);
      if (back && n > 0) h.offset += (n - 1) * stride;
      h.strides[k] = back ? -stride : stride;
      if (n > 0) span += (n - 1) * stride;
    }
    buffer.bytes += span + 8;
    rank.holdings.push_back(h);
  }

  Result<std::shared_ptr<const model::Layout>> side(bool source) {
    static const std::vector<std::string> kHosts{"", "", "a", "b"};
    const std::int64_t instances = source ? 1 : dice_.upto(1, 2);
    const std::int64_t world = instances * dice_.upto(1, 4);
    std::vector<model::RankLayout> ranks;
    for (std::int64_t r = 0; r < world; ++r) {
      model::RankLayout rank{.rank = Rank(static_cast<std::uint32_t>(r)),
                             .host = options_.hosts ? dice_.pick(kHosts) : "",
                             .buffers = {},
                             .holdings = {},
                             .parameters = {}};
      for (std::int64_t b = dice_.upto(1, 2); b > 0; --b)
        rank.buffers.push_back({"b" + std::to_string(b), 0, static_cast<std::uint8_t>(dice_.upto(0, 255)), ""});
      ranks.push_back(rank);
    }
    const auto any_rank = [&]() -> model::RankLayout& {
      return ranks[static_cast<std::size_t>(dice_.upto(0, world - 1))];
    };
    for (std::uint32_t t = 0; t < catalogue_.tensors.size(); ++t) {
      if (source && catalogue_.tensors[t].name == "z" && dice_.one_in(2)) continue;  // its twin is enough
      const View view = random_view(catalogue_.tensors[t].shape);
      std::vector<Box> boxes;
      partition(whole(view.extents()), boxes, 3);
      const std::int64_t copies = dice_.one_in(3) ? world : dice_.upto(1, 2);
      for (const Box& b : boxes) {
        if (!source && dice_.one_in(5)) continue;  // nobody has to want everything
        if (copies == world)
          for (auto& r : ranks) hold(r, t, view, b, source);
        else
          for (std::int64_t c = 0; c < copies; ++c) hold(any_rank(), t, view, b, source);
      }
      for (std::int64_t extra = options_.overlaps ? dice_.upto(0, 2) : 0; extra > 0; --extra) {
        const View other = random_view(catalogue_.tensors[t].shape);
        Box b;
        for (std::int64_t n : other.extents()) {
          const std::int64_t lo = dice_.upto(0, n);
          b.push_back({lo, dice_.upto(lo, n)});
        }
        hold(any_rank(), t, other, b, source);
      }
    }
    return model::explicit_layout(catalogue_, std::move(ranks), instances);
  }

  Dice dice_;
  RandomOptions options_;
  model::Catalogue catalogue_;
  std::vector<std::set<int>> flat_;
};

inline Result<RandomPair> random_pair(std::uint64_t seed, RandomOptions options = {}) {
  return LayoutMaker(seed, options).make();
}

}  // namespace refit::testing
