// Properties of every family on every side, over random sizes: all logical bytes lie somewhere, no two in one place,
// the round trip through any two sides restores the checkpoint, and patterns say the same as expanded ranks.
#include <random>
#include <set>

#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::initializer_list<std::int64_t> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

// Sizes that differ pairwise wherever shapes could be confused.
Sizes draw(Random& random, const std::string& type) {
  Sizes s{.type = type};
  s.kv_heads = pick(random, {1, 2, 4});
  s.heads = s.kv_heads * pick(random, {1, 2, 3, 8});
  s.head_dim = pick(random, {2, 6, 10});
  s.hidden = pick(random, {12, 14, 20, 22});
  s.width = pick(random, {24, 26, 40, 48});
  s.vocabulary = pick(random, {67, 130, 131, 256});
  s.layers = pick(random, {1, 2, 3});
  s.tied = random() % 2 == 0;
  if (type == "qwen3_moe") {
    s.experts = pick(random, {3, 5, 8});
    s.expert_width = pick(random, {16, 32});
    if (random() % 2 == 0) s.more = R"(,"mlp_only_layers":[0])";
  }
  if (type != "qwen2" && random() % 3 == 0) s.more += R"(,"attention_bias":true)";
  return s;
}

Sizes all_equal(const std::string& type) {
  Sizes s{
      .type = type, .hidden = 16, .layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 4, .width = 16, .vocabulary = 16};
  if (type == "qwen3_moe") s.experts = s.expert_width = 16;
  return s;
}

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
                                      "vllm",
                                      "vllm:tp=2",
                                      "vllm:tp=4",
                                      "vllm:tp=8",
                                      "vllm:tp=2,dp=2",
                                      "vllm:tp=2,dp=2,ep=4",
                                      "vllm:dp=3,ep=3",
                                      "vllm:tp=2,replicas=3",
                                      "megatron",
                                      "megatron:tp=2",
                                      "megatron:tp=4,vocab_multiple=8",
                                      "megatron:tp=8",
                                      "megatron:tp=2,dp=2"};

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

// Writes the logical tensors into one rank's buffer; every byte of the buffer at most once, except copies of ties.
Bytes fill(const Layout& layout, const RankLayout& rank, const std::vector<Bytes>& tensors) {
  Bytes buffer(static_cast<std::size_t>(rank.buffers.at(0).bytes), std::byte{0});
  std::vector<bool> written(buffer.size(), false);
  for (const Holding& h : rank.holdings) {
    const Dims& shape = layout.catalogue().tensors[h.tensor.value].shape;
    const std::int64_t item = item_size(h.dtype);
    EXPECT_TRUE(h.view.validate(shape).ok());
    each_element(h, shape, [&](std::int64_t logical, std::int64_t offset) {
      for (std::int64_t b = 0; b < item; ++b) {
        const auto at = static_cast<std::size_t>(offset + b);
        ASSERT_LT(at, buffer.size());
        ASSERT_FALSE(written[at]) << layout.catalogue().tensors[h.tensor.value].name;
        written[at] = true;
        buffer[at] = tensors[h.tensor.value][static_cast<std::size_t>(logical * item + b)];
      }
    });
  }
  return buffer;
}

// Reads what the ranks of one instance hold. Every logical byte must be there, and all owners must agree.
std::vector<Bytes> gather(const Layout& layout, const std::vector<RankLayout>& ranks,
                          const std::vector<Bytes>& buffers) {
  std::vector<Bytes> out;
  std::vector<std::vector<bool>> seen;
  for (const LogicalTensor& t : layout.catalogue().tensors) {
    out.emplace_back(static_cast<std::size_t>(elements(whole(t.shape)) * item_size(t.dtype)));
    seen.emplace_back(out.back().size(), false);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const Holding& h : ranks[r].holdings) {
      const std::int64_t item = item_size(h.dtype);
      each_element(h, layout.catalogue().tensors[h.tensor.value].shape, [&](std::int64_t logical, std::int64_t offset) {
        for (std::int64_t b = 0; b < item; ++b) {
          const auto at = static_cast<std::size_t>(logical * item + b);
          const std::byte value = buffers[r][static_cast<std::size_t>(offset + b)];
          EXPECT_TRUE(!seen[h.tensor.value][at] || out[h.tensor.value][at] == value);
          seen[h.tensor.value][at] = true;
          out[h.tensor.value][at] = value;
        }
      });
    }
  for (std::size_t t = 0; t < seen.size(); ++t)
    EXPECT_EQ(std::find(seen[t].begin(), seen[t].end(), false), seen[t].end())
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
  return gather(layout, ranks, buffers);
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

void check_family(const Sizes& sizes, Random& random, std::size_t least) {
  const std::string text = config(sizes);
  SCOPED_TRACE(text);
  const auto layouts = accepted(text);
  EXPECT_GE(layouts.size(), least);
  const std::vector<Bytes> tensors = random_tensors(layouts.at("hf")->catalogue(), random);
  for (const auto& [spec, layout] : layouts) {
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
  for (std::uint64_t round = 0; round < 4; ++round) {
    Random random(kSeed + round);
    SCOPED_TRACE("seed " + std::to_string(kSeed + round));
    check_family(draw(random, GetParam()), random, 12);
  }
}
TEST_P(Families, HoldWhenAllSizesAreEqual) {
  Random random(7);
  check_family(all_equal(GetParam()), random, 15);
}
INSTANTIATE_TEST_SUITE_P(All, Families, testing::Values("llama", "qwen2", "qwen3", "qwen3_moe"));

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
