#include "gpu/bench.h"

#include <cstdio>

namespace refit::gpu {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(static_cast<unsigned char>(c) < 32 ? ' ' : c);
  }
  return out + "\"";
}

namespace {
void print(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}
void append(std::string& rows, const std::string& row) { rows += (rows.empty() ? "\n  " : ",\n  ") + row; }
}  // namespace

void Report::check(const std::string& name, const std::string& fault, const std::string& detail) {
  ++checks_;
  ok_ = ok_ && fault.empty();
  append(rows_, "{\"name\": " + quoted(name) + ", \"result\": " + (fault.empty() ? "\"pass\"" : "\"fail\"") +
                    ", \"detail\": " + quoted(fault.empty() ? detail : fault) + "}");
  print((fault.empty() ? "pass  " : "FAIL  ") + name + (detail.empty() && fault.empty() ? "" : ": ") +
        (fault.empty() ? detail : fault));
}
void Report::skip(const std::string& name, const std::string& why) {
  append(rows_, "{\"name\": " + quoted(name) + ", \"result\": \"skipped\", \"detail\": " + quoted(why) + "}");
  print("skip  " + name + ": " + why);
}
void Report::figure(const std::string& name, double gb_per_s, double ceiling) {
  char row[300];
  const double ratio = ceiling > 0 ? gb_per_s / ceiling : 0;  // JSON has no infinity
  std::snprintf(row, sizeof row,
                "{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"GB/s\", \"ceiling\": %.2f, \"ratio\": %.3f, \"meets\": %s}",
                name.c_str(), gb_per_s, ceiling, ratio, ratio >= 0.8 ? "true" : "false");
  append(figures_, row);
  std::snprintf(row, sizeof row, "      %-24s %9.2f GB/s of bytes touched, %.2f of memcpy", name.c_str(), gb_per_s,
                ratio);
  print(row);
}

bool Report::write(const std::string& path, const std::string& head, bool complete) const {
  std::FILE* const f = std::fopen(path.c_str(), "w");
  if (f == nullptr) return false;
  const std::string all = "{" + head + ",\n \"complete\": " + (complete ? "true" : "false") +
                          ", \"ok\": " + (complete && ok() ? "true" : "false") + ",\n \"checks\": [" + rows_ +
                          "],\n \"figures\": [" + figures_ + "]}\n";
  const bool written = std::fwrite(all.data(), 1, all.size(), f) == all.size();
  return std::fclose(f) == 0 && written;
}

Result<Bench> Bench::make(const memory::CudaApi& api) {
  Bench b;
  b.api = &api;
  REFIT_ASSIGN(b.device, memory::Device::open(api, 0));
  REFIT_ASSIGN(b.stream, memory::Stream::make(b.device));
  REFIT_ASSIGN(b.kernels, memory::Module::load(b.device, kernel::device_image()));
  REFIT_ASSIGN(b.codecs, memory::Module::load(b.device, codec::device_image()));
  return b;
}
std::string Bench::wait(const std::string& what) { return text(stream.wait(soon(), what)); }

Mirror::Mirror(Bench& bench, const void* bytes, std::int64_t n) : bench_(&bench) {
  auto device = memory::DeviceBuffer::make(bench.device, n, "a block of the check");
  auto host = memory::PinnedBuffer::make(bench.device, n, "a block of the check");
  if (!device.ok() || !host.ok()) {
    fault_ = device.ok() ? host.error().to_string() : device.error().to_string();
    return;
  }
  device_ = std::move(device).value();
  host_ = std::move(host).value();
  if (n == 0) return;
  if (bytes == nullptr) std::memset(host_.data(), 0x5c, static_cast<std::size_t>(n));
  else std::memcpy(host_.data(), bytes, static_cast<std::size_t>(n));
  fault_ = text(bench.stream.copy(device_.data(), host_.data(), n));
}

Bytes Mirror::read() {
  fault_ = text(bench_->stream.copy(host_.data(), device_.data(), bytes()));
  if (fault_.empty()) fault_ = bench_->wait("a copy to the host");
  return {host_.data(), host_.data() + bytes()};
}

}  // namespace refit::gpu
