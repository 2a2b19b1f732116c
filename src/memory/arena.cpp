#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "memory/memory.h"
#include "memory/pages.h"

namespace refit::memory {

Result<Arena> Arena::make(std::int64_t bytes, Budget* budget, std::string_view what) {
  REFIT_ASSIGN(const std::int64_t rounded, round_to_pages(bytes, what));
  if (budget != nullptr) REFIT_TRY(budget->take(rounded, what));
  // From here on the arena owns the charge: an early return gives it back.
  Arena arena;
  arena.bytes_ = bytes;
  arena.mapped_ = rounded;
  arena.budget_ = budget;
  if (rounded == 0) return arena;
  REFIT_ASSIGN(arena.data_, map_pages(rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, what));
  // Advice only: without huge pages the arena is slower, not wrong.
  (void)::madvise(arena.data_, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  REFIT_TRY(fault_in(arena.data_, rounded, Fault::kWrite, what));
  return arena;
}

Result<Arena> Arena::make_in(const std::string& directory, std::int64_t bytes, std::string_view what) {
  REFIT_ASSIGN(const std::int64_t rounded, round_to_pages(bytes, what));
  Arena arena;
  arena.bytes_ = bytes;
  arena.mapped_ = rounded;
  if (rounded == 0) return arena;
  const auto failed = [&](const char* doing, int err) {
    return Error(err == ENOSPC ? Code::kExhausted : Code::kInvalid,
                 std::string(what) + " in " + directory + ": cannot " + doing + ": " + std::strerror(err))
        .amounts(rounded, 0);
  };
  Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without nameless files
    std::string name = directory + "/refit-XXXXXX";
    fd = Fd(::mkostemp(name.data(), O_CLOEXEC));
    if (fd.valid()) (void)::unlink(name.c_str());
  }
  if (!fd.valid()) return failed("open a file", errno);
  if (const int err = ::posix_fallocate(fd.get(), 0, rounded); err != 0) return failed("reserve its bytes", err);
  REFIT_ASSIGN(arena.data_, map_pages(rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), what));
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(mapped_));
  if (budget_ != nullptr) budget_->give(mapped_);
}

Arena::Arena(Arena&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)),
      mapped_(std::exchange(o.mapped_, 0)),
      budget_(std::exchange(o.budget_, nullptr)) {}

Arena& Arena::operator=(Arena&& o) noexcept {
  if (this != &o) {
    Arena old(std::move(*this));
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = std::exchange(o.bytes_, 0);
    mapped_ = std::exchange(o.mapped_, 0);
    budget_ = std::exchange(o.budget_, nullptr);
  }
  return *this;
}

}  // namespace refit::memory
