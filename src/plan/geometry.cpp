#include <bit>

#include "plan/rank_plan.h"

namespace refit::plan {

Hash128 hash_words(std::vector<std::uint64_t> words) {
  if constexpr (std::endian::native == std::endian::big)
    for (std::uint64_t& w : words) w = __builtin_bswap64(w);
  return hash128(std::as_bytes(std::span(words)));
}

std::vector<std::uint32_t> owned_shards(const model::Pattern& pattern, std::uint32_t rank) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t s = 0; s < pattern.shards.size(); ++s)
    if (pattern.shards[s].owned_by(Rank(rank))) out.push_back(s);
  return out;
}

std::int64_t offset_in(const Flat& flat, const Dims& strides, const Box& box) {
  std::int64_t out = flat.delta;
  for (std::size_t k = 0; k < box.size(); ++k) out += (box[k].lo - flat.box[k].lo) * strides[k];
  return out;
}

Geometry make_geometry(const Coords& coords, const Box& box, const Dims& src, const Dims* dst) {
  Geometry g;
  for (std::size_t k = 0; k < box.size(); ++k) {
    const std::int64_t n = box[k].size();
    if (n == 1) continue;
    // Two loops are one where the inner one runs on into the outer one: in the logical axis and in both memories.
    if (!g.extents.empty() && g.axis.back() == coords.axis[k]) {
      const bool nests = g.steps.back() == n * coords.steps[k] && g.src_strides.back() == n * src[k] &&
                         (!dst || g.dst_strides.back() == n * (*dst)[k]);
      if (nests) {
        g.extents.back() *= n;
        g.steps.back() = coords.steps[k];
        g.src_strides.back() = src[k];
        if (dst) g.dst_strides.back() = (*dst)[k];
        continue;
      }
    }
    g.extents.push_back(n);
    g.axis.push_back(coords.axis[k]);
    g.steps.push_back(coords.steps[k]);
    g.src_strides.push_back(src[k]);
    if (dst) g.dst_strides.push_back((*dst)[k]);
  }
  return g;
}

}  // namespace refit::plan
