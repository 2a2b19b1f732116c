// F02 and F03: fused QKV with fewer KV heads than ranks, and segmented fused weights.
#include "cases/plan/desk.h"

namespace refit::testing {
namespace {

constexpr std::int64_t kHq = 8, kHkv = 2, kHd = 4, kQpg = kHq / kHkv, kColumns = 3;
std::vector<model::LogicalTensor> qkv() {
  return {{"q", {kHq * kHd, kColumns}, DType::kBF16},
          {"k", {kHkv * kHd, kColumns}, DType::kBF16},
          {"v", {kHkv * kHd, kColumns}, DType::kBF16}};
}

// Rows interleaved per KV group as [q…, k, v] and cut evenly: the cut may pass through heads.
LayoutPtr interleaved(std::int64_t tp) {
  Draft d(qkv());
  constexpr std::int64_t kGroup = (kQpg + 2) * kHd;
  const std::int64_t rows = kHkv * kGroup / tp, row_bytes = kColumns * 2;
  for (std::int64_t t = 0; t < tp; ++t) {
    const auto rank = static_cast<std::uint32_t>(t);
    const Interval mine{t * rows, (t + 1) * rows};
    const auto hold = [&](const char* name, std::int64_t at, std::int64_t per_group) {
      for (std::int64_t g = 0; g < kHkv; ++g) {
        const Interval cut = intersect(mine, {g * kGroup + at, g * kGroup + at + per_group});
        if (cut.empty()) continue;
        const std::int64_t lo = g * per_group + cut.lo - g * kGroup - at;
        auto& h = d.add(rank, name, {{lo, lo + cut.size()}, {0, kColumns}});
        h.offset = (cut.lo - mine.lo) * row_bytes;
      }
    };
    hold("q", 0, kQpg * kHd);
    hold("k", kQpg * kHd, kHd);
    hold("v", (kQpg + 1) * kHd, kHd);
    d.rank(rank).buffers[0].bytes = rows * row_bytes;
  }
  return d.done();
}

// The same memory said with views where whole groups lie on a rank.
LayoutPtr interleaved_by_view(std::int64_t tp) {
  Draft d(qkv());
  constexpr std::int64_t kGroup = (kQpg + 2) * kHd;
  const std::int64_t row_bytes = kColumns * 2, groups = kHkv / tp;
  for (std::int64_t t = 0; t < tp; ++t) {
    const auto hold = [&](const char* name, std::int64_t at, std::int64_t per_group) {
      auto& h =
          d.add(static_cast<std::uint32_t>(t), name, {{t * groups, (t + 1) * groups}, {0, per_group}, {0, kColumns}},
                View{{{kHkv, per_group}, {kColumns}}});
      h.offset = at * row_bytes;
      h.strides = {kGroup * row_bytes, row_bytes, 2};
    };
    hold("q", 0, kQpg * kHd);
    hold("k", kQpg * kHd, kHd);
    hold("v", (kQpg + 1) * kHd, kHd);
    d.rank(static_cast<std::uint32_t>(t)).buffers[0].bytes = groups * kGroup * row_bytes;
  }
  return d.done();
}

// q block, k block, v block a rank; KV heads are replicated when there are more ranks than heads.
LayoutPtr engine(std::int64_t tp) {
  Draft d(qkv());
  for (std::int64_t t = 0; t < tp; ++t) {
    const auto rank = static_cast<std::uint32_t>(t);
    const std::int64_t q = kHq * kHd / tp, kv = std::max(kHkv / tp, std::int64_t{1}) * kHd;
    const std::int64_t first = tp <= kHkv ? t * kv : t / (tp / kHkv) * kHd;
    d.add(rank, "q", {{t * q, (t + 1) * q}, {0, kColumns}});
    d.add(rank, "k", {{first, first + kv}, {0, kColumns}});
    d.add(rank, "v", {{first, first + kv}, {0, kColumns}});
  }
  return d.done();
}

using F02 = Desk;

TEST_F(F02, EverySourceMeetsEveryTarget) {
  for (std::int64_t from : {1, 2, 4, 8})
    for (std::int64_t to : {1, 2, 4, 8}) {
      SCOPED_TRACE(std::to_string(from) + " -> " + std::to_string(to));
      expect_moved(interleaved(from), engine(to));
    }
  for (std::int64_t from : {1, 2}) expect_moved(interleaved_by_view(from), engine(8));
  expect_moved(engine(4), interleaved(8));
  expect_moved(engine(2), interleaved_by_view(2));
}

// 8 sources, 4 targets: 64 rows are needed from 48, each q row once and each k or v row twice.
TEST_F(F02, OnlyNeededRowsMove) {
  const auto w = plan::make_world(*interleaved(8), *engine(4), options_);
  ASSERT_TRUE(w.ok()) << w.error().to_string();
  EXPECT_EQ(w->bytes_needed, (kHq * kHd + 2 * 2 * kHkv * kHd) * kColumns * 2);
  EXPECT_EQ(w->bytes_moved, w->bytes_needed);
}

TEST_F(F02, ViewsDoNotFallIntoOneBoxPerHead) {
  const auto w = plan::make_world(*interleaved_by_view(1), *engine(1), options_);
  ASSERT_TRUE(w.ok()) << w.error().to_string();
  EXPECT_EQ(w->segments, 3);
}

using F03 = Desk;

TEST_F(F03, SegmentsAreCutEachForItself) {
  const std::vector<std::int64_t> sizes{8, 8, 2, 2, 4};
  std::vector<model::LogicalTensor> tensors{
      {"conv", {6, 1, 4}, DType::kBF16}, {"head", {4}, DType::kF32}, {"fused", {24, 5}, DType::kBF16}};
  Draft s(tensors), t(tensors);
  s.add(0, "fused", {{0, 24}, {0, 5}});
  s.add(0, "conv", {{0, 6}, {0, 1}, {0, 4}});
  s.add(0, "head", {{0, 4}});
  for (std::uint32_t r = 0; r < 2; ++r) {
    std::int64_t at = 0;
    for (std::int64_t n : sizes) {
      t.add(r, "fused", {{at + r * n / 2, at + (r + 1) * n / 2}, {0, 5}});
      at += n;
    }
    t.add(r, "conv", {{r * 3, r * 3 + 3}, {0, 1}, {0, 4}});
    t.add(r, "head", {{r * 2, r * 2 + 2}});
  }
  const auto target = t.done();
  expect_moved(s.done(), target);
  // The test itself: plain halves would be other bytes.
  Draft halves(tensors);
  halves.add(0, "fused", {{0, 12}, {0, 5}});
  auto first = result(0);
  first.resize(120);
  EXPECT_NE(reference(*halves.done(), 0)[0], first);
}

}  // namespace
}  // namespace refit::testing
