#include "bench/bench.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace refit::bench {
namespace {
std::vector<Entry>& registry() {
  static std::vector<Entry> entries;
  return entries;
}
}  // namespace

Registration::Registration(const char* name, const char* help, Bench run) {
  auto& entries = registry();
  const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name > name; });
  entries.insert(at, Entry{name, help, run});
}
const std::vector<Entry>& all() { return registry(); }

std::int64_t beyond_cache_bytes() {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const std::int64_t cache = std::max<std::int64_t>(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return std::max(ceil_div(2 * cache, kMiB), std::int64_t{256}) * kMiB;
}

Result<Buffer> Buffer::make(std::int64_t bytes) {
  Buffer out;
  constexpr std::int64_t kHuge = 2 << 20;
  out.bytes_ = ceil_div(bytes, kHuge) * kHuge;
  void* p =
      ::mmap(nullptr, static_cast<std::size_t>(out.bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return Error(Code::kExhausted, "cannot map a bench buffer").amounts(out.bytes_, 0);
  out.data_ = static_cast<std::byte*>(p);
  ::madvise(p, static_cast<std::size_t>(out.bytes_), MADV_HUGEPAGE);
  std::memset(p, 1, static_cast<std::size_t>(out.bytes_));
  return out;
}
Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}
Buffer::Buffer(Buffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}
void Buffer::fill_random(std::uint64_t seed) {
  std::uint64_t x = seed | 1;
  for (std::int64_t i = 0; i + 8 <= bytes_; i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(data_ + i, &x, 8);
  }
}

std::vector<double> median_seconds_in_turn(int repeats, std::span<const std::function<void()>> works) {
  std::vector<std::vector<double>> times(works.size());
  for (int r = -1; r < repeats; ++r) {
    for (std::size_t w = 0; w < works.size(); ++w) {
      const std::int64_t start = system_env().now_ns();
      works[w]();
      if (r >= 0) times[w].push_back(static_cast<double>(system_env().now_ns() - start) * 1e-9);
    }
  }
  std::vector<double> out;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    out.push_back(t.empty() ? 0 : t[t.size() / 2]);
  }
  return out;
}
double median_seconds(int repeats, const std::function<void()>& work) {
  return median_seconds_in_turn(repeats, std::span(&work, 1)).front();
}

double gbps(std::int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds * 1e-9 : 0;
}

Row against(std::string name, double value, std::string unit, double ceiling, std::string note) {
  return {std::move(name), value, std::move(unit), ceiling, ceiling > 0 ? std::optional(value / ceiling) : std::nullopt,
          std::move(note)};
}

std::string machine() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  return model + ", " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " cores";
}

namespace {
// Runs body(offset, bytes) over one slice per thread.
template <typename Body>
void sliced(ThreadPool& pool, std::int64_t bytes, const Body& body) {
  const std::int64_t each = ceil_div(ceil_div(bytes, pool.threads()), 64) * 64;
  pool.parallel_for(pool.threads(), [&](std::int64_t i) {
    const std::int64_t begin = std::min(bytes, i * each), end = std::min(bytes, begin + each);
    if (begin < end) body(begin, end - begin);
  });
}

// Independent sums over whole lines, so that only memory limits them; as wide as the processor allows.
using Lane = std::uint64_t __attribute__((vector_size(64), aligned(1), may_alias));
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t scan(const std::byte* p, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kAhead = 4096;  // into the second level: the first has few miss buffers
  Lane s[8] = {};
  std::int64_t i = 0;
  for (; i + 8 * kLine <= bytes; i += 8 * kLine) {
#pragma GCC unroll 8
    for (std::int64_t k = 0; k < 8; ++k) {
      __builtin_prefetch(p + i + k * kLine + kAhead, 0, 2);
      s[k] += *reinterpret_cast<const Lane*>(p + i + k * kLine);
    }
  }
  std::uint64_t sum = 0;
  for (const Lane& lane : s)
    for (int l = 0; l < 8; ++l) sum += lane[l];
  for (; i < bytes; ++i) sum += static_cast<std::uint64_t>(p[i]);
  return sum;
}

// Old and new in steps of one line each, as a comparison reads them: into the first level, which two streams prefer.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t scan_two(const std::byte* a, const std::byte* b, std::int64_t bytes) {
  constexpr std::int64_t kLine = 64, kAhead = 2048;
  Lane s[4] = {};
  std::int64_t i = 0;
  for (; i + 2 * kLine <= bytes; i += 2 * kLine) {
#pragma GCC unroll 2
    for (std::int64_t k = 0; k < 2; ++k) {
      __builtin_prefetch(a + i + k * kLine + kAhead, 0, 3);
      __builtin_prefetch(b + i + k * kLine + kAhead, 0, 3);
      s[k] += *reinterpret_cast<const Lane*>(a + i + k * kLine);
      s[2 + k] += *reinterpret_cast<const Lane*>(b + i + k * kLine);
    }
  }
  std::uint64_t sum = 0;
  for (const Lane& lane : s)
    for (int l = 0; l < 8; ++l) sum += lane[l];
  for (; i < bytes; ++i) sum += static_cast<std::uint64_t>(a[i]) + static_cast<std::uint64_t>(b[i]);
  return sum;
}
}  // namespace

std::function<void()> memcpy_work(ThreadPool& pool, std::byte* dst, const std::byte* src, std::int64_t bytes) {
  return [&pool, dst, src, bytes] {
    sliced(pool, bytes,
           [&](std::int64_t at, std::int64_t n) { std::memcpy(dst + at, src + at, static_cast<std::size_t>(n)); });
  };
}
std::function<void()> read_work(ThreadPool& pool, const std::byte* src, std::int64_t bytes) {
  return [&pool, src, bytes] {
    sliced(pool, bytes, [&](std::int64_t at, std::int64_t n) {
      const std::uint64_t sum = scan(src + at, n);
      asm volatile("" : : "r"(sum) : "memory");  // the sum is used
    });
  };
}

std::function<void()> read_two_work(ThreadPool& pool, const std::byte* a, const std::byte* b, std::int64_t bytes) {
  return [&pool, a, b, bytes] {
    sliced(pool, bytes, [&](std::int64_t at, std::int64_t n) {
      const std::uint64_t sum = scan_two(a + at, b + at, n);
      asm volatile("" : : "r"(sum) : "memory");
    });
  };
}

}  // namespace refit::bench
