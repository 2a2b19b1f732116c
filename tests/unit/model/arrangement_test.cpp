// The vocabulary itself, op by op, on arrays small enough to write out.
#include "model/rules/arrangement.h"
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

struct World {
  Symbols symbols{{"G", 2}, {"two", 2}};
  Mesh mesh = *Mesh::make({{"dp", 2}, {"tp", 4}});
  Coordinates at{0, 0};
};

// The array as "m:i" (member, logical linear index), "." for padding.
std::string laid(const World& w, const Program& program, std::vector<Dims> members, std::int64_t experts = 0) {
  const auto made = run(program, {&w.symbols, &w.mesh, &w.at, members, experts});
  if (!made.ok()) return made.error().to_string();
  std::vector<std::string> out(static_cast<std::size_t>(elements(whole(made->shape))), ".");
  for (const Piece& p : made->pieces) {
    const Lie lie = lie_of(p, made->shape);
    Holding h{.tensor = {},
              .buffer = 0,
              .view = lie.view,
              .box = lie.box,
              .offset = lie.offset,
              .strides = lie.strides,
              .dtype = DType::kU8};
    each_element(h, members[static_cast<std::size_t>(p.member)], [&](std::int64_t logical, std::int64_t offset) {
      out.at(static_cast<std::size_t>(offset)) = (p.expert >= 0 ? std::to_string(p.expert) + "/" : "") +
                                                 std::to_string(p.member) + ":" + std::to_string(logical);
    });
  }
  std::string text;
  for (const std::string& s : out) text += (text.empty() ? "" : " ") + s;
  return text;
}

TEST(Ops, LoadCutConcatPad) {
  World w;
  EXPECT_EQ(laid(w, {op::load(0)}, {{2, 2}}), "0:0 0:1 0:2 0:3");
  w.at = {0, 1};
  EXPECT_EQ(laid(w, {op::load(0), op::cut(0, CutRule::kEven, "tp")}, {{4, 2}}), "0:2 0:3");
  EXPECT_EQ(laid(w, {op::load(0), op::cut(1, CutRule::kEven, "tp")}, {{2, 4}}), "0:1 0:5");
  EXPECT_EQ(laid(w, {op::load(0), op::load(1), op::concat(0, 2)}, {{1, 2}, {2, 2}}), "0:0 0:1 1:0 1:1 1:2 1:3");
  EXPECT_EQ(laid(w, {op::load(0), op::pad(0, "4")}, {{3}}), "0:0 0:1 0:2 .");
  EXPECT_EQ(laid(w, {op::load(0), op::cut(0, CutRule::kEven, "tp")}, {{6}}),
            "invalid: an extent of 6 does not divide by tp=4");
  EXPECT_EQ(laid(w, {op::load(0), op::cut(0, CutRule::kEven, "tp")}, {{0}}), "");
}

TEST(Ops, SquareTransposeIsNotGuessed) {
  World w;
  EXPECT_EQ(laid(w, {op::load(0), op::permute("1,0")}, {{3, 3}}), "0:0 0:3 0:6 0:1 0:4 0:7 0:2 0:5 0:8");
  EXPECT_EQ(laid(w, {op::load(0), op::permute("2,0,1")}, {{1, 2, 2}}), "0:0 0:2 0:1 0:3");
  EXPECT_THAT(laid(w, {op::load(0), op::permute("0,0")}, {{2, 2}}), testing::HasSubstr("no permutation"));
}

TEST(Ops, SqueezeKeepsTheOrder) {
  World w;
  EXPECT_EQ(laid(w, {op::load(0), op::squeeze(1)}, {{2, 1, 2}}), "0:0 0:1 0:2 0:3");
  w.at = {0, 1};
  EXPECT_EQ(laid(w, {op::load(0), op::squeeze(1), op::cut(0, CutRule::kEven, "tp")}, {{4, 1, 2}}), "0:2 0:3");
  EXPECT_THAT(laid(w, {op::load(0), op::squeeze(0)}, {{2, 1}}), testing::HasSubstr("longer than 1"));
}

TEST(Ops, InterleaveAndCutThroughIt) {
  World w;
  const Program groups{op::load(0), op::view(0, "G,3"), op::load(1), op::view(0, "G,1"), op::interleave(0, 2)};
  EXPECT_EQ(laid(w, groups, {{6}, {2}}), "0:0 0:1 0:2 1:0 0:3 0:4 0:5 1:1");
  Program cut = groups;
  cut.push_back(op::cut(0, CutRule::kChunk, "dp*tp"));
  std::string all;
  for (w.at = {0, 0}; w.at[0] < 2; ++w.at[0])
    for (w.at[1] = 0; w.at[1] < 4; ++w.at[1]) all += laid(w, cut, {{6}, {2}}) + "|";
  EXPECT_EQ(all, "0:0|0:1|0:2|1:0|0:3|0:4|0:5|1:1|");
  // Gate and up alternating element by element.
  EXPECT_EQ(
      laid(w, {op::load(0), op::view(0, "3,1"), op::load(1), op::view(0, "3,1"), op::interleave(0, 2)}, {{3}, {3}}),
      "0:0 1:0 0:1 1:1 0:2 1:2");
}

TEST(Ops, StackChoosesExperts) {
  World w;
  w.at = {0, 3};
  EXPECT_EQ(laid(w, {op::load(0), op::stack()}, {{2}}, 2), "0/0:0 0/0:1 1/0:0 1/0:1");
  EXPECT_EQ(laid(w, {op::load(0), op::stack(), op::cut(0, CutRule::kLinear, "tp")}, {{1}}, 10), "8/0:0 9/0:0");
  EXPECT_EQ(laid(w, {op::load(0), op::stack(), op::cut(0, CutRule::kChunk, "tp")}, {{1}}, 10), "9/0:0");
  EXPECT_EQ(laid(w, {op::load(0), op::stack(), op::cut(1, CutRule::kEven, "tp")}, {{4}}, 2), "0/0:3 1/0:3");
}

TEST(Ops, CutTables) {
  const Symbols none;
  const auto all = [&](Cut cut, std::int64_t extent, std::int64_t parts) {
    std::string out;
    for (std::int64_t i = 0; i < parts; ++i) {
      const auto made = cut_interval(cut, extent, {i, parts}, none);
      out += made.ok() ? std::to_string(made->lo) + "-" + std::to_string(made->hi) + " " : "refused ";
    }
    return out;
  };
  EXPECT_EQ(all({CutRule::kChunk, "x"}, 10, 4), "0-3 3-6 6-9 9-10 ");
  EXPECT_EQ(all({CutRule::kChunk, "x"}, 5, 4), "0-2 2-4 4-5 5-5 ");
  EXPECT_EQ(all({CutRule::kChunk, "x"}, 0, 2), "0-0 0-0 ");
  EXPECT_EQ(all({CutRule::kBlock, "x", "32"}, 2880, 4), "0-736 736-1472 1472-2208 2208-2880 ");
  EXPECT_EQ(all({CutRule::kBlock, "x", "32"}, 96, 2), "0-64 64-96 ");
  EXPECT_EQ(all({CutRule::kLinear, "x"}, 10, 4), "0-3 3-6 6-8 8-10 ");
  EXPECT_EQ(all({CutRule::kLinear, "x"}, 1, 2), "0-1 1-1 ");
  EXPECT_EQ(all({CutRule::kShare, "x", "2"}, 8, 4), "0-4 0-4 4-8 4-8 ");
  EXPECT_EQ(all({CutRule::kShare, "x", "4"}, 8, 2), "0-4 4-8 ");
  EXPECT_EQ(all({CutRule::kShare, "x", "4"}, 8, 6), "refused refused refused refused refused refused ");
  EXPECT_EQ(all({CutRule::kEven, "x"}, 10, 4), "refused refused refused refused ");
}

TEST(Ops, WrongProgramsAreErrors) {
  World w;
  for (const Program& wrong :
       {Program{}, Program{op::load(1)}, Program{op::concat(0, 2)}, Program{op::load(0), op::load(0)},
        Program{op::load(0), op::cut(1, CutRule::kEven, "tp")}, Program{op::load(0), op::view(0, "3,2")},
        Program{op::load(0), op::view(0, "Q,2")}, Program{op::load(0), op::interleave(0, 1)},
        Program{op::load(0), op::cast("f99")}})
    EXPECT_FALSE(run(wrong, {&w.symbols, &w.mesh, &w.at, {{4}}, 0}).ok()) << to_string(wrong);
}

TEST(Ops, PlainSlicesHavePlainBoxes) {
  World w;
  const auto made = run({op::load(0), op::view(0, "G,4"), op::load(1), op::view(0, "G,1"), op::interleave(0, 2),
                         op::cut(0, CutRule::kEven, "dp")},
                        {&w.symbols, &w.mesh, &w.at, {{8, 3}, {2, 3}}, 0});
  ASSERT_TRUE(made.ok());
  for (const Piece& p : made->pieces) EXPECT_TRUE(lie_of(p, made->shape).view.is_trivial());
}

}  // namespace
}  // namespace refit::model::test
