// Writing files that appear complete or not at all: a temporary file beside the target, synced, then renamed.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"
#include "files/safetensors.h"

namespace refit::files {

// A file of known size, filled through a map and then committed. Dropped without commit(), nothing remains.
// *thread-compatible*; disjoint parts of bytes() may be filled by several threads.
class FileWriter {
 public:
  // Space is reserved at once, so that filling cannot fail. Errors: kExhausted when the disk lacks it; kInvalid naming
  // the path and the system's reason.
  static Result<FileWriter> create(const std::string& path, std::int64_t bytes);
  FileWriter() = default;
  ~FileWriter();
  FileWriter(FileWriter&& o) noexcept;
  FileWriter& operator=(FileWriter&& o) noexcept;
  std::span<std::byte> bytes() const { return {data_, size_}; }
  // Durable under its name when it returns success.
  Status commit();

 private:
  void drop();
  std::string path_, temporary_;
  Fd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
};

// A safetensors file whose data section starts at a multiple of 64 bytes and holds the tensors in the order given,
// without gaps: give wide items first, and each tensor is aligned to its items.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::string& path, const std::vector<TensorSpec>& tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  // The whole data section, and the bytes of the i-th tensor in it.
  std::span<std::byte> data() const { return file_.bytes().subspan(data_offset_); }
  std::span<std::byte> tensor(std::size_t i) const {
    return data().subspan(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  Status commit() { return file_.commit(); }

 private:
  FileWriter file_;
  std::size_t data_offset_ = 0;
  std::vector<std::size_t> offsets_;
};

// A small text file, likewise complete or absent.
Status write_text(const std::string& path, std::string_view text);

}  // namespace refit::files
