// Layout: which rank of a side holds which box of which logical tensor, and where in its memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refit::api {

using Dims = std::vector<std::int64_t>;

// A tensor in Hugging Face naming. dtypes are the names of layout files: bool u8 i8 i16 i32 i64 f16 bf16 f32 f64
// f8_e4m3 f8_e5m2.
struct TensorInfo {
  std::string name;
  Dims shape;
  std::string dtype;
};
struct BufferInfo {
  std::string name;
  std::int64_t bytes = 0;
};
// A box of a tensor and where it lies: `offset` bytes into the buffer is its first element, one byte stride per axis
// (or per factor, where `view` factors the axes).
struct HoldingInfo {
  std::string tensor;
  std::vector<Dims> view;  // empty: one factor per axis
  std::vector<std::pair<std::int64_t, std::int64_t>> box;
  std::string buffer;
  std::int64_t offset = 0;
  Dims strides;
  std::string dtype;  // of storage
};
// A parameter of a side's own model, row-major in one piece: name, local shape and dtype as its loader leaves them.
struct ParameterInfo {
  std::string name;
  Dims shape;
  std::string dtype;
  std::string buffer;
  std::int64_t offset = 0;
};
struct RankInfo {
  std::uint32_t rank = 0;
  std::string host;
  std::vector<BufferInfo> buffers;
  std::vector<HoldingInfo> holdings;
  std::vector<ParameterInfo> parameters;  // empty where no rule made the layout
};

// A value; copies share what is inside, which never changes. *thread-safe*.
class Layout {
 public:
  // From rules. `model`: a checkpoint directory or .safetensors file, a config.json, or a built-in name such as
  // "qwen3-30b-a3b@layers=1". `spec`: as on the command line, e.g. "fsdp=2,tp=2" or "vllm:tp=2,replicas=2".
  static Layout from_model(const std::string& model, const std::string& spec);
  // Likewise, from the text of a config.json.
  static Layout from_config(const std::string& config_json, const std::string& spec);
  // From the text of a layout file (explicit holdings, or a recipe that to_json() wrote).
  static Layout from_json(const std::string& text);

  std::string to_json() const;
  // 32 hex digits; equal for equal layouts, whatever the order of keys.
  std::string digest() const;
  std::int64_t world() const;               // ranks
  std::int64_t instances() const;           // equal groups of consecutive ranks; of a target: replicas
  std::vector<TensorInfo> tensors() const;  // in byte order of the names
  std::vector<std::pair<std::string, std::string>> tied() const;
  // What one rank holds. kInvalid for a rank outside of world().
  RankInfo rank(std::uint32_t rank) const;

 private:
  friend struct Inside;
  struct Impl;
  explicit Layout(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;  // shared by copies
};

}  // namespace refit::api
