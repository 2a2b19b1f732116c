// Scalar bodies of ops.h.
#include <cstring>

#include "kernel/ops.h"

namespace refit::kernel {

void digest_rows_scalar(Acc& acc, const DigestRows& r) {
  for (std::int64_t row = 0; row < r.rows; ++row) {
    const char* p = r.data + row * r.pitch;
    const std::int64_t first_block = r.index >> kBlockShift;
    if (r.store != nullptr) std::memcpy(r.store + row * r.store_pitch, p, static_cast<std::size_t>(r.n * r.item));
    for (std::int64_t i = 0; i < r.n; ++i, p += r.item) {
      const std::int64_t index = r.index + i;
      const Words& u = r.block_key[(index >> kBlockShift) - first_block];
      for (std::size_t w = 0; w < kWords; ++w)
        acc.lane[w][0] += item_value(*r.halves, static_cast<int>(w), p, r.item) * u[w] *
                          static_cast<std::uint32_t>(r.tables->t32[w][index & (kBlock - 1)]) * r.row_key[row][w];
    }
  }
}

void digest_items_scalar(Acc& acc, const DigestItems& r) {
  for (std::int64_t i = 0; i < r.n; ++i)
    for (std::size_t w = 0; w < kWords; ++w)
      acc.lane[w][0] += item_value(*r.halves, static_cast<int>(w), r.data + i * r.item, r.item) *
                        static_cast<std::uint32_t>(r.key[w][i]) * (*r.row_key)[w];
}

void transpose_scalar(const Tile& t) {
  for (std::int64_t j = 0; j < t.columns; ++j)
    for (std::int64_t i = 0; i < t.rows; ++i)
      std::memcpy(t.dst + j * t.dst_pitch + i * t.item, t.src + i * t.src_pitch + j * t.item,
                  static_cast<std::size_t>(t.item));
}

}  // namespace refit::kernel
