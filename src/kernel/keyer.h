// Feeds the digest bodies: which keys belong to a block of rows of a job.
#pragma once
#include "kernel/loops.h"
#include "kernel/ops.h"

namespace refit::kernel {

// Digests blocks whose columns run along loop `vec` and whose rows run along loop `row`. *thread-compatible*.
class Keyer {
 public:
  static constexpr std::int64_t kMaxRows = 256;

  // `row` may be null: single rows. Both loops belong to `loops`.
  Keyer(const Loops& loops, const Loop& vec, const Loop* row) : loops_(loops), vec_(vec), row_(row) {}

  struct Block {
    std::int64_t row = 0, rows = 1;  // along `row` from the odometer's place; ≤ kMaxRows
    std::int64_t column = 0, n = 0;  // along `vec`
    const char* data = nullptr;      // packed items of the wire dtype
    std::int64_t pitch = 0;
    Prefetch prefetch;
    char* store = nullptr;  // see DigestRows; only where may_store() holds
    std::int64_t store_pitch = 0;
  };
  void digest(const Ops& ops, Acc& acc, const Odometer& at, const Block& b);
  // True when one call takes many rows at full speed; otherwise each row is keyed by itself.
  bool takes_rows() const { return vec_.axis >= 0 && vec_.step == 1 && (row_ == nullptr || row_->axis != vec_.axis); }

  // Whether a block from this column on can be copied by the digest body itself, for line-aligned destinations.
  bool may_store(const Odometer& at, std::int64_t column) const {
    return takes_rows() && loops_.wire_item > 1 && (at.index(vec_.axis) + column) * loops_.wire_item % 64 == 0;
  }

 private:
  void fill_row_keys(const Odometer& at, std::int64_t row, std::int64_t rows);
  const Words* block_keys(std::int64_t index, std::int64_t n);
  void digest_row_by_items(const Ops& ops, Acc& acc, std::int64_t index, const char* data, std::int64_t n,
                           const Words& row_key);
  bool same_place(const Odometer& at, std::int64_t row, std::int64_t rows) const;

  static constexpr std::int64_t kWindow = 512;  // blocks of the vector axis held at once
  static constexpr std::int64_t kItems = 512;
  const Loops& loops_;
  const Loop& vec_;
  const Loop* row_;
  std::int64_t first_row_ = -1, held_rows_ = 0;
  std::array<std::int64_t, kMaxLoops> place_;
  std::array<Words, kMaxRows> row_keys_;
  std::int64_t first_block_ = 0, held_blocks_ = 0;
  std::array<Words, kWindow> blocks_;
  std::int64_t items_index_ = 0, items_held_ = 0;
  alignas(64) std::int32_t item_keys_[kWords][kItems + kPad];
};

}  // namespace refit::kernel
