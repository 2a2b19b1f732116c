// Figures: bytes read and written by a kernel, over the rate at which a device-to-device copy reads and writes.
#include <algorithm>
#include <memory>

#include "gpu/bench.h"

namespace refit::gpu {
namespace {

using namespace refit::memory;
using namespace refit::kernel;

// Median of five timings of a queued operation, after one that warms up.
Result<double> seconds(Bench& b, const std::function<Status()>& queue) {
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    REFIT_ASSIGN(auto from, Event::make(b.device, true));
    REFIT_ASSIGN(auto to, Event::make(b.device, true));
    REFIT_TRY(from.record(b.stream));
    REFIT_TRY(queue());
    REFIT_TRY(to.record(b.stream));
    REFIT_TRY(b.stream.wait(soon(), "a measurement"));
    REFIT_ASSIGN(const double s, to.seconds_since(from));
    if (i > 0) times.push_back(s);
  }
  std::sort(times.begin(), times.end());
  if (times[2] <= 0) return Error(Code::kInternal, "a measurement took no time");
  return times[2];
}

struct Case {
  std::string name;
  Dims extents, from, to;
  bool writes = true, digests = true;
};

}  // namespace

void measure(Bench& b) {
  const std::int64_t side = b.is_double() ? 256 : 16384, bytes = side * side * 2;  // bf16: 512 MiB
  auto src = DeviceBuffer::make(b.device, bytes, "measurements"), dst = DeviceBuffer::make(b.device, bytes, "measurements");
  if (!src.ok() || !dst.ok()) return b.report->check("measure.memory", "no room for measurements");
  (void)b.stream.fill(src->data(), 0x3c, bytes);
  // 0 and a failed check where nothing was measured.
  const auto rate = [&](const std::string& name, std::int64_t touched, const std::function<Status()>& queue) {
    const auto s = seconds(b, queue);
    if (!s.ok()) b.report->check("measure." + name, s.error().to_string());
    return s.ok() ? static_cast<double>(touched) * 1e-9 / *s : 0;
  };
  const double copy = rate("memcpy", 2 * bytes, [&] { return b.stream.copy(dst->data(), src->data(), bytes); });
  const auto figure = [&](const std::string& name, std::int64_t touched, const std::function<Status()>& queue) {
    b.report->figure(name, rate(name, touched, queue), copy);
  };
  b.report->figure("memcpy", copy, copy);

  const std::int64_t row = side * 2;
  const Case cases[] = {{"move.rows", {side, side}, {row, 2}, {row, 2}, true, false},
                        {"move.rows_digest", {side, side}, {row, 2}, {row, 2}},
                        {"move.columns_digest", {side, side / 2}, {row, 2}, {row / 2, 2}},
                        {"move.short_runs", {side * 16, side / 32}, {row / 16, 2}, {row / 32, 2}, true, false},
                        {"transpose", {side, side}, {row, 2}, {2, row}, true, false},
                        {"transpose_digest", {side, side}, {row, 2}, {2, row}},
                        {"digest", {side, side}, {row, 2}, {}, false}};
  for (const Case& c : cases) {
    const DigestKeys keys = DigestKeys::make(1, c.name, c.extents);
    const Dims steps{1, 1}, origin{0, 0};
    const std::vector<int> axis{0, 1};
    Job j;
    j.src = src->data();
    j.dst = c.writes ? dst->data() : nullptr;
    j.extents = c.extents;
    j.src_strides = c.from;
    j.dst_strides = c.to;
    j.axis = axis;
    j.steps = steps;
    j.origin = origin;
    j.keys = c.digests ? &keys : nullptr;
    auto batch = DeviceBatch::make(b.stream, std::span(&j, 1), true);
    if (!batch.ok()) return b.report->check("measure." + c.name, batch.error().to_string());
    const std::int64_t n = c.extents[0] * c.extents[1] * 2;
    figure(c.name, c.writes ? 2 * n : n, [&] { return batch->launch(b.kernels, b.stream); });
  }

  using namespace refit::codec;
  const Part part{0, 0, side, side, side, DType::kBF16};
  const std::pair<const char*, Quant> formats[] = {{"quantise.fp8_block", fp8_block()},
                                                   {"quantise.fp8_channel", fp8_channel()},
                                                   {"quantise.fp8_tensor", fp8_tensor()},
                                                   {"quantise.mxfp8", mxfp8()}};
  for (const auto& [name, q] : formats) {
    auto scales = DeviceBuffer::make(b.device, cells_of(q, part).count() * q.scale_bytes(), "scales");
    auto work = DeviceBuffer::make(b.device, device_quant_work_bytes(q, part), "work");
    if (!scales.ok() || !work.ok()) return b.report->check(std::string("measure.") + name, "no room");
    const DeviceQuant d{src->data(), scales->data(), dst->data(), work->data()};
    // Read once, whatever the caches give back on the second look.
    figure(name, bytes + bytes / 2 + scales->bytes(), [&] { return device_quantise(b.codecs, b.stream, q, part, d); });
  }

  const Shape shape{2, side * side};
  const std::int64_t room = 4096, blocks = change_blocks(shape);
  auto counts = DeviceBuffer::make(b.device, 4 * blocks, "counts"), positions = DeviceBuffer::make(b.device, 2 * blocks * room, "positions"),
       found = DeviceBuffer::make(b.device, 2 * blocks * room, "values");
  if (!counts.ok() || !positions.ok() || !found.ok()) return b.report->check("measure.delta", "no room");
  (void)b.stream.copy(dst->data(), src->data(), bytes);
  // Every hundredth element changes.
  const std::int64_t changed = side * side / 100;
  const std::int64_t extents[] = {changed}, strides[] = {200};
  Job j;
  j.src = positions->data();
  j.dst = dst->data();
  j.extents = extents;
  j.src_strides = std::span(extents).first(0);
  const std::int64_t zero[] = {0};
  j.src_strides = zero;
  j.dst_strides = strides;
  (void)b.stream.fill(positions->data(), 0x77, 64);
  auto scatter = DeviceBatch::make(b.stream, std::span(&j, 1), false);
  if (!scatter.ok() || !scatter->launch(b.kernels, b.stream).ok() || !b.wait("changes").empty())
    return b.report->check("measure.delta", "changes could not be made");
  const DeviceChanges c{reinterpret_cast<std::uint32_t*>(counts->data()), reinterpret_cast<std::uint16_t*>(positions->data()),
                        found->data(), room};
  figure("delta.scan.1%", 2 * bytes + 4 * changed, [&] {
    return device_scan(b.codecs, b.stream, shape, Form::kUndoable, src->data(), dst->data(), c);
  });
  // Each change reads and writes a sector of 32 bytes.
  figure("delta.apply.1%", 64 * changed + 4 * changed,
         [&] { return device_apply(b.codecs, b.stream, shape, Change::kAdd, c, src->data()); });
}

}  // namespace refit::gpu
