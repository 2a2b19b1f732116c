// What lies at a target after some steps of the reference trainer, through the value transforms of either side; and
// models whose values differ between the sides.
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace refit::test {

// Engines keep A = -exp(A_log), Megatron keeps out_norm - 1.
inline constexpr const char* kMamba =
    R"({"model_type":"nemotron_h","hidden_size":32,"num_hidden_layers":5,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":8,"vocab_size":128,"intermediate_size":64,"mamba_num_heads":8,"mamba_head_dim":8,
  "ssm_state_size":4,"conv_kernel":4,"n_routed_experts":4,"moe_intermediate_size":16,
  "moe_shared_expert_intermediate_size":32,"n_groups":2,"hybrid_override_pattern":"M*M-E","torch_dtype":"bfloat16"})";
inline constexpr const char* kDelta =
    R"({"model_type":"qwen3_next","hidden_size":32,"num_hidden_layers":4,"num_attention_heads":4,
  "num_key_value_heads":2,"head_dim":8,"intermediate_size":64,"vocab_size":128,"num_experts":4,
  "moe_intermediate_size":16,"shared_expert_intermediate_size":16,"linear_num_key_heads":4,"linear_num_value_heads":4,
  "linear_key_head_dim":8,"linear_value_head_dim":8,"linear_conv_kernel_dim":4,"full_attention_interval":2,
  "tie_word_embeddings":false,"torch_dtype":"bfloat16"})";

class Expected {
 public:
  Expected(const model::Layout& source, const model::Layout& target, std::uint64_t seed, const engine::StepRule& rule)
      : from_(values_of(source)), to_(values_of(target)), seed_(seed), rule_(rule) {}

  // `count` elements from `linear` on, as a target stores them in `stored`.
  std::vector<std::byte> bytes(const model::LogicalTensor& t, DType stored, std::int64_t steps, std::int64_t linear,
                               std::int64_t count) const {
    std::vector<std::byte> want(static_cast<std::size_t>(count * item_size(t.dtype)));
    engine::initial_values(seed_, t.name, t.dtype, linear, want.data(), count);
    through_trainer(t, want);
    for (std::int64_t s = 1; s <= steps; ++s) {
      engine::apply_step(rule_, s, t.name, t.dtype, linear, want.data(), count);
      through_trainer(t, want);
    }
    if (stored == t.dtype) return want;
    std::vector<float> wide(static_cast<std::size_t>(count));
    const auto to = to_.find(t.name);
    REFIT_CHECK(model::store_values(to == to_.end() ? "" : to->second, t.dtype, want.data(), wide).ok());
    want.resize(wide.size() * sizeof(float));
    std::memcpy(want.data(), wide.data(), want.size());
    return want;
  }

 private:
  static std::map<std::string, std::string> values_of(const model::Layout& layout) {
    std::map<std::string, std::string> out;
    for (const auto& [id, value] : layout.values()) out.emplace(layout.catalogue().tensors[id.value].name, value);
    return out;
  }
  // Stored and brought back: what each step leaves.
  void through_trainer(const model::LogicalTensor& t, std::vector<std::byte>& logical) const {
    const auto from = from_.find(t.name);
    if (from == from_.end()) return;
    std::vector<float> stored(logical.size() / static_cast<std::size_t>(item_size(t.dtype)));
    REFIT_CHECK(model::store_values(from->second, t.dtype, logical.data(), stored).ok());
    REFIT_CHECK(model::undone_values(from->second, t.dtype, stored, logical.data()).ok());
  }

  std::map<std::string, std::string> from_, to_;
  std::uint64_t seed_;
  engine::StepRule rule_;
};

}  // namespace refit::test
