// Layouts from rules, as classes, give the very plans that their ranks give when written out one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "plan/plan.h"

namespace refit::plan {
namespace {

using LayoutPtr = std::shared_ptr<const model::Layout>;

LayoutPtr rules(const char* model, const char* spec) {
  const auto config = model::builtin_config(model);
  EXPECT_TRUE(config.ok());
  auto out = model::rule_layout(*config, spec);
  EXPECT_TRUE(out.ok()) << out.error().to_string();
  return *out;
}

LayoutPtr written_out(const model::Layout& layout) {
  std::vector<model::RankLayout> ranks;
  for (std::int64_t r = 0; r < layout.world(); ++r)
    ranks.push_back(layout.expand(Rank(static_cast<std::uint32_t>(r))).value());
  auto out = model::explicit_layout(layout.catalogue(), std::move(ranks), layout.instances());
  EXPECT_TRUE(out.ok()) << out.error().to_string();
  return *out;
}

// Everything in a plan that has a meaning, free of the numbering of geometries, origins and holdings.
std::vector<std::string> meaning(const RankPlan& p) {
  const auto numbers = [](const Dims& d) {
    std::string out = "[";
    for (std::int64_t v : d) out += std::to_string(v) + ",";
    return out + "]";
  };
  const auto shape = [&](std::uint32_t g) {
    const Geometry& x = p.geometries[g];
    return numbers(x.extents) + numbers(x.src_strides) + numbers(x.dst_strides) + numbers(x.steps);
  };
  std::vector<std::string> out;
  for (const Bucket& b : p.buckets) {
    std::string text =
        std::to_string(b.sender.value) + "/" + std::to_string(b.id.value) + " " + std::to_string(b.bytes) + " to";
    for (Rank r : b.recipients) text += " " + std::to_string(r.value);
    out.push_back(text);
    for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i) {
      const Piece& x = p.pieces[i];
      text = std::to_string(x.tensor.value) + shape(x.geometry) + numbers(p.origins[x.origin]) +
             std::to_string(x.src_offset);
      for (std::uint32_t l = x.first_landing; l < x.first_landing + x.landings; ++l)
        text += " -> " + std::to_string(p.landings[l].dst_offset) + shape(p.landings[l].geometry) +
                (p.landings[l].counted ? "counted" : "");
      out.push_back(text);
    }
  }
  for (const SealBox& s : p.seal) {
    std::string text = std::to_string(s.tensor.value) + shape(s.geometry) + numbers(p.origins[s.origin]) +
                       std::to_string(s.offset) + (s.counted ? "counted" : "") + std::to_string(s.group);
    out.push_back(text);
  }
  return out;
}

struct Case {
  const char *model, *from, *to;
};
constexpr Case kCases[] = {
    {"qwen3-30b-a3b@layers=1", "fsdp=4,tp=2", "vllm:tp=2,dp=2,ep=4,replicas=2"},
    {"qwen3-30b-a3b@layers=2", "tp=2,fsdp=3", "vllm:tp=4,gpus_per_host=2"},
    {"qwen3-30b-a3b@layers=1", "hf", "fsdp=5"},
    {"qwen3-30b-a3b@layers=1", "vllm:tp=8", "hf"},
};

TEST(PlanRules, ClassesAndWrittenOutRanksGiveEqualPlans) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.model) + " " + c.from + " -> " + c.to);
    const LayoutPtr source = rules(c.model, c.from), target = rules(c.model, c.to);
    const LayoutPtr source_ranks = written_out(*source), target_ranks = written_out(*target);
    const Options options;
    const auto world = make_world(*source, *target, options), same = make_world(*source_ranks, *target_ranks, options);
    ASSERT_TRUE(world.ok()) << world.error().to_string();
    ASSERT_TRUE(same.ok()) << same.error().to_string();
    EXPECT_EQ(world->bytes_needed, world->bytes_moved);
    EXPECT_EQ(world->bytes_moved, same->bytes_moved);
    EXPECT_EQ(world->segments, same->segments);
    EXPECT_EQ(world->buckets, same->buckets);
    EXPECT_EQ(world->bytes_local, same->bytes_local);
    EXPECT_EQ(world->bound_bytes, same->bound_bytes);
    ASSERT_EQ(world->links.size(), same->links.size());
    const auto plans = Plans::make(*source, *target, options),
               twins = Plans::make(*source_ranks, *target_ranks, options);
    ASSERT_TRUE(plans.ok() && twins.ok());
    for (const Side side : {Side::kSource, Side::kTarget}) {
      const std::int64_t ranks = (side == Side::kSource ? source : target)->world();
      for (std::int64_t r = 0; r < ranks; r += std::max<std::int64_t>(1, ranks / 3)) {
        const Rank rank(static_cast<std::uint32_t>(r));
        const auto a = plans->of(side, rank), b = twins->of(side, rank);
        ASSERT_TRUE(a.ok()) << a.error().to_string();
        ASSERT_TRUE(b.ok()) << b.error().to_string();
        EXPECT_EQ(meaning(*a), meaning(*b));
        EXPECT_EQ(a->shared_with, b->shared_with);
      }
    }
  }
}

// What the world's proof of overlaps relies on: ranks that are called alike lie alike.
TEST(PlanRules, RanksThatAreCalledAlikeLieAlike) {
  int compared = 0;
  for (const auto& [model, spec] : {std::pair("qwen3-30b-a3b@layers=2", "vllm:tp=4,dp=2,ep=8,replicas=2"),
                                    std::pair("deepseek-v3@layers=4", "vllm:tp=4,dp=2,draft=skip"),
                                    std::pair("smollm2-135m@layers=3", "vllm:tp=3,replicas=2"),
                                    std::pair("llama-3.1-8b@layers=1", "fsdp=3,tp=2"),
                                    std::pair("qwen3-next-80b-a3b@layers=4", "megatron:tp=2,pp=2,ep=2")}) {
    SCOPED_TRACE(std::string(model) + " " + spec);
    const LayoutPtr layout = rules(model, spec);
    const auto alike = layout->alike();
    ASSERT_TRUE(alike.ok());
    for (std::uint32_t r = 0; r < alike->size(); ++r) {
      const std::uint32_t first = (*alike)[r];
      ASSERT_LE(first, r);
      if (first == r) continue;
      ++compared;
      auto a = layout->expand(Rank(first)).value(), b = layout->expand(Rank(r)).value();
      ASSERT_EQ(a.holdings.size(), b.holdings.size());
      EXPECT_EQ(a.buffers, b.buffers);
      for (model::RankLayout* rank : {&a, &b})
        std::stable_sort(rank->holdings.begin(), rank->holdings.end(),
                         [](const model::Holding& x, const model::Holding& y) { return x.offset < y.offset; });
      for (std::size_t i = 0; i < a.holdings.size(); ++i) {
        const model::Holding &x = a.holdings[i], &y = b.holdings[i];
        ASSERT_EQ(std::tie(x.offset, x.strides, x.dtype, x.tensor), std::tie(y.offset, y.strides, y.dtype, y.tensor));
        for (std::size_t k = 0; k < x.box.size(); ++k) ASSERT_EQ(x.box[k].size(), y.box[k].size());
      }
    }
  }
  EXPECT_GT(compared, 16);
}

// Two factorings of an axis that do not divide each other, and one past the cap.
TEST(PlanViews, FactoringsThatDoNotNestAreSweptUpToTheCap) {
  const auto layout = [](std::int64_t outer, std::int64_t inner, bool turned) {
    model::Catalogue c{{{"w", {outer * inner}, DType::kU8}}, {}};
    model::RankLayout rank{.rank = Rank(0), .host = {}, .buffers = {}, .holdings = {}, .parameters = {}};
    rank.buffers.push_back({"m", outer * inner, 0, ""});
    rank.holdings.push_back({.tensor = TensorId(0),
                             .buffer = 0,
                             .view = View{{{outer, inner}}},
                             .box = {{0, outer}, {0, inner}},
                             .offset = 0,
                             .strides = turned ? Dims{1, outer} : Dims{inner, 1},
                             .dtype = DType::kU8});
    return model::explicit_layout(std::move(c), {rank}).value();
  };
  const auto w = make_world(*layout(3, 4, true), *layout(4, 3, true), {});
  ASSERT_TRUE(w.ok()) << w.error().to_string();
  EXPECT_EQ(w->bytes_moved, 12);
  EXPECT_EQ(w->segments, 6);  // runs of 4 against runs of 3
  const std::int64_t many = (1 << 20) + 7;
  const auto over = make_world(*layout(many, 2, true), *layout(2, many, true), {});
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().code, Code::kExhausted);
  EXPECT_EQ(over.error().tensor, "w");
  EXPECT_NE(over.error().message.find("262144"), std::string::npos);
}

}  // namespace
}  // namespace refit::plan
