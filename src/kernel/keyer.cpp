#include "kernel/keyer.h"

#include <algorithm>

namespace refit::kernel {
namespace {
void multiply(Words& into, const Words& by) {
  for (std::size_t w = 0; w < kWords; ++w) into[w] *= by[w];
}
}  // namespace

Words Acc::fold() const {
  Words out{};
  for (std::size_t w = 0; w < kWords; ++w)
    for (const std::uint32_t v : lane[w]) out[w] += v;
  return out;
}

bool Keyer::same_place(const Odometer& at, std::int64_t row, std::int64_t rows) const {
  if (row != first_row_ || rows != held_rows_) return false;
  for (int a = 0; a < loops_.axis_count; ++a)
    if (at.index(a) != place_[static_cast<std::size_t>(a)]) return false;
  return true;
}

void Keyer::fill_row_keys(const Odometer& at, std::int64_t row, std::int64_t rows) {
  if (same_place(at, row, rows)) return;
  first_row_ = row;
  held_rows_ = rows;
  Words common = loops_.constant;
  const int row_axis = row_ == nullptr ? -1 : row_->axis;
  for (int a = 0; a < loops_.axis_count; ++a) {
    place_[static_cast<std::size_t>(a)] = at.index(a);
    if (a != vec_.axis && a != row_axis)
      multiply(common, loops_.keys->keys(loops_.axes[static_cast<std::size_t>(a)].key_axis, at.index(a)));
  }
  std::fill_n(row_keys_.begin(), rows, common);
  if (row_axis < 0 || row_axis == vec_.axis) return;
  const int key_axis = loops_.axes[static_cast<std::size_t>(row_axis)].key_axis;
  const AxisTables& table = loops_.keys->table(key_axis);
  std::int64_t block = -1;
  Words u{};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t index = at.index(row_axis) + (row + r) * row_->step;
    if (index >> kBlockShift != block) u = loops_.keys->block_keys(key_axis, block = index >> kBlockShift);
    for (std::size_t w = 0; w < kWords; ++w)
      row_keys_[static_cast<std::size_t>(r)][w] *=
          u[w] * static_cast<std::uint32_t>(table.t32[w][index & (kBlock - 1)]);
  }
}

const Words* Keyer::block_keys(std::int64_t index, std::int64_t n) {
  const std::int64_t first = index >> kBlockShift, last = (index + n - 1) >> kBlockShift;
  if (first < first_block_ || last >= first_block_ + held_blocks_) {
    // The whole vector loop where it fits in the window, so that later rows find everything; else what lies ahead.
    const std::int64_t whole = ((vec_.extent - 1) >> kBlockShift) + 2;
    const std::int64_t need = last - first + 1;
    REFIT_CHECK(need <= kWindow);
    first_block_ = first;
    held_blocks_ = std::clamp(whole, need, kWindow);
    const int key_axis = loops_.axes[static_cast<std::size_t>(vec_.axis)].key_axis;
    for (std::int64_t b = 0; b < held_blocks_; ++b)
      blocks_[static_cast<std::size_t>(b)] = loops_.keys->block_keys(key_axis, first + b);
  }
  return &blocks_[static_cast<std::size_t>(first - first_block_)];
}

void Keyer::digest_row_by_items(const Ops& ops, Acc& acc, std::int64_t index, const char* data, std::int64_t n,
                                const Words& row_key) {
  for (std::int64_t done = 0; done < n; done += kItems) {
    const std::int64_t take = std::min(kItems, n - done), start = index + done * vec_.step;
    if (items_held_ < take || items_index_ != start) {
      for (std::int64_t i = 0; i < take; ++i) {
        Words key{1, 1, 1, 1};
        if (vec_.axis >= 0)
          key = loops_.keys->keys(loops_.axes[static_cast<std::size_t>(vec_.axis)].key_axis, start + i * vec_.step);
        for (std::size_t w = 0; w < kWords; ++w) item_keys_[w][i] = static_cast<std::int32_t>(key[w]);
      }
      items_index_ = start;
      items_held_ = take;
    }
    DigestItems d{.data = data + done * loops_.wire_item,
                  .n = take,
                  .item = loops_.wire_item,
                  .key = {},
                  .row_key = &row_key,
                  .halves = &loops_.keys->halves()};
    for (int w = 0; w < kWords; ++w) d.key[w] = item_keys_[w];
    ops.digest_items(acc, d);
  }
}

void Keyer::digest(const Ops& ops, Acc& acc, const Odometer& at, const Block& b) {
  fill_row_keys(at, b.row, b.rows);
  const std::int64_t index = vec_.axis < 0 ? 0 : at.index(vec_.axis) + b.column * vec_.step;
  if (takes_rows()) {
    const auto& axis = loops_.axes[static_cast<std::size_t>(vec_.axis)];
    ops.digest_rows(acc, DigestRows{.data = b.data,
                                    .pitch = b.pitch,
                                    .rows = b.rows,
                                    .n = b.n,
                                    .index = index,
                                    .item = loops_.wire_item,
                                    .tables = &loops_.keys->table(axis.key_axis),
                                    .block_key = block_keys(index, b.n),
                                    .row_key = row_keys_.data(),
                                    .halves = &loops_.keys->halves(),
                                    .prefetch = b.prefetch,
                                    .store = b.store,
                                    .store_pitch = b.store_pitch});
    return;
  }
  const bool along = row_ != nullptr && row_->axis >= 0 && row_->axis == vec_.axis;
  for (std::int64_t r = 0; r < b.rows; ++r)
    digest_row_by_items(ops, acc, index + (along ? (b.row + r) * row_->step : 0), b.data + r * b.pitch, b.n,
                        row_keys_[static_cast<std::size_t>(r)]);
}

}  // namespace refit::kernel
