// The numbered cases and figures of the layouts' facts that stand in no other table of this folder, and bad input line
// by line: what is refused, with tensor, rule and numbers.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

struct Numbered {
  std::string number, what;
  std::string (*got)();
  std::string want;
};

std::string dims(const Dims& d) {
  std::string out;
  for (std::int64_t n : d) out += (out.empty() ? "" : "x") + std::to_string(n);
  return out;
}
std::string shape(const std::string& config_json, const std::string& spec, std::uint32_t rank,
                  const std::string& name) {
  return dims(shape_of(*must(config_json, spec), rank, name));
}
std::string first_of(const Layout& layout, std::uint32_t rank, const std::string& parameter) {
  return contents(layout, rank, parameter).at(0);
}
const Sizes kMoeSizes{.type = "qwen3_moe", .heads = 4, .kv_heads = 2, .experts = 4, .expert_width = 4};
std::string float_text(float x) { return std::to_string(static_cast<double>(x)); }

TEST(Numbered, CasesOfNoOtherTable) {
  const Numbered cases[] = {
      {"2", "expert views: gate 0 and up 1 of a stack are two tensors of the same bytes",
       [] {
         const auto fused =
             must(config({.type = "qwen3_moe", .hidden = 2, .experts = 2, .expert_width = 2}), "hf:naming=fused");
         const auto all = contents(*fused, 0, "model.layers.0.mlp.experts.gate_up_proj");
         return all[8 + 4] + " " + all[3];
       },
       "model.layers.0.mlp.experts.1.up_proj.weight[0] model.layers.0.mlp.experts.0.gate_proj.weight[3]"},
      {"9", "fc1 over three ranks does not divide",
       [] { return refusal(config({.heads = 3, .kv_heads = 3, .width = 4}), "megatron:tp=3"); },
       "invalid: megatron: intermediate_size 4 does not divide by tp=3 [tensor=model.layers.0.mlp.gate_proj.weight]"},
      {"11", "weight0 of rank 1 is expert 2, weight1 expert 3",
       [] {
         const auto m = must(config(kMoeSizes), "megatron:ep=2");
         std::string out;
         for (std::uint32_t r : {0u, 1u})
           for (const char* j : {"0", "1"})
             out += first_of(*m, r, std::string("decoder.layers.0.mlp.experts.linear_fc2.weight") + j).substr(27, 1);
         return out;
       },
       "0123"},
      {"17", "an odd expert width over two ranks",
       [] {
         return refusal(R"({"model_type":"gpt_oss","hidden_size":3,"num_hidden_layers":1,"num_attention_heads":4,
             "num_key_value_heads":2,"head_dim":2,"vocab_size":128,"intermediate_size":5,"num_local_experts":2})",
                        "vllm:tp=2");
       },
       "invalid: vllm: intermediate_size 5 does not divide by dp*tp=2 "
       "[tensor=model.layers.0.mlp.experts.gate_up_proj]"},
      {"21", "a tied JAX tree has no head",
       [] {
         std::string out = "none";
         for (const Parameter& p : rank_of(*must(config({.tied = true}), "jax"), 0).parameters)
           if (p.name.find("lm_head") != std::string::npos) out = p.name;
         return out;
       },
       "none"},
      {"24", "w - 1 through a bf16 t would come back as another value",
       [] {
         std::vector<float> w{0.302734375F};
         if (!apply_value("minus_one", w, DType::kBF16).ok()) return std::string("refused");
         const float t = w[0];
         w[0] = -0.6953125F;  // t to the nearest bf16
         (void)undo_value("minus_one", w, DType::kBF16);
         return float_text(t) + " " + float_text(w[0]);
       },
       "-0.697266 0.304688"},
      {"24", "the correction bias keeps f32 in every tensor and parameter",
       [] {
         const std::string text = R"({"model_type":"glm4_moe","hidden_size":3,"num_hidden_layers":1,
             "num_attention_heads":4,"num_key_value_heads":2,"head_dim":2,"intermediate_size":4,"n_routed_experts":2,
             "moe_intermediate_size":2,"n_shared_experts":1,"first_k_dense_replace":0,"vocab_size":128})";
         std::string out;
         for (const char* spec : {"hf", "fsdp=2", "vllm", "sglang", "megatron"}) {
           const auto layout = must(text, spec);
           const auto id = id_of(layout->catalogue(), "model.layers.0.mlp.gate.e_score_correction_bias");
           out += to_string(layout->catalogue().tensors[static_cast<std::size_t>(id)].dtype);
           for (const Holding& h : rank_of(*layout, 0).holdings)
             if (h.tensor.value == static_cast<std::uint32_t>(id))
               out += std::string("=") + std::string(to_string(h.dtype));
           out += " ";
         }
         return out;
       },
       "f32=f32 f32=f32 f32=f32 f32=f32 f32=f32 "},
      {"6b", "Qwen3-30B-A3B, Megatron EP=8: experts of a rank",
       [] {
         const auto m = must(*builtin_config("qwen3-30b-a3b@layers=1"), "megatron:ep=8");
         const std::string e = "decoder.layers.0.mlp.experts.";
         return dims(shape_of(*m, 7, e + "linear_fc1.weight15")) + " " +
                dims(shape_of(*m, 7, e + "linear_fc2.weight0"));
       },
       "1536x2048 2048x768"},
      {"6b", "Qwen3-30B-A3B, Megatron T=4",
       [] {
         const std::string text = *builtin_config("qwen3-30b-a3b@layers=1");
         return shape(text, "megatron:tp=4", 3, "decoder.layers.0.self_attention.linear_qkv.weight") + " " +
                shape(text, "megatron:tp=4", 3, "decoder.layers.0.self_attention.linear_proj.weight") + " " +
                shape(text, "megatron:tp=4", 3, "embedding.word_embeddings.weight");
       },
       "1280x2048 2048x1024 38016x2048"},
      {"6b", "DeepSeek-V3, engine T=8",
       [] {
         const auto v = must(*builtin_config("deepseek-v3@layers=4"), "vllm:tp=8,draft=skip");
         const std::string s = "model.layers.3.self_attn.";
         return dims(shape_of(*v, 7, s + "q_b_proj.weight")) + " " + dims(shape_of(*v, 7, s + "kv_b_proj.weight"));
       },
       "3072x1536 4096x512"},
      {"6b", "Qwen3-Next-80B, engine T=2: convolution",
       [] {
         return shape(*builtin_config("qwen3-next-80b-a3b@layers=4"), "vllm:tp=2", 1,
                      "model.layers.0.linear_attn.conv1d.weight");
       },
       "4096x1x4"}};
  for (const Numbered& c : cases) EXPECT_EQ(c.got(), c.want) << "case " << c.number << ": " << c.what;
}

// What the error says: the tensor, the rule's own word for it, and both numbers.
struct Bad {
  std::string line;
  std::string got;
  std::vector<std::string> says;
};

Catalogue changed(const std::string& text, void (*change)(Catalogue&)) {
  Catalogue names = *catalogue_of(text);
  change(names);
  return names;
}

TEST(BadInput, NamesTensorRuleAndNumbers) {
  const std::string moe = config(kMoeSizes), dense = config({});
  const Catalogue less_and_more = changed(dense, [](Catalogue& c) {
    c.tensors.erase(c.tensors.begin());
    c.tensors.push_back({"model.extra.weight", {2}, DType::kBF16});
  });
  const Catalogue other_shape = changed(dense, [](Catalogue& c) { c.tensors[0].shape[0] += 1; });
  const Bad cases[] = {
      {"indivisible cut",
       refusal(config({.width = 6}), "jax:tp=4"),
       {"jax:", "intermediate_size 6", "tp=4", "tensor=model.layers.0.mlp.gate_proj.weight"}},
      {"indivisible cut inside a rule",
       refusal(config({.vocabulary = 131}), "jax:tp=2"),
       {"lm_head.weight", "131", "tp=2", "tensor=lm_head.weight"}},
      {"T not dividing heads",
       refusal(config({.heads = 8, .kv_heads = 2}), "vllm:tp=3"),
       {"vllm:", "num_attention_heads 8", "tp=3", "tensor=model.layers.0.self_attn.q_proj.weight"}},
      {"T and KV heads",
       refusal(config({.heads = 12, .kv_heads = 4, .width = 12, .vocabulary = 192}), "sglang:tp=6"),
       {"sglang:", "num_key_value_heads 4", "tp=6", "tensor=model.layers.0.self_attn.k_proj.weight"}},
      {"vocabulary",
       refusal(config({.heads = 5, .kv_heads = 5, .width = 5}), "vllm:tp=5"),
       {"vocab_size padded to 64, 192", "tp=5", "tensor=model.embed_tokens.weight"}},
      {"EP not dividing experts",
       refusal(config({.type = "qwen3_moe", .experts = 10, .expert_width = 4}), "megatron:ep=4"),
       {"megatron:", "num_experts 10", "ep=4", "tensor=model.layers.0.mlp.gate.weight"}},
      {"expert width",
       refusal(config({.type = "qwen3_moe", .experts = 4, .expert_width = 6}), "vllm:tp=2,dp=2"),
       {"moe_intermediate_size 6", "dp*tp=4", "tensor=model.layers.0.mlp.experts.0.gate_proj.weight"}},
      {"unknown family", refusal(R"({"model_type":"gpt2"})", "hf"), {"no rules for model_type 'gpt2'", "built: llama"}},
      {"missing and leftover, both",
       refusal(dense, "hf", &less_and_more),
       {"lacks lm_head.weight", "describes model.extra.weight", "tensor=lm_head.weight"}},
      {"shapes against the configuration",
       refusal(dense, "hf", &other_shape),
       {"lm_head.weight as [131, 8]", "config.json says [130, 8]", "tensor=lm_head.weight"}},
      {"an option that a family cannot have: ep", refusal(dense, "vllm:tp=2,ep=2"), {"ep=2", "this model has none"}},
      {"an option that a family cannot have: etp", refusal(dense, "megatron:etp=2"), {"etp", "llama"}},
      {"an option that a family cannot have: draft place",
       refusal(R"({"model_type":"glm4_moe","hidden_size":3,"num_hidden_layers":1,"num_attention_heads":4,
           "num_key_value_heads":2,"head_dim":2,"intermediate_size":4,"n_routed_experts":2,"moe_intermediate_size":2,
           "first_k_dense_replace":0,"vocab_size":128,"num_nextn_predict_layers":1})",
               "vllm"),
       {"no place for the draft layer's model.layers.1.", "tensor=model.layers.1."}},
      {"an option that a family cannot have: shared experts",
       refusal(moe, "sglang:tp=2,shared=fused"),
       {"shared=fused is not built for family qwen3_moe"}},
      {"an option that a family cannot have: preset",
       refusal(moe, "jax:preset=tunix"),
       {"preset=tunix is not built for family qwen3_moe"}},
      {"an option that a family cannot have: quantised",
       refusal(config({.more = R"(,"quantization_config":{"quant_method":"fp8"})"}), "hf"),
       {"fp8", "llama"}}};
  for (const Bad& c : cases)
    for (const std::string& part : c.says) EXPECT_THAT(c.got, testing::HasSubstr(part)) << c.line;
}

// One name for what wrappers have renamed; both lists of what does not fit.
TEST(OutsideNames, WrappersComeOff) {
  const std::pair<const char*, const char*> names[] = {
      {"model.norm.weight", "model.norm.weight"},
      {"module.model.norm.weight", "model.norm.weight"},
      {"module.module.model.norm.weight", "model.norm.weight"},
      {"_orig_mod.module.model.norm.weight", "model.norm.weight"},
      {"module._orig_mod._fsdp_wrapped_module.model.layers.0._orig_mod.mlp.up_proj.weight",
       "model.layers.0.mlp.up_proj.weight"},
      {"model.layers.0.self_attn.q_proj.base_layer.weight", "model.layers.0.self_attn.q_proj.weight"},
      {"base_layer_norm.weight", "base_layer_norm.weight"},
      {"base_layer.weight", "base_layer.weight"},
      {"model.module.weight", "model.module.weight"},
      {"module", "module"}};
  for (const auto& [outside, plain] : names) EXPECT_EQ(plain_name(outside), plain) << outside;
  const std::vector<std::string> outside{"module.a", "_orig_mod.b", "q.lora_A.weight"}, known{"a", "b", "c"};
  const auto matched = match_names(outside, known, "rank 3");
  ASSERT_FALSE(matched.ok());
  EXPECT_EQ(matched.error().to_string(),
            "mismatch: rank 3: lacks c; has q.lora_A.weight, which are not known [tensor=c]");
  const std::vector<std::string> two{"module.a", "a"};
  EXPECT_THAT(match_names(two, known, "rank 3").error().to_string(),
              testing::HasSubstr("module.a and a are both a without their wrappers"));
  const std::vector<std::string> good{"module.a", "_orig_mod.b", "c"};
  EXPECT_EQ(match_names(good, known, "x")->at("b"), "_orig_mod.b");
}

TEST(OutsideNames, OfCheckpointsAndLayoutFiles) {
  const std::string text = config({});
  Catalogue names = *catalogue_of(text);
  const Catalogue plain = names;
  for (LogicalTensor& t : names.tensors) t.name = "module._orig_mod." + t.name;
  EXPECT_EQ(must(text, "vllm:tp=2", &names)->catalogue().tensors, plain.tensors);
  names.tensors.push_back(plain.tensors[0]);
  EXPECT_THAT(refusal(text, "hf", &names), testing::HasSubstr("is there twice"));
  const auto layout = read_layout(
      R"({"tensors":{"module.b.weight":{"shape":[2],"dtype":"bf16"},"_orig_mod.a":{"shape":[2],"dtype":"bf16"}},
          "ranks":[{"rank":0,"buffers":{"w":{"bytes":8}},"holdings":[
            {"tensor":"module.b.weight","box":[[0,2]],"buffer":"w","offset":0,"strides":[2]},
            {"tensor":"_orig_mod.a","box":[[0,2]],"buffer":"w","offset":4,"strides":[2]}]}]})");
  ASSERT_TRUE(layout.ok()) << layout.error().to_string();
  ASSERT_EQ((*layout)->catalogue().tensors.size(), 2u);
  EXPECT_EQ((*layout)->catalogue().tensors[0].name, "a");
  EXPECT_EQ(rank_of(**layout, 0).holdings[0].offset, 4);
  EXPECT_THAT(read_layout(R"({"tensors":{"a":{"shape":[2],"dtype":"bf16"},"module.a":{"shape":[2],"dtype":"bf16"}},
                              "ranks":[{"rank":0,"buffers":{},"holdings":[]}]})")
                  .error()
                  .to_string(),
              testing::HasSubstr("tensor a is there twice"));
}

// The language part of a model that sees: its own prefix comes back, other parts are passed over by name only.
TEST(Vision, LanguagePart) {
  const std::string text = R"({"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],
      "text_config":{"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,
      "head_dim":2,"intermediate_size":8,"vocab_size":128}})";
  const std::string own = R"({"model_type":"gemma3_text","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":2,"intermediate_size":8,"vocab_size":128})";
  Catalogue names = *catalogue_of(own);
  const Catalogue plain = names;
  for (LogicalTensor& t : names.tensors) t.name = "model.language_model." + t.name.substr(6);
  const std::string tower = "model.vision_tower.vision_model.post_layernorm.weight";
  names.tensors.push_back({tower, {4}, DType::kBF16});
  EXPECT_THAT(refusal(text, "hf", &names), testing::HasSubstr("say vision=skip in the SPEC"));
  EXPECT_THAT(refusal(own, "hf", &names), testing::HasSubstr("vision=skip in the SPEC passes over " + tower));
  const auto fsdp = must(text, "fsdp=2,vision=skip", &names);
  ASSERT_TRUE(fsdp);
  EXPECT_EQ(fsdp->catalogue().tensors, plain.tensors);
  EXPECT_EQ(fsdp->recipe()->spec, "fsdp=2");
  ASSERT_EQ(fsdp->skipped().size(), 1u);
  EXPECT_EQ(fsdp->skipped()[0], tower);
  // Back with the checkpoint's own names, also after the recipe has travelled.
  const auto again = read_layout(fsdp->serialise());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  const auto hf = sibling_layout(**again, "hf");
  ASSERT_TRUE(hf.ok()) << hf.error().to_string();
  EXPECT_EQ(shape_of(**hf, 0, "model.language_model.layers.0.mlp.up_proj.weight"), (Dims{8, 8}));
  names.tensors.push_back({"model.layers.0.mlp.up_proj.weight", {8, 8}, DType::kBF16});
  EXPECT_THAT(refusal(text, "hf:vision=skip", &names), testing::HasSubstr("twice: once behind"));
}

}  // namespace
}  // namespace refit::model::test
