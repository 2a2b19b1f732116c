// Boxes of a matrix as few strided rectangles: what a rank quantises is what lies there.
#include "plan/quantising.h"

#include <gmock/gmock.h>

namespace refit::plan {
namespace {

model::PatternShard shard(std::vector<Dims> radices, Box box, Dims strides) {
  model::PatternShard s;
  s.view = View{std::move(radices)};
  s.box = std::move(box);
  s.strides = std::move(strides);
  return s;
}

// Byte offset of each element, row-major, by the definition of a view.
std::vector<std::int64_t> places(const model::PatternShard& s) {
  std::vector<std::int64_t> out{0};
  for (std::size_t f = 0; f < s.box.size(); ++f) {
    std::vector<std::int64_t> next;
    for (const std::int64_t at : out)
      for (std::int64_t i = 0; i < s.box[f].size(); ++i) next.push_back(at + i * s.strides[f]);
    out = std::move(next);
  }
  return out;
}
std::vector<std::int64_t> of_rects(const model::PatternShard& s, std::int64_t cols) {
  std::map<std::int64_t, std::int64_t> out;
  for (const Rect& r : rects_of(s))
    for (std::int64_t i = r.rows.lo; i < r.rows.hi; ++i)
      for (std::int64_t j = r.cols.lo; j < r.cols.hi; ++j)
        EXPECT_TRUE(
            out.emplace(i * cols + j, r.offset + (i - r.rows.lo) * r.row_stride + (j - r.cols.lo) * r.col_stride)
                .second)
            << "an element twice";
  std::vector<std::int64_t> found;
  for (const auto& [at, offset] : out) found.push_back(offset);
  return found;
}

TEST(Rects, LieWhereTheViewSays) {
  const std::pair<model::PatternShard, std::size_t> cases[] = {
      {shard({{256}, {8}}, {{0, 256}, {0, 8}}, {16, 2}), 1},
      {shard({{4, 64}, {8}}, {{0, 4}, {0, 64}, {0, 8}}, {1024, 16, 2}), 1},
      {shard({{4, 64}, {8}}, {{1, 3}, {0, 64}, {0, 8}}, {2000, 16, 2}), 2},
      // A factor of one index between two that do not nest; its own stride says nothing.
      {shard({{4, 1, 64}, {8}}, {{0, 4}, {0, 1}, {0, 64}, {0, 8}}, {1600, 1600, 16, 2}), 4},
      {shard({{4, 1, 64}, {8}}, {{0, 4}, {0, 1}, {0, 64}, {0, 8}}, {1600, 7, 16, 2}), 4},
      {shard({{4, 1, 64}, {8}}, {{0, 4}, {0, 1}, {0, 64}, {0, 8}}, {0, 0, 16, 2}), 4},
      {shard({{4, 1, 64}, {8}}, {{0, 4}, {0, 1}, {0, 64}, {0, 8}}, {1024, 7, 16, 2}), 1},
      {shard({{4, 64, 1}, {8}}, {{0, 4}, {0, 64}, {0, 1}, {0, 8}}, {1600, 16, 5, 2}), 4},
  };
  for (const auto& [s, most] : cases) {
    EXPECT_EQ(of_rects(s, 8), places(s));
    EXPECT_LE(rects_of(s).size(), most);
  }
}

}  // namespace
}  // namespace refit::plan
