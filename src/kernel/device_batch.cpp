// Lowers jobs to the tables of device_job.h.
#include <algorithm>
#include <cstring>
#include <map>

#include "kernel/loops.h"
#include "kernel/move_kernel.h"
#include "kernel/transpose_kernel.h"

namespace refit::kernel {

// Where each table starts in the device's block.
struct DeviceBatchMap {
  std::int64_t results = 0, jobs[2] = {}, ends[2] = {}, loops = 0, axes = 0, keys = 0, bytes = 0;
};
namespace {
using Map = DeviceBatchMap;


constexpr std::int32_t kRunBytes = 16 << 10, kTileBytesAim = 32 << 10, kElementsAim = 4096;

// Tables of all jobs, with offsets where addresses of the device will stand.
struct Tables {
  std::vector<DeviceJob> jobs[2];  // by kernel: move, transpose
  std::vector<std::int64_t> ends[2];
  std::vector<DeviceLoop> loops;
  std::vector<DeviceAxis> axes;
  std::vector<std::int16_t> keys;
  std::map<const AxisTables*, std::size_t> key_at;
};

std::size_t place_table(Tables& t, const AxisTables& table) {
  const auto [it, fresh] = t.key_at.try_emplace(&table, t.keys.size());
  if (fresh)
    for (int w = 0; w < kWords; ++w) t.keys.insert(t.keys.end(), table.t16[w], table.t16[w] + kBlock);
  return it->second;
}

// The widest of 16, 8, 4, 2, 1 bytes of which all of a side's addresses are multiples, without its inner stride.
std::int64_t alignment(const void* base, const Loops& l, std::int64_t Loop::*side, int inner_loops) {
  auto bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(base)) | 16;
  for (int k = 0; k < l.count - inner_loops; ++k)
    bits |= static_cast<std::uint64_t>(l.loop[static_cast<std::size_t>(k)].*side);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

// Accesses of a run; 0 where not even items are aligned.
std::int32_t wide_of(const Loops& l, bool digest) {
  std::int64_t a = alignment(l.src, l, &Loop::src, 1);
  if (l.dst != nullptr) a = std::min(a, alignment(l.dst, l, &Loop::dst, 1));
  if (!digest || a == 16) return static_cast<std::int32_t>(a);
  if (a < l.wire_item) return 0;
  return static_cast<std::int32_t>(a >= 4 && l.wire_item < 4 ? 4 : l.wire_item);
}

void set_tiles(DeviceJob& j, std::int32_t columns, std::int32_t rows) {
  j.tile_columns = columns;
  j.tile_rows = rows;
  j.column_tiles = ceil_div(j.columns, columns);
  j.row_tiles = ceil_div(j.rows, rows);
}

// `digest` decides whether a run is one of items or of bytes.
void choose_tiles(DeviceJob& j, Loops& l) {
  Loop& inner = l.loop[static_cast<std::size_t>(l.count - 1)];
  if (l.shape == Shape::kRuns) j.wide = wide_of(l, j.digest);
  if (j.wide != 0 && !j.digest) {
    inner.extent *= l.src_item;
    inner.src = 1;
    inner.dst = l.dst == nullptr ? 0 : 1;
    j.src_item = j.wire_item = j.dst_item = 1;
  }
  j.columns = inner.extent;
  j.rows = l.product(l.count - 1);
  const std::int32_t most = j.digest ? MoveKernel::kMaxKeyColumns : j.wide != 0 ? kRunBytes : kElementsAim;
  const auto columns = static_cast<std::int32_t>(std::min<std::int64_t>(j.columns, most));
  const std::int32_t aim = j.wide != 0 ? kTileBytesAim / j.wire_item : kElementsAim;
  const std::int64_t rows = std::clamp<std::int64_t>(aim / columns, 1, MoveKernel::kMaxRows);
  set_tiles(j, columns, static_cast<std::int32_t>(std::min(rows, j.rows)));
}

void choose_square_tiles(DeviceJob& j, const Loops& l) {
  const Loop &a = l.loop[static_cast<std::size_t>(l.count - 2)], &b = l.inner();
  const std::int32_t side = TransposeKernel::side(j.wire_item);
  j.rows = a.extent;
  j.columns = b.extent;
  set_tiles(j, side, side);
}

template <typename T>
const T* as_offset(std::size_t index) {
  return reinterpret_cast<const T*>(index * sizeof(T));
}

void lower(const Job& job, bool digest, std::size_t result, Tables& t) {
  const bool casts = job.src_dtype != job.wire_dtype || (job.dst != nullptr && job.wire_dtype != job.dst_dtype);
  Loops l = casts ? in_order(job, digest) : normalise(job, digest);
  if (l.shape == Shape::kEmpty || (!digest && job.dst == nullptr && !casts)) return;
  DeviceJob j{};
  j.src = reinterpret_cast<const std::byte*>(l.src);
  j.dst = reinterpret_cast<std::byte*>(l.dst);
  j.src_item = static_cast<std::int32_t>(l.src_item);
  j.wire_item = static_cast<std::int32_t>(l.wire_item);
  j.dst_item = static_cast<std::int32_t>(l.dst_item);
  j.src_dtype = l.src_dtype;
  j.wire_dtype = l.wire_dtype;
  j.dst_dtype = l.dst_dtype;
  j.digest = digest;
  j.src_aligned = alignment(l.src, l, &Loop::src, 0) >= l.src_item;
  j.dst_aligned = l.dst != nullptr && alignment(l.dst, l, &Loop::dst, 0) >= l.dst_item;
  const bool square = l.shape == Shape::kTranspose;
  square ? choose_square_tiles(j, l) : choose_tiles(j, l);
  j.loop_count = l.count;
  j.axis_count = l.axis_count;
  j.loops = as_offset<DeviceLoop>(t.loops.size());
  j.axes = as_offset<DeviceAxis>(t.axes.size());
  j.result = const_cast<DeviceResult*>(as_offset<DeviceResult>(result));
  for (int k = 0; k < l.count; ++k) {
    const Loop& loop = l.loop[static_cast<std::size_t>(k)];
    t.loops.push_back({loop.extent, loop.src, loop.dst, loop.step, loop.axis, 0});
  }
  for (int a = 0; a < l.axis_count; ++a) {
    const Axis& axis = l.axes[static_cast<std::size_t>(a)];
    DeviceAxis out{axis.base, {}, nullptr};
    const auto& seeds = l.keys->block_seed[static_cast<std::size_t>(axis.key_axis)];
    std::copy(seeds.begin(), seeds.end(), out.block_seed);
    out.table = as_offset<std::int16_t>(place_table(t, l.keys->table(axis.key_axis)));
    t.axes.push_back(out);
  }
  std::copy(l.constant.begin(), l.constant.end(), j.constant);
  if (digest) j.halves = l.keys->halves();
  auto& ends = t.ends[square ? 1 : 0];
  const std::int64_t outer = square ? l.product(l.count - 2) : 1;
  ends.push_back((ends.empty() ? 0 : ends.back()) + outer * j.row_tiles * j.column_tiles);
  t.jobs[square ? 1 : 0].push_back(j);
}

template <typename T>
std::int64_t take(Map& m, const std::vector<T>& v) {
  const std::int64_t at = m.bytes;
  m.bytes += ceil_div(static_cast<std::int64_t>(v.size() * sizeof(T)), 64) * 64;
  return at;
}

template <typename T>
const T* relocate(const std::byte* base, std::int64_t table, const T* offset) {
  return reinterpret_cast<const T*>(base + table + reinterpret_cast<std::uintptr_t>(offset));
}
template <typename T>
void put(std::byte* to, std::int64_t at, const std::vector<T>& v) {
  if (!v.empty()) std::memcpy(to + at, v.data(), v.size() * sizeof(T));
}

}  // namespace

struct DeviceBatch::Impl {
  memory::DeviceBuffer device;
  memory::PinnedBuffer host;  // the same block: results, behind them the tables as they were uploaded
  DeviceBatchMap map;
  DeviceJobs launch[2];
  std::int64_t blocks[2] = {};
  std::vector<std::uint64_t> elements;  // digested, per job
  std::int64_t result_bytes = 0;
};

void DeviceBatch::Gone::operator()(Impl* p) const { delete p; }

Result<DeviceBatch> DeviceBatch::make(memory::Stream& stream, std::span<const Job> jobs, bool digests) {
  Tables t;
  DeviceBatch out;
  out.impl_.reset(new Impl);
  Impl& i = *out.impl_;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const bool digest = digests && jobs[j].keys != nullptr;
    lower(jobs[j], digest, j, t);
    i.elements.push_back(digest ? static_cast<std::uint64_t>(job_elements(jobs[j])) : 0);
  }
  const std::vector<DeviceResult> results(jobs.size(), {kAllExact, {}});
  i.result_bytes = static_cast<std::int64_t>(results.size() * sizeof(DeviceResult));
  i.map.results = take(i.map, results);
  const std::int64_t fresh = take(i.map, results);  // what a launch starts from
  for (int k = 0; k < 2; ++k) {
    i.map.jobs[k] = take(i.map, t.jobs[k]);
    i.map.ends[k] = take(i.map, t.ends[k]);
    for (std::int64_t& end : t.ends[k]) i.blocks[k] = end;
    if (i.blocks[k] > 0x7fffffff)
      return Error(Code::kUnsupported, "a batch of more than 2^31 tiles").amounts(i.blocks[k], 0x7fffffff);
  }
  i.map.loops = take(i.map, t.loops);
  i.map.axes = take(i.map, t.axes);
  i.map.keys = take(i.map, t.keys);
  REFIT_ASSIGN(i.device, memory::DeviceBuffer::make(stream.device(), i.map.bytes, "tables of a batch"));
  REFIT_ASSIGN(i.host, memory::PinnedBuffer::make(stream.device(), i.map.bytes, "tables of a batch"));
  const std::byte* const base = i.device.data();
  for (DeviceAxis& a : t.axes) a.table = relocate(base, i.map.keys, a.table);
  for (int k = 0; k < 2; ++k) {
    for (DeviceJob& j : t.jobs[k]) {
      j.loops = relocate(base, i.map.loops, j.loops);
      j.axes = relocate(base, i.map.axes, j.axes);
      j.result = const_cast<DeviceResult*>(relocate(base, i.map.results, j.result));
    }
    i.launch[k] = {reinterpret_cast<const DeviceJob*>(base + i.map.jobs[k]),
                   reinterpret_cast<const std::int64_t*>(base + i.map.ends[k]),
                   static_cast<std::int32_t>(t.jobs[k].size()), 0};
  }
  std::byte* const host = i.host.data();
  put(host, i.map.results, results);
  put(host, fresh, results);
  for (int k = 0; k < 2; ++k) {
    put(host, i.map.jobs[k], t.jobs[k]);
    put(host, i.map.ends[k], t.ends[k]);
  }
  put(host, i.map.loops, t.loops);
  put(host, i.map.axes, t.axes);
  put(host, i.map.keys, t.keys);
  REFIT_TRY(stream.copy(i.device.data() + fresh, host + fresh, i.map.bytes - fresh));
  return out;
}

Status DeviceBatch::launch(const memory::Module& module, memory::Stream& stream) {
  Impl& i = *impl_;
  if (i.result_bytes == 0) return {};
  const std::int64_t fresh = ceil_div(i.result_bytes, 64) * 64;
  REFIT_TRY(stream.copy(i.device.data(), i.device.data() + fresh, i.result_bytes));
  REFIT_TRY(module.launch<MoveKernel>(stream, i.blocks[0], i.launch[0]));
  REFIT_TRY(module.launch<TransposeKernel>(stream, i.blocks[1], i.launch[1]));
  return stream.copy(i.host.data(), i.device.data(), i.result_bytes);
}

std::vector<Inexact> DeviceBatch::results(std::span<Digest> digests) const {
  const Impl& i = *impl_;
  REFIT_CHECK(digests.empty() || digests.size() == i.elements.size());
  std::vector<Inexact> found;
  for (std::size_t j = 0; j < i.elements.size(); ++j) {
    DeviceResult r;
    std::memcpy(&r, i.host.data() + j * sizeof r, sizeof r);
    if (!digests.empty()) {
      std::copy(r.word, r.word + kWords, digests[j].word.begin());
      digests[j].count = i.elements[j];
    }
    if (r.inexact != kAllExact) found.push_back({j, static_cast<std::int64_t>(r.inexact)});
  }
  return found;
}

std::int64_t DeviceBatch::device_bytes() const { return impl_->device.bytes(); }

}  // namespace refit::kernel
