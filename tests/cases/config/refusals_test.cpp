// Every refusal of the matrix: a case, what is laid over it, the row that must refuse it and the option it must name.
#include "desk.h"

namespace refit::sync {
namespace {

#define GEN "policy.generation."
constexpr const char* kMegatronPolicy = "policy.megatron_cfg.enabled=true";
constexpr const char* kDtensorPolicy = "policy.dtensor_cfg.enabled=true";
constexpr const char* kReload = GEN "vllm_cfg.refit_with_reload_api=true";
constexpr const char* kFp8 = GEN "vllm_cfg.precision=fp8";
constexpr const char* kMx = GEN "vllm_cfg.is_mx=true";
constexpr const char* kTrainFp8 = "policy.megatron_cfg.fp8_cfg.enabled=true";
constexpr const char* kOffload = "policy.offload_policy_before_refit=true";
constexpr const char* kFp8Kv = GEN "vllm_cfg.kv_cache_dtype=fp8";

struct RefusalCase {
  const char* file;
  std::vector<std::string> sets;
  const char* row;
  const char* path;
  const char* algorithm = nullptr;
  void (*declare)(Declared&) = nullptr;
};

const std::vector<RefusalCase>& refusal_cases() {
  static const std::vector<RefusalCase> cases = {
      {"colocated", {GEN "refit_transport=nccl_reshard"}, "selector.colocated", GEN "refit_transport"},
      {"colocated", {GEN "refit_transport=vllm_zmq_sparse"}, "selector.colocated", GEN "colocated.enabled"},
      {"s3-sparse", {GEN "colocated.enabled=true"}, "selector.colocated", GEN "refit_transport"},
      {"nixl", {GEN "colocated.enabled=true"}, "selector.colocated", GEN "refit_transport"},
      {"nixl-sharded", {GEN "colocated.enabled=true"}, "selector.colocated", GEN "refit_transport"},
      {"plugin", {GEN "colocated.enabled=true"}, "selector.colocated", GEN "refit_transport"},
      {"colocated", {GEN "refit_transport=nccl_broadcast"}, "selector.unknown", GEN "refit_transport"},
      {"collective", {GEN "refit_transport='a b:C'"}, "selector.unknown", GEN "refit_transport"},
      {"collective", {GEN "refit_transport='module:'"}, "selector.unknown", GEN "refit_transport"},
      {"collective", {GEN "colocated.enabled=null"}, "colocated.unset", GEN "colocated.enabled"},
      {"colocated", {GEN "backend=megatron"}, "ipc.megatron", GEN "refit_transport"},
      {"collective", {kMegatronPolicy, kDtensorPolicy}, "policy.two", "policy.dtensor_cfg.enabled"},
      {"collective", {}, "ppo.colocated", GEN "colocated.enabled", "ppo"},
      {"nixl", {}, "ppo.colocated", GEN "colocated.enabled", "ppo"},
      {"mcore-wake", {GEN "backend=vllm"}, "mcore.generation", GEN "backend"},
      {"mcore-native", {GEN "backend=sglang"}, "mcore.generation", GEN "backend"},
      {"mcore-native", {kDtensorPolicy}, "mcore.policy", "policy.dtensor_cfg.enabled"},
      {"mcore-native",
       {GEN "mcore_generation_config.refit_backend=nvshmem"},
       "mcore.nvshmem",
       GEN "mcore_generation_config.refit_backend"},
      {"mcore-native",
       {GEN "mcore_generation_config.refit_backend=mpi"},
       "mcore.copy-service",
       GEN "mcore_generation_config.refit_backend"},
      {"nccl-reshard", {GEN "backend=sglang"}, "sglang.selector", GEN "refit_transport"},
      {"nixl", {GEN "backend=sglang"}, "sglang.selector", GEN "backend"},
      {"plugin", {GEN "backend=sglang"}, "sglang.selector", GEN "backend"},
      {"zmq-sparse", {GEN "backend=sglang"}, "sglang.sparse", GEN "backend"},
      {"sglang-group",
       {"policy.megatron_cfg.enabled=false", kDtensorPolicy},
       "sglang.policy",
       "policy.dtensor_cfg.enabled"},
      {"nccl-reshard", {kDtensorPolicy}, "reshard.policy", "policy.dtensor_cfg.enabled"},
      {"nccl-reshard", {"policy.precision=float32"}, "reshard.precision", "policy.precision"},
      {"nccl-reshard", {kFp8}, "reshard.bf16-to-fp8", GEN "vllm_cfg.precision"},
      {"nccl-reshard", {kTrainFp8}, "reshard.fp8-to-bf16", "policy.megatron_cfg.fp8_cfg.enabled"},
      {"nccl-reshard", {kTrainFp8, kFp8, kMx}, "reshard.fp8-to-mxfp8", GEN "vllm_cfg.is_mx"},
      {"nccl-reshard",
       {kTrainFp8, kFp8, "policy.megatron_cfg.fp8_cfg.fp8_recipe=tensorwise"},
       "reshard.recipe",
       "policy.megatron_cfg.fp8_cfg.fp8_recipe"},
      {"nccl-reshard", {GEN "real_quant=true"}, "reshard.modelopt", GEN "real_quant"},
      {"zmq-sparse", {GEN "backend=megatron"}, "sparse.generation", GEN "backend"},
      {"zmq-sparse", {kDtensorPolicy}, "sparse.policy", "policy.dtensor_cfg.enabled"},
      {"s3-sparse", {"policy.precision=float32"}, "sparse.precision", "policy.precision"},
      {"zmq-sparse", {kFp8}, "sparse.fp8", GEN "vllm_cfg.precision"},
      {"zmq-sparse", {kFp8, kMx}, "sparse.mxfp8", GEN "vllm_cfg.is_mx"},
      {"zmq-sparse", {GEN "quant_cfg=NVFP4_DEFAULT_CFG"}, "sparse.modelopt", GEN "quant_cfg"},
      {"zmq-sparse", {}, "sparse.distillation", GEN "refit_transport", "distillation"},
      {"zmq-sparse", {}, "sparse.algorithm", GEN "refit_transport", "ppo"},
      {"s3-sparse",
       {GEN "refit_cfg.sparse.storage.s3_bucket=null"},
       "sparse.bucket",
       GEN "refit_cfg.sparse.storage.s3_bucket"},
      {"nixl", {GEN "backend=megatron"}, "nixl.generation", GEN "backend"},
      {"nixl", {}, "nixl.algorithm", GEN "refit_transport", "ppo"},
      {"nixl", {kDtensorPolicy, kFp8Kv}, "nixl.kv-scales", GEN "vllm_cfg.kv_cache_dtype"},
      {"nixl",
       {},
       "nixl.bucket",
       GEN "refit_cfg.nixl.update_weights_bucket_memory_ratio",
       nullptr,
       [](Declared& d) { d.device_free_bytes = 1 << 20; }},
      {"nixl-sharded", {kFp8}, "nixl.experts-fp8", GEN "refit_cfg.nixl.shard_expert_weights"},
      {"nixl-sharded", {kFp8, kMx}, "nixl.experts-mxfp8", GEN "refit_cfg.nixl.shard_expert_weights"},
      {"nixl-sharded", {GEN "real_quant=true"}, "nixl.experts-modelopt", GEN "real_quant"},
      {"nixl-sharded", {GEN "vllm_kwargs.enable_eplb=true"}, "nixl.experts-eplb", GEN "vllm_kwargs.enable_eplb"},
      {"nixl-sharded",
       {},
       "nixl.experts-redundant",
       GEN "refit_cfg.nixl.shard_expert_weights",
       nullptr,
       [](Declared& d) { d.redundant_experts = true; }},
      {"nixl-sharded",
       {},
       "nixl.experts-triton",
       GEN "refit_cfg.nixl.shard_expert_weights",
       nullptr,
       [](Declared& d) { d.not_triton_moe = true; }},
      {"plugin", {GEN "backend=megatron"}, "plugin.generation", GEN "backend"},
      {"collective-megatron", {kReload}, "reload.backend", GEN "backend"},
      {"colocated-vllm", {kReload}, "reload.colocated", GEN "colocated.enabled"},
      {"nccl-reshard", {kReload}, "reload.nccl-reshard", GEN "vllm_cfg.refit_with_reload_api"},
      {"zmq-sparse", {kReload}, "reload.sparse", GEN "refit_transport"},
      {"nixl", {kReload}, "reload.engine", GEN "refit_transport"},
      {"plugin", {kReload}, "reload.engine", GEN "refit_transport"},
      {"mcore-native", {kReload}, "reload.mcore", GEN "refit_transport"},
      {"reload", {GEN "real_quant=true"}, "reload.modelopt", GEN "real_quant"},
      {"reload", {GEN "quant_cfg=x"}, "reload.modelopt", GEN "quant_cfg"},
      {"reload", {"policy.draft.enabled=true"}, "reload.draft", "policy.draft.enabled"},
      {"reload",
       {kFp8, kMx},
       "reload.grouped-mxfp8",
       GEN "vllm_cfg.refit_with_reload_api",
       nullptr,
       [](Declared& d) { d.grouped_slabs = true; }},
      {"collective",
       {kFp8, kMx},
       "vllm.grouped-mxfp8",
       GEN "vllm_cfg.is_mx",
       nullptr,
       [](Declared& d) { d.grouped_slabs = true; }},
      {"collective", {kOffload, kDtensorPolicy}, "offload.policy", "policy.offload_policy_before_refit"},
      {"colocated", {kOffload}, "offload.transport", "policy.offload_policy_before_refit"},
      {"colocated-sglang", {kOffload}, "offload.transport", GEN "colocated.enabled"},
      {"sglang-group", {kOffload}, "offload.transport", "policy.offload_policy_before_refit"},
      {"zmq-sparse", {kOffload}, "offload.transport", GEN "refit_transport"},
      {"nixl", {kOffload}, "offload.transport", GEN "refit_transport"},
      {"zmq-sparse", {kFp8Kv}, "kv-scales.transport", GEN "vllm_cfg.kv_cache_dtype"},
      {"plugin", {kFp8Kv}, "kv-scales.transport", GEN "vllm_cfg.kv_cache_dtype"},
  };
  return cases;
}

Decision decide_refusal(const RefusalCase& c, const char* compat) {
  std::vector<std::string> sets = c.sets;
  sets.push_back(std::string("refit.compat=") + compat);
  Declared declared;
  if (c.algorithm) declared.algorithm = c.algorithm;
  if (c.declare) c.declare(declared);
  return decide_case(c.file, sets, declared);
}

std::string describe(const RefusalCase& c) {
  std::string out = std::string(c.row) + ": " + c.file;
  for (const std::string& s : c.sets) out += " " + s;
  return out;
}

const Refusal* find_row(const std::vector<Refusal>& rows, std::string_view id) {
  for (const Refusal& r : rows)
    if (r.row == id) return &r;
  return nullptr;
}

TEST(Refusals, EachNamesItsRowItsOptionAndAWayOut) {
  for (const RefusalCase& c : refusal_cases()) {
    SCOPED_TRACE(describe(c));
    const Decision d = decide_refusal(c, "strict");
    EXPECT_FALSE(d.allowed);
    const Refusal* r = find_row(d.refusals, c.row);
    ASSERT_NE(r, nullptr) << "refused by: " << rows_of(d);
    EXPECT_TRUE(std::ranges::any_of(r->paths, [&](const std::string& p) {
      return p.starts_with(std::string(c.path) + " (");
    })) << testing::PrintToString(r->paths);
    EXPECT_NE(r->reason, "");
    EXPECT_NE(r->way_out, "");
  }
}

// Without what is laid over it, the case is not refused by that row: the test can tell the two apart.
TEST(Refusals, TheSmallestCaseAloneIsNotRefusedByTheRow) {
  for (const RefusalCase& c : refusal_cases()) {
    SCOPED_TRACE(describe(c));
    EXPECT_FALSE(decide_case(c.file).refused_by(c.row));
  }
}

TEST(Refusals, EveryRuleHasACase) {
  for (const Rule& rule : constraint_rules())
    EXPECT_TRUE(std::ranges::any_of(refusal_cases(), [&](const RefusalCase& c) { return rule.id == c.row; }))
        << rule.id;
}

TEST(Refusals, ExtendedLiftsTheNamedRowsAndListsThem) {
  for (const RefusalCase& c : refusal_cases()) {
    SCOPED_TRACE(describe(c));
    const Decision d = decide_refusal(c, "extended");
    const auto rules = constraint_rules();
    const auto rule = std::ranges::find_if(rules, [&](const Rule& r) { return r.id == c.row; });
    const bool lifted = rule != rules.end() && rule->lifted;
    EXPECT_EQ(find_row(d.refusals, c.row) == nullptr, lifted);
    EXPECT_EQ(find_row(d.lifted, c.row) != nullptr, lifted);
  }
}

TEST(Refusals, RowsAreUniqueAndNameOptionsThatExist) {
  std::vector<std::string_view> ids;
  const std::vector<KeyRow> keys = config_rows(Config{});
  for (const Rule& rule : constraint_rules()) {
    EXPECT_EQ(std::ranges::count(ids, rule.id), 0) << rule.id;
    ids.push_back(rule.id);
    EXPECT_FALSE(rule.paths.empty()) << rule.id;
    for (const std::string_view p : rule.paths)
      EXPECT_TRUE(std::ranges::any_of(keys, [&](const KeyRow& k) { return k.path == p; })) << rule.id << ": " << p;
  }
}

TEST(Refusals, TheReloadApiAlwaysNamesTheLegacyLoader) {
  for (const Rule& rule : constraint_rules())
    if (rule.id.starts_with("reload.")) {
      EXPECT_NE(rule.way_out.find("legacy loader"), std::string_view::npos) << rule.id;
    }
}

TEST(Refusals, AllowedCombinationsOfTheMatrix) {
  const std::pair<const char*, std::vector<std::string>> allowed[] = {
      {"nccl-reshard", {kMegatronPolicy, kTrainFp8, kFp8, "policy.megatron_cfg.fp8_cfg.fp8_recipe=blockwise"}},
      {"nccl-reshard", {kMegatronPolicy, kFp8, kMx}},
      {"nccl-reshard", {kMegatronPolicy, GEN "backend=megatron"}},
      {"nccl-reshard", {kMegatronPolicy, kOffload}},
      {"nccl-reshard", {kMegatronPolicy, kFp8Kv}},
      {"collective-megatron", {kOffload}},
      {"mcore-native", {kMegatronPolicy, kOffload}},
      {"mcore-native", {GEN "mcore_generation_config.refit_backend=nccl_m2n"}},
      {"colocated-vllm", {kFp8, kDtensorPolicy}},
      {"colocated-vllm", {kFp8Kv}},
      {"collective", {kFp8Kv, kDtensorPolicy}},
      {"nixl", {kFp8, kDtensorPolicy}},
      {"nixl", {kFp8Kv, kMegatronPolicy}},
      {"nixl-sharded", {kDtensorPolicy}},
      {"reload", {kOffload, kMegatronPolicy}},
      {"s3-sparse", {kMegatronPolicy, "policy.precision=float16"}},
  };
  for (const auto& [file, sets] : allowed) {
    const Decision d = decide_case(file, sets);
    EXPECT_TRUE(d.allowed) << file << " " << testing::PrintToString(sets) << ": " << rows_of(d);
  }
  Declared distillation;
  distillation.algorithm = "distillation";
  EXPECT_TRUE(decide_case("nixl", {}, distillation).allowed);
  Declared ppo;
  ppo.algorithm = "ppo";
  EXPECT_TRUE(decide_case("colocated", {}, ppo).allowed);
}

TEST(Refusals, WhatIsNotKnownIsNotJudgedAndSaid) {
  const Decision d = decide_case("nixl-sharded");
  EXPECT_TRUE(d.allowed);
  const auto said = [&](const char* row) {
    return std::ranges::any_of(d.not_judged, [&](const Remark& r) { return r.row == row; });
  };
  EXPECT_TRUE(said("nixl.experts-redundant"));
  EXPECT_TRUE(said("ppo.colocated"));
  EXPECT_FALSE(said("nixl.experts-fp8"));
  const Decision known = decide_case("nccl-reshard", {kMegatronPolicy});
  EXPECT_FALSE(std::ranges::any_of(known.not_judged, [](const Remark& r) { return r.row == "reshard.policy"; }));
}

}  // namespace
}  // namespace refit::sync
