// Plan, seal, stage and apply in one process: what the agents do, without the control plane between them.
#include <gtest/gtest.h>

#include "unit/datapath/stage.h"

namespace refit::agent {
namespace {

class DataPath : public testing::TestWithParam<Case> {};

// L3: stall is judged on a counter, so a scan that is longer than the stall deadline must be seen to move.
TEST_P(DataPath, LongScansAndCopiesAreSeenToMove) {
  Stage s(GetParam());
  const auto told = [&](std::int64_t bytes, auto work) {
    s.windows = 0;
    work();
    EXPECT_GE(s.windows, bytes / s.progress.every_bytes);
  };
  std::int64_t sealed = 0;
  told(0, [&] { s.seal(true); });
  EXPECT_GT(s.windows, 1);
  sealed = s.sealers[0]->scanned_bytes();
  told(sealed, [&] { ASSERT_TRUE(s.sealers[0]->rescan().ok()); });
  ASSERT_TRUE(s.stage(0).ok());
  install::StagedExecutor& x = *s.executors[0];
  std::int64_t held = 0;
  for (const install::BufferRef& b : x.table().buffers) {
    held += b.bytes;
    for (const auto& [lo, hi] : b.gaps) held -= hi - lo;
  }
  told(held, [&] { ASSERT_TRUE(x.verify(true).ok()); });
  told(2 * held, [&] { ASSERT_TRUE(x.apply(true).ok()); });
  told(held, [&] { ASSERT_TRUE(x.apply(false).ok()); });
  told(held, [&] { ASSERT_TRUE(x.prove_live().ok()); });
}

TEST_P(DataPath, StagedBytesAndDigestsAgreeOverTwoVersions) {
  Stage s(GetParam());
  const engine::StepRule rule{.seed = 3, .share = 0.2};
  for (int version = 0; version < 2; ++version) {
    if (version == 1)
      for (auto& t : s.trainers) t->step(rule, 1);
    s.seal(true);
    kernel::Digest sources;
    std::map<std::uint64_t, kernel::Digest> groups;
    for (const Seal& seal : s.seals) {
      sources += seal.counted;
      for (const auto& [g, d] : seal.groups)
        EXPECT_EQ(groups.try_emplace(g, d).first->second, d) << "owners of one box disagree";
    }
    const std::int64_t per = s.target->world() / s.target->instances();
    for (std::int64_t i = 0; i < s.target->instances(); ++i) {
      kernel::Digest replica;
      for (std::int64_t r = i * per; r < (i + 1) * per; ++r) {
        auto& x = *s.executors[static_cast<std::size_t>(r)];
        ASSERT_TRUE(s.stage(static_cast<std::size_t>(r)).ok())
            << s.stage(static_cast<std::size_t>(r)).error().to_string();
        ASSERT_TRUE(x.verify(true).ok());
        const Status applied = x.apply(version == 0);
        ASSERT_TRUE(applied.ok()) << applied.error().to_string();
        EXPECT_TRUE(x.prove_live().ok());
        replica += x.counted();
      }
      EXPECT_EQ(replica, sources) << "the replica's digest is not the version's";
    }
    s.expect_live(version, rule);
    for (auto& sealer : s.sealers) EXPECT_TRUE(sealer->rescan().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DataPath,
    testing::Values(Case{kLlama, "fsdp=2,tp=2", "vllm:tp=3"}, Case{kLlama, "fsdp=4", "vllm:tp=1,replicas=2"},
                    Case{kLlama, "tp=3", "vllm:tp=3,replicas=2"}, Case{kLlama, "megatron:tp=3", "vllm:tp=3"},
                    Case{kLlama, "hf", "vllm:tp=3"}, Case{kMoe, "fsdp=3", "vllm:tp=2"},
                    Case{kMoe, "fsdp=2,tp=2", "vllm:tp=2,dp=2,ep=4"}, Case{kMoe, "tp=2", "vllm:tp=4"},
                    Case{kMoe, "fsdp=2,tp=2", "vllm:tp=2,dp=2"}, Case{kLlama, "fsdp=2,tp=2", "vllm:tp=3", true},
                    Case{kLlama, "tp=3", "vllm:tp=3,replicas=2", true},
                    Case{kLlama, "megatron:tp=3", "vllm:tp=3", true},
                    Case{kMoe, "fsdp=2,tp=2", "vllm:tp=2,dp=2,ep=4", true}, Case{kMamba, "fsdp=2", "vllm:tp=2"},
                    Case{kMamba, "megatron:tp=2", "vllm:tp=2,replicas=2", true},
                    Case{kDelta, "megatron:tp=2", "vllm:tp=2"}, Case{kDelta, "megatron:tp=2,pp=2", "vllm:tp=1", true}));

TEST(DataPathFaults, AWriteAfterTheSealIsFoundByTargetAndByRescan) {
  Stage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.seal(true);
  s.trainers[0]->regions()[0].data[0] ^= std::byte{1};
  const Status staged = s.stage(0);
  ASSERT_FALSE(staged.ok());
  EXPECT_EQ(staged.error().code, Code::kCorrupt);
  EXPECT_FALSE(staged.error().tensor.empty());
  EXPECT_FALSE(s.sealers[0]->rescan().ok());
}

TEST(DataPathFaults, MissingAndRepeatedBucketsAreRefused) {
  Stage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.seal(false);
  s.executors[0]->begin();
  EXPECT_EQ(s.executors[0]->verify(false).error().code, Code::kMismatch);
  ASSERT_TRUE(s.stage(0).ok());
  const auto& b = s.executors[0]->table().buckets[0];
  std::vector<const std::byte*> bases(b.segments.size(), s.trainers[0]->regions()[0].data);
  EXPECT_EQ(s.executors[0]->stage(0, bases, {}).error().code, Code::kInvalid);
}

TEST(DataPathFaults, LiveDamageIsFoundByProof) {
  Stage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.seal(false);
  ASSERT_TRUE(s.stage(0).ok());
  ASSERT_TRUE(s.executors[0]->verify(false).ok());
  ASSERT_TRUE(s.executors[0]->apply(true).ok());
  ASSERT_TRUE(s.executors[0]->prove_live().ok());
  std::byte* live = s.engines[0]->regions()[0].data;
  live[40] ^= std::byte{1};
  EXPECT_EQ(s.executors[0]->prove_live().error().code, Code::kCorrupt);
  live[40] ^= std::byte{1};
  // A pad of the vocabulary: outside every digest, compared with its fill.
  const auto gaps = gaps_of(s.engines[0]->rank_layout(), 0);
  ASSERT_FALSE(gaps.empty());
  live[gaps.back().first] = std::byte{7};
  EXPECT_EQ(s.executors[0]->prove_live().error().code, Code::kCorrupt);
}

// F09 on the way to a target: a cast that loses values needs permission; with it, a re-read compares what is stored.
TEST(DataPathFaults, ALossyCastNeedsPermissionAndThenProves) {
  const auto source = model::read_layout(
      R"({"tensors":{"w":{"shape":[4],"dtype":"f32"}},"ranks":[{"rank":0,"buffers":{"b":{"bytes":16}},
    "holdings":[{"tensor":"w","box":[[0,4]],"buffer":"b","offset":0,"strides":[4]}]}]})");
  const auto target =
      model::read_layout(R"({"tensors":{"w":{"shape":[4],"dtype":"f32"}},"ranks":[{"rank":0,"buffers":{"b":{"bytes":8}},
    "holdings":[{"tensor":"w","box":[[0,4]],"buffer":"b","offset":0,"strides":[2],"dtype":"bf16"}]}]})");
  ASSERT_TRUE(source.ok() && target.ok());
  std::vector<float> values = {1.0f, 1.0f + 1.0f / 4096, -2.5f, 0.0f};
  for (const bool allowed : {false, true}) {
    plan::Options options;
    if (allowed) options.allow_cast = {"*"};
    memory::Budget budget(1 << 24);
    const auto sending = plan::make_plan(**source, **target, options, plan::Side::kSource, Rank(0));
    const auto receiving = plan::make_plan(**source, **target, options, plan::Side::kTarget, Rank(0));
    ASSERT_TRUE(sending.ok() && receiving.ok());
    const memory::RegionRef lent{reinterpret_cast<std::byte*>(values.data()), 16, memory::Kind::kHost, nullptr};
    Sealer sealer(*sending, {&lent, 1}, kSeed, {});
    const auto seal = sealer.seal(true);
    ASSERT_TRUE(seal.ok());
    std::vector<std::byte> live(8);
    const auto rank = (*target)->expand(Rank(0));
    auto x = install::StagedExecutor::make(lower_target(*receiving, **target, *rank, {0}, options, false),
                                           {{live.data(), 8, memory::Kind::kHost, nullptr}}, kSeed, {}, &budget);
    ASSERT_TRUE(x.ok());
    (*x)->begin();
    std::vector<install::TensorDigest> sealed;
    for (const auto& [tensor, digest] : seal->buckets[0].tensors) sealed.push_back({tensor.value, digest});
    const std::byte* base = lent.data;
    ASSERT_TRUE((*x)->stage(0, {&base, 1}, sealed).ok());
    const Status verified = (*x)->verify(true);
    EXPECT_EQ(verified.ok(), allowed);
    if (!allowed) {
      EXPECT_EQ(verified.error().code, Code::kMismatch);
      EXPECT_EQ(verified.error().tensor, "w");
      EXPECT_NE(verified.error().message.find("1 tensor (w)"), std::string::npos) << verified.error().message;
      continue;
    }
    EXPECT_TRUE((*x)->apply(true).ok());
    EXPECT_TRUE((*x)->prove_live().ok());
  }
}

// A stage and a cast to the wire's dtype are judged before anything is lent, and all tensors that lose are listed.
TEST(DataPathFaults, StagesAndCastsThatLoseValuesAreListed) {
  for (const bool allowed : {false, true}) {
    Stage s({kDelta, "megatron:tp=1", "vllm:tp=1"});
    // out_norm is kept in f32, A_log too: digits that bf16 has not.
    std::set<std::string> spoilt;
    for (const model::Holding& h : s.trainers[0]->rank_layout().holdings) {
      const std::string& name = s.source->catalogue().tensors[h.tensor.value].name;
      if (!name.ends_with("linear_attn.norm.weight") && h.dtype == s.source->catalogue().tensors[h.tensor.value].dtype) continue;
      const float odd = -0.1F;
      std::memcpy(s.trainers[0]->regions()[h.buffer].data + h.offset, &odd, sizeof odd);
      spoilt.insert(name);
    }
    ASSERT_FALSE(spoilt.empty());
    if (allowed) s.options.allow_cast = {"*.linear_attn.*"};
    const Status ran = s.stages[0]->run(s.trainers[0]->regions(), s.values[0].data(), {});
    EXPECT_EQ(ran.ok(), allowed);
    if (!allowed) {
      EXPECT_EQ(ran.error().code, Code::kMismatch);
      for (const std::string& name : spoilt)
        EXPECT_TRUE(!name.ends_with("norm.weight") || ran.error().message.find(name) != std::string::npos) << name;
    }
    const auto sealed = s.sealers[0]->seal(false);
    const bool casts = std::any_of(spoilt.begin(), spoilt.end(), [](const auto& n) { return !n.ends_with("norm.weight"); });
    EXPECT_EQ(sealed.ok(), allowed || !casts);
  }
}

}  // namespace
}  // namespace refit::agent
