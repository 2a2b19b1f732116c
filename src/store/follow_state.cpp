#include "store/follow_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "store/directory_store.h"

namespace refit::store {
namespace {

constexpr const char* kMarkKey = "mark";
constexpr double kLocalS = 60;  // a directory answers at once

Error file_error(const std::string& path, const char* what, int error) {
  return Error(error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kInvalid,
               path + ": cannot " + what + ": " + std::strerror(error));
}

}  // namespace

Result<FollowState> FollowState::open(const std::string& directory) {
  FollowState out;
  out.directory_ = directory;
  REFIT_ASSIGN(out.files_, open_directory(directory));
  const std::string lock = directory + "/.lock";
  out.lock_ = Fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!out.lock_.valid()) return file_error(lock, "open", errno);
  if (::flock(out.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return Error(Code::kBusy, "--state " + directory + ": another process follows with it");
  REFIT_ASSIGN(const std::optional<Bytes> bytes, out.files_->get(kMarkKey, 1 << 10, Deadline::after_s(kLocalS)));
  if (bytes) {
    Result<FollowMark> mark = read_mark(*bytes);
    if (!mark.ok()) {
      mark.error().message = "--state " + directory + ": " + mark.error().message;
      return std::move(mark).error();
    }
    out.mark_ = *mark;
  }
  return out;
}

FollowState::FollowState(FollowState&& o) noexcept
    : directory_(std::move(o.directory_)),
      files_(std::move(o.files_)),
      lock_(std::move(o.lock_)),
      mark_(std::move(o.mark_)),
      mapped_(std::exchange(o.mapped_, nullptr)),
      mapped_bytes_(std::exchange(o.mapped_bytes_, 0)) {}
FollowState::~FollowState() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

Status FollowState::save(const FollowMark& mark) {
  if (mark_ == mark) return {};
  const Bytes bytes = write_mark(mark);
  REFIT_TRY(files_->put(kMarkKey, bytes, sha256(bytes), Deadline::after_s(kLocalS)));
  mark_ = mark;
  return {};
}

Result<std::span<std::byte>> FollowState::mirror(std::int64_t bytes) {
  REFIT_CHECK(mapped_ == nullptr && bytes >= 0);
  if (bytes == 0) return std::span<std::byte>();
  const std::string path = directory_ + "/mirror";
  const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return file_error(path, "open", errno);
  if (::ftruncate(fd.get(), bytes) != 0) return file_error(path, "set its size", errno);
  if (const int error = ::posix_fallocate(fd.get(), 0, bytes); error != 0)
    return file_error(path, "reserve its space", error).amounts(bytes, 0);
  void* at = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return file_error(path, "map", errno);
  mapped_ = static_cast<std::byte*>(at);
  mapped_bytes_ = static_cast<std::size_t>(bytes);
  return std::span<std::byte>(mapped_, mapped_bytes_);
}

}  // namespace refit::store
