#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "memory/memory.h"
#include "memory/pages.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace refit::memory {
namespace {

Status seal(int fd, int seals, std::string_view label) {
  if (::fcntl(fd, F_ADD_SEALS, seals) == 0) return {};
  return Error(Code::kUnsupported, "cannot seal shared memory '" + std::string(label) + "': " + std::strerror(errno) +
                                       " (memfd seals, Linux 5.1 or newer, are needed)");
}

}  // namespace

Result<SharedRegion> SharedRegion::make(Env& env, std::int64_t bytes, Budget* budget, std::string_view label) {
  if (bytes <= 0)
    return Error(Code::kInvalid,
                 "shared memory '" + std::string(label) + "' needs a size above 0, got " + std::to_string(bytes));
  REFIT_ASSIGN(const std::int64_t rounded, round_to_pages(bytes, label));
  if (budget != nullptr) REFIT_TRY(budget->take(rounded, label));
  SharedRegion region;
  region.bytes_ = bytes;
  region.mapped_ = rounded;
  region.budget_ = budget;
  REFIT_ASSIGN(region.fd_, env.shm(label, bytes));
  REFIT_TRY(seal(region.fd_.get(), F_SEAL_SHRINK | F_SEAL_GROW, label));
  REFIT_ASSIGN(region.data_, map_pages(rounded, PROT_READ | PROT_WRITE, MAP_SHARED, region.fd_.get(), label));
  (void)::madvise(region.data_, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  REFIT_TRY(fault_in(region.data_, rounded, Fault::kWrite, label));
  // After our map, which keeps its write permission: no later map, write or punched hole can change the bytes, and
  // nobody who holds the descriptor can add seals of their own.
  REFIT_TRY(seal(region.fd_.get(), F_SEAL_FUTURE_WRITE | F_SEAL_SEAL, label));
  return region;
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(mapped_));
  if (budget_ != nullptr) budget_->give(mapped_);
}

SharedRegion::SharedRegion(SharedRegion&& o) noexcept
    : fd_(std::move(o.fd_)),
      data_(std::exchange(o.data_, nullptr)),
      bytes_(std::exchange(o.bytes_, 0)),
      mapped_(std::exchange(o.mapped_, 0)),
      budget_(std::exchange(o.budget_, nullptr)) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& o) noexcept {
  if (this != &o) {
    SharedRegion old(std::move(*this));
    fd_ = std::move(o.fd_);
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = std::exchange(o.bytes_, 0);
    mapped_ = std::exchange(o.mapped_, 0);
    budget_ = std::exchange(o.budget_, nullptr);
  }
  return *this;
}

Result<Fd> SharedRegion::export_fd() const {
  // Re-opened read-only: the peer gets no write mode either, on top of the seal.
  const std::string self = "/proc/self/fd/" + std::to_string(fd_.get());
  Fd out(::open(self.c_str(), O_RDONLY | O_CLOEXEC));
  if (!out.valid())
    return Error(errno == EMFILE || errno == ENFILE ? Code::kExhausted : Code::kUnsupported,
                 std::string("cannot export shared memory: ") + std::strerror(errno));
  return out;
}

Result<MappedRegion> MappedRegion::map(Fd fd, std::int64_t bytes) {
  REFIT_ASSIGN(const std::int64_t rounded, round_to_pages(bytes, "a peer's region"));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0)
    return Error(Code::kCorrupt, std::string("cannot stat a peer's region: ") + std::strerror(errno));
  if (!S_ISREG(st.st_mode)) return Error(Code::kCorrupt, "a peer's region is not a memory file");
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Error(Code::kCorrupt, "a peer's region is not sealed against shrinking");
  if (st.st_size < bytes)
    return Error(Code::kCorrupt, "a peer's region is shorter than it claims").amounts(bytes, st.st_size);
  MappedRegion region;
  if (bytes == 0) return region;
  REFIT_ASSIGN(std::byte* const at, map_pages(rounded, PROT_READ, MAP_SHARED, fd.get(), "a peer's region"));
  region.data_ = at;
  region.bytes_ = bytes;
  (void)::madvise(at, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  REFIT_TRY(fault_in(at, rounded, Fault::kRead, "a peer's region"));
  return region;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<std::size_t>(bytes_));
}

MappedRegion::MappedRegion(MappedRegion&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& o) noexcept {
  if (this != &o) {
    MappedRegion old(std::move(*this));
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = std::exchange(o.bytes_, 0);
  }
  return *this;
}

bool contains(const SharedRegion& region, const std::byte* data, std::int64_t bytes) {
  const auto base = reinterpret_cast<std::uintptr_t>(region.data());
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (bytes < 0 || region.data() == nullptr || at < base) return false;
  const std::uintptr_t offset = at - base;
  const auto size = static_cast<std::uintptr_t>(region.bytes());
  return offset <= size && static_cast<std::uintptr_t>(bytes) <= size - offset;
}

}  // namespace refit::memory
