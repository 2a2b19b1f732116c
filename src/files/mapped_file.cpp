#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace refit::files {
namespace {

Error failed(const std::string& path, const char* what) {
  return Error(Code::kInvalid, path + ": cannot " + what + ": " + std::strerror(errno));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, so that a FIFO at the path cannot hold us.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return failed(path, "open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed(path, "stat");
  if (!S_ISREG(info.st_mode)) return Error(Code::kInvalid, path + ": is not a regular file");
  MappedFile out;
  if (info.st_size == 0) return out;
  void* data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return failed(path, "map");
  out.data_ = static_cast<const std::byte*>(data);
  out.size_ = static_cast<std::size_t>(info.st_size);
  return out;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}
MappedFile::MappedFile(MappedFile&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  return *this;
}

Result<std::string> read_text(const std::string& path, std::int64_t limit) {
  REFIT_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto size = static_cast<std::int64_t>(file.bytes().size());
  if (size > limit)
    return Error(Code::kInvalid, path + ": is longer than a text of this kind may be").amounts(size, limit);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace refit::files
