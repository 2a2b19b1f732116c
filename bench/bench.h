// Benches: each verifies what it times and puts every figure beside a ceiling measured in the same run.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::bench {

struct Row {
  std::string name;  // "gather.row"
  double value = 0;
  std::string unit;               // "GB/s" (1e9 bytes), "s"
  std::optional<double> ceiling;  // in the same unit
  std::optional<double> ratio;    // value / ceiling, or as the row's comment in the docs says
  std::string note;               // what the ceiling is
};

// Bytes of a buffer that no cache holds: twice the last level as the system reports it, at least 256 MiB.
std::int64_t beyond_cache_bytes();

struct Options {
  int threads = 1;
  std::int64_t bytes = beyond_cache_bytes();     // per buffer
  int repeats = 5;                               // the median counts
  std::vector<std::string> arguments;            // further words of the command line, for benches that take a file
};

using Bench = Result<std::vector<Row>> (*)(const Options&);

// At namespace scope of a bench's own file: static const Registration r("gather", "one line of help", bench_gather);
struct Registration {
  Registration(const char* name, const char* help, Bench run);
};
struct Entry {
  std::string name, help;
  Bench run;
};
const std::vector<Entry>& all();  // sorted by name

// An anonymous mapping, huge pages advised, every page touched. *thread-compatible*.
class Buffer {
 public:
  static Result<Buffer> make(std::int64_t bytes);
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& o) noexcept;
  Buffer& operator=(Buffer&& o) noexcept;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  void fill_random(std::uint64_t seed);

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Median seconds of `repeats` runs after one that does not count.
double median_seconds(int repeats, const std::function<void()>& work);
// The same for several works, taken in turn so that noise of the machine meets all of them alike.
std::vector<double> median_seconds_in_turn(int repeats, std::span<const std::function<void()>> works);
// 1e9 bytes per second.
double gbps(std::int64_t bytes, double seconds);
// Row with ratio = value / ceiling.
Row against(std::string name, double value, std::string unit, double ceiling, std::string note);
// "model name, cores" of this machine.
std::string machine();

// Ceilings on the given buffers with `threads` threads: works for median_seconds_in_turn.
std::function<void()> memcpy_work(ThreadPool& pool, std::byte* dst, const std::byte* src, std::int64_t bytes);
std::function<void()> read_work(ThreadPool& pool, const std::byte* src, std::int64_t bytes);
// Reads `a` and `b`, `bytes` of each, side by side.
std::function<void()> read_two_work(ThreadPool& pool, const std::byte* a, const std::byte* b, std::int64_t bytes);

Result<std::vector<Row>> bench_gather(const Options& options);
Result<std::vector<Row>> bench_digest(const Options& options);

}  // namespace refit::bench
