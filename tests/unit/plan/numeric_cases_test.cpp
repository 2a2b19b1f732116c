// Worked plans: who sends which rows to how many.
#include <gtest/gtest.h>

#include <map>

#include "plan/plan.h"

namespace refit::plan {
namespace {

// Eight query heads, two KV heads of 2: Megatron's eight ranks cut 24 interleaved rows through heads, an engine's four
// repeat each KV head on two ranks.
TEST(Cases, HeadsCutThroughToHeadsRepeated) {
  constexpr const char* kConfig = R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,
    "num_attention_heads":8,"num_key_value_heads":2,"head_dim":2,"intermediate_size":8,"vocab_size":128})";
  const auto source = model::rule_layout(kConfig, "megatron:tp=8"), target = model::rule_layout(kConfig, "vllm:tp=4");
  ASSERT_TRUE(source.ok() && target.ok());
  const auto plans = Plans::make(**source, **target, Options());
  ASSERT_TRUE(plans.ok()) << plans.error().to_string();
  constexpr std::int64_t kRow = 8 * 2;
  std::int64_t distinct = 0, needed = 0;
  std::map<std::uint32_t, std::int64_t> sent;
  for (std::uint32_t r = 0; r < 8; ++r) {
    const auto plan = plans->of(Side::kSource, Rank(r));
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    for (const Bucket& b : plan->buckets)
      for (std::size_t i = b.first_piece; i < b.first_piece + b.pieces; ++i) {
        const Piece& p = plan->pieces[i];
        const std::string& name = plan->catalogue->tensors[p.tensor.value].name;
        const bool q = name.ends_with("q_proj.weight"),
                   kv = name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight");
        if (!q && !kv) continue;
        EXPECT_EQ(p.bytes % kRow, 0);
        EXPECT_EQ(b.recipients.size(), q ? 1u : 2u) << name;
        distinct += p.bytes / kRow;
        needed += p.bytes / kRow * static_cast<std::int64_t>(b.recipients.size());
        sent[r] += p.bytes / kRow;
      }
  }
  EXPECT_EQ(distinct, 24);
  EXPECT_EQ(needed, 32);
  EXPECT_EQ(sent.size(), 8u);
  for (const auto& [rank, rows] : sent) EXPECT_EQ(rows, 3) << rank;
}

}  // namespace
}  // namespace refit::plan
