// Quantised checkpoints by hand: four-bit blocks of gpt-oss, and FP8 codes with a scale for each block.
#include <set>

#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

std::string oss_text(std::int64_t width) {
  return R"({"model_type":"gpt_oss","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":4,
             "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"num_local_experts":2,"intermediate_size":)" +
         std::to_string(width) + R"(,"quantization_config":{"quant_method":"mxfp4"}})";
}

TEST(FourBit, WholeBlocksForEachRank) {
  const std::string e = "model.layers.0.mlp.experts.", v = e + "routed_experts.";
  const auto engine = must(oss_text(96), "vllm:tp=2");
  // 96 = three blocks of 32: two for rank 0, one for rank 1. A block of w13 is 64 rows: gates and ups alternate.
  ASSERT_EQ(shape_of(*engine, 1, v + "w13_weight"), (Dims{2, 128, 16}));
  const auto codes = contents(*engine, 1, v + "w13_weight");
  EXPECT_EQ(codes[0], e + "gate_up_proj_blocks[" + std::to_string(128 * 16) + "]");
  EXPECT_EQ(codes[64 * 16 - 1], e + "gate_up_proj_blocks[" + std::to_string(192 * 16 - 1) + "]");
  EXPECT_EQ(codes[64 * 16], ".");
  EXPECT_EQ(codes[128 * 16], e + "gate_up_proj_blocks[" + std::to_string((192 + 128) * 16) + "]");
  EXPECT_EQ(shape_of(*engine, 1, v + "w13_weight_scale"), (Dims{2, 128, 1}));
  EXPECT_EQ(contents(*engine, 1, v + "w13_bias")[63], e + "gate_up_proj_bias[191]");
  EXPECT_EQ(contents(*engine, 1, v + "w13_bias")[64], ".");
  // w2: 32 rows of two blocks' columns, 16 bytes each; rank 1 has one of them.
  ASSERT_EQ(shape_of(*engine, 1, v + "w2_weight"), (Dims{2, 32, 32}));
  const auto w2 = contents(*engine, 1, v + "w2_weight");
  EXPECT_EQ(w2[15], e + "down_proj_blocks[" + std::to_string(2 * 16 + 15) + "]");
  EXPECT_EQ(w2[16], ".");
  EXPECT_EQ(w2[32], e + "down_proj_blocks[" + std::to_string(3 * 16 + 2 * 16) + "]");
  EXPECT_EQ(contents(*engine, 1, v + "w2_weight_scale")[2], e + "down_proj_scales[5]");
  // The bias of w2 is added once.
  EXPECT_EQ(contents(*engine, 0, v + "w2_bias")[3], e + "down_proj_bias[3]");
  EXPECT_EQ(contents(*engine, 1, v + "w2_bias"), std::vector<std::string>(64, "."));
  EXPECT_EQ(contents(*must(oss_text(96), "vllm:tp=2,ep=2"), 1, v + "w2_bias")[3], e + "down_proj_bias[35]");
  for (const Parameter& p : rank_of(*engine, 0).parameters)
    EXPECT_EQ(p.dtype,
              p.name.find("experts") != std::string::npos && !p.name.ends_with("bias") ? DType::kU8 : DType::kBF16)
        << p.name;
  EXPECT_EQ(shape_of(*must(oss_text(96), "sglang:tp=2"), 1, e + "w2_weight_bias"), (Dims{2, 32}));
  EXPECT_THAT(refusal(oss_text(96), "megatron"), testing::HasSubstr("megatron: no rule for model.layers.0.mlp"));
  EXPECT_THAT(refusal(oss_text(40), "hf"), testing::HasSubstr("size Im/32: 40 does not divide by 32"));
}

// The public sizes: 2880 = 90 blocks over four ranks.
TEST(FourBit, TwentyBillion) {
  std::string text = *builtin_config("gpt-oss-20b@layers=1");
  text.insert(1, R"("quantization_config":{"quant_method":"mxfp4"},)");
  const auto layout = must(text, "vllm:tp=4");
  const std::string e = "model.layers.0.mlp.experts.";
  EXPECT_EQ(shape_of(*layout, 3, e + "routed_experts.w13_weight"), (Dims{32, 1472, 1440}));
  const RankLayout last = rank_of(*layout, 3);
  const auto id = id_of(layout->catalogue(), e + "gate_up_proj_scales");
  for (const Holding& h : last.holdings)
    if (h.tensor.value == static_cast<std::uint32_t>(id)) {
      EXPECT_EQ(h.box[1], (Interval{2 * 2208, 2 * 2880}));
    }
}

std::string fp8_text(const std::string& sizes, const std::string& type = "qwen3") {
  return R"({"model_type":")" + type + R"(","num_hidden_layers":1,"vocab_size":128,)" + sizes +
         R"("quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],
            "modules_to_not_convert":["lm_head","model.layers.0.input_layernorm"]}})";
}
// q rows 512, k and v rows 256; MLP width as given; hidden 256.
std::string dense_fp8(std::int64_t width, std::int64_t heads = 4) {
  return fp8_text(R"("hidden_size":256,"num_attention_heads":)" + std::to_string(heads) +
                  R"(,"num_key_value_heads":2,"head_dim":128,"intermediate_size":)" + std::to_string(width) + ",");
}

TEST(BlockScales, LieAsTheirBlocks) {
  const auto engine = must(dense_fp8(512), "vllm:tp=2");
  const std::string layer = "model.layers.0.";
  const Short names{{"q_proj", "q"}, {"k_proj", "k"}, {"v_proj", "v"}, {"gate_proj", "g"}, {"up_proj", "u"}};
  EXPECT_EQ(shape_of(*engine, 1, layer + "self_attn.qkv_proj.weight"), (Dims{512, 256}));
  EXPECT_EQ(words(*engine, 1, layer + "self_attn.qkv_proj.weight_scale_inv", names), "q2 q3 k1 v1");
  EXPECT_EQ(words(*engine, 1, layer + "mlp.gate_up_proj.weight_scale_inv", names), "g2 g3 u2 u3");
  // Row-parallel: block columns.
  EXPECT_EQ(contents(*engine, 1, layer + "mlp.down_proj.weight_scale_inv")[0],
            layer + "mlp.down_proj.weight_scale_inv[2]");
  for (const Parameter& p : rank_of(*engine, 0).parameters) {
    const bool scale = p.name.ends_with("_scale_inv"),
               code = p.name.find("_proj.weight") != std::string::npos && !scale;
    EXPECT_EQ(p.dtype, scale ? DType::kF32 : code ? DType::kF8E4M3 : DType::kBF16) << p.name;
  }
  // K and V scales go where the heads go: four ranks, two heads.
  EXPECT_EQ(words(*must(dense_fp8(512), "vllm:tp=4"), 1, layer + "self_attn.qkv_proj.weight_scale_inv", names),
            "q1 k0 v0");
  // Modules cut the scales as any other tensor.
  EXPECT_EQ(shape_of(*must(dense_fp8(512), "fsdp=3"), 1, layer + "mlp.up_proj.weight_scale_inv"), (Dims{2, 2}));
}

TEST(BlockScales, CutsInsideABlockAreRefused) {
  const auto says = [](const std::string& text, const char* spec, const char* what) {
    EXPECT_THAT(refusal(text, spec), testing::HasSubstr(what)) << spec;
  };
  says(dense_fp8(384), "vllm:tp=2", "mlp.gate_proj.weight_scale_inv: rows [0, 192) at 0 of the parameter are not");
  says(dense_fp8(256), "sglang:tp=4", "mlp.gate_proj.weight_scale_inv: rows [0, 64)");
  // Joined parts: only the last may end inside a block.
  says(dense_fp8(192), "vllm", "mlp.up_proj.weight_scale_inv: rows [0, 192) at 192");
  EXPECT_EQ(refusal(dense_fp8(384), "vllm"), "accepted");
  // Columns of a row-parallel matrix: 6 heads of 64 over two ranks.
  const std::string narrow = fp8_text(
      R"("hidden_size":256,"num_attention_heads":6,"num_key_value_heads":6,"head_dim":64,"intermediate_size":512,)");
  says(narrow, "vllm:tp=2", "self_attn.q_proj.weight_scale_inv: rows [0, 192)");
  says(dense_fp8(512), "megatron", "megatron: no rule for model.layers.0.self_attn.q_proj.weight");
  says(dense_fp8(512), "jax", "jax: no rule for model.layers.0.self_attn.q_proj.weight");
}

TEST(BlockScales, OfExpertsAndLatentAttention) {
  const auto moe = must(fp8_text(R"("hidden_size":256,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,
    "intermediate_size":512,"num_experts":4,"moe_intermediate_size":256,)",
                                 "qwen3_moe"),
                        "vllm:tp=2,ep=2");
  EXPECT_EQ(shape_of(*moe, 1, "model.layers.0.mlp.experts.routed_experts.w13_weight_scale_inv"), (Dims{2, 4, 2}));
  EXPECT_EQ(contents(*moe, 1, "model.layers.0.mlp.experts.routed_experts.w13_weight_scale_inv")[5],
            "model.layers.0.mlp.experts.2.up_proj.weight_scale_inv[1]");
  // 512 + 64 rows of the narrow kv projection come last, so its short block may.
  std::string text = *builtin_config("deepseek-v3@layers=4");
  text.insert(1, R"("quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},)");
  const auto deepseek = must(text, "vllm:tp=8,draft=skip");
  EXPECT_EQ(shape_of(*deepseek, 7, "model.layers.3.self_attn.fused_qkv_a_proj.weight_scale_inv"), (Dims{17, 56}));
  EXPECT_EQ(shape_of(*deepseek, 7, "model.layers.3.mlp.experts.routed_experts.w2_weight_scale_inv"),
            (Dims{256, 56, 2}));
  EXPECT_NE(id_of(deepseek->catalogue(), "model.layers.4.self_attn.kv_b_proj.weight_scale_inv"), -1);
}

TEST(BlockScales, WhatTheConfigurationMayNotSay) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = dense_fp8(512);
    text.replace(text.find(from), from.size(), to);
    return refusal(text, "hf");
  };
  EXPECT_THAT(with("\"lm_head\"", "\"model.layers.0.mlp.up_proj\""),
              testing::HasSubstr("modules_to_not_convert names model.layers.0.mlp.up_proj"));
  EXPECT_THAT(with("[128,128]", "null"), testing::HasSubstr("other granularities are not built"));
  EXPECT_THAT(with("e4m3", "e5m2"), testing::HasSubstr("only \"e4m3\" is built"));
  const auto layout = must(dense_fp8(512), "vllm:tp=2");
  const auto again = read_layout(layout->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ((*again)->digest(), layout->digest());
}

// ---- quant=: codes of a checkpoint that holds values

// q 512, k and v 256; MLP 512; hidden 256.
std::string dense_text(std::int64_t width = 512) {
  return R"({"model_type":"llama","hidden_size":256,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,
    "num_hidden_layers":3,"vocab_size":128,"intermediate_size":)" +
         std::to_string(width) + "}";
}
std::string moe_text() {
  return R"({"model_type":"qwen3_moe","hidden_size":256,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":128,
    "num_hidden_layers":1,"vocab_size":128,"intermediate_size":512,"num_experts":4,"moe_intermediate_size":256})";
}

TEST(QuantSpec, BlocksAreThoseOfAQuantisedCheckpoint) {
  // The same parameters as of a checkpoint in FP8.
  std::string coded = dense_text();
  coded.replace(coded.find("llama"), 5, "qwen3");
  std::string text = coded;
  coded.insert(1, R"("quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]},)");
  for (const char* spec : {"vllm:tp=2", "vllm:tp=4", "sglang:tp=2"}) {
    const auto of_checkpoint = must(coded, spec), of_spec = must(text, std::string(spec) + ",quant=fp8_block");
    EXPECT_EQ(of_checkpoint->catalogue().tensors, of_spec->catalogue().tensors) << spec;
    for (std::uint32_t r = 0; r < 2; ++r) {
      const RankLayout a = rank_of(*of_checkpoint, r), b = rank_of(*of_spec, r);
      EXPECT_EQ(a.holdings, b.holdings) << spec;
      ASSERT_EQ(a.parameters.size(), b.parameters.size()) << spec;
      for (std::size_t i = 0; i < a.parameters.size(); ++i) EXPECT_EQ(a.parameters[i].name, b.parameters[i].name);
    }
    const auto left = of_checkpoint->quantised(), right = of_spec->quantised();
    ASSERT_EQ(left.size(), right.size());
    EXPECT_EQ(left.size(), 3u * 7);
    for (std::size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i].scales, right[i].scales);
  }
}

TEST(QuantSpec, ScalesOfEachFormat) {
  const std::string layer = "model.layers.0.";
  const auto shape = [&](const std::string& text, const std::string& spec, const std::string& name) {
    return shape_of(*must(text, spec), 1, layer + name);
  };
  const std::string qkv = "self_attn.qkv_proj.weight_scale", down = "mlp.down_proj.weight_scale",
                    w13 = "mlp.experts.routed_experts.w13_weight_scale",
                    w2 = "mlp.experts.routed_experts.w2_weight_scale";
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=fp8_channel", qkv), (Dims{512, 1}));
  // Columns are cut, rows are not: every rank has all scales.
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=fp8_channel", down), (Dims{256, 1}));
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=fp8_tensor", qkv), (Dims{3}));
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=fp8_tensor", down), (Dims{1}));
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=mxfp8", qkv), (Dims{512, 8}));
  EXPECT_EQ(shape(dense_text(), "vllm:tp=2,quant=mxfp8", down), (Dims{256, 8}));
  EXPECT_EQ(shape(moe_text(), "vllm:tp=2,quant=fp8_tensor", w13), (Dims{4, 2}));
  EXPECT_EQ(shape(moe_text(), "vllm:tp=2,quant=fp8_tensor", w2), (Dims{4}));
  EXPECT_EQ(shape(moe_text(), "vllm:tp=2,ep=2,quant=fp8_channel", w13), (Dims{2, 512, 1}));
  EXPECT_EQ(shape(moe_text(), "vllm:tp=2,quant=fp8_channel", w2), (Dims{4, 256, 1}));
  EXPECT_EQ(shape(moe_text(), "vllm:tp=2,ep=2,quant=mxfp8", w2), (Dims{2, 256, 8}));
  EXPECT_EQ(shape(moe_text(), "sglang:tp=2,quant=fp8_channel", "mlp.experts.w2_weight_scale"), (Dims{4, 256, 1}));
  const auto layout = must(moe_text(), "vllm:tp=2,quant=mxfp8");
  for (const Parameter& p : rank_of(*layout, 0).parameters) {
    const bool scale = p.name.ends_with("_scale");
    const bool code = !scale && (p.name.find("_proj.weight") != std::string::npos || p.name.find("experts") != std::string::npos);
    EXPECT_EQ(p.dtype, scale ? DType::kU8 : code ? DType::kF8E4M3 : DType::kBF16) << p.name;
  }
  const auto again = read_layout(layout->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ((*again)->digest(), layout->digest());
}

TEST(QuantSpec, WhatStays) {
  const auto coded = [](const std::string& spec) {
    std::set<std::string> out;
    const auto layout = must(dense_text(), spec);
    for (const QuantisedWeight& q : layout->quantised()) out.insert(layout->catalogue().tensors[q.codes.value].name);
    return out;
  };
  EXPECT_EQ(coded("vllm:quant=mxfp8").size(), 3u * 7);
  EXPECT_EQ(coded("vllm:quant=mxfp8,keep_first=1").count("model.layers.0.mlp.up_proj.weight"), 0u);
  EXPECT_EQ(coded("vllm:quant=mxfp8,keep_first=1,keep_last=1").size(), 7u);
  EXPECT_EQ(coded("vllm:quant=mxfp8,keep=self_attn").size(), 3u * 3);
  EXPECT_EQ(coded("vllm:quant=mxfp8,keep=layers.1.+o_proj").size(), 2u * 6);
  const auto says = [](const std::string& text, const char* spec, const char* what) {
    EXPECT_THAT(refusal(text, spec), testing::HasSubstr(what)) << spec;
  };
  says(dense_text(), "vllm:quant=mxfp8,keep=k_proj", "which the engine holds in one parameter");
  says(dense_text(), "vllm:quant=mxfp8,keep=lm_head", "is in the name of no matrix");
  says(dense_text(), "vllm:quant=mxfp8,keep_first=2,keep_last=1", "no matrix of family llama is left");
  says(dense_text(), "vllm:keep=o_proj", "keep= without quant=");
  says(dense_text(), "vllm:quant=fp8", "must be fp8_block|");
  says(dense_text(), "vllm:quant=mxfp8,keep=a+,b", "several such with +");
  says(dense_text(), "fsdp=2,quant=mxfp8", "unknown key 'quant'");
  says(dense_fp8(512), "vllm:quant=mxfp8", "quantised already");
  // As the engines' loaders refuse it: parts that are no whole blocks. The same cuts are no matter for rows.
  says(dense_text(384), "vllm:tp=2,quant=fp8_block", "mlp.gate_proj.weight_scale_inv: rows [0, 192)");
  EXPECT_EQ(refusal(dense_text(384), "vllm:tp=2,quant=fp8_channel"), "accepted");
  std::string odd = dense_text();
  odd.replace(odd.find("256"), 3, "264");
  says(odd, "vllm:quant=mxfp8", "needs columns in multiples of 32, not 264");
}

}  // namespace
}  // namespace refit::model::test
