// Checkpoint: a directory with config.json and safetensors, as tensors by name.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/core.h"
#include "files/mapped_file.h"
#include "files/safetensors.h"
#include "model/model.h"

namespace refit::files {

struct TensorRef {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  std::span<const std::byte> bytes;  // mapped; lives as long as the checkpoint
  std::uint32_t shard = 0;           // index into Checkpoint::shards()
};

// *thread-safe* once open. Moving it keeps the spans valid.
class Checkpoint {
 public:
  // A directory (model.safetensors.index.json, or one model.safetensors; config.json beside them), or a single
  // .safetensors file (no config). Errors: kInvalid for what is missing, kCorrupt for what contradicts itself.
  static Result<Checkpoint> open(const std::string& path);

  const std::string& path() const { return path_; }
  // Text of config.json; empty when the checkpoint is a single file.
  const std::string& config_json() const { return config_; }
  // Sorted by name.
  const std::vector<TensorRef>& tensors() const { return tensors_; }
  // By its name, or by the name that it has without wrappers (model/outside_names.h).
  const TensorRef* find(std::string_view name) const;
  // File names, in byte order.
  const std::vector<std::string>& shards() const { return shards_; }
  // "__metadata__" of the first shard.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::int64_t bytes() const;
  std::int64_t elements() const;
  // Names, shapes and dtypes, for rule_layout().
  model::Catalogue catalogue() const;

 private:
  Status add_shard(const std::string& directory, const std::string& name);
  Status check_index(const std::map<std::string, std::string>& weight_map) const;
  Status finish();

  std::string path_, config_;
  std::vector<std::string> shards_;
  std::vector<MappedFile> files_;
  std::vector<TensorRef> tensors_;
  std::map<std::string, std::size_t, std::less<>> plain_;  // of names with wrappers; into tensors_
  std::map<std::string, std::string> metadata_;
};

// The layout of a checkpoint under a SPEC: its configuration and what its files hold.
Result<std::shared_ptr<const model::Layout>> checkpoint_layout(const Checkpoint& checkpoint, std::string_view spec);

// The layout of whatever names a model: a directory or .safetensors file, a config.json, or a built-in name (`NAME` or
// `NAME@layers=N`).
Result<std::shared_ptr<const model::Layout>> model_layout(const std::string& model, const std::string& spec);

// A name from outside that may stand for a file in a directory: no separators, NUL, "." or "..".
bool is_plain_file_name(std::string_view name);

}  // namespace refit::files
