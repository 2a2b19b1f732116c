// `refit bench convert`: a checkpoint to Megatron's ranks and back, beside copying the same files.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "bench/bench.h"
#include "cli/convert_files.h"
#include "model/model.h"

namespace refit::cli {
namespace {
namespace fs = std::filesystem;

constexpr const char* kThere = "megatron:tp=2,pp=2";

struct Scratch {
  std::string path;
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

// Qwen3-0.6B's shapes, with as many layers as make the size.
Result<std::int64_t> write_checkpoint(const std::string& directory, std::int64_t bytes) {
  std::int64_t layers = 2, size = 0;
  std::shared_ptr<const model::Layout> layout;
  std::string config;
  const auto grow = [&]() -> Status {
    REFIT_ASSIGN(config, model::builtin_config("qwen3-0.6b@layers=" + std::to_string(layers)));
    REFIT_ASSIGN(layout, model::rule_layout(config, "hf"));
    REFIT_ASSIGN(const model::RankLayout held, layout->expand(Rank(0)));
    size = held.buffers[0].bytes;
    return {};
  };
  REFIT_TRY(grow());
  const std::int64_t two = size;
  layers = 4;
  REFIT_TRY(grow());
  const std::int64_t each = (size - two) / 2;
  layers = std::max<std::int64_t>(2, (bytes - (two - 2 * each)) / each / 2 * 2);
  REFIT_TRY(grow());
  REFIT_ASSIGN(const model::RankLayout held, layout->expand(Rank(0)));
  std::vector<files::TensorSpec> specs;
  for (const model::Parameter& p : held.parameters) specs.push_back({p.name, p.dtype, p.shape});
  REFIT_ASSIGN(auto writer, files::SafetensorsWriter::create(directory + "/model.safetensors", specs));
  std::mt19937_64 random(7);
  const auto data = writer.data();
  for (std::size_t at = 0; at + 8 <= data.size(); at += 8) {
    const std::uint64_t word = random();
    std::memcpy(data.data() + at, &word, 8);
  }
  REFIT_TRY(writer.commit());
  REFIT_TRY(files::write_text(directory + "/config.json", config));
  return size;
}

Error failed(const std::string& path, const char* what, int error) {
  return {Code::kInvalid, path + ": cannot " + what + ": " + std::strerror(error)};
}

// Read and written through one buffer, durable as what convert writes is.
Status copy_file(const std::string& from, const std::string& to, std::vector<std::byte>& buffer) {
  const Fd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC)),
      out(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!in.valid()) return failed(from, "open", errno);
  if (!out.valid()) return failed(to, "open", errno);
  for (;;) {
    const ssize_t n = ::read(in.get(), buffer.data(), buffer.size());
    if (n < 0) return failed(from, "read", errno);
    if (n == 0) break;
    for (ssize_t done = 0; done < n;) {
      const ssize_t w = ::write(out.get(), buffer.data() + done, static_cast<std::size_t>(n - done));
      if (w < 0) return failed(to, "write", errno);
      done += w;
    }
  }
  if (::fsync(out.get()) != 0) return failed(to, "sync", errno);
  return {};
}

Status copy_directory(const std::string& from, const std::string& to) {
  std::vector<std::byte> buffer(std::size_t{4} << 20);
  std::error_code error;
  fs::create_directories(to, error);
  for (const auto& entry : fs::directory_iterator(from, error))
    REFIT_TRY(copy_file(entry.path().string(), to + "/" + entry.path().filename().string(), buffer));
  if (error) return Error(Code::kInvalid, from + ": cannot list: " + error.message());
  return {};
}

Status equal(const std::string& a, const std::string& b) {
  REFIT_ASSIGN(const files::Checkpoint left, files::Checkpoint::open(a));
  REFIT_ASSIGN(const files::Checkpoint right, files::Checkpoint::open(b));
  for (const files::TensorRef& t : left.tensors()) {
    const files::TensorRef* other = right.find(t.name);
    if (!other || other->bytes.size() != t.bytes.size() ||
        std::memcmp(other->bytes.data(), t.bytes.data(), t.bytes.size()) != 0)
      return Error(Code::kInternal, "bench convert: " + t.name + " did not come back").at_tensor(t.name);
  }
  return {};
}

// This process' anonymous memory: mapped files are the system's to drop.
std::int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) << 10;
  return 0;
}

class PeakWatch {
 public:
  PeakWatch() : base_(anonymous_bytes()), thread_([this] { watch(); }) {}
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;
  ~PeakWatch() { stop(); }
  std::int64_t stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_ - base_;
  }

 private:
  void watch() {
    while (!stop_) {
      peak_ = std::max(peak_, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  std::int64_t base_, peak_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

double median_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

Result<std::vector<bench::Row>> bench_convert(const bench::Options& options) {
  Scratch scratch;
  std::error_code error;
  const std::string parent =
      options.arguments.empty() ? fs::temp_directory_path(error).string() : options.arguments.front();
  std::string pattern = parent + "/refit-convert-XXXXXX";
  if (!::mkdtemp(pattern.data())) return failed(pattern, "create a directory", errno);
  scratch.path = pattern;
  const std::string hf = pattern + "/hf", there = pattern + "/there", back = pattern + "/back",
                    copy = pattern + "/copy";
  fs::create_directories(hf, error);
  REFIT_ASSIGN(const std::int64_t bytes, write_checkpoint(hf, options.bytes));
  std::vector<double> moved, plain;
  std::int64_t peak = 0;
  // One round trip and one copy of what it read that do not count, then in turn.
  for (int i = 0; i <= options.repeats; ++i) {
    for (const std::string& used : {there, back, copy}) fs::remove_all(used, error);
    PeakWatch watch;
    const std::int64_t start = monotonic_ns();
    REFIT_TRY(convert_directory(hf, "hf", kThere, there));
    REFIT_TRY(convert_directory(there, kThere, "hf", back));
    const std::int64_t between = monotonic_ns();
    peak = std::max(peak, watch.stop());
    REFIT_TRY(equal(hf, back));
    const std::int64_t again = monotonic_ns();
    REFIT_TRY(copy_directory(hf, copy + "/hf"));
    REFIT_TRY(copy_directory(there, copy + "/there"));
    const std::int64_t end = monotonic_ns();
    if (i == 0) continue;
    moved.push_back(static_cast<double>(between - start) * 1e-9);
    plain.push_back(static_cast<double>(end - again) * 1e-9);
  }
  const auto rate = [&](double seconds) { return bench::gbps(2 * bytes, seconds); };
  std::vector<bench::Row> rows;
  rows.push_back(bench::against("convert.megatron", rate(median_of(moved)), "GB/s", rate(median_of(plain)),
                                "reading and writing the same files, synced"));
  constexpr double kMiB = 1 << 20;
  rows.push_back({"convert.memory", static_cast<double>(peak) / kMiB, "MiB", 256.0,
                  static_cast<double>(peak) / (256 * kMiB), "the default budget, --staging-bytes"});
  return rows;
}

const bench::Registration r("convert", "A checkpoint to megatron:tp=2,pp=2 and back, beside copying the same files",
                            bench_convert);

}  // namespace
}  // namespace refit::cli
