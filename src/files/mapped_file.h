// MappedFile: a file's bytes, mapped read-only and privately.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "core/core.h"

namespace refit::files {

// *thread-safe* once open. A file that shrinks under a map faults its readers: do not edit checkpoints in use.
class MappedFile {
 public:
  // Regular files only. Errors: kInvalid naming the path and the system's reason.
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&& o) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// A whole small file as text; longer ones than `limit` are refused.
Result<std::string> read_text(const std::string& path, std::int64_t limit = 64 << 20);

}  // namespace refit::files
