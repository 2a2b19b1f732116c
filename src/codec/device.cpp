// Launches of this room's kernels: sizes checked, geometry chosen, nothing allocated and nothing waited for.
#include <algorithm>
#include <bit>

#include "codec/change_kernel.h"
#include "codec/quantise_kernel.h"

namespace refit::codec {
namespace {

constexpr std::int64_t kLargestFused = std::int64_t{1} << 18;  // elements of a cell
constexpr std::int64_t kShare = std::int64_t{1} << 15;         // elements of a thread block beyond

std::int64_t elements_of_cell(const Quant& q, const Part& p) {
  return (q.block_rows == 0 ? p.rows : std::min(q.block_rows, p.rows)) *
         (q.block_cols == 0 ? p.cols : std::min(q.block_cols, p.cols));
}

// Elements of one access: where all rows and cells begin on 16 bytes, and codes on as many elements.
std::int32_t access_of(const Quant& q, const Part& p, const void* in, const void* codes) {
  const std::int64_t each = 16 / item_size(p.dtype);
  const bool cells = q.block_cols % each == 0 && (q.block_cols == 0 || p.col % each == 0);
  const bool memory = reinterpret_cast<std::uintptr_t>(in) % 16 == 0 && p.stride % each == 0 &&
                      reinterpret_cast<std::uintptr_t>(codes) % static_cast<std::uintptr_t>(each) == 0 && p.cols % each == 0;
  return static_cast<std::int32_t>(cells && memory ? each : 1);
}

Result<QuantParams> params(const Quant& q, const Part& p, const DeviceQuant& d) {
  REFIT_TRY(check_part(q, p));
  if (reinterpret_cast<std::uintptr_t>(d.in) % static_cast<std::uintptr_t>(item_size(p.dtype)) != 0 ||
      reinterpret_cast<std::uintptr_t>(d.scales) % static_cast<std::uintptr_t>(q.scale_bytes()) != 0 ||
      reinterpret_cast<std::uintptr_t>(d.work) % 8 != 0)
    return Error(Code::kInvalid, "quantise on a device: values, scales and work must be aligned to their items");
  QuantParams k{};
  k.q = q;
  k.p = p;
  k.cells = cells_of(q, p);
  k.in = static_cast<const std::byte*>(d.in);
  k.scales = static_cast<std::byte*>(d.scales);
  k.codes = static_cast<std::byte*>(d.codes);
  k.findings = static_cast<DeviceFindings*>(d.work);
  k.amax = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(d.work) + sizeof(DeviceFindings));
  k.each = access_of(q, p, d.in, d.codes);
  const std::int64_t most = elements_of_cell(q, p);
  const std::int64_t threads = std::clamp<std::int64_t>(ceil_div(most, k.each), 1, kQuantThreads);
  k.threads_per_cell = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint64_t>(threads)));
  k.chunks = ceil_div(std::max<std::int64_t>(most, 1), kShare);
  return k;
}

Status clear_findings(memory::Stream& stream, const DeviceQuant& d) {
  auto* const f = static_cast<DeviceFindings*>(d.work);
  REFIT_TRY(stream.fill(f, 0, 16));
  return stream.fill(&f->first_nan, 0xff, 8);
}

}  // namespace

std::int64_t device_quant_work_bytes(const Quant& q, const Part& p) {
  return static_cast<std::int64_t>(sizeof(DeviceFindings)) + 4 * cells_of(q, p).count();
}
std::int64_t device_findings_bytes() { return sizeof(DeviceFindings); }

Findings findings_from(const Part& p, const std::byte* host) {
  DeviceFindings f;
  std::memcpy(&f, host, sizeof f);
  Findings out;
  out.nans = static_cast<std::int64_t>(f.nans);
  out.infinities = static_cast<std::int64_t>(f.infinities);
  if (out.nans == 0) return out;
  out.nan_row = p.row + static_cast<std::int64_t>(f.first_nan) / p.cols;
  out.nan_col = p.col + static_cast<std::int64_t>(f.first_nan) % p.cols;
  return out;
}

Status device_amax(const memory::Module& module, memory::Stream& stream, const Quant& q, const Part& p,
                   const DeviceQuant& d) {
  REFIT_ASSIGN(const QuantParams k, params(q, p, d));
  REFIT_TRY(clear_findings(stream, d));
  REFIT_TRY(stream.fill(k.amax, 0, 4 * k.cells.count()));
  return module.launch<AmaxKernel>(stream, p.elements() == 0 ? 0 : k.cells.count() * k.chunks, k);
}

Status device_quantise_with(const memory::Module& module, memory::Stream& stream, const Quant& q, const Part& p,
                            const DeviceQuant& d, ScalesFrom from) {
  REFIT_ASSIGN(QuantParams k, params(q, p, d));
  k.given_scales = from == ScalesFrom::kScales;
  return module.launch<EncodeKernel>(stream, p.elements() == 0 ? 0 : k.cells.count() * k.chunks, k);
}

Status device_quantise(const memory::Module& module, memory::Stream& stream, const Quant& q, const Part& p,
                       const DeviceQuant& d) {
  REFIT_ASSIGN(const QuantParams k, params(q, p, d));
  if (elements_of_cell(q, p) > kLargestFused) {
    REFIT_TRY(device_amax(module, stream, q, p, d));
    return device_quantise_with(module, stream, q, p, d, ScalesFrom::kAmax);
  }
  REFIT_TRY(clear_findings(stream, d));
  const std::int64_t blocks = ceil_div(k.cells.count(), kQuantThreads / k.threads_per_cell);
  return module.launch<QuantiseKernel>(stream, p.elements() == 0 ? 0 : blocks, k);
}

// ---- delta

namespace {
Status check_changes(const Shape& shape, const DeviceChanges& c) {
  if (shape.width != 1 && shape.width != 2 && shape.width != 4 && shape.width != 8)
    return Error(Code::kInvalid, "delta on a device: elements of " + std::to_string(shape.width) + " bytes");
  if (shape.elements < 0 || c.room < 0 || c.room > kChangeBlock)
    return Error(Code::kInvalid, "delta on a device: room per block must lie within 0 and 65536");
  return {};
}
}  // namespace

std::int64_t change_blocks(const Shape& shape) { return ceil_div(shape.elements, kChangeBlock); }

Status device_scan(const memory::Module& module, memory::Stream& stream, const Shape& shape, Form form, const void* base,
                   const void* next, const DeviceChanges& c) {
  REFIT_TRY(check_changes(shape, c));
  const auto bits = reinterpret_cast<std::uintptr_t>(base) | reinterpret_cast<std::uintptr_t>(next);
  const ScanParams p{static_cast<const std::byte*>(base),
                     static_cast<const std::byte*>(next),
                     shape.elements,
                     c.counts,
                     c.positions,
                     c.values,
                     c.room,
                     shape.width,
                     form,
                     bits % 16 == 0};
  return module.launch<ScanKernel>(stream, change_blocks(shape), p);
}

Status device_apply(const memory::Module& module, memory::Stream& stream, const Shape& shape, Change change,
                    const DeviceChanges& c, void* target) {
  REFIT_TRY(check_changes(shape, c));
  if (reinterpret_cast<std::uintptr_t>(target) % static_cast<std::uintptr_t>(shape.width) != 0)
    return Error(Code::kInvalid, "delta on a device: the target must be aligned to its elements");
  const Sink sink = change == Change::kAdd ? Sink::kAdd : change == Change::kSubtract ? Sink::kSubtract : Sink::kStore;
  const ApplyParams p{static_cast<std::byte*>(target), shape.elements, c.counts, c.positions, c.values, c.room,
                      shape.width, sink};
  return module.launch<ApplyKernel>(stream, change_blocks(shape), p);
}

}  // namespace refit::codec
