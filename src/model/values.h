// Value transforms: what is not a layout. A side stores f(w) in f32 instead of w; rules name f, movers that can run it
// do. The empty name is w itself in f32.
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

// kUnsupported where the dtype is not one that transforms take (bf16, f32), kInternal for an unknown name.
Status check_value(std::string_view name, DType dtype);

// `count` values in the logical tensor's dtype as the side stores them (f32), and back. No loss is told: undone_values() gives
// the values that an export of the stored ones has.
Status store_values(std::string_view name, DType dtype, const std::byte* logical, std::span<float> stored);
Status undone_values(std::string_view name, DType dtype, std::span<const float> stored, std::byte* logical);

}  // namespace refit::model
