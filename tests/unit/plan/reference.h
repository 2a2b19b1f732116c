// What memory should hold: layouts read element by element, without a plan.
#pragma once
#include <cstring>
#include <functional>
#include <vector>

#include "model/model.h"

namespace refit::testing {

using Memory = std::vector<std::vector<std::uint8_t>>;  // of one rank, by buffer
// Eight bytes of an element; its dtype takes the first of them.
using Value = std::function<std::uint64_t(std::uint32_t tensor, const Dims& index)>;

// All logical indices of a holding with their byte addresses.
inline void each_element(const model::Holding& h, const std::function<void(const Dims&, std::int64_t)>& visit) {
  const std::vector<int> axis = h.view.axis_of();
  const Dims steps = h.view.steps();
  Dims index(h.view.radices.size(), 0);
  const std::function<void(std::size_t, std::int64_t)> walk = [&](std::size_t k, std::int64_t at) {
    if (k == h.box.size()) return visit(index, at);
    for (std::int64_t i = h.box[k].lo; i < h.box[k].hi; ++i) {
      index[static_cast<std::size_t>(axis[k])] += i * steps[k];
      walk(k + 1, at + (i - h.box[k].lo) * h.strides[k]);
      index[static_cast<std::size_t>(axis[k])] -= i * steps[k];
    }
  };
  walk(0, h.offset);
}

inline std::int64_t linear(const Dims& shape, const Dims& index) {
  std::int64_t out = 0;
  for (std::size_t a = 0; a < shape.size(); ++a) out = out * shape[a] + index[a];
  return out;
}

inline Memory fill(const model::Layout& layout, Rank rank, const Value& value) {
  const auto held = layout.expand(rank).value();
  Memory out;
  for (const auto& b : held.buffers) out.emplace_back(static_cast<std::size_t>(b.bytes), b.fill);
  for (const auto& h : held.holdings)
    each_element(h, [&](const Dims& index, std::int64_t at) {
      const std::uint64_t v = value(h.tensor.value, index);
      std::memcpy(&out[h.buffer][static_cast<std::size_t>(at)], &v, static_cast<std::size_t>(item_size(h.dtype)));
    });
  return out;
}

}  // namespace refit::testing
