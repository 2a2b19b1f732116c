#include "memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace refit::memory {
namespace {

constexpr std::int64_t kHugePage = 2 << 20;
constexpr std::int64_t kFaultChunk = 32 << 20;     // one task of a parallel fault-in
constexpr std::int64_t kFaultParallel = 64 << 20;  // below this, starting threads costs more than it saves
constexpr int kFaultThreads = 4;                   // more only contend for the kernel's page lock

// Kernels before 5.14 lack MADV_POPULATE. A write touch keeps the byte; a read touch only loads it.
void touch(std::byte* data, std::int64_t bytes, Fault how) {
  for (std::int64_t at = 0; at < bytes; at += page_bytes()) {
    auto* byte = reinterpret_cast<volatile unsigned char*>(data + at);
    const unsigned char value = *byte;
    if (how == Fault::kWrite) *byte = value;
  }
}

int fault_chunk(std::byte* data, std::int64_t bytes, Fault how) {
  const int advice = how == Fault::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  while (::madvise(data, static_cast<std::size_t>(bytes), advice) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    touch(data, bytes, how);
    return 0;
  }
  return 0;
}

}  // namespace

std::int64_t page_bytes() {
  static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

Result<std::int64_t> round_to_pages(std::int64_t bytes, std::string_view what) {
  const auto padded = bytes < 0 ? std::nullopt : checked_add(bytes, page_bytes() - 1 + kHugePage);
  if (!padded) return Error(Code::kInvalid, "impossible size " + std::to_string(bytes) + " for " + std::string(what));
  return (*padded - kHugePage) / page_bytes() * page_bytes();
}

Result<std::byte*> map_pages(std::int64_t bytes, int protection, int flags, int fd, std::string_view what) {
  const auto length = static_cast<std::size_t>(bytes);
  const auto failed = [&](int err) {
    const Code code = err == ENOMEM ? Code::kExhausted : Code::kInvalid;
    return Error(code,
                 "cannot map " + std::to_string(bytes) + " bytes for " + std::string(what) + ": " + std::strerror(err));
  };
  if (bytes < kHugePage) {
    void* at = ::mmap(nullptr, length, protection, flags, fd, 0);
    if (at == MAP_FAILED) return failed(errno);
    return static_cast<std::byte*>(at);
  }
  const std::size_t wide = length + static_cast<std::size_t>(kHugePage);
  void* reserved = ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return failed(errno);
  auto* first = static_cast<std::byte*>(reserved);
  const auto skew = reinterpret_cast<std::uintptr_t>(first) % static_cast<std::uintptr_t>(kHugePage);
  std::byte* start = skew == 0 ? first : first + (static_cast<std::uintptr_t>(kHugePage) - skew);
  if (::mmap(start, length, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int err = errno;
    ::munmap(first, wide);
    return failed(err);
  }
  if (start != first) ::munmap(first, static_cast<std::size_t>(start - first));
  const auto tail = static_cast<std::size_t>((first + wide) - (start + length));
  if (tail != 0) ::munmap(start + length, tail);
  return start;
}

Status fault_in(std::byte* data, std::int64_t bytes, Fault how, std::string_view what) {
  if (bytes == 0) return {};
  std::atomic<int> failed{0};
  const std::int64_t chunks = bytes < kFaultParallel ? 1 : ceil_div(bytes, kFaultChunk);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(chunks == 1 ? 1 : std::min(cores, kFaultThreads), "refit-fault");
  pool.parallel_for(chunks, [&](std::int64_t i) {
    const std::int64_t at = i * kFaultChunk;
    const std::int64_t size = chunks == 1 ? bytes : std::min(kFaultChunk, bytes - at);
    if (failed.load() != 0) return;
    if (const int err = fault_chunk(data + at, size, how); err != 0) failed.store(err);
  });
  if (const int err = failed.load(); err != 0)
    return Error(Code::kExhausted, "cannot back " + std::string(what) + " with memory: " + std::strerror(err))
        .amounts(bytes, 0);
  return {};
}

}  // namespace refit::memory
