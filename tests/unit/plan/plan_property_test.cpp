// Random layouts, executed element by element and compared with what they say.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "plan/plan.h"
#include "unit/plan/random_layouts.h"
#include "unit/plan/reference.h"

namespace refit::plan {
namespace {

using testing::each_element;
using testing::linear;
using testing::Memory;
using Element = std::pair<std::string, std::int64_t>;  // logical tensor, linear index

std::string root_name(const std::string& name) { return name == "z" ? "t0" : name; }

void each_loop(const Geometry& g, const Dims& origin,
               const std::function<void(const Dims&, std::int64_t, std::int64_t)>& visit) {
  Dims index = origin;
  const std::function<void(std::size_t, std::int64_t, std::int64_t)> walk = [&](std::size_t k, std::int64_t src,
                                                                                std::int64_t dst) {
    if (k == g.extents.size()) return visit(index, src, dst);
    const auto a = static_cast<std::size_t>(g.axis[k]);
    for (std::int64_t i = 0; i < g.extents[k]; ++i) {
      index[a] += i * g.steps[k];
      walk(k + 1, src + i * g.src_strides[k], g.dst_strides.empty() ? 0 : dst + i * g.dst_strides[k]);
      index[a] -= i * g.steps[k];
    }
  };
  walk(0, 0, 0);
}

class World2 {
 public:
  World2(const testing::RandomPair& pair, const Options& options) : pair_(pair), options_(options) {
    for (std::int64_t r = 0; r < pair.source->world(); ++r) source_.push_back(fill(*pair.source, rank(r)));
  }
  static Rank rank(std::int64_t r) { return Rank(static_cast<std::uint32_t>(r)); }

  // Eight bytes that an element should have; the dtype takes the first of them.
  std::uint64_t value(const model::Catalogue& c, std::uint32_t tensor, Dims index) const {
    for (int a : pair_.flat[tensor]) index[static_cast<std::size_t>(a)] = 0;
    std::uint64_t v = std::hash<std::string>{}(root_name(c.tensors[tensor].name)) +
                      0x9E3779B97F4A7C15ull * static_cast<std::uint64_t>(linear(c.tensors[tensor].shape, index) + 1);
    return v ^ v >> 31;
  }

  Memory fill(const model::Layout& layout, Rank r) const {
    return testing::fill(
        layout, r, [&](std::uint32_t tensor, const Dims& index) { return value(layout.catalogue(), tensor, index); });
  }

  void run() {
    plan_all();
    if (::testing::Test::HasFatalFailure()) return;
    for (const RankPlan& p : target_plans_) install(p);
    agree();
    count_sources();
    compare_world();
  }

 private:
  void plan_all() {
    for (std::int64_t r = 0; r < pair_.source->world(); ++r) {
      auto p = make_plan(*pair_.source, *pair_.target, options_, Side::kSource, rank(r));
      ASSERT_TRUE(p.ok()) << p.error().to_string();
      source_plans_.push_back(std::move(*p));
    }
    for (std::int64_t r = 0; r < pair_.target->world(); ++r) {
      auto p = make_plan(*pair_.source, *pair_.target, options_, Side::kTarget, rank(r));
      ASSERT_TRUE(p.ok()) << p.error().to_string();
      target_plans_.push_back(std::move(*p));
    }
  }

  // Moves the bytes of one target rank and compares all of its memory.
  void install(const RankPlan& p) {
    const auto held = pair_.target->expand(p.rank).value();
    Memory memory, written;
    for (const auto& b : held.buffers) {
      memory.emplace_back(static_cast<std::size_t>(b.bytes), b.fill);
      written.emplace_back(static_cast<std::size_t>(b.bytes), 0);
    }
    const auto instance = static_cast<std::int64_t>(p.rank.value) / (pair_.target->world() / pair_.target->instances());
    std::int64_t received = 0;
    for (const Bucket& b : p.buckets) {
      EXPECT_LE(b.bytes, p.bucket_limit);
      for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i) {
        const Piece& piece = p.pieces[i];
        received += piece.bytes;
        ASSERT_GE(piece.landings, 1u);
        for (std::uint32_t l = piece.first_landing; l < piece.first_landing + piece.landings; ++l) {
          const Landing& to = p.landings[l];
          const Geometry& g = p.geometries[to.geometry];
          const auto buffer = held.holdings[to.holding].buffer;
          const auto item = static_cast<std::size_t>(item_size(g.dst_dtype));
          std::int64_t elements = 0;
          each_loop(g, p.origins[piece.origin], [&](const Dims& index, std::int64_t src, std::int64_t dst) {
            ++elements;
            const auto at = static_cast<std::size_t>(to.dst_offset + dst);
            ASSERT_LE(at + item, memory[buffer].size());
            std::memcpy(&memory[buffer][at],
                        &source_[b.sender.value][piece.src_buffer][static_cast<std::size_t>(piece.src_offset + src)],
                        item);
            for (std::size_t k = 0; k < item; ++k) ++written[buffer][at + k];
            if (to.counted) ++counted_[instance][name(p, piece.tensor, index)];
          });
          EXPECT_EQ(elements * static_cast<std::int64_t>(item), piece.bytes);
        }
      }
    }
    EXPECT_EQ(received, p.bytes_needed);
    EXPECT_EQ(received, p.bytes_moved);
    EXPECT_EQ(memory, fill(*pair_.target, p.rank)) << "target rank " << p.rank.value;
    for (const auto& buffer : written)
      for (std::uint8_t n : buffer) ASSERT_LE(n, 1);
    for (const auto& h : held.holdings)
      each_element(h, [&](const Dims& index, std::int64_t) {
        wanted_[instance].insert(name(p,
                                      TensorId(static_cast<std::uint32_t>(
                                          p.catalogue->find(pair_.target->catalogue().tensors[h.tensor.value].name))),
                                      index));
      });
  }

  Element name(const RankPlan& p, TensorId tensor, const Dims& index) const {
    const auto& t = p.catalogue->tensors[tensor.value];
    return {root_name(t.name), linear(t.shape, index)};
  }

  // Both ends of every pair see the same buckets; each replica counts each element once.
  void agree() {
    const auto describe = [](const RankPlan& p, const Bucket& b) {
      std::string out = std::to_string(b.id.value) + "/" + std::to_string(b.bytes) + ":";
      for (Rank r : b.recipients) out += std::to_string(r.value) + ",";
      for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i) {
        const Piece& x = p.pieces[i];
        out += " " + std::to_string(x.tensor.value) + "@";
        for (std::int64_t o : p.origins[x.origin]) out += std::to_string(o) + ".";
        out += "+" + std::to_string(x.bytes) + "/" + std::to_string(x.src_buffer) + ":" + std::to_string(x.src_offset);
        for (std::int64_t e : p.geometries[x.geometry].extents) out += "x" + std::to_string(e);
        for (std::int64_t s : p.geometries[x.geometry].src_strides) out += "s" + std::to_string(s);
      }
      return out;
    };
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::string>> sent, received;
    for (const RankPlan& p : source_plans_)
      for (const Bucket& b : p.buckets) {
        EXPECT_EQ(b.sender, p.rank);
        for (Rank r : b.recipients) sent[{p.rank.value, r.value}].push_back(describe(p, b));
      }
    for (const RankPlan& p : target_plans_)
      for (const Bucket& b : p.buckets) received[{b.sender.value, p.rank.value}].push_back(describe(p, b));
    EXPECT_EQ(sent, received);
    for (const RankPlan& s : source_plans_) {
      std::set<std::uint32_t> ids;
      for (const Bucket& b : s.buckets) EXPECT_TRUE(ids.insert(b.id.value).second);
      for (const auto& [peer, hash] : s.shared_with) EXPECT_EQ(target_plans_[peer].shared_with.at(s.rank.value), hash);
    }
    for (const RankPlan& t : target_plans_) EXPECT_EQ(t.id, source_plans_[0].id);
    for (const auto& [instance, elements] : wanted_) {
      EXPECT_EQ(counted_[instance].size(), elements.size());
      for (const auto& [element, times] : counted_[instance])
        EXPECT_EQ(times, 1) << element.first << " " << element.second;
    }
  }

  // The sources count exactly what all targets want, once.
  void count_sources() {
    std::map<Element, int> counted;
    std::set<Element> wanted;
    for (const auto& [instance, elements] : wanted_) wanted.insert(elements.begin(), elements.end());
    std::map<std::tuple<std::uint64_t, std::string, Dims>, std::set<std::uint32_t>> groups;
    for (const RankPlan& p : source_plans_)
      for (const SealBox& s : p.seal) {
        if (s.counted)
          each_loop(p.geometries[s.geometry], p.origins[s.origin],
                    [&](const Dims& index, std::int64_t, std::int64_t) { ++counted[name(p, s.tensor, index)]; });
        EXPECT_TRUE(s.twin == kNoTwin || p.seal[s.twin].origin == s.origin);
        EXPECT_EQ(s.group != 0, s.owners.size() > 1);
        if (s.group)
          groups[{s.group, p.catalogue->tensors[s.tensor.value].name, p.origins[s.origin]}].insert(p.rank.value);
        EXPECT_TRUE(s.owners.empty() || s.counted == (s.owners.front() == p.rank));
      }
    EXPECT_EQ(counted.size(), wanted.size());
    for (const auto& [element, times] : counted) {
      EXPECT_EQ(times, 1);
      EXPECT_TRUE(wanted.contains(element));
    }
    for (const auto& [key, ranks] : groups) EXPECT_GT(ranks.size(), 1u);
  }

  void compare_world() {
    const auto w = make_world(*pair_.source, *pair_.target, options_);
    ASSERT_TRUE(w.ok()) << w.error().to_string();
    std::int64_t needed = 0, moved = 0, segments = 0, buckets = 0;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> links, world_links;
    for (const RankPlan& p : target_plans_) {
      needed += p.bytes_needed;
      moved += p.bytes_moved;
      segments += static_cast<std::int64_t>(p.pieces.size());
      for (const Bucket& b : p.buckets)
        for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i)
          links[{b.sender.value, p.rank.value}] += p.pieces[i].bytes;
    }
    for (const RankPlan& p : source_plans_) buckets += static_cast<std::int64_t>(p.buckets.size());
    for (const Link& l : w->links) world_links[{l.from, l.to}] = l.bytes;
    EXPECT_EQ(w->bytes_needed, needed);
    EXPECT_EQ(w->bytes_moved, moved);
    EXPECT_EQ(w->segments, segments);
    EXPECT_EQ(w->buckets, buckets);
    EXPECT_EQ(world_links, links);
    EXPECT_EQ(w->coverage, 1.0);
  }

  const testing::RandomPair& pair_;
  Options options_;
  std::vector<Memory> source_;
  std::vector<RankPlan> source_plans_, target_plans_;
  std::map<std::int64_t, std::map<Element, int>> counted_;
  std::map<std::int64_t, std::set<Element>> wanted_;
};

constexpr std::uint64_t kSeeds = 400;

TEST(PlanProperty, RandomLayoutsMoveEveryElementOnce) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto pair = testing::random_pair(seed);
    ASSERT_TRUE(pair.ok()) << pair.error().to_string();
    Options options;
    options.files = true;
    if (seed % 3 == 0) options.bucket_bytes = 24;
    if (seed % 5 == 0) options.staging_bytes = 400;
    World2(*pair, options).run();
    if (HasFailure()) return;
  }
}

TEST(PlanProperty, LayoutsSurviveTheirText) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto pair = testing::random_pair(seed);
    ASSERT_TRUE(pair.ok());
    const auto again = model::read_layout(pair->target->serialise());
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ((*again)->digest(), pair->target->digest());
    EXPECT_EQ((*again)->instances(), pair->target->instances());
    EXPECT_EQ((*again)->serialise(), pair->target->serialise());
    for (std::uint32_t r = 0; r < pair->target->world(); ++r)
      EXPECT_EQ((*again)->expand(Rank(r))->holdings, pair->target->expand(Rank(r))->holdings);
  }
}

}  // namespace
}  // namespace refit::plan
