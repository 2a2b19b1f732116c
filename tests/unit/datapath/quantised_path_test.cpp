// Weights that the targets hold in codes: what every engine rank has after a round is the slice of the whole matrix,
// quantised at once by the codec's reference, however the trainer cuts it.
#include <gmock/gmock.h>

#include <map>

#include "codec/quantise.h"
#include "unit/datapath/stage.h"

namespace refit::agent {
namespace {

using testing::HasSubstr;

// q 384 rows, k and v 128; MLP 384 wide; columns 192.
constexpr const char* kDense =
    R"({"model_type":"llama","hidden_size":192,"intermediate_size":384,"num_hidden_layers":2,"num_attention_heads":6,
  "num_key_value_heads":2,"head_dim":64,"vocab_size":130,"tie_word_embeddings":true,"torch_dtype":"bfloat16"})";
// Three groups of heads, so that three ranks can cut them.
constexpr const char* kThirds =
    R"({"model_type":"llama","hidden_size":192,"intermediate_size":384,"num_hidden_layers":2,"num_attention_heads":6,
  "num_key_value_heads":3,"head_dim":64,"vocab_size":130,"tie_word_embeddings":true,"torch_dtype":"bfloat16"})";
constexpr const char* kWideMoe =
    R"({"model_type":"qwen3_moe","hidden_size":128,"intermediate_size":256,"moe_intermediate_size":128,"num_experts":4,
  "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"vocab_size":130,
  "tie_word_embeddings":false,"mlp_only_layers":[1],"decoder_sparse_step":1,"torch_dtype":"bfloat16"})";

// Its correction bias is f32 everywhere (F09).
constexpr const char* kLatent =
    R"({"model_type":"deepseek_v3","hidden_size":128,"intermediate_size":256,"moe_intermediate_size":128,
  "num_hidden_layers":2,"num_attention_heads":4,"q_lora_rank":64,"kv_lora_rank":64,"qk_nope_head_dim":32,
  "qk_rope_head_dim":32,"v_head_dim":64,"n_routed_experts":4,"n_shared_experts":1,"first_k_dense_replace":1,
  "num_nextn_predict_layers":0,"vocab_size":130,"tie_word_embeddings":false,"torch_dtype":"bfloat16"})";

// Whole tensors by name, as an engine must hold them.
std::map<std::string, std::vector<std::byte>> whole(const Stage& s, std::uint64_t seed, std::int64_t steps,
                                                    const engine::StepRule& rule) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const model::QuantisedWeight& q : s.target->quantised()) {
    const std::string& name = s.target->catalogue().tensors[q.codes.value].name;
    const model::LogicalTensor& t =
        s.source->catalogue().tensors[static_cast<std::size_t>(s.source->catalogue().find(name))];
    std::vector<std::byte> values(static_cast<std::size_t>(t.shape[0] * t.shape[1] * item_size(t.dtype)));
    const std::int64_t n = t.shape[0] * t.shape[1];
    engine::initial_values(seed, name, t.dtype, 0, values.data(), n);
    for (std::int64_t i = 1; i <= steps; ++i) engine::apply_step(rule, i, name, t.dtype, 0, values.data(), n);
    const codec::Quant quant = *codec::quant_named(q.format->name);
    const codec::Part part{0, 0, t.shape[0], t.shape[1], t.shape[1], t.dtype};
    std::vector<std::byte>& codes = out[name];
    std::vector<std::byte>& scales = out[s.target->catalogue().tensors[q.scales.value].name];
    codes.resize(static_cast<std::size_t>(n));
    scales.resize(static_cast<std::size_t>(cells_of(quant, part).count() * quant.scale_bytes()));
    codec::quant_reference().quantise(quant, part, values.data(), scales.data(), codes.data());
  }
  return out;
}

void round(Stage& s) {
  s.seal(true);
  ASSERT_TRUE(s.quantised.ok()) << s.quantised.error().to_string();
  for (std::size_t r = 0; r < s.engines.size(); ++r) {
    const Status staged = s.stage(r);
    ASSERT_TRUE(staged.ok()) << staged.error().to_string();
    const Status verified = s.executors[r]->verify(true);
    ASSERT_TRUE(verified.ok()) << verified.error().to_string();
    ASSERT_TRUE(s.executors[r]->apply(true).ok());
    ASSERT_TRUE(s.executors[r]->prove_live().ok());
  }
}

void expect_live(Stage& s, std::uint64_t seed, std::int64_t steps, const engine::StepRule& rule) {
  const auto codes = whole(s, seed, steps, rule);
  const test::Expected expected(*s.source, *s.target, seed, rule);
  for (auto& e : s.engines)
    for (const model::Holding& h : e->rank_layout().holdings) {
      const model::LogicalTensor& t = s.target->catalogue().tensors[h.tensor.value];
      const auto coded = codes.find(t.name);
      engine::for_each_run(
          t, h, e->regions()[h.buffer].data, [&](std::int64_t linear, std::byte* live, std::int64_t count) {
            const std::int64_t item = item_size(h.dtype);
            if (coded != codes.end())
              ASSERT_EQ(std::memcmp(coded->second.data() + linear * item, live, static_cast<std::size_t>(count * item)),
                        0)
                  << t.name << " rank " << e->rank().value << " at " << linear;
            else if (const auto want = expected.bytes(t, h.dtype, steps, linear, count);
                     std::memcmp(want.data(), live, want.size()) != 0)
              FAIL() << t.name << " rank " << e->rank().value << " at " << linear;
          });
    }
}

std::vector<std::vector<std::byte>> live_bytes(Stage& s) {
  std::vector<std::vector<std::byte>> out;
  for (auto& e : s.engines)
    for (const memory::RegionRef& r : e->regions()) out.emplace_back(r.data, r.data + r.bytes);
  return out;
}

struct Quantised {
  Case job;
  bool exchange;  // some block is cut over sources
};
class QuantisedPath : public testing::TestWithParam<Quantised> {};

// F08: the second and later refits, and A, B, A.
TEST_P(QuantisedPath, EnginesHoldSlicesOfTheWholeMatrixInCodes) {
  Stage s(GetParam().job);
  const engine::StepRule rule{9, 0.05};
  round(s);
  EXPECT_EQ(s.exchanged > 0, GetParam().exchange);
  EXPECT_EQ(s.source_plans[0].exchanges(), GetParam().exchange);
  expect_live(s, kSeed, 0, rule);
  const auto first = live_bytes(s);
  for (auto& t : s.trainers) t->step(rule, 1);
  round(s);
  expect_live(s, kSeed, 1, rule);
  EXPECT_NE(live_bytes(s), first);
  for (auto& t : s.trainers) t->randomise(kSeed);
  for (int again = 0; again < 3; ++again) {
    round(s);
    EXPECT_EQ(live_bytes(s), first) << "A, B, A differs from the first A";
  }
  const auto world = plan::make_world(*s.source, *s.target, s.options);
  ASSERT_TRUE(world.ok()) << world.error().to_string();
  std::size_t buckets = 0;
  for (const plan::RankPlan& p : s.source_plans) buckets += p.buckets.size();
  EXPECT_EQ(world->buckets, static_cast<std::int64_t>(buckets));
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, QuantisedPath,
    testing::Values(Quantised{{kDense, "hf", "vllm:tp=1,quant=fp8_block"}, false},
                    Quantised{{kDense, "fsdp=5", "vllm:tp=1,quant=fp8_block"}, true},
                    Quantised{{kDense, "fsdp=2", "vllm:tp=1,replicas=2,quant=fp8_block_pow2"}, true},
                    Quantised{{kThirds, "fsdp=4", "vllm:tp=3,quant=fp8_block,keep=self_attn"}, true},
                    Quantised{{kDense, "megatron:tp=2", "sglang:tp=1,quant=fp8_block"}, true},
                    Quantised{{kDense, "jax:tp=2", "vllm:tp=2,quant=fp8_channel"}, true},
                    Quantised{{kDense, "fsdp=3", "vllm:tp=2,quant=fp8_channel"}, false},
                    Quantised{{kDense, "fsdp=2,tp=3", "vllm:tp=2,quant=fp8_channel,keep_first=1"}, true},
                    Quantised{{kDense, "fsdp=3", "vllm:tp=2,quant=fp8_tensor"}, true},
                    Quantised{{kDense, "fsdp=2,tp=2", "vllm:tp=2,quant=mxfp8", true}, false},
                    Quantised{{kDense, "fsdp=1,tp=5", "vllm:tp=2,quant=mxfp8"}, true},
                    Quantised{{kWideMoe, "fsdp=3", "vllm:tp=1,quant=fp8_block", true}, true},
                    Quantised{{kWideMoe, "megatron:tp=2,ep=2", "vllm:tp=2,dp=2,ep=4,quant=fp8_tensor"}, true},
                    Quantised{{kLatent, "fsdp=3", "vllm:tp=2,quant=fp8_channel"}, false},
                    Quantised{{kWideMoe, "fsdp=2,naming=fused", "sglang:tp=2,quant=fp8_channel"}, false}));

// Cuts of the fused rows [192, 192], [64, 64, 64, 64] and [384, 64, 64]: ranks hold rows of one matrix.
TEST(QuantisedCuts, UnevenRowsOfOneMatrix) {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{192, 192}, {64, 64, 64, 64}, {384, 64, 64}}) {
    std::int64_t all = 0;
    for (std::int64_t n : rows) all += n;
    const std::string config = R"({"model_type":"llama","hidden_size":256,"intermediate_size":)" + std::to_string(all) +
                               R"(,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4,"head_dim":64,
      "vocab_size":64,"tie_word_embeddings":true,"torch_dtype":"bfloat16"})";
    const auto hf = layout_of(config.c_str(), "hf");
    model::RankLayout whole_rank = hf->expand(Rank(0)).value();
    std::vector<model::RankLayout> ranks(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      ranks[r].rank = Rank(static_cast<std::uint32_t>(r));
      ranks[r].buffers = whole_rank.buffers;
    }
    for (const model::Holding& h : whole_rank.holdings) {
      if (h.box[0].size() != all || h.box.size() != 2) {
        ranks[0].holdings.push_back(h);
        continue;
      }
      std::int64_t at = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        model::Holding part = h;
        part.box[0] = {at, at + rows[r]};
        part.offset += at * h.strides[0];
        at += rows[r];
        ranks[r].holdings.push_back(part);
      }
    }
    const auto source = model::explicit_layout(hf->catalogue(), ranks);
    ASSERT_TRUE(source.ok()) << source.error().to_string();
    Stage s({config.c_str(), (*source)->serialise().c_str(), "vllm:quant=fp8_block"});
    round(s);
    EXPECT_GT(s.exchanged, 0u) << all;
    expect_live(s, kSeed, 0, {});
    // The scale is the block's own, not a part's: one huge value moves it for every rank that has a share.
    const float huge = 3000;
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(huge) >> 16);
    const auto gate = s.source->catalogue().find("model.layers.0.mlp.gate_proj.weight");
    const model::RankLayout& last = s.trainers.back()->rank_layout();
    for (const model::Holding& h : last.holdings)
      if (h.tensor.value == static_cast<std::uint32_t>(gate))
        std::memcpy(s.trainers.back()->regions()[h.buffer].data + h.offset, &bits, sizeof bits);
    const auto before = live_bytes(s);
    round(s);
    const auto scales = s.target->catalogue().find("model.layers.0.mlp.gate_proj.weight_scale_inv");
    std::int64_t moved = 0;
    for (const model::Holding& h : s.engines[0]->rank_layout().holdings) {
      if (h.tensor.value != static_cast<std::uint32_t>(scales)) continue;
      for (std::int64_t i = 0; i < h.box[0].size() * h.box[1].size(); ++i) {
        const auto at =
            static_cast<std::size_t>(h.offset + i / h.box[1].size() * h.strides[0] + i % h.box[1].size() * 4);
        moved += std::memcmp(before[h.buffer].data() + at, s.engines[0]->regions()[h.buffer].data + at, 4) != 0;
      }
    }
    EXPECT_EQ(moved, 1) << "one block's scale moves";
  }
}

TEST(QuantisedCuts, NanAndInfinityAreToldUnlessTheyAreAllowed) {
  for (const bool allowed : {false, true}) {
    Case c{kDense, "fsdp=5", "vllm:tp=1,quant=fp8_block"};
    if (allowed) c.allow_cast = {"*.down_proj.weight"};
    Stage s(c);
    const auto id = s.source->catalogue().find("model.layers.1.mlp.down_proj.weight");
    const std::uint16_t nan = 0x7fc0;
    for (const model::Holding& h : s.trainers[2]->rank_layout().holdings)
      if (h.tensor.value == static_cast<std::uint32_t>(id))
        std::memcpy(s.trainers[2]->regions()[h.buffer].data + h.offset, &nan, sizeof nan);
    s.seal(true);
    EXPECT_EQ(s.quantised.ok(), allowed);
    if (!allowed) {
      EXPECT_EQ(s.quantised.error().code, Code::kMismatch);
      EXPECT_THAT(s.quantised.error().message, HasSubstr("model.layers.1.mlp.down_proj.weight"));
    }
  }
}

// Codes and scales of one matrix come from one sender and, where they fit, in one bucket.
TEST(QuantisedCuts, CodesAndScalesAreOneAtomicGroup) {
  Stage s({kDense, "fsdp=2,tp=1", "vllm:tp=2,quant=fp8_channel"});
  std::size_t together = 0;
  for (const plan::RankPlan& p : s.source_plans)
    for (const plan::QuantTensor& q : p.quantised) {
      std::int64_t group = 0;
      for (const plan::Piece& piece : p.pieces)
        if (piece.tensor == q.codes || piece.tensor == q.scales) group += piece.bytes;
      for (const plan::Bucket& b : p.buckets) {
        std::int64_t codes = 0, scales = 0;
        for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i) {
          if (p.pieces[i].tensor == q.codes) codes += p.pieces[i].bytes;
          if (p.pieces[i].tensor == q.scales) scales += p.pieces[i].bytes;
        }
        if (scales > 0 && group <= s.options.bucket_bytes) {
          EXPECT_GT(codes, 0) << "scales in a bucket without their codes";
        }
        together += codes > 0 && scales > 0;
      }
    }
  EXPECT_GT(together, 0u);
}

// What a trainer stores through a transform or ties is not quantised behind anybody's back.
TEST(QuantisedCuts, Refusals) {
  const auto refusal = [](const char* config, const char* from, const char* to) {
    const auto source = layout_of(config, from), target = layout_of(config, to);
    plan::Options o;
    o.values = plan::Values::kStages;
    const auto made = plan::make_world(*source, *target, o);
    return made.ok() ? std::string("accepted") : made.error().message;
  };
  EXPECT_EQ(refusal(kDense, "fsdp=2", "vllm:tp=2,quant=mxfp8"), "accepted");
  // Movers that run no stages see another dtype on either side.
  const auto source = layout_of(kDense, "fsdp=2"), target = layout_of(kDense, "vllm:tp=2,quant=mxfp8");
  const auto plain = plan::make_world(*source, *target, {});
  ASSERT_FALSE(plain.ok());
  EXPECT_THAT(plain.error().message, HasSubstr("f8_e4m3"));
}

}  // namespace
}  // namespace refit::agent
