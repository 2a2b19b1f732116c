// Value transforms: what is not a layout. A side stores f(w) in f32 instead of w; rules name f, movers that can run it
// do.
//   minus_one  w − 1 (norms that a trainer counts from zero); undone by adding 1
//   neg_exp    −exp(w) (state matrices as an engine uses them); undone by a logarithm, so only up to what w's dtype
//   keeps
//   plus_one   w + 1 (norms that a trainer applies as they are, of a family that counts them from zero)
//   over_sqrt:n, times_sqrt:n   w / √n (queries that hold their attention's scale), w · √n (embeddings that hold
//   theirs; the root rounded to bf16)
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "core/core.h"

namespace refit::model {

// Both work in place and return the first index whose value cannot be brought back by the other one, or −1; all values
// are transformed all the same. `dtype` is the logical tensor's, f32 or narrower. An unknown name is kInternal.
Result<std::int64_t> apply_value(std::string_view name, std::span<float> values, DType dtype);
Result<std::int64_t> undo_value(std::string_view name, std::span<float> values, DType dtype);

}  // namespace refit::model
