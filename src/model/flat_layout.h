// FlatLayout: trainers that flatten parameters and cut the flat array over the ranks, padded to equal shards.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_layout.h"

namespace refit::model {

// How parameters become flat arrays. fsdp1: one `_flat_param` for each wrapped unit (a decoder layer; what is left is
// the root's), its parameters in the order of the module's registration; fsdp1_orig (use_orig_params=True): each of
// them begins at a multiple of 16 bytes. zero3: each parameter by itself, under its own name. Shards are
// ceil(elements / ranks) long on every rank, filled up at the end. Buffers of modules stay whole on every rank.
enum class Flat : std::uint8_t { kFsdp1, kFsdp1Orig, kZero3 };

class FlatLayout final : public ModelLayout {
 public:
  // Errors: kUnsupported naming a tensor whose place among a module's parameters is not known, two parameters of one
  // unit whose dtypes differ, or a mesh with tp.
  static Result<std::shared_ptr<const FlatLayout>> make(ModelConfig config, Spec spec, CheckpointFacts facts);

  std::int64_t world() const override { return ranks_ * instances(); }
  Result<RankLayout> expand(Rank rank) const override;
  std::span<const Pattern> patterns() const override { return patterns_; }
  std::span<const std::uint32_t> pattern_of() const override { return pattern_of_; }

 private:
  // A tensor in a flat array: its elements [0, count) are the array's from `at` on.
  struct Span {
    TensorId tensor;
    std::int64_t at = 0, count = 0;  // elements
  };
  // One parameter of this side. `whole`: on every rank, in its own shape.
  struct Array {
    std::string name;
    DType dtype = DType::kBF16;
    Dims shape;  // of a whole one
    bool whole = false;
    std::vector<Span> spans;
    std::int64_t elements = 0, shard = 0;  // of all, on one rank
    std::int64_t offset = 0;               // bytes, in every rank's buffer
  };

  Status gather(const RankLayout& module, Flat flat);
  void place();
  void build_patterns();

  std::int64_t ranks_ = 1, bytes_ = 0;
  std::vector<Array> arrays_;  // in the order of the buffer
  std::vector<Pattern> patterns_;
  std::vector<std::uint32_t> pattern_of_;
};

}  // namespace refit::model
