// The three shapes of a job as walks over blocks.
#pragma once
#include "kernel/loops.h"
#include "kernel/ops.h"

namespace refit::kernel {

inline constexpr std::int64_t kLine = 64;  // bytes of a cache line

struct Moved {
  Acc acc;
  std::int64_t elements = 0;
  bool exact = true;
};

// Independent units into which a job can be cut; any split gives the same bytes and sums.
std::int64_t unit_count(const Loops& loops);
// Moves units [first, last). `large`: the batch is big enough for streaming stores and prefetches.
void move_units(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out);

// Per shape: units of that shape, and their walk.
std::int64_t run_units(const Loops& loops);
void move_runs(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out);
std::int64_t transpose_units(const Loops& loops);
void move_transposed(const Loops& loops, std::int64_t first, std::int64_t last, bool large, Moved& out);
std::int64_t item_units(const Loops& loops);
void move_items(const Loops& loops, std::int64_t first, std::int64_t last, Moved& out);

}  // namespace refit::kernel
