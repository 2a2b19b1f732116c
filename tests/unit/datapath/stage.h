// One process that plays every rank: plan, seal, stage and apply without the control plane between them.
#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "agent/lower.h"
#include "agent/quantising.h"
#include "agent/sealer.h"
#include "agent/value_stages.h"
#include "engine/engine.h"
#include "install/install.h"
#include "support/expected.h"

namespace refit::agent {

using test::kDelta;
using test::kMamba;

inline constexpr const char* kLlama =
    R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":96,"intermediate_size":120,
  "num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":3,"head_dim":16,"vocab_size":131,"tie_word_embeddings":true,
  "max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","torch_dtype":"bfloat16","attention_bias":false,"mlp_bias":false})";
inline constexpr const char* kMoe =
    R"({"model_type":"qwen3_moe","architectures":["Qwen3MoeForCausalLM"],"hidden_size":64,"intermediate_size":96,
  "moe_intermediate_size":32,"num_experts":4,"num_experts_per_tok":2,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":8,
  "vocab_size":130,"tie_word_embeddings":false,"mlp_only_layers":[1],"decoder_sparse_step":1,"norm_topk_prob":true,"max_position_embeddings":64,
  "rms_norm_eps":1e-6,"rope_theta":10000.0,"hidden_act":"silu","torch_dtype":"bfloat16"})";

inline constexpr std::uint64_t kSeed = 42;

struct Case {
  const char* config;
  const char* source;
  const char* target;
  bool packed = false;  // buckets travel as a push mover moves them
  Pack pack = Pack::kStorage;
  std::vector<std::string> allow_cast = {};
};

// A SPEC, or a layout file's text.
inline std::shared_ptr<const model::Layout> layout_of(const char* config, const char* spec) {
  return std::move(*spec == '{' ? model::read_layout(spec) : model::rule_layout(config, spec)).value();
}

// One process that plays every rank.
struct Stage {
  std::shared_ptr<const model::Layout> source, target;
  plan::Options options{
      .bucket_bytes = 4096, .staging_bytes = 1 << 20, .values = plan::Values::kStages, .allow_cast = {}};
  memory::Budget budget{1 << 30};
  std::vector<std::unique_ptr<engine::ReferenceTrainer>> trainers;
  std::vector<plan::RankPlan> source_plans;
  std::vector<memory::Arena> values;                   // what the stages of each source write
  std::vector<memory::Arena> codes;                    // likewise of what each quantises
  std::vector<std::vector<memory::RegionRef>> lent;    // of each source: its buffers, then those
  std::vector<std::unique_ptr<ValueStages>> stages;
  std::vector<std::unique_ptr<Quantising>> quantising;  // null: no target holds codes
  std::size_t exchanged = 0;                            // blocks that several sources had a part of, last seal
  std::vector<std::unique_ptr<Sealer>> sealers;
  std::vector<Seal> seals;
  std::vector<std::unique_ptr<engine::ReferenceEngine>> engines;
  std::vector<std::unique_ptr<install::StagedExecutor>> executors;
  std::vector<std::uint32_t> members;
  bool packed = false;
  Pack form = Pack::kStorage;

  // Every scan and copy tells how far it is.
  std::int64_t windows = 0;
  kernel::Progress progress{.every_bytes = 4096, .done = [this](std::int64_t) { ++windows; }};

  explicit Stage(const Case& c) : packed(c.packed), form(c.pack) {
    source = layout_of(c.config, c.source);
    target = layout_of(c.config, c.target);
    options.allow_cast = c.allow_cast;
    for (std::uint32_t r = 0; r < source->world(); ++r) {
      trainers.push_back(std::move(engine::ReferenceTrainer::make(system_env(), source, Rank(r), &budget)).value());
      trainers.back()->randomise(kSeed);
      auto plan = plan::make_plan(*source, *target, options, plan::Side::kSource, Rank(r));
      if (!plan.ok()) throw std::runtime_error(plan.error().to_string());
      source_plans.push_back(std::move(*plan));
      members.push_back(100 + r);
    }
    for (std::uint32_t r = 0; r < source->world(); ++r) {
      const auto own = trainers[r]->regions();
      lent.emplace_back(own.begin(), own.end());
      values.push_back(std::move(memory::Arena::make(source_plans[r].value_bytes, &budget, "values")).value());
      if (!source_plans[r].transforms.empty())
        lent[r].push_back({values[r].data(), values[r].bytes(), memory::Kind::kHost, nullptr});
      codes.push_back(std::move(memory::Arena::make(source_plans[r].quant.bytes, &budget, "codes")).value());
      quantising.emplace_back();
      if (!source_plans[r].quantised.empty()) {
        lent[r].push_back({codes[r].data(), codes[r].bytes(), memory::Kind::kHost, nullptr});
        quantising[r] = std::make_unique<Quantising>(Quantising::make(source_plans[r], options).value());
      }
      stages.push_back(std::make_unique<ValueStages>(source_plans[r], options));
      sealers.push_back(
          std::make_unique<Sealer>(source_plans[r], lent[r], kSeed, kernel::Exec{nullptr, &progress}, &options));
    }
    for (std::uint32_t r = 0; r < target->world(); ++r) {
      engines.push_back(std::move(engine::ReferenceEngine::make(target, Rank(r), &budget)).value());
      auto plan = plan::make_plan(*source, *target, options, plan::Side::kTarget, Rank(r));
      if (!plan.ok()) throw std::runtime_error(plan.error().to_string());
      auto table = lower_target(*plan, *target, engines.back()->rank_layout(), members, options, c.packed, c.pack);
      const auto live = engines.back()->regions();
      executors.push_back(std::move(install::StagedExecutor::make(std::move(table), {live.begin(), live.end()}, kSeed,
                                                                  kernel::Exec{nullptr, &progress}, &budget))
                              .value());
    }
  }

  void seal(bool groups) {
    seals.clear();
    for (std::size_t r = 0; r < stages.size(); ++r) {
      const Status ran = stages[r]->run(trainers[r]->regions(), values[r].data(), {});
      ASSERT_TRUE(ran.ok()) << ran.error().to_string();
    }
    quantise();
    for (auto& s : sealers) seals.push_back(std::move(s->seal(groups)).value());
  }

  // As the sources do it, with this process in the place of the coordinator.
  void quantise() {
    std::map<plan::SharedBlock, float> most;
    for (std::size_t r = 0; r < quantising.size(); ++r) {
      if (!quantising[r]) return;
      const auto amax = quantising[r]->shared_amax(lent[r], {});
      ASSERT_TRUE(amax.ok()) << amax.error().to_string();
      const std::vector<plan::SharedBlock>& shared = source_plans[r].quant.shared;
      for (std::size_t i = 0; i < shared.size(); ++i) most[shared[i]] = std::max(most[shared[i]], (*amax)[i]);
    }
    exchanged = most.size();
    for (std::size_t r = 0; r < quantising.size(); ++r) {
      std::vector<float> amax;
      for (const plan::SharedBlock& b : source_plans[r].quant.shared) amax.push_back(most[b]);
      quantised = quantising[r]->run(lent[r], amax, codes[r].data(), {});
      if (!quantised.ok()) return;
    }
  }
  Status quantised;  // how it went

  // A bucket as its sender's own plan packs it: runs in order, pads between.
  std::vector<std::byte> pack(std::size_t sender, BucketId id) const {
    const plan::RankPlan& plan = source_plans[sender];
    const auto b = std::find_if(plan.buckets.begin(), plan.buckets.end(), [&](const auto& x) { return x.id == id; });
    const PackedLayout layout = packed_layout(plan, *b);
    std::vector<std::byte> out;
    for (std::uint32_t i = 0; i < b->pieces; ++i) {
      const plan::Piece& p = plan.pieces[b->first_piece + i];
      out.resize(static_cast<std::size_t>(layout.starts[i]));
      std::vector<std::span<const std::byte>> runs;
      append_runs(segment_of(plan.geometries[p.geometry], p.src_buffer, p.src_offset),
                  lent[sender][p.src_buffer].data, runs);
      for (const auto& run : runs) out.insert(out.end(), run.begin(), run.end());
      EXPECT_EQ(static_cast<std::int64_t>(out.size()), layout.ends[i]);
    }
    return out;
  }

  Status stage(std::size_t rank) {
    install::StagedExecutor& x = *executors[rank];
    x.begin();
    for (std::size_t b = 0; b < x.table().buckets.size(); ++b) {
      const install::BucketTable& bucket = x.table().buckets[b];
      const std::size_t sender = bucket.sender - 100;
      std::vector<const std::byte*> bases;
      for (const Segment& s : bucket.segments) {
        const auto range = touched(s);
        EXPECT_TRUE(range.ok() && range->lo >= 0 && range->hi <= lent[sender][s.region].bytes);
        bases.push_back(lent[sender][s.region].data + s.offset);
      }
      const std::vector<std::byte> sent = packed ? pack(sender, bucket.id) : std::vector<std::byte>();
      if (packed) {
        EXPECT_EQ(static_cast<std::int64_t>(sent.size()), bucket.packed_bytes);
        bases.clear();
        for (std::int64_t start : bucket.packed_starts) bases.push_back(sent.data() + start);
      }
      std::vector<install::TensorDigest> sealed;
      for (const SealedBucket& s : seals[sender].buckets)
        if (s.bucket == bucket.id)
          for (const auto& [tensor, digest] : s.tensors) sealed.push_back({tensor.value, digest});
      REFIT_TRY(x.stage(b, bases, sealed));
    }
    return {};
  }

  // Every live element against the same pure function that filled the trainers.
  void expect_live(std::int64_t steps, const engine::StepRule& rule) {
    const test::Expected expected(*source, *target, kSeed, rule);
    for (auto& e : engines)
      for (const model::Holding& h : e->rank_layout().holdings) {
        const model::LogicalTensor& t = target->catalogue().tensors[h.tensor.value];
        engine::for_each_run(t, h, e->regions()[h.buffer].data,
                             [&](std::int64_t linear, std::byte* live, std::int64_t count) {
                               const auto want = expected.bytes(t, h.dtype, steps, linear, count);
                               ASSERT_EQ(std::memcmp(want.data(), live, want.size()), 0)
                                   << t.name << " rank " << e->rank().value << " at " << linear;
                             });
      }
  }
};

}  // namespace refit::agent
