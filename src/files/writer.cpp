#include "files/writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace refit::files {
namespace {

constexpr std::size_t kDataAlignment = 64;

Error failed(const std::string& path, const char* what, int error) {
  return Error(error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kInvalid,
               path + ": cannot " + what + ": " + std::strerror(error));
}

Status sync_directory(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return failed(directory, "sync", errno);
  return {};
}

}  // namespace

Result<FileWriter> FileWriter::create(const std::string& path, std::int64_t bytes) {
  if (bytes < 0) return Error(Code::kInvalid, path + ": negative size");
  FileWriter out;
  out.path_ = path;
  // Unique beside the target even when several processes write it.
  std::string name = path + ".XXXXXX";
  out.fd_ = Fd(::mkostemp(name.data(), O_CLOEXEC));
  if (!out.fd_.valid()) return failed(path, "create a temporary file beside it", errno);
  out.temporary_ = name;
  if (::fchmod(out.fd_.get(), 0644) != 0) return failed(path, "set permissions", errno);
  if (bytes == 0) return out;
  if (const int error = ::posix_fallocate(out.fd_.get(), 0, bytes); error != 0)
    return failed(path, "reserve its space", error).amounts(bytes, 0);
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, out.fd_.get(), 0);
  if (data == MAP_FAILED) return failed(path, "map", errno);
  out.data_ = static_cast<std::byte*>(data);
  out.size_ = static_cast<std::size_t>(bytes);
  return out;
}

FileWriter::~FileWriter() { drop(); }
FileWriter::FileWriter(FileWriter&& o) noexcept
    : path_(std::move(o.path_)),
      temporary_(std::exchange(o.temporary_, {})),
      fd_(std::move(o.fd_)),
      data_(std::exchange(o.data_, nullptr)),
      size_(std::exchange(o.size_, 0)) {}
FileWriter& FileWriter::operator=(FileWriter&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(temporary_, o.temporary_);
  std::swap(fd_, o.fd_);
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  return *this;
}

void FileWriter::drop() {
  if (data_) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
  fd_.reset();
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

Status FileWriter::commit() {
  if (temporary_.empty()) return Error(Code::kInternal, path_ + ": committed twice");
  if (data_ && ::msync(data_, size_, MS_SYNC) != 0) return failed(path_, "write", errno);
  if (::fsync(fd_.get()) != 0) return failed(path_, "sync", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed(path_, "rename onto it", errno);
  temporary_.clear();
  drop();
  return sync_directory(path_);
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, const std::vector<TensorSpec>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter out;
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t end = 0;
  out.offsets_.push_back(0);
  for (const TensorSpec& t : tensors) {
    const auto elements = checked_extent_product(t.shape);
    auto bytes = elements ? checked_mul(*elements, item_size(t.dtype)) : std::nullopt;
    for (std::int64_t n : t.shape)
      if (n == 0 && bytes) bytes = 0;
    const auto next = bytes ? checked_add(end, *bytes) : std::nullopt;
    if (!next || t.name == "__metadata__" || header.contains(t.name))
      return Error(Code::kInvalid,
                   path + ": tensor '" + t.name + "' " + (next ? "has a name that is taken" : "passes 2^63 bytes"))
          .at_tensor(t.name);
    header[t.name] = {{"dtype", safetensors_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {end, *next}}};
    end = *next;
    out.offsets_.push_back(static_cast<std::size_t>(end));
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((kDataAlignment - (8 + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  out.data_offset_ = 8 + text.size();
  const auto total = checked_add(end, static_cast<std::int64_t>(out.data_offset_));
  if (!total) return Error(Code::kInvalid, path + ": passes 2^63 bytes");
  REFIT_ASSIGN(out.file_, FileWriter::create(path, *total));
  for (std::size_t i = 0; i < 8; ++i) out.file_.bytes()[i] = static_cast<std::byte>(text.size() >> (8 * i) & 0xffu);
  std::memcpy(out.file_.bytes().data() + 8, text.data(), text.size());
  return out;
}

Status write_text(const std::string& path, std::string_view text) {
  REFIT_ASSIGN(FileWriter file, FileWriter::create(path, static_cast<std::int64_t>(text.size())));
  if (!text.empty()) std::memcpy(file.bytes().data(), text.data(), text.size());
  return file.commit();
}

}  // namespace refit::files
