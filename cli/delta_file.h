// A delta of two safetensors files: one codec message per tensor in a container. Format: schema/delta.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "core/core.h"
#include "files/files.h"

namespace refit::cli {

struct DeltaTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  std::int64_t wire_bytes = 0;
  codec::Header header;
  codec::Census census;
};

struct DeltaReport {
  codec::Form form = codec::Form::kUndoable;
  std::vector<DeltaTensor> tensors;  // by name
  std::int64_t wire_bytes = 0;       // of the delta file
  std::int64_t raw_bytes = 0;        // of all tensors
};

// Writes what turns BASE into NEW. Errors: kMismatch listing tensors that only one of them has or that differ in shape
// or dtype.
Result<DeltaReport> encode_delta(const std::string& base, const std::string& next, const std::string& out,
                                 codec::Form form, codec::Workspace& work);
// Writes the file on the delta's other side, byte for byte: from a base its result, or (undo) from a result its base.
// Errors: kMismatch naming the tensor whose bytes are not what the delta needs, kCorrupt, kUnsupported.
Result<DeltaReport> apply_delta(const std::string& from, const std::string& delta, const std::string& out, bool undo,
                                codec::Workspace& work);
Result<DeltaReport> stat_delta(const std::string& delta, codec::Workspace& work);

}  // namespace refit::cli
