// Properties of every family on every side, over random sizes: all logical bytes lie somewhere, no two in one place,
// the round trip through any two sides restores the checkpoint, and patterns say the same as expanded ranks.
#include <set>

#include "support/sanitized.h"
#include "unit/model/family_configs.h"

namespace refit::model::test {
namespace {

using Bytes = std::vector<std::byte>;
const std::vector<std::string> kSpecs{"hf",
                                      "hf:naming=fused",
                                      "fsdp=1",
                                      "fsdp=3",
                                      "fsdp=8",
                                      "tp=2",
                                      "tp=3",
                                      "fsdp=2,tp=2",
                                      "tp=2,fsdp=3",
                                      "fsdp=2,naming=fused",
                                      "tp=2,fsdp=2,naming=fused",
                                      "fsdp=2,replicas=2",
                                      "fsdp=3,flat=fsdp1",
                                      "fsdp=2,flat=fsdp1_orig,naming=fused,replicas=2",
                                      "fsdp=5,flat=zero3",
                                      "vllm",
                                      "vllm:tp=2",
                                      "vllm:tp=4",
                                      "vllm:tp=8",
                                      "vllm:tp=2,dp=2",
                                      "vllm:tp=2,dp=2,ep=4",
                                      "vllm:dp=3,ep=3",
                                      "vllm:dp=4,ep=4,placement=round_robin",
                                      "vllm:tp=2,replicas=3",
                                      "megatron",
                                      "megatron:tp=2",
                                      "megatron:tp=4,vocab_multiple=8",
                                      "megatron:tp=8",
                                      "megatron:tp=2,dp=2",
                                      "megatron:pp=2",
                                      "megatron:tp=2,pp=2,vpp=2",
                                      "megatron:pp=3,first=1,spec=local",
                                      "megatron:tp=2,pp=2,first=1,replicas=2",
                                      "megatron:pp=2,account=both",
                                      "megatron:tp=2,pp=2,layout=Et|t|t|tL",
                                      "megatron:pp=3,layout=E|tt|L",
                                      "megatron:pp=4,layout=Et|t|m|L",
                                      "megatron:pp=2,layout=E|tt|m|L",
                                      "megatron:tp=2,ep=2",
                                      "megatron:tp=2,ep=4,spec=local",
                                      "megatron:tp=2,pp=2,ep=2,etp=2",
                                      "megatron:tp=2,ep=5,dp=5,pp=2",
                                      "megatron:ep=4,experts=stacked",
                                      "megatron:tp=2,cp=2,ep=8,dp=4",
                                      "sglang:tp=2",
                                      "sglang:tp=4,ep=2",
                                      "sglang:tp=2,dp=2",
                                      "sglang:tp=2,dp=2,ep=4",
                                      "sglang:tp=8,ep=8",
                                      "vllm:tp=2,draft=skip",
                                      "vllm:tp=2,dp=2,ep=4,draft=skip",
                                      "vllm:tp=2,draft=own",
                                      "vllm:tp=2,dp=2,ep=4,draft=own",
                                      "sglang:tp=4,ep=2,draft=skip",
                                      "sglang:tp=4,ep=2,shared=fused,draft=skip",
                                      "vllm:tp=2,shared=fused,draft=skip",
                                      "jax:preset=tunix",
                                      "jax:preset=maxtext",
                                      "jax:preset=maxtext_scanned",
                                      "jax",
                                      "jax:tp=2",
                                      "jax:tp=2,ep=2,dp=2",
                                      "jax:ep=4,tp=2"};

// Layouts of a configuration that its side accepts.
std::map<std::string, std::shared_ptr<const Layout>> accepted(const std::string& config_json) {
  std::map<std::string, std::shared_ptr<const Layout>> out;
  for (const std::string& spec : kSpecs) {
    auto made = rule_layout(config_json, spec);
    if (made.ok())
      out[spec] = *made;
    else
      EXPECT_TRUE(made.error().code == Code::kInvalid || made.error().code == Code::kUnsupported)
          << made.error().to_string();
  }
  return out;
}

std::vector<Bytes> random_tensors(const Catalogue& catalogue, Random& random) {
  std::vector<Bytes> out;
  for (const LogicalTensor& t : catalogue.tensors) {
    Bytes& bytes = out.emplace_back(static_cast<std::size_t>(elements(whole(t.shape)) * item_size(t.dtype)));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  }
  return out;
}

// An element of storage that is wider than the tensor's keeps the tensor's bytes first: a cast that loses nothing.
std::int64_t kept_bytes(const Holding& h, const LogicalTensor& t) {
  return std::min(item_size(h.dtype), item_size(t.dtype));
}

// Writes the logical tensors into one rank's buffer; every byte of the buffer at most once.
Bytes fill(const Layout& layout, const RankLayout& rank, const std::vector<Bytes>& tensors) {
  Bytes buffer(static_cast<std::size_t>(rank.buffers.at(0).bytes), std::byte{0});
  std::vector<bool> written(buffer.size(), false);
  for (const Holding& h : rank.holdings) {
    const LogicalTensor& t = layout.catalogue().tensors[h.tensor.value];
    EXPECT_TRUE(h.view.validate(t.shape).ok());
    each_element(h, t.shape, [&](std::int64_t logical, std::int64_t offset) {
      for (std::int64_t b = 0; b < kept_bytes(h, t); ++b) {
        const auto at = static_cast<std::size_t>(offset + b);
        ASSERT_LT(at, buffer.size());
        ASSERT_FALSE(written[at]) << t.name;
        written[at] = true;
        buffer[at] = tensors[h.tensor.value][static_cast<std::size_t>(logical * item_size(t.dtype) + b)];
      }
    });
  }
  return buffer;
}

bool absent(const Layout& layout, std::size_t tensor) {
  return layout.patterns()[layout.pattern_of()[tensor]].shards.empty();
}

// Reads what the ranks of one instance hold. Every logical byte must be there, and all owners must agree. Tensors that
// this side has no place for stay as they are in `before`.
std::vector<Bytes> gather(const Layout& layout, const std::vector<RankLayout>& ranks, const std::vector<Bytes>& buffers,
                          const std::vector<Bytes>& before) {
  std::vector<Bytes> out = before;
  std::vector<std::vector<bool>> seen;
  for (const Bytes& bytes : before) seen.emplace_back(bytes.size(), false);
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const Holding& h : ranks[r].holdings) {
      const LogicalTensor& t = layout.catalogue().tensors[h.tensor.value];
      each_element(h, t.shape, [&](std::int64_t logical, std::int64_t offset) {
        for (std::int64_t b = 0; b < kept_bytes(h, t); ++b) {
          const auto at = static_cast<std::size_t>(logical * item_size(t.dtype) + b);
          const std::byte value = buffers[r][static_cast<std::size_t>(offset + b)];
          EXPECT_TRUE(!seen[h.tensor.value][at] || out[h.tensor.value][at] == value);
          seen[h.tensor.value][at] = true;
          out[h.tensor.value][at] = value;
        }
      });
    }
  for (std::size_t t = 0; t < seen.size(); ++t)
    EXPECT_TRUE(absent(layout, t) || std::find(seen[t].begin(), seen[t].end(), false) == seen[t].end())
        << "a hole in " << layout.catalogue().tensors[t].name;
  return out;
}

std::vector<RankLayout> one_instance(const Layout& layout, std::int64_t instance) {
  std::vector<RankLayout> out;
  const std::int64_t size = layout.world() / layout.instances();
  for (std::int64_t r = 0; r < size; ++r)
    out.push_back(rank_of(layout, static_cast<std::uint32_t>(instance * size + r)));
  return out;
}

std::vector<Bytes> through(const Layout& layout, const std::vector<Bytes>& tensors, std::int64_t instance) {
  const std::vector<RankLayout> ranks = one_instance(layout, instance);
  std::vector<Bytes> buffers;
  for (const RankLayout& rank : ranks) buffers.push_back(fill(layout, rank, tensors));
  return gather(layout, ranks, buffers, tensors);
}

using ShardText = std::multiset<std::string>;
std::string shard_text(const View& view, const Box& box, const Dims& strides, DType dtype, std::uint32_t rank) {
  std::string out = std::to_string(rank) + " " + to_string(box) + std::string(to_string(dtype));
  for (const Dims& axis : view.radices)
    for (std::int64_t r : axis) out += "," + std::to_string(r);
  for (std::int64_t s : strides) out += "/" + std::to_string(s);
  return out;
}

std::vector<std::uint32_t> owners(const PatternShard& s) {
  std::vector<std::uint32_t> out{s.first};
  for (const auto& [count, step] : s.progressions) {
    std::vector<std::uint32_t> next;
    for (std::uint32_t base : out)
      for (std::uint32_t i = 0; i < count; ++i) next.push_back(base + i * step);
    out = std::move(next);
  }
  EXPECT_TRUE(std::is_sorted(out.begin(), out.end()));
  return out;
}

// The quick answer about places equals the one taken from the whole rank.
void check_places(const Layout& layout) {
  std::vector<TensorId> all;
  for (std::uint32_t t = 0; t < layout.catalogue().tensors.size(); ++t) all.push_back(TensorId{t});
  for (std::uint32_t r = 0; r < layout.world(); ++r) {
    const auto quick = layout.places(Rank{r}, all), whole_rank = places_in(layout, rank_of(layout, r), all);
    ASSERT_TRUE(quick.ok() && whole_rank.ok());
    EXPECT_EQ(*quick, *whole_rank) << "rank " << r;
  }
}

void check_patterns(const Layout& layout) {
  std::vector<ShardText> expanded(layout.catalogue().tensors.size()), described(expanded.size());
  for (std::uint32_t r = 0; r < layout.world(); ++r) {
    const RankLayout rank = rank_of(layout, r);
    for (std::size_t i = 0; i < rank.holdings.size(); ++i) {
      const Holding& h = rank.holdings[i];
      expanded[h.tensor.value].insert(shard_text(h.view, h.box, h.strides, h.dtype, r));
      if (i > 0) {
        EXPECT_LE(rank.holdings[i - 1].tensor, h.tensor);
      }
    }
  }
  ASSERT_EQ(layout.pattern_of().size(), described.size());
  for (std::size_t t = 0; t < described.size(); ++t) {
    const Pattern& p = layout.patterns()[layout.pattern_of()[t]];
    EXPECT_EQ(p.shape, layout.catalogue().tensors[t].shape);
    for (const PatternShard& s : p.shards)
      for (std::uint32_t rank : owners(s)) described[t].insert(shard_text(s.view, s.box, s.strides, s.dtype, rank));
    EXPECT_EQ(described[t], expanded[t]) << layout.catalogue().tensors[t].name;
  }
}

// One in `share` of the accepted SPECs, drawn.
void check_family(const std::string& text, Random& random, std::size_t least, std::uint64_t share) {
  SCOPED_TRACE(text);
  const auto layouts = accepted(text);
  EXPECT_GE(layouts.size(), least);
  const std::vector<Bytes> tensors = random_tensors(layouts.at("hf")->catalogue(), random);
  for (const auto& [spec, layout] : layouts) {
    if (random() % share != 0) continue;
    SCOPED_TRACE(spec);
    ASSERT_EQ(layout->catalogue().tensors, layouts.at("hf")->catalogue().tensors);
    check_patterns(*layout);
    check_places(*layout);
    // Into this side and out again, then the same through a second side: the checkpoint's bytes throughout.
    const auto once = through(*layout, tensors,
                              static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(layout->instances())));
    ASSERT_EQ(once, tensors);
    const auto second = std::next(layouts.begin(), static_cast<std::ptrdiff_t>(random() % layouts.size()));
    ASSERT_EQ(through(*second->second, once, 0), tensors) << "then " << second->first;
  }
}

class Families : public testing::TestWithParam<const char*> {};
TEST_P(Families, HoldOnEverySide) {
  constexpr std::uint64_t kSeed = 20240607;
  for (std::uint64_t round = 0; round < (::refit::test::kSanitized ? 1 : 4); ++round) {
    Random random(kSeed + round);
    SCOPED_TRACE("seed " + std::to_string(kSeed + round));
    check_family(family_config(GetParam(), random), random, 12, 3);
  }
}
TEST_P(Families, HoldWhenAllSizesAreEqual) {
  Random random(7);
  // Every side: what each pair of them comes to, since each gives the checkpoint's bytes back.
  check_family(family_config(GetParam(), random, 16), random, 15, ::refit::test::kSanitized ? 2 : 1);
}
INSTANTIATE_TEST_SUITE_P(All, Families,
                         testing::Values("llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "kimi_k2", "qwen3_next",
                                         "qwen3_5_text", "qwen3_5_moe_text", "gpt_oss", "glm4_moe", "gemma3_text",
                                         "gemma4_text", "nemotron_h", "gpt_oss_mxfp4", "qwen3_fp8", "qwen3_moe_fp8",
                                         "deepseek_v3_fp8"));

TEST(Places, OfATiedCopy) {
  const std::string text = config({.heads = 4, .kv_heads = 4, .tied = true});
  auto names = catalogue_of(text);
  names->tensors.push_back({"lm_head.weight", {130, 8}, DType::kBF16});
  check_places(*must(text, "hf", &*names));
  check_patterns(*must(text, "hf", &*names));
}

TEST(Scale, TenThousandRanksByPatterns) {
  const auto layout = must(*builtin_config("qwen3-30b-a3b"), "fsdp=1250,tp=8");
  ASSERT_EQ(layout->world(), 10'000);
  EXPECT_EQ(layout->catalogue().tensors.size(), 18'867u);
  EXPECT_LT(layout->patterns().size(), 20u);
  const auto experts = must(*builtin_config("qwen3-30b-a3b"), "vllm:tp=8,dp=1250,ep=10000");
  EXPECT_LT(experts->patterns().size(), 300u);
  EXPECT_GT(rank_of(*layout, 9'999).parameters.size(), 0u);
}

}  // namespace
}  // namespace refit::model::test
