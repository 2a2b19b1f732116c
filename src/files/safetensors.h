// The safetensors format: 8 bytes little-endian header length, a JSON header, the data section. Read strictly.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::files {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  std::int64_t offset = 0, bytes = 0;  // in the data section
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // in the order of their data
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::int64_t data_offset = 0;                 // of the data section in the file
};

inline constexpr std::int64_t kMaxHeaderBytes = 100 << 20;

// Checks the whole header against the file: lengths, keys, dtypes, shapes, and data that covers the rest of the file
// without gap or overlap. Nothing is allocated in proportion to a claimed size. Errors: kCorrupt, naming the tensor.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);
// The same for a header kept apart (length and JSON) from `data_bytes` of data.
Result<SafetensorsHeader> parse_safetensors_head(std::span<const std::byte> head, std::int64_t data_bytes);

// "BF16" and the like; kUnsupported for dtypes that Refit has no name for.
Result<DType> safetensors_dtype(std::string_view name);
std::string_view safetensors_name(DType dtype);

}  // namespace refit::files
