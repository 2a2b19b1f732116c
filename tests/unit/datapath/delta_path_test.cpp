// Versions as deltas between the real halves: baseline and packer at the sources, the staged executor at the targets.
#include <gmock/gmock.h>

#include "agent/baseline.h"
#include "unit/datapath/stage.h"

namespace refit::agent {
namespace {

using testing::HasSubstr;

struct DeltaCase {
  const char* config;
  const char* source;
  const char* target;
  codec::Form form = codec::Form::kUndoable;
  bool in_file = false;
  std::vector<std::string> allow_cast = {};
};

// How one bucket goes out.
struct Sent {
  wire::Encoding encoding = wire::Encoding::kRaw;
  Hash128 base;
  std::vector<std::byte> payload;
};

Txn txn_of(std::uint64_t n) { return {{1, 1}, Epoch(1), n}; }

struct DeltaStage : Stage {
  std::vector<std::unique_ptr<Planned>> planned;
  std::vector<std::unique_ptr<Packer>> packers;
  std::vector<std::unique_ptr<Baseline>> baselines;
  std::vector<std::map<std::uint32_t, Sent>> sent;  // per source, by bucket
  std::map<wire::Encoding, int> counts;
  engine::StepRule rule{.seed = 3, .share = 0.02};

  explicit DeltaStage(const DeltaCase& c) : Stage(Case{c.config, c.source, c.target, true, Pack::kWire, c.allow_cast}) {
    for (std::size_t r = 0; r < trainers.size(); ++r) {
      planned.push_back(std::make_unique<Planned>());
      planned.back()->plan = source_plans[r];
      planned.back()->encode = Encode::kXor;
      packers.push_back(std::make_unique<Packer>(*planned.back(), trainers[r]->regions(), kernel::Exec{}));
      auto made = Baseline::make(*planned.back(), {c.form, c.in_file ? testing::TempDir() : "", {}, &budget});
      if (!made.ok()) throw std::runtime_error(made.error().to_string());
      baselines.push_back(std::move(*made));
    }
  }

  void train(std::int64_t step) {
    for (auto& t : trainers) t->step(rule, step);
  }

  // Everything that the sources would post in round `n` against the base of round `base`.
  void encode(std::uint64_t n, std::uint64_t base) {
    seal(true);
    sent.assign(trainers.size(), {});
    for (std::size_t r = 0; r < trainers.size(); ++r) {
      Baseline& b = *baselines[r];
      b.begin(txn_of(n), base > 0 ? txn_of(base) : Txn{}, seals[r]);
      for (std::size_t i = 0; i < source_plans[r].buckets.size(); ++i) {
        std::vector<std::byte> next(static_cast<std::size_t>(packers[r]->bytes(i)));
        ASSERT_TRUE(packers[r]->pack(i, next.data()).ok());
        if (packers[r]->lies_packed(i)) {
          std::vector<std::span<const std::byte>> parts;
          packers[r]->parts(i, parts);
          ASSERT_EQ(parts.size(), 1u);
          EXPECT_EQ(std::memcmp(parts[0].data(), next.data(), next.size()), 0);
        }
        Sent& out = sent[r][source_plans[r].buckets[i].id.value];
        if (b.serves(i)) {
          const auto choice = b.choose(i, next);
          ASSERT_TRUE(choice.ok()) << choice.error().to_string();
          out.encoding = choice->encoding;
          out.base = choice->base;
          out.payload.assign(choice->payload.begin(), choice->payload.end());
        } else if (std::byte* room = b.room(i)) {
          std::memcpy(room, next.data(), next.size());
          b.filled(i);
        }
        if (out.encoding == wire::Encoding::kRaw) out.payload = std::move(next);
        ++counts[out.encoding];
      }
    }
  }

  Status stage_bucket(std::size_t rank, std::size_t b) {
    install::StagedExecutor& x = *executors[rank];
    const install::BucketTable& bucket = x.table().buckets[b];
    const std::size_t sender = bucket.sender - 100;
    std::vector<install::TensorDigest> sealed;
    for (const SealedBucket& s : seals[sender].buckets)
      if (s.bucket == bucket.id)
        for (const auto& [tensor, digest] : s.tensors) sealed.push_back({tensor.value, digest});
    const Sent& in = sent[sender].at(bucket.id.value);
    if (in.encoding == wire::Encoding::kUnchanged) return x.stage_unchanged(b, in.base, sealed);
    if (in.encoding == wire::Encoding::kDelta) return x.stage_delta(b, in.base, in.payload, sealed);
    std::vector<const std::byte*> bases;
    for (std::int64_t start : bucket.packed_starts) bases.push_back(in.payload.data() + start);
    return x.stage(b, bases, sealed);
  }

  // As much of the round as `buckets` says.
  Status stage_round(std::size_t rank, std::uint64_t n, std::uint64_t base, std::size_t buckets = ~std::size_t{0}) {
    install::StagedExecutor& x = *executors[rank];
    x.begin(txn_of(n), base > 0 ? txn_of(base) : Txn{});
    for (std::size_t b = 0; b < std::min(buckets, x.table().buckets.size()); ++b) REFIT_TRY(stage_bucket(rank, b));
    return {};
  }

  void commit_sources(std::uint64_t n) {
    for (std::size_t r = 0; r < baselines.size(); ++r) {
      const auto moved = baselines[r]->move(txn_of(n), packers[r].get(), *sealers[r]);
      ASSERT_TRUE(moved.ok()) << moved.error().to_string();
      EXPECT_EQ(*moved, 0u);
      EXPECT_EQ(baselines[r]->prove(*sealers[r]), 0u) << "the base is not what was sealed";
    }
  }

  // A whole committed round on all ranks.
  void round(std::uint64_t n, std::uint64_t base, bool proof) {
    encode(n, base);
    kernel::Digest sources;
    for (const Seal& s : seals) sources += s.counted;
    const std::size_t per = executors.size() / static_cast<std::size_t>(target->instances());
    for (std::size_t first = 0; first < executors.size(); first += per) {
      kernel::Digest replica;
      for (std::size_t rank = first; rank < first + per; ++rank) {
        const Status staged = stage_round(rank, n, base);
        ASSERT_TRUE(staged.ok()) << "round " << n << ": " << staged.error().to_string();
        ASSERT_TRUE(executors[rank]->verify(proof).ok());
        ASSERT_TRUE(executors[rank]->apply(proof).ok());
        EXPECT_TRUE(executors[rank]->retained());
        replica += executors[rank]->counted();
      }
      EXPECT_EQ(replica, sources);
    }
    commit_sources(n);
  }
};

class DeltaPath : public testing::TestWithParam<DeltaCase> {};

TEST_P(DeltaPath, DenseThenDeltasWithAnAbortBetween) {
  DeltaStage s(GetParam());
  s.round(1, 0, true);
  EXPECT_EQ(s.counts[wire::Encoding::kDelta], 0);
  s.expect_live(0, s.rule);
  s.train(1);
  s.round(2, 1, false);
  EXPECT_GT(s.counts[wire::Encoding::kDelta], 0);
  s.expect_live(1, s.rule);

  // Round 3 is aborted after all, half, or nothing of it was staged: nothing moves.
  s.train(2);
  s.encode(3, 2);
  for (std::size_t rank = 0; rank < s.executors.size(); ++rank) {
    const std::size_t all = s.executors[rank]->table().buckets.size();
    ASSERT_TRUE(s.stage_round(rank, 3, 2, rank % 3 == 0 ? all : rank % 3 == 1 ? all / 2 : 0).ok());
    s.executors[rank]->abort();
    EXPECT_TRUE(s.executors[rank]->prove_live().ok());
  }
  s.expect_live(1, s.rule);
  s.train(3);
  s.round(4, 2, false);
  s.expect_live(3, s.rule);
  // A version in which nothing changed: no bucket carries a payload.
  s.counts.clear();
  s.round(5, 4, false);
  EXPECT_EQ(s.counts[wire::Encoding::kDelta] + s.counts[wire::Encoding::kRaw], 0);
  for (auto& x : s.executors) {
    EXPECT_EQ(x->proof().placed_staged, 0) << "digests were carried over, which is no proof of this round";
    EXPECT_EQ(x->proof().placed_live, static_cast<std::int64_t>(x->tensors_held()));
    EXPECT_TRUE(x->prove_live().ok());
  }
  s.expect_live(3, s.rule);
}

// A base that is damaged after an abort, and unchanged buckets that lay under an aborted round.
TEST_P(DeltaPath, UnchangedBucketsComeBackFromLive) {
  DeltaStage s(GetParam());
  s.round(1, 0, true);
  s.train(1);
  s.encode(2, 1);
  for (std::size_t rank = 0; rank < s.executors.size(); ++rank) {
    ASSERT_TRUE(s.stage_round(rank, 2, 1).ok());
    s.executors[rank]->abort();
  }
  for (auto& t : s.trainers) t->randomise(kSeed);  // back to step 0
  s.counts.clear();
  s.round(3, 1, true);
  EXPECT_EQ(s.counts[wire::Encoding::kDelta] + s.counts[wire::Encoding::kRaw], 0);
  s.expect_live(0, s.rule);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeltaPath,
                         testing::Values(DeltaCase{kLlama, "fsdp=2,tp=2", "vllm:tp=3"},
                                         DeltaCase{kLlama, "fsdp=4", "vllm:tp=1,replicas=2"},
                                         DeltaCase{kLlama, "megatron:tp=3", "vllm:tp=3", codec::Form::kOverwrite},
                                         DeltaCase{kMoe, "fsdp=2,tp=2", "vllm:tp=2,dp=2,ep=4"},
                                         DeltaCase{kMoe, "tp=2", "vllm:tp=4", codec::Form::kUndoable, true}));

TEST(DeltaPathFaults, NoDriftOver50Versions) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=3"});
  s.round(1, 0, true);
  for (std::uint64_t n = 2; n <= 50; ++n) {
    s.train(static_cast<std::int64_t>(n) - 1);
    s.round(n, n - 1, n % 10 == 0);
    if (testing::Test::HasFatalFailure()) return;
  }
  s.expect_live(49, s.rule);
}

TEST(DeltaPathFaults, WrongBasesAndHostileDeltasWriteNothing) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.round(1, 0, true);
  s.train(1);
  s.encode(2, 1);
  install::StagedExecutor& x = *s.executors[0];
  const std::size_t buckets = x.table().buckets.size();
  // No base is offered in this round.
  x.begin(txn_of(2), {});
  const Status without = s.stage_bucket(0, 0);
  EXPECT_EQ(without.error().code, Code::kMismatch);
  EXPECT_FALSE(without.error().bucket.empty());
  // A base that this rank does not hold.
  x.begin(txn_of(2), txn_of(7));
  EXPECT_EQ(s.stage_bucket(0, 0).error().code, Code::kMismatch);
  // The right base, another one named in the header, and damaged payloads.
  for (std::size_t b = 0; b < buckets; ++b) {
    x.begin(txn_of(2), txn_of(1));
    Sent& in = s.sent[x.table().buckets[b].sender - 100].at(x.table().buckets[b].id.value);
    if (in.encoding != wire::Encoding::kDelta) continue;
    const Sent good = in;
    in.base.lo ^= 1;
    EXPECT_THAT(s.stage_bucket(0, b).error().message, HasSubstr("this rank holds"));
    in = good;
    in.payload[in.payload.size() / 2] ^= std::byte{1};
    EXPECT_EQ(s.stage_bucket(0, b).error().code, Code::kCorrupt);
    in = good;
    in.payload.pop_back();
    EXPECT_EQ(s.stage_bucket(0, b).error().code, Code::kCorrupt);
    in = good;
  }
  // None of them has touched the shadow: all of it still is the base.
  ASSERT_TRUE(s.stage_round(0, 2, 1).ok());
  ASSERT_TRUE(x.verify(true).ok());
  ASSERT_TRUE(x.apply(true).ok());
  s.expect_live(1, s.rule);
  // Round 1's deltas do not go on top of round 2.
  x.begin(txn_of(3), txn_of(2));
  EXPECT_THAT(s.stage_bucket(0, 0).error().message, HasSubstr("this rank holds"));
}

TEST(DeltaPathFaults, ADamagedLiveByteIsFoundBeforeADeltaIsAppliedToIt) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.round(1, 0, true);
  s.train(1);
  s.encode(2, 1);
  ASSERT_TRUE(s.stage_round(0, 2, 1).ok());
  s.executors[0]->abort();
  s.engines[0]->regions()[0].data[40] ^= std::byte{1};
  const Status staged = s.stage_round(0, 2, 1);
  ASSERT_FALSE(staged.ok());
  EXPECT_EQ(staged.error().code, Code::kCorrupt);
  EXPECT_FALSE(staged.error().tensor.empty());
}

TEST(DeltaPathFaults, ADamagedBaseIsLetGoByTheProof) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.round(1, 0, true);
  s.encode(2, 1);
  EXPECT_TRUE(s.baselines[0]->serves(0));
  // A byte of the base that is not what was sent.
  s.baselines[0]->drop();
  s.baselines[0]->begin(txn_of(3), {}, s.seals[0]);
  for (std::size_t i = 0; i < s.source_plans[0].buckets.size(); ++i) {
    std::byte* const room = s.baselines[0]->room(i);
    ASSERT_NE(room, nullptr);
    ASSERT_TRUE(s.packers[0]->pack(i, room).ok());
    if (i == 0) room[0] ^= std::byte{1};
    s.baselines[0]->filled(i);
  }
  ASSERT_TRUE(s.baselines[0]->move(txn_of(3), nullptr, *s.sealers[0]).ok());
  EXPECT_EQ(s.baselines[0]->prove(*s.sealers[0]), 1u);
  std::size_t held = 0;
  s.baselines[0]->begin(txn_of(4), txn_of(3), s.seals[0]);
  for (std::size_t i = 0; i < s.source_plans[0].buckets.size(); ++i) held += s.baselines[0]->serves(i) ? 1u : 0u;
  EXPECT_EQ(held, s.source_plans[0].buckets.size() - 1);
}

// A trainer that wrote after its vote and said so to nobody: the bucket is let go at once, not on the next proof.
TEST(DeltaPathFaults, WritesAfterTheVoteDoNotGetIntoTheBase) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.round(1, 0, true);
  s.train(1);
  s.encode(2, 0);  // all complete, to be packed into the base when the round is committed
  s.trainers[0]->regions()[0].data[0] ^= std::byte{1};
  const auto moved = s.baselines[0]->move(txn_of(2), s.packers[0].get(), *s.sealers[0]);
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ(*moved, 1u);
  s.baselines[0]->begin(txn_of(3), txn_of(2), s.seals[0]);
  std::size_t held = 0;
  for (std::size_t i = 0; i < s.source_plans[0].buckets.size(); ++i) held += s.baselines[0]->serves(i) ? 1u : 0u;
  EXPECT_EQ(held, s.source_plans[0].buckets.size() - 1);
}

// The weights may have changed since: only what came as a delta, or did not change, can be brought along.
TEST(DeltaPathFaults, WithoutTheSealedBytesCompleteBucketsAreLetGo) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  s.round(1, 0, true);
  s.train(1);
  s.encode(2, 0);  // no base was asked for: all go complete, and the base stays round 1's
  EXPECT_EQ(s.baselines[0]->txn(), txn_of(1));
  ASSERT_TRUE(s.baselines[0]->move(txn_of(2), nullptr, *s.sealers[0]).ok());
  s.baselines[0]->begin(txn_of(3), txn_of(2), s.seals[0]);
  for (std::size_t i = 0; i < s.source_plans[0].buckets.size(); ++i) EXPECT_FALSE(s.baselines[0]->serves(i));
}

// A rank that stores one box twice, the second time narrower than it travels, can't carry its digests over.
TEST(DeltaPathFaults, ANarrowerSecondStorageGetsCompleteBuckets) {
  DeltaStage s({"",
                R"({"tensors":{"w":{"shape":[8,16],"dtype":"f32"}},"ranks":[{"rank":0,"buffers":{"a":{"bytes":512}},
  "holdings":[{"tensor":"w","box":[[0,8],[0,16]],"buffer":"a","offset":0,"strides":[64,4]}]}]})",
                R"({"tensors":{"w":{"shape":[8,16],"dtype":"f32"}},"ranks":[{"rank":0,
  "buffers":{"a":{"bytes":512},"b":{"bytes":256}},
  "holdings":[{"tensor":"w","box":[[0,8],[0,16]],"buffer":"a","offset":0,"strides":[64,4]},
  {"tensor":"w","box":[[0,8],[0,16]],"buffer":"b","offset":0,"strides":[32,2],"dtype":"bf16"}]}]})",
                codec::Form::kUndoable,
                false,
                {"w"}});
  install::StagedExecutor& x = *s.executors[0];
  std::uint64_t base = 0;  // as the coordinator chooses it, by what the target says that it holds
  for (std::uint64_t n = 1; n <= 3; ++n) {
    s.encode(n, base);
    const Status staged = s.stage_round(0, n, base);
    ASSERT_TRUE(staged.ok()) << "round " << n << ": " << staged.error().to_string();
    ASSERT_TRUE(x.verify(true).ok() && x.apply(true).ok());
    s.commit_sources(n);
    base = x.retained() ? n : 0;
  }
  EXPECT_FALSE(x.retained());
}

TEST(DeltaPathFaults, ABaseFileNeedsADirectory) {
  DeltaStage s({kLlama, "fsdp=2", "vllm:tp=1"});
  const auto made = Baseline::make(*s.planned[0], {codec::Form::kUndoable, "/nonexistent/dir", {}, &s.budget});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kInvalid);
  EXPECT_THAT(made.error().message, HasSubstr("/nonexistent/dir"));
}

}  // namespace
}  // namespace refit::agent
