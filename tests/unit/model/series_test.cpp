// Layouts whose text does not grow with layers and experts: what is written reads back as the same layout, and what is
// wrong in it is refused.
#include <random>

#include "model/explicit_json.h"
#include "model/series.h"
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// The ranks of a layout of rules as explicit holdings.
std::shared_ptr<const Layout> written_out(const Layout& rules) {
  std::vector<RankLayout> ranks;
  for (std::uint32_t r = 0; r < rules.world(); ++r) ranks.push_back(rank_of(rules, r));
  return *explicit_layout(rules.catalogue(), std::move(ranks), rules.instances());
}
std::string one_by_one(const Layout& layout) {
  std::vector<RankLayout> ranks;
  for (std::uint32_t r = 0; r < layout.world(); ++r) ranks.push_back(rank_of(layout, r));
  return write_explicit(layout.catalogue(), ranks, layout.instances(), Text::kOneByOne);
}

TEST(Series, ReadBackAsTheSameLayout) {
  struct Case {
    std::string model, spec;
    std::size_t shorter;  // at least that many times; experts of their own lie in the order of their names' letters
  };
  for (const auto& [model, spec, shorter] :
       std::vector<Case>{{"deepseek-v3@layers=5", "fsdp=4,naming=fused", 10},
                         {"deepseek-v3@layers=4", "tp=2", 8},
                         {"qwen3-30b-a3b@layers=3", "jax", 40},
                         {"qwen3-30b-a3b@layers=3", "vllm:tp=2,replicas=2", 40},
                         {"qwen3-30b-a3b@layers=4", "megatron:pp=2,ep=4,dp=4", 5}}) {
    SCOPED_TRACE(model + " " + spec);
    const auto layout = written_out(*must(*builtin_config(model), spec));
    const std::string text = layout->serialise();
    const auto again = read_layout(text), plain = read_layout(one_by_one(*layout));
    ASSERT_TRUE(again.ok() && plain.ok());
    EXPECT_EQ((*again)->digest(), layout->digest());
    EXPECT_EQ((*plain)->digest(), layout->digest());
    EXPECT_EQ((*again)->serialise(), text);
    EXPECT_LT(text.size() * shorter, one_by_one(*layout).size());
  }
}

TEST(Series, TextGrowsWithNeitherLayersNorExperts) {
  const auto size = [](const std::string& model) {
    return written_out(*must(*builtin_config(model), "fsdp=2,naming=fused"))->serialise().size();
  };
  EXPECT_LT(size("deepseek-v3@layers=9"), size("deepseek-v3@layers=6") + 1000);
}

// Random names, sizes and places; equal offsets, tensors without numbers and names with braces among them.
TEST(Series, RandomHoldings) {
  std::mt19937_64 random(11);
  const auto draw = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    std::map<std::string, Dims> shapes;
    for (std::int64_t i = 0; i < 30; ++i) {
      const std::string names[] = {"a." + std::to_string(draw(9)) + ".w",
                                   "a." + std::to_string(draw(4)) + ".e." + std::to_string(draw(5)) + ".w",
                                   std::to_string(draw(3)) + "." + std::to_string(draw(3)),
                                   "w" + std::to_string(i),
                                   "a.0" + std::to_string(draw(4)) + ".w",
                                   "a.{}." + std::to_string(draw(4))};
      shapes[names[draw(6)]] = {2 + draw(2), 4};
    }
    Catalogue catalogue;
    for (const auto& [name, shape] : shapes)
      catalogue.tensors.push_back({name, shape, draw(8) == 0 ? DType::kF32 : DType::kBF16});
    std::vector<RankLayout> ranks(2);
    for (std::uint32_t r = 0; r < 2; ++r) {
      ranks[r].rank = Rank(r);
      ranks[r].buffers = {{.name = "w", .bytes = 1 << 20, .fill = 0, .file = {}}};
      for (std::uint32_t t = 0; t < catalogue.tensors.size(); ++t)
        for (std::int64_t copy = draw(3); copy > 0; --copy)
          ranks[r].holdings.push_back({.tensor = TensorId(t),
                                       .buffer = 0,
                                       .view = View::trivial(catalogue.tensors[t].shape),
                                       .box = {{0, 1 + draw(2)}, {0, 4}},
                                       .offset = draw(2) == 0 ? t * 64 : draw(500) * 64,
                                       .strides = {16, 4},
                                       .dtype = draw(9) == 0 ? DType::kF32 : catalogue.tensors[t].dtype});
    }
    const auto made = explicit_layout(catalogue, ranks);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    const auto again = read_layout((*made)->serialise());
    ASSERT_TRUE(again.ok()) << again.error().to_string() << (*made)->serialise();
    EXPECT_EQ((*again)->digest(), (*made)->digest());
  }
}

std::string reading(const std::string& series, const std::string& holding, const std::string& tensors = "") {
  const auto read = read_layout(R"({"tensors":{)" + tensors + R"(},"series":[)" + series +
                                R"(],"ranks":[{"rank":0,"buffers":{"w":{"bytes":64}},"holdings":[)" + holding + "]}]}");
  return read.ok() ? "accepted" : read.error().to_string();
}

TEST(Series, BadText) {
  const std::string good = R"({"name":"a.{}.w","over":[[0,3,1]],"shape":[4],"dtype":"bf16"})",
                    held =
                        R"({"tensor":"a.{}.w","over":[[0,3,1,8]],"box":[[0,4]],"buffer":"w","offset":0,"strides":[2]})";
  EXPECT_EQ(reading(good, held), "accepted");
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  const auto series = [&](const std::string& over) { return reading(with(good, "[[0,3,1]]", over), held); };
  const auto holding = [&](const std::string& over) { return reading(good, with(held, "[[0,3,1,8]]", over)); };
  using testing::HasSubstr;
  EXPECT_THAT(series("[]"), HasSubstr("series[0].over: must be a list of at least one run"));
  // A short text that stands for much: long names, many runs, many axes.
  EXPECT_THAT(reading(with(good, "a.{}", std::string(2000, 'a') + ".{}"), held), HasSubstr("at most 24 runs"));
  std::string axes = "[4";
  for (int i = 0; i < 40; ++i) axes += ",1";
  EXPECT_THAT(reading(with(good, "[4]", axes + "]"), held), HasSubstr("series[0].shape: too many axes"));
  std::string box = "[[0,4]";
  for (int i = 0; i < 40; ++i) box += ",[0,1]";
  EXPECT_THAT(reading(good, with(held, "[[0,4]]", box + "]")), HasSubstr("more than 32 axes"));
  EXPECT_THAT(series("[[0,3]]"), HasSubstr("a run must be 3 integers, not 2"));
  EXPECT_THAT(series("[[0,3,1],[0,2,1]]"), HasSubstr("series 'a.{}.w': fewer {} than runs"));
  EXPECT_THAT(series("[[0,0,1]]"), HasSubstr("a run must be of 1 or more numbers below 2^31, ascending"));
  EXPECT_THAT(series("[[0,3,0]]"), HasSubstr("ascending"));
  EXPECT_THAT(series("[[-1,3,1]]"), HasSubstr("ascending"));
  EXPECT_THAT(series("[[0,2147483647,2]]"), HasSubstr("ascending"));
  EXPECT_THAT(series("[[0,1048577,1]]"), HasSubstr("more than 1048576 names"));
  EXPECT_THAT(series("[[0,1.5,1]]"), HasSubstr("must be an integer"));
  EXPECT_THAT(series("[[0,3,2]]"), HasSubstr("unknown tensor 'a.1.w'"));
  EXPECT_THAT(reading(with(good, "a.{}.w", "a.{}.{}"), held), HasSubstr("more {} than runs"));
  EXPECT_THAT(reading(good + "," + good, held), HasSubstr("the tensor 'a.0.w' appears twice"));
  EXPECT_THAT(reading(good, held, R"("a.1.w":{"shape":[4],"dtype":"bf16"})"), HasSubstr("'a.1.w' appears twice"));
  EXPECT_THAT(reading(with(good, R"("shape":[4],)", ""), held), HasSubstr("lacks the key 'shape'"));
  EXPECT_THAT(holding("[[0,3,1]]"), HasSubstr("a run must be 4 integers, not 3"));
  EXPECT_THAT(holding("[[1,3,1,8]]"), HasSubstr("unknown tensor 'a.3.w'"));
  EXPECT_THAT(holding("[[0,3,1,32]]"), HasSubstr("bytes [64, 72) lie outside buffer 'w' of 64 bytes"));
  EXPECT_THAT(holding("[[0,3,1,-8]]"), HasSubstr("offset -8"));
  EXPECT_THAT(holding("[[0,3,1,9223372036854775807]]"), HasSubstr("its places pass 2^63 bytes"));
  EXPECT_THAT(holding("[[0,4,1,0]]"), HasSubstr("more than 3 names"));
}

}  // namespace
}  // namespace refit::model::test
