// Gather and scatter with casts and the digest in one pass. One thread block moves a tile of rows x columns, where rows
// are the flat outer loops: addresses and keys of rows and columns are worked out once a tile.
#pragma once
#include "kernel/cast_body.h"
#include "kernel/device_job.h"

namespace refit::kernel {

struct MoveKernel {
  static constexpr const char* kName = "refit_move";
  static constexpr int kThreads = 256;
  static constexpr std::int32_t kMaxRows = 256, kMaxKeyColumns = 512;
  using Params = DeviceJobs;
  using Block = grid::Block<kThreads>;

  struct Sums {
    std::uint32_t word[kWords] = {};
  };
  struct Shared {
    DeviceJob job;
    std::int64_t row, column;  // of the tile
    std::int32_t rows, columns;
    std::int64_t row_src[kMaxRows], row_dst[kMaxRows], row_index[kMaxRows];  // row_index: of the inner axis at column 0
    std::uint32_t row_key[kWords][kMaxRows];
    std::uint32_t column_key[kWords][kMaxKeyColumns];
    std::uint32_t sum[kWords];
    bool shared_keys;  // the columns' keys are the same in every row
  };

  static REFIT_HD void begin(std::int64_t block, const Params& p, Shared& s) {
    const std::int32_t j = job_of_block(p, block);
    s.job = p.jobs[j];
    const DeviceJob& job = s.job;
    const std::int64_t tile = block - (j == 0 ? 0 : p.ends[j - 1]);
    s.row = tile / job.column_tiles * job.tile_rows;
    s.column = tile % job.column_tiles * job.tile_columns;
    const std::int64_t rows = job.rows - s.row, columns = job.columns - s.column;
    s.rows = rows < job.tile_rows ? static_cast<std::int32_t>(rows) : job.tile_rows;
    s.columns = columns < job.tile_columns ? static_cast<std::int32_t>(columns) : job.tile_columns;
    const std::int32_t inner = job.loops[job.loop_count - 1].axis;
    s.shared_keys = true;
    for (std::int32_t k = 0; k + 1 < job.loop_count; ++k)
      if (inner >= 0 && job.loops[k].axis == inner) s.shared_keys = false;
    for (int w = 0; w < kWords; ++w) s.sum[w] = 0;
  }

  static REFIT_HD void place_row(Shared& s, std::int32_t r) {
    const DeviceJob& job = s.job;
    const std::int32_t outer = job.loop_count - 1, inner = job.loops[outer].axis;
    const Place place(job, outer, s.row + r);
    s.row_src[r] = place.src;
    s.row_dst[r] = place.dst;
    if (!job.digest) return;
    s.row_index[r] = inner < 0 ? 0 : place.index(job, outer, inner);
    std::uint32_t key[kWords];
    place.keys(job, outer, inner, -1, key);
    for (int w = 0; w < kWords; ++w) s.row_key[w][r] = key[w];
  }

  static REFIT_HD std::uint32_t inner_key(const Shared& s, int w, std::int64_t row_index, std::int32_t c) {
    const DeviceLoop& loop = s.job.loops[s.job.loop_count - 1];
    return loop.axis < 0 ? 1 : axis_key(s.job.axes[loop.axis], w, row_index + (s.column + c) * loop.step);
  }

  // Adds one element to the sums of its row, which the row's key still multiplies.
  static REFIT_HD void add(const Shared& s, std::int32_t r, std::int32_t c, std::uint64_t item, std::int64_t bytes,
                           Sums& sums) {
    for (int w = 0; w < kWords; ++w)
      sums.word[w] += item_value(s.job.halves, w, item, bytes) *
                      (s.shared_keys ? s.column_key[w][c] : inner_key(s, w, s.row_index[r], c));
  }
  static REFIT_HD void close_row(const Shared& s, std::int32_t r, const Sums& row, Sums& sums) {
    for (int w = 0; w < kWords; ++w) sums.word[w] += row.word[w] * s.row_key[w][r];
  }

  template <int kBytes>
  struct alignas(kBytes) Pack {
    unsigned char byte[static_cast<std::size_t>(kBytes)];
  };

  // A run: accesses of kWide bytes, the last of a row byte by byte where the row ends inside it.
  template <int kItem, int kWide>
  static REFIT_HD void move_packs(const Shared& s, int thread, Sums& sums) {
    constexpr std::int32_t kEach = kWide / kItem;
    const std::int32_t packs = (s.columns + kEach - 1) / kEach;
    for (std::int32_t i = thread; i < s.rows * packs; i += kThreads) {
      const std::int32_t r = i / packs, c = i % packs * kEach;
      const std::int64_t at = (s.column + c) * kItem;
      const std::byte* const src = s.job.src + s.row_src[r] + at;
      std::byte* const dst = s.job.dst == nullptr ? nullptr : s.job.dst + s.row_dst[r] + at;
      const std::int32_t n = s.columns - c < kEach ? s.columns - c : kEach;
      Sums row;
      if (n == kEach) {
        const auto pack = *reinterpret_cast<const Pack<kWide>*>(src);
        if (dst != nullptr) *reinterpret_cast<Pack<kWide>*>(dst) = pack;
        if (!s.job.digest) continue;
        REFIT_UNROLL  // with indices known, the pack stays in registers
        for (std::int32_t e = 0; e < kEach; ++e) add(s, r, c + e, load_item(pack.byte + e * kItem, kItem), kItem, row);
      } else {
        for (std::int32_t b = 0; dst != nullptr && b < n * kItem; ++b) dst[b] = src[b];
        if (!s.job.digest) continue;
        for (std::int32_t e = 0; e < n; ++e) add(s, r, c + e, load_item(src + e * kItem, kItem), kItem, row);
      }
      close_row(s, r, row, sums);
    }
  }
  template <int kItem>
  static REFIT_HD void move_items_of(const Shared& s, int thread, Sums& sums) {
    if (s.job.wide == 16) move_packs<kItem, 16>(s, thread, sums);
    else if (s.job.wide == 4 && kItem < 4) move_packs<kItem, kItem < 4 ? 4 : kItem>(s, thread, sums);
    else move_packs<kItem, kItem>(s, thread, sums);
  }
  static REFIT_HD void move_run(const Shared& s, int thread, Sums& sums) {
    if (!s.job.digest) {  // bytes
      if (s.job.wide == 16) move_packs<1, 16>(s, thread, sums);
      else if (s.job.wide == 8) move_packs<1, 8>(s, thread, sums);
      else if (s.job.wide == 4) move_packs<1, 4>(s, thread, sums);
      else if (s.job.wide == 2) move_packs<1, 2>(s, thread, sums);
      else move_packs<1, 1>(s, thread, sums);
      return;
    }
    if (s.job.wire_item == 1) move_items_of<1>(s, thread, sums);
    else if (s.job.wire_item == 2) move_items_of<2>(s, thread, sums);
    else if (s.job.wire_item == 4) move_items_of<4>(s, thread, sums);
    else move_items_of<8>(s, thread, sums);
  }

  static REFIT_HD std::uint64_t load(const std::byte* at, std::int32_t bytes, bool aligned) {
    if (!aligned || bytes == 1) return load_item(at, bytes);
    if (bytes == 2) return *reinterpret_cast<const std::uint16_t*>(at);
    if (bytes == 4) return *reinterpret_cast<const std::uint32_t*>(at);
    return *reinterpret_cast<const std::uint64_t*>(at);
  }
  static REFIT_HD void store(std::byte* at, std::uint64_t v, std::int32_t bytes, bool aligned) {
    if (!aligned || bytes == 1)
      for (std::int32_t b = 0; b < bytes; ++b) at[b] = static_cast<std::byte>(v >> (8 * b));
    else if (bytes == 2) *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(v);
    else if (bytes == 4) *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(v);
    else *reinterpret_cast<std::uint64_t*>(at) = v;
  }
  static REFIT_HD std::uint64_t cast(DType from, DType to, std::uint64_t v, bool& exact) {
    if (from == to) return v;
    std::uint64_t out = 0;
    exact = casting::cast_one(from, to, &out, &v) && exact;
    return out;
  }

  // Anything else: source, wire, destination, one element at a time.
  static REFIT_HD void move_elements(const Shared& s, int thread, Sums& sums) {
    const DeviceJob& job = s.job;
    const DeviceLoop& loop = job.loops[job.loop_count - 1];
    for (std::int32_t i = thread; i < s.rows * s.columns; i += kThreads) {
      const std::int32_t r = i / s.columns, c = i % s.columns;
      const std::int64_t column = s.column + c;
      bool exact = true;
      const std::uint64_t x = load(job.src + s.row_src[r] + column * loop.src, job.src_item, job.src_aligned);
      const std::uint64_t wire = cast(job.src_dtype, job.wire_dtype, x, exact);
      if (job.digest) {
        Sums row;
        add(s, r, c, wire, job.wire_item, row);
        close_row(s, r, row, sums);
      }
      if (job.dst != nullptr)
        store(job.dst + s.row_dst[r] + column * loop.dst, cast(job.wire_dtype, job.dst_dtype, wire, exact),
              job.dst_item, job.dst_aligned);
      if (!exact)
        grid::atomic_min(&job.result->inexact, static_cast<std::uint64_t>((s.row + r) * job.columns + column));
    }
  }

  static REFIT_HD void run(const Block& block, const Params& p, Shared& s) {
    grid::PerThread<Sums, kThreads> sums;
    block.each([&](int t) {
      if (t == 0) begin(block.index, p, s);
    });
    block.each([&](int t) {
      for (std::int32_t r = t; r < s.rows; r += kThreads) place_row(s, r);
    });
    block.each([&](int t) {
      if (!s.job.digest || !s.shared_keys) return;
      for (std::int32_t c = t; c < s.columns; c += kThreads)
        for (int w = 0; w < kWords; ++w) s.column_key[w][c] = inner_key(s, w, s.row_index[0], c);
    });
    block.each([&](int t) {
      if (s.job.wide != 0) move_run(s, t, sums[t]);
      else move_elements(s, t, sums[t]);
      if (!s.job.digest) return;
      for (int w = 0; w < kWords; ++w) grid::atomic_add(&s.sum[w], sums[t].word[w]);
    });
    block.each([&](int t) {
      if (s.job.digest && t < kWords) grid::atomic_add(&s.job.result->word[t], s.sum[t]);
    });
  }
};

}  // namespace refit::kernel
