// The families that are built, and what kinds have in common.
#include "model/families/family.h"

namespace refit::model {

bool is_per_expert(Kind kind) {
  return kind == Kind::kExpertGateUp || kind == Kind::kExpertUp || kind == Kind::kExpertDown;
}
bool is_expert(Kind kind) { return is_per_expert(kind) || kind == Kind::kStacked; }

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all{&llama(),    &qwen2(),      &qwen3(),   &qwen3_moe(),   &deepseek_v3(),
                                              &kimi_k2(),  &qwen3_next(), &qwen3_5(), &qwen3_5_moe(), &gpt_oss(),
                                              &glm4_moe(), &gemma3(),     &gemma4(),  &nemotron_h()};
  return all;
}

}  // namespace refit::model
