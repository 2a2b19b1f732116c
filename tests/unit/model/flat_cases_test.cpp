// Flat shards by formula: the parameters of a unit in a row, cut into equal lengths; what is left over is fill.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// H = 3, two layers, odd sizes, so that no shard begins where a parameter or a row does.
const Sizes kOddSizes{
    .type = "qwen2", .hidden = 3, .layers = 2, .heads = 4, .kv_heads = 2, .width = 5, .vocabulary = 7};
constexpr const char* kFlatLayer = "model.layers.1.";

// "name[element]" of all parameters in a row, each begun at a multiple of `align`; "." between them.
std::vector<std::string> in_a_row(const Catalogue& catalogue, const std::vector<std::string>& names,
                                  std::size_t align) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    while (out.size() % align != 0) out.emplace_back(".");
    const LogicalTensor& t = catalogue.tensors[static_cast<std::size_t>(id_of(catalogue, name))];
    for (std::int64_t i = 0; i < elements(whole(t.shape)); ++i) out.push_back(name + "[" + std::to_string(i) + "]");
  }
  return out;
}

void expect_shards(const Layout& layout, const std::string& parameter, std::vector<std::string> all) {
  const auto ranks = static_cast<std::size_t>(layout.world() / layout.instances());
  const std::size_t shard = (all.size() + ranks - 1) / ranks;
  all.resize(shard * ranks, ".");
  for (std::uint32_t r = 0; r < layout.world(); ++r) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(r % ranks * shard);
    EXPECT_EQ(shape_of(layout, r, parameter), Dims{static_cast<std::int64_t>(shard)});
    EXPECT_EQ(contents(layout, r, parameter), std::vector<std::string>(from, from + static_cast<std::ptrdiff_t>(shard)))
        << parameter << " rank " << r;
  }
}

std::vector<std::string> layer_names() {
  std::vector<std::string> out;
  for (const char* name :
       {"self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight", "self_attn.k_proj.bias",
        "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
        "mlp.up_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight", "post_attention_layernorm.weight"})
    out.push_back(kFlatLayer + std::string(name));
  return out;
}

TEST(Flat, UnitsInTheOrderOfTheirModules) {
  for (const char* ranks : {"fsdp=1", "fsdp=4", "fsdp=5", "fsdp=3,replicas=2"})
    for (const std::size_t align : {1u, 8u}) {
      const auto layout =
          must(config(kOddSizes), std::string(ranks) + ",flat=" + (align == 1 ? "fsdp1" : "fsdp1_orig"));
      ASSERT_TRUE(layout);
      expect_shards(*layout, std::string(kFlatLayer) + "_flat_param",
                    in_a_row(layout->catalogue(), layer_names(), align));
      expect_shards(
          *layout, "_flat_param",
          in_a_row(layout->catalogue(), {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}, align));
      EXPECT_EQ(rank_of(*layout, 0).parameters.size(), 3u);
    }
}

TEST(Flat, EachParameterByItself) {
  const auto layout = must(config(kOddSizes), "fsdp=4,flat=zero3");
  for (const LogicalTensor& t : layout->catalogue().tensors)
    expect_shards(*layout, t.name, in_a_row(layout->catalogue(), {t.name}, 1));
  // Three elements over four ranks: the last has nothing but fill.
  EXPECT_EQ(contents(*layout, 3, "model.norm.weight"), std::vector<std::string>{"."});
}

// A range of n axes is at most 2n - 1 boxes.
TEST(Flat, RangesAreFewBoxes) {
  const auto layout = must(R"({"model_type":"qwen3_next","hidden_size":3,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":2,"vocab_size":11,"intermediate_size":8,"num_experts":4,
      "moe_intermediate_size":4,"shared_expert_intermediate_size":4,"full_attention_interval":2,
      "linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":3,"linear_value_head_dim":1,
      "linear_conv_kernel_dim":4})",
                           "fsdp=7,flat=zero3");
  ASSERT_TRUE(layout);
  std::size_t most = 0;
  for (std::uint32_t r = 0; r < 7; ++r) {
    std::map<std::uint32_t, std::size_t> boxes;
    for (const Holding& h : rank_of(*layout, r).holdings) ++boxes[h.tensor.value];
    for (const auto& [tensor, count] : boxes) {
      EXPECT_LE(count, 2 * layout->catalogue().tensors[tensor].shape.size() - 1);
      most = std::max(most, count);
    }
  }
  EXPECT_EQ(most, 3u);
}

TEST(Flat, StackedExpertsAndBuffers) {
  const std::string text = R"({"model_type":"glm4_moe","hidden_size":3,"num_hidden_layers":1,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":2,"intermediate_size":4,"n_routed_experts":2,"moe_intermediate_size":2,
      "n_shared_experts":1,"first_k_dense_replace":0,"vocab_size":5})";
  const auto layout = must(text, "fsdp=3,flat=fsdp1,naming=fused");
  ASSERT_TRUE(layout);
  const std::string p = "model.layers.0.", e = p + "mlp.experts.";
  std::vector<std::string> names;
  for (const char* x : {"q", "k", "v", "o"}) names.push_back(p + "self_attn." + x + "_proj.weight");
  for (const char* x : {"0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj", "0.down_proj", "1.down_proj"})
    names.push_back(e + x + ".weight");
  names.push_back(p + "mlp.gate.weight");
  for (const char* x : {"gate", "up", "down"}) names.push_back(p + "mlp.shared_experts." + x + "_proj.weight");
  names.push_back(p + "input_layernorm.weight");
  names.push_back(p + "post_attention_layernorm.weight");
  expect_shards(*layout, p + "_flat_param", in_a_row(layout->catalogue(), names, 1));
  // The correction bias is a buffer: whole on every rank, for FSDP2 and ZeRO-3 too.
  for (const char* spec : {"fsdp=3,flat=fsdp1,naming=fused", "fsdp=3,flat=zero3", "fsdp=3", "fsdp=3,tp=2"})
    for (std::uint32_t r : {0u, 2u})
      EXPECT_EQ(contents(*must(text, spec), r, p + "mlp.gate.e_score_correction_bias").size(), 2u) << spec;
}

TEST(Flat, Refusals) {
  EXPECT_THAT(refusal(config({}), "fsdp=2,tp=2,flat=fsdp1"), testing::HasSubstr("flat= with tp is not built"));
  EXPECT_THAT(refusal(config({}), "fsdp=2,flat=fsdp2"),
              testing::HasSubstr("flat='fsdp2' must be fsdp1|fsdp1_orig|zero3"));
  const std::string drafts = R"({"model_type":"deepseek_v3","hidden_size":3,"num_hidden_layers":1,
      "num_attention_heads":2,"kv_lora_rank":2,"qk_nope_head_dim":1,"qk_rope_head_dim":1,"v_head_dim":1,
      "intermediate_size":4,"n_routed_experts":2,"moe_intermediate_size":2,"vocab_size":8,"num_nextn_predict_layers":1})";
  EXPECT_THAT(refusal(drafts, "fsdp=2,flat=fsdp1"),
              testing::HasSubstr("where modules of family deepseek_v3 register 'eh_proj' is not known"));
  EXPECT_EQ(refusal(drafts, "fsdp=2,flat=zero3"), "accepted");
  EXPECT_EQ(refusal(drafts, "fsdp=2,flat=fsdp1,draft=skip"), "accepted");
  Catalogue mixed = *catalogue_of(config({}));
  mixed.tensors[static_cast<std::size_t>(id_of(mixed, "model.layers.0.input_layernorm.weight"))].dtype = DType::kF32;
  EXPECT_THAT(refusal(config({}), "fsdp=2,flat=fsdp1", &mixed),
              testing::HasSubstr("would hold model.layers.0.input_layernorm.weight (f32) beside parameters of bf16"));
  const auto made = must(config(kOddSizes), "fsdp=3,flat=fsdp1_orig");
  const auto again = read_layout(made->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ((*again)->digest(), made->digest());
  EXPECT_NE(made->digest(), must(config(kOddSizes), "fsdp=3,flat=fsdp1")->digest());
  EXPECT_EQ((*sibling_layout(**again, "hf"))->catalogue().tensors, made->catalogue().tensors);
}

}  // namespace
}  // namespace refit::model::test
