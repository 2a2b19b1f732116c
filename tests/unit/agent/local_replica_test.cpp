// A replica in one process: open whole or not at all.
#include "agent/local_replica.h"

#include <gtest/gtest.h>

#include "engine/engine.h"

namespace refit::agent {
namespace {

// A reference engine that may be told not to open.
struct Door final : engine::Instance {
  std::unique_ptr<engine::ReferenceEngine> engine;
  bool stuck = false, open = true;
  Status prepare(std::span<const std::string> tags) override { return engine->prepare(tags); }
  Status pause(Deadline deadline) override {
    open = false;
    return engine->pause(deadline);
  }
  Status resume() override {
    if (stuck) return Error(Code::kPeerLost, "does not open");
    open = true;
    return engine->resume();
  }
  Status invalidate(engine::CachePolicy policy) override { return engine->invalidate(policy); }
  Version version() const override { return engine->version(); }
  Status set_version(const Version& version) override { return engine->set_version(version); }
};

TEST(LocalReplica, ARankThatDoesNotOpenShutsTheOthers) {
  const std::string config = R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,
      "num_key_value_heads":2,"intermediate_size":8,"vocab_size":128})";
  const auto source = model::rule_layout(config, "hf").value(),
             target = model::rule_layout(config, "vllm:tp=2").value();
  std::vector<std::vector<std::byte>> bytes;
  std::vector<memory::RegionRef> regions;
  const model::RankLayout held = source->expand(Rank(0)).value();
  for (const model::BufferSpec& b : held.buffers) bytes.emplace_back(static_cast<std::size_t>(b.bytes));
  for (auto& b : bytes) regions.push_back({b.data(), std::ssize(b), memory::Kind::kHost, nullptr});
  std::vector<Door> doors(2);
  std::vector<LocalRank> ranks;
  for (std::uint32_t r = 0; r < 2; ++r) {
    doors[r].engine = engine::ReferenceEngine::make(target, Rank(r), nullptr).value();
    ranks.push_back({doors[r].engine.get(), &doors[r]});
  }
  auto replica = LocalReplica::make(source, regions, target, ranks, {}).value();
  const auto install = [&](std::uint64_t n) {
    const Lineage lineage{1, 2};
    return replica->install({lineage, Epoch(1), n}, {lineage, n, {}, static_cast<std::int64_t>(n)}, true);
  };
  ASSERT_TRUE(install(1).ok());
  EXPECT_TRUE(doors[0].open && doors[1].open);
  doors[1].stuck = true;
  const auto second = install(2);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().peer, "rank 1");
  EXPECT_EQ(second.error().stage, "reopened");
  EXPECT_TRUE(replica->fenced().has_value());
  EXPECT_FALSE(doors[0].open || doors[1].open);
  doors[1].stuck = false;
  ASSERT_TRUE(install(3).ok());
  EXPECT_TRUE(doors[0].open && doors[1].open && !replica->fenced());
}

}  // namespace
}  // namespace refit::agent
