// Walking a holding element by element in logical coordinates.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/core.h"
#include "model/model.h"

namespace refit::engine {

// Calls f(linear, address, count) for each run: `count` consecutive logical elements (row-major linear indices linear …
// linear+count−1 of the whole tensor) that lie item_size apart from `address`. Runs have count 1 where the storage is
// not contiguous along the last factor.
template <typename F>
void for_each_run(const model::LogicalTensor& tensor, const model::Holding& holding, std::byte* base, F f) {
  if (empty(holding.box)) return;
  const std::size_t n = holding.box.size();
  const Dims steps = holding.view.steps();
  const std::vector<int> axis = holding.view.axis_of();
  Dims pitch(tensor.shape.size(), 1);  // elements per index of each axis
  for (std::size_t a = tensor.shape.size(); a-- > 1;) pitch[a - 1] = pitch[a] * tensor.shape[a];
  Dims weight(n);
  for (std::size_t k = 0; k < n; ++k) weight[k] = steps[k] * pitch[static_cast<std::size_t>(axis[k])];
  const std::int64_t item = item_size(holding.dtype);
  const bool runs = n > 0 && weight[n - 1] == 1 && holding.strides[n - 1] == item;
  const std::size_t outer = runs ? n - 1 : n;
  const std::int64_t count = runs ? holding.box[n - 1].size() : 1;
  std::int64_t linear = 0, offset = holding.offset;
  for (std::size_t k = 0; k < n; ++k) linear += holding.box[k].lo * weight[k];
  Dims index(outer, 0);
  while (true) {
    f(linear, base + offset, count);
    std::size_t k = outer;
    while (k > 0) {
      --k;
      linear += weight[k];
      offset += holding.strides[k];
      if (++index[k] < holding.box[k].size()) break;
      linear -= index[k] * weight[k];
      offset -= index[k] * holding.strides[k];
      index[k] = 0;
      if (k == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace refit::engine
