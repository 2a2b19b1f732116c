// The vendor table itself: errors, streams, events, deadlines, sharing refusals.
#include "gpu/bench.h"

namespace refit::gpu {
namespace {

using namespace refit::memory;

std::string wants(Code code, const std::string& part, const Error& e) {
  if (e.code != code || e.message.find(part) == std::string::npos) return "unexpected error: " + e.to_string();
  return "";
}

std::string too_large(Bench& b) {
  auto got = DeviceBuffer::make(b.device, std::int64_t{1} << 50, "a petabyte");
  if (got.ok()) return "a petabyte was given";
  if (got.error().need != std::int64_t{1} << 50 || !got.error().have) return "need and have are missing: " + got.error().to_string();
  return wants(Code::kExhausted, "a petabyte", got.error());
}

std::string no_device(Bench& b) {
  auto got = Device::open(*b.api, 4711);
  return got.ok() ? "there is a device 4711" : wants(Code::kUnsupported, b.api->name, got.error());
}
std::string by_uuid(Bench& b) {
  auto got = Device::find(*b.api, b.device.uuid());
  if (!got.ok()) return got.error().to_string();
  if (got->ordinal() != b.device.ordinal()) return "another device was found";
  CuUuid other = b.device.uuid();
  other.bytes[3] ^= 0x55;
  auto none = Device::find(*b.api, other);
  return none.ok() ? "a device was found that is not there" : wants(Code::kMismatch, to_string(b.device.uuid()), none.error());
}

// Two streams: the second waits for the first through an event, and nobody waits in between.
std::string order(Bench& b) {
  constexpr std::int64_t kBytes = 1 << 20;
  auto other = Stream::make(b.device);
  auto event = Event::make(b.device);
  if (!other.ok() || !event.ok()) return "no stream or event";
  Mirror from(b, nullptr, kBytes), to(b, nullptr, kBytes);
  for (const Status& s : {b.stream.fill(from.at(), 0x11, kBytes), event->record(b.stream), event->hold(*other),
                          other->copy(to.at(), from.at(), kBytes)})
    if (!s.ok()) return text(s);
  if (auto f = text(other->wait(soon(), "the second stream")); !f.empty()) return f;
  return to.read() == Bytes(static_cast<std::size_t>(kBytes), std::byte{0x11}) ? "" : "the copy overtook the fill";
}

// The stream of the caller: work queued on it by others comes before ours.
std::string borrowed(Bench& b) {
  Stream same = Stream::borrow(b.device, b.stream.raw());
  Mirror m(b, nullptr, 4096);
  if (auto f = text(b.stream.fill(m.at(), 1, 4096)); !f.empty()) return f;
  if (auto f = text(same.fill(m.at(), 2, 4096)); !f.empty()) return f;
  return m.read() == Bytes(4096, std::byte{2}) ? "" : "a borrowed stream is another stream";
}

std::string deadline(Bench& b) {
  Mirror m(b, nullptr, 64 << 20);
  for (int i = 0; i < 50; ++i) (void)b.stream.fill(m.at(), 3, m.bytes());
  const Status s = b.stream.wait(Deadline::after_ns(0), "a wait without time");
  if (auto f = b.wait("the fills"); !f.empty()) return f;
  if (s.ok()) return "a wait without time succeeded";
  return wants(Code::kTimeout, "a wait without time", s.error());
}

// Parameters are copied by the launch, pinned memory is read when the copy runs.
std::string many(Bench& b) {
  for (int i = 0; i < 300; ++i) {
    auto m = DeviceBuffer::make(b.device, 1 + i * 1000, "a block");
    auto s = Stream::make(b.device);
    auto e = Event::make(b.device, true);
    if (!m.ok() || !s.ok() || !e.ok()) return "ran out after " + std::to_string(i);
  }
  return "";
}

// Memory of the virtual memory functions that was not made shareable.
std::string not_shareable(Bench& b) {
  const CudaApi& api = *b.api;
  CuAllocationProperties properties;
  properties.location.id = b.device.ordinal();
  std::size_t size = 0;
  CuAllocation a = 0;
  CuPtr at = 0;
  for (const Status& s :
       {b.device.call("granularity", api.vmm_granularity, &size, static_cast<const CuAllocationProperties*>(&properties), 0),
        b.device.call("reserve", api.vmm_reserve, &at, size, std::size_t{0}, CuPtr{0}, 0ULL),
        b.device.call("create", api.vmm_create, &a, size, static_cast<const CuAllocationProperties*>(&properties), 0ULL),
        b.device.call("map", api.vmm_map, at, size, std::size_t{0}, a, 0ULL)})
    if (!s.ok()) return text(s);
  auto got = export_memory(b.device, at, 100);
  (void)b.device.call("unmap", api.vmm_unmap, at, size);
  (void)b.device.call("unreserve", api.vmm_unreserve, at, size);
  (void)b.device.call("release", api.vmm_release, a);
  return got.ok() ? "it was exported" : wants(Code::kUnsupported, "expandable_segments", got.error());
}

std::string handles(Bench& b) {
  auto m = DeviceBuffer::make(b.device, 1 << 20, "a block");
  if (!m.ok()) return m.error().to_string();
  auto inside = export_memory(b.device, m->at() + 4096, 1000);
  if (!inside.ok()) return inside.error().to_string();
  if (inside->handle.offset != 4096 || inside->handle.bytes != 1000 || inside->handle.fd) return "base and offset are wrong";
  auto beyond = export_memory(b.device, m->at() + 4096, 1 << 30);
  if (beyond.ok()) return "a region beyond its allocation was exported";
  DeviceHandle broken = inside->handle;
  broken.offset = std::int64_t{1} << 40;
  auto opened = ImportedMemory::open(*b.api, broken, Fd());
  if (opened.ok()) return "a broken handle was opened";
  if (auto f = wants(Code::kCorrupt, "beyond", opened.error()); !f.empty()) return f;
  auto own = ImportedMemory::open(*b.api, inside->handle, Fd());
  return own.ok() ? "the driver opened a handle of this process" : wants(own.error().code, b.api->name, own.error());
}

}  // namespace

void check_memory(Bench& b) {
  b.report->check("memory.too_large", too_large(b));
  b.report->check("memory.no_device", no_device(b));
  b.report->check("memory.by_uuid", by_uuid(b));
  b.report->check("memory.order", order(b));
  b.report->check("memory.borrowed_stream", borrowed(b));
  b.report->check("memory.deadline", deadline(b));
  b.report->check("memory.many", many(b));
  b.report->check("memory.not_shareable", not_shareable(b));
  b.report->check("memory.handles", handles(b));
}

}  // namespace refit::gpu
