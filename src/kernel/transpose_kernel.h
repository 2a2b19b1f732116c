// Transposes with the digest: tiles through shared memory, read along the source's run and written along the
// destination's. The two inner loops are `a` (contiguous in the source) and `b` (contiguous in the destination).
#pragma once
#include "kernel/move_kernel.h"

namespace refit::kernel {

struct TransposeKernel {
  static constexpr const char* kName = "refit_transpose";
  static constexpr int kThreads = 256;
  static constexpr std::int32_t kMaxSide = 64, kTileBytes = 8448;
  using Params = DeviceJobs;
  using Block = grid::Block<kThreads>;
  using Sums = MoveKernel::Sums;

  // Side of a square tile: 64 items of up to 2 bytes, 32 of up to 8. A row more keeps columns out of one memory bank.
  static constexpr REFIT_HD std::int32_t side(std::int32_t item) { return item <= 2 ? 64 : 32; }

  struct Shared {
    DeviceJob job;
    const std::byte* src;
    std::byte* dst;
    std::int64_t a0, b0, a_index, b_index;  // of the tile; indices of the axes of a and b there
    std::int32_t a, b;                      // extents of the tile
    bool same_axis;
    std::uint32_t a_key[kWords][kMaxSide], b_key[kWords][kMaxSide];  // b_key: times all other axes
    std::uint32_t rest[kWords], sum[kWords];
    alignas(8) std::byte tile[kTileBytes];
  };

  static REFIT_HD void begin(std::int64_t block, const Params& p, Shared& s) {
    const std::int32_t j = job_of_block(p, block);
    s.job = p.jobs[j];
    const DeviceJob& job = s.job;
    std::int64_t tile = block - (j == 0 ? 0 : p.ends[j - 1]);
    const std::int32_t outer = job.loop_count - 2;
    const DeviceLoop &a = job.loops[outer], &b = job.loops[outer + 1];
    s.b0 = tile % job.column_tiles * job.tile_columns;
    tile /= job.column_tiles;
    s.a0 = tile % job.row_tiles * job.tile_rows;
    s.a = static_cast<std::int32_t>(a.extent - s.a0 < job.tile_rows ? a.extent - s.a0 : job.tile_rows);
    s.b = static_cast<std::int32_t>(b.extent - s.b0 < job.tile_columns ? b.extent - s.b0 : job.tile_columns);
    const Place place(job, outer, tile / job.row_tiles);
    s.src = job.src + place.src + s.a0 * a.src + s.b0 * b.src;
    s.dst = job.dst + place.dst + s.a0 * a.dst + s.b0 * b.dst;
    for (int w = 0; w < kWords; ++w) s.sum[w] = 0;
    if (!job.digest) return;
    s.same_axis = a.axis >= 0 && a.axis == b.axis;
    s.a_index = a.axis < 0 ? 0 : place.index(job, outer, a.axis) + s.a0 * a.step;
    s.b_index = b.axis < 0 ? 0 : place.index(job, outer, b.axis) + s.b0 * b.step;
    if (s.same_axis) s.a_index += s.b0 * b.step;
    place.keys(job, outer, a.axis, b.axis, s.rest);
  }

  static REFIT_HD void find_keys(Shared& s, int thread) {
    const std::int32_t outer = s.job.loop_count - 2;
    const DeviceLoop &a = s.job.loops[outer], &b = s.job.loops[outer + 1];
    if (thread >= kMaxSide) return;
    for (int w = 0; w < kWords; ++w) {
      s.a_key[w][thread] = 1;
      s.b_key[w][thread] = s.rest[w];
      if (s.same_axis) continue;
      if (a.axis >= 0 && thread < s.a)
        s.a_key[w][thread] = axis_key(s.job.axes[a.axis], w, s.a_index + thread * a.step);
      if (b.axis >= 0 && thread < s.b)
        s.b_key[w][thread] *= axis_key(s.job.axes[b.axis], w, s.b_index + thread * b.step);
    }
  }

  template <typename T>
  static REFIT_HD void read(Shared& s, int thread, Sums& sums) {
    constexpr std::int32_t kSide = side(sizeof(T)), kPitch = kSide + 1;
    static_assert(kSide * kPitch * static_cast<std::int32_t>(sizeof(T)) <= kTileBytes);
    const std::int32_t outer = s.job.loop_count - 2;
    const DeviceLoop &la = s.job.loops[outer], &lb = s.job.loops[outer + 1];
    T* const tile = reinterpret_cast<T*>(s.tile);
    for (std::int32_t i = thread; i < kSide * kSide; i += kThreads) {
      const std::int32_t a = i % kSide, b = i / kSide;
      if (a >= s.a || b >= s.b) continue;
      const auto v = static_cast<T>(MoveKernel::load(s.src + a * la.src + b * lb.src, sizeof(T), s.job.src_aligned));
      tile[b * kPitch + a] = v;
      if (!s.job.digest) continue;
      for (int w = 0; w < kWords; ++w) {
        std::uint32_t key = s.a_key[w][a] * s.b_key[w][b];
        if (s.same_axis) key *= axis_key(s.job.axes[la.axis], w, s.a_index + a * la.step + b * lb.step);
        sums.word[w] += item_value(s.job.halves, w, v, sizeof(T)) * key;
      }
    }
  }
  template <typename T>
  static REFIT_HD void write(const Shared& s, int thread) {
    constexpr std::int32_t kSide = side(sizeof(T)), kPitch = kSide + 1;
    const std::int32_t outer = s.job.loop_count - 2;
    const DeviceLoop &la = s.job.loops[outer], &lb = s.job.loops[outer + 1];
    const T* const tile = reinterpret_cast<const T*>(s.tile);
    for (std::int32_t i = thread; i < kSide * kSide; i += kThreads) {
      const std::int32_t b = i % kSide, a = i / kSide;
      if (a < s.a && b < s.b)
        MoveKernel::store(s.dst + a * la.dst + b * lb.dst, tile[b * kPitch + a], sizeof(T), s.job.dst_aligned);
    }
  }

  static REFIT_HD void run(const Block& block, const Params& p, Shared& s) {
    block.each([&](int t) {
      if (t == 0) begin(block.index, p, s);
    });
    block.each([&](int t) {
      if (s.job.digest) find_keys(s, t);
    });
    block.each([&](int t) {
      Sums sums;
      if (s.job.wire_item == 1) read<std::uint8_t>(s, t, sums);
      else if (s.job.wire_item == 2) read<std::uint16_t>(s, t, sums);
      else if (s.job.wire_item == 4) read<std::uint32_t>(s, t, sums);
      else read<std::uint64_t>(s, t, sums);
      if (!s.job.digest) return;
      for (int w = 0; w < kWords; ++w) grid::atomic_add(&s.sum[w], sums.word[w]);
    });
    block.each([&](int t) {
      if (s.job.wire_item == 1) write<std::uint8_t>(s, t);
      else if (s.job.wire_item == 2) write<std::uint16_t>(s, t);
      else if (s.job.wire_item == 4) write<std::uint32_t>(s, t);
      else write<std::uint64_t>(s, t);
      if (s.job.digest && t < kWords) grid::atomic_add(&s.job.result->word[t], s.sum[t]);
    });
  }
};

}  // namespace refit::kernel
