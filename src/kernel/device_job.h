// A job as the GPU's kernels read it: plain data in tables on the device, made once by DeviceBatch.
#pragma once
#include <cstdint>

#include "kernel/digest_body.h"

namespace refit::kernel {

struct DeviceLoop {
  std::int64_t extent, src, dst, step;  // strides in bytes; indices of the axis per iteration
  std::int32_t axis, unused;            // of DeviceJob::axes, -1: no key
};
struct DeviceAxis {
  std::int64_t base;                 // index where all loops are at 0
  std::uint64_t block_seed[kWords];  // of U
  const std::int16_t* table;         // T, [kWords][kBlock]
};
struct DeviceResult {
  std::uint64_t inexact;  // least row-major position of a cast that changed a value
  std::uint32_t word[kWords];
};
inline constexpr std::uint64_t kAllExact = ~std::uint64_t{0};

struct DeviceJob {
  const std::byte* src;
  std::byte* dst;  // null: digest only
  const DeviceLoop* loops;
  const DeviceAxis* axes;
  DeviceResult* result;
  std::int64_t rows, columns;            // of the flat outer loops and of the inner one; of a transpose: its two inner loops
  std::int64_t row_tiles, column_tiles;  // thread blocks along either
  std::int32_t tile_rows, tile_columns;
  std::int32_t loop_count, axis_count;
  std::int32_t src_item, wire_item, dst_item;
  std::int32_t wide;  // bytes of one access in a run; 0: element by element
  std::uint32_t constant[kWords];
  HalfKeys halves;
  DType src_dtype, wire_dtype, dst_dtype;
  bool digest, src_aligned, dst_aligned;  // to their items
};

// Jobs in order, and the running sum of their thread blocks.
struct DeviceJobs {
  const DeviceJob* jobs;
  const std::int64_t* ends;
  std::int32_t count, unused;
};
REFIT_HD inline std::int32_t job_of_block(const DeviceJobs& p, std::int64_t block) {
  std::int32_t lo = 0, hi = p.count - 1;
  while (lo < hi) {
    const std::int32_t mid = (lo + hi) / 2;
    if (block < p.ends[mid]) hi = mid;
    else lo = mid + 1;
  }
  return lo;
}

REFIT_HD inline std::uint32_t axis_key(const DeviceAxis& axis, int word, std::int64_t index) {
  return block_key(axis.block_seed[word], index >> kBlockShift) *
         static_cast<std::uint32_t>(static_cast<std::int32_t>(axis.table[word * kBlock + (index & (kBlock - 1))]));
}

// Where the loops [0, count) stand at one value of their flat counter.
struct Place {
  std::int64_t src = 0, dst = 0;
  std::int64_t at[32];

  REFIT_HD Place(const DeviceJob& job, std::int32_t count, std::int64_t flat) {
    for (std::int32_t k = count; k-- > 0;) {
      const DeviceLoop& loop = job.loops[k];
      at[k] = k == 0 ? flat : flat % loop.extent;
      flat = k == 0 ? 0 : flat / loop.extent;
      src += at[k] * loop.src;
      dst += at[k] * loop.dst;
    }
  }
  // Index of an axis as far as these loops say.
  REFIT_HD std::int64_t index(const DeviceJob& job, std::int32_t count, std::int32_t axis) const {
    std::int64_t index = job.axes[axis].base;
    for (std::int32_t k = 0; k < count; ++k)
      if (job.loops[k].axis == axis) index += at[k] * job.loops[k].step;
    return index;
  }
  // Product of the keys of all axes but two, per word.
  REFIT_HD void keys(const DeviceJob& job, std::int32_t count, std::int32_t but, std::int32_t nor,
                     std::uint32_t out[kWords]) const {
    for (int w = 0; w < kWords; ++w) out[w] = job.constant[w];
    for (std::int32_t a = 0; a < job.axis_count; ++a) {
      if (a == but || a == nor) continue;
      const std::int64_t i = index(job, count, a);
      for (int w = 0; w < kWords; ++w) out[w] *= axis_key(job.axes[a], w, i);
    }
  }
};

}  // namespace refit::kernel
