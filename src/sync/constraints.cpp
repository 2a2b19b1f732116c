#include "sync/constraints.h"

#include <algorithm>
#include <array>

namespace refit::sync {
namespace {

using enum Route;
using B = Backend;
using P = Policy;
using A = Algorithm;
using T = Trait;

constexpr std::string_view kIpcPreset = "IPCWeightSynchronizer";
constexpr std::string_view kHttpPreset = "HTTPWeightSynchronizer";
constexpr std::string_view kCollectivePreset = "CollectiveWeightSynchronizer";
constexpr std::string_view kSglangPreset = "SGLangCollectiveWeightSynchronizer";
constexpr std::string_view kMegatronPreset = "MegatronWeightSynchronizer";
constexpr std::string_view kReshardPreset = "NcclReshardWeightSynchronizer";
constexpr std::string_view kSparsePreset = "SparseWeightSynchronizer";
constexpr std::string_view kEnginePreset = "CheckpointEngineWeightSynchronizer";

// In the order of the enumeration.
constexpr std::array<RouteRow, kRoutes> kRouteRows = {{
    {kIpc, "ipc", "true", "null", kIpcPreset, "CUDA IPC",
     "each trainer rank -> the vLLM worker on the same GPU: ZeroMQ, CUDA IPC handles", "trainer and engine share GPUs",
     "cuda_ipc", true, "shm"},
    {kHttp, "http", "true", "null", kHttpPreset, "CUDA IPC",
     "each trainer rank -> SGLang on the same GPU: CUDA IPC handles through Ray actor calls where the engine is an "
     "actor, "
     "else inside its HTTP endpoint",
     "trainer and engine share GPUs", "cuda_ipc", false, "shm"},
    {kIpcMegatron, "ipc-megatron", "true", "null", kIpcPreset, "CUDA IPC",
     "each trainer rank -> Megatron generation on the same GPU: CUDA IPC handles", "extended only", "cuda_ipc", false},
    {kWakeReshard, "mcore-wake", "true", "mcore", kMegatronPreset, "MCore wake-reshard",
     "Megatron policy -> Megatron generation on the same GPUs: wake, reshard, train parameters back to CPU",
     "Megatron on both sides, shared GPUs", "mcore", false},
    {kCollective, "collective", "false", "null", kCollectivePreset, "packed collective (NCCL)",
     "trainer ranks -> every generation rank: full weights", "the default between separate GPUs", "nccl", true, "tcp"},
    {kReload, "collective-reload", "false", "null", kCollectivePreset, "packed collective (NCCL) + reload API",
     "trainer ranks -> every vLLM rank: full weights, installed through vLLM's native reload",
     "vLLM's post-load processing is needed after every refit", "nccl", true, "tcp"},
    {kSglangGroup, "sglang-group", "false", "null", kSglangPreset, "SGLang weight-update group (NCCL)",
     "trainer rank 0 -> every TP rank of each engine: finalized HF tensors; the request goes to the engine's leader",
     "SGLang on GPUs of its own, Megatron policy", "nccl", true, "tcp"},
    {kNativeRefit, "mcore-native", "false", "mcore", kMegatronPreset, "MCore native refit",
     "Megatron policy -> Megatron generation through the copy service", "Megatron on both sides, separate GPUs",
     "mcore", false},
    {kNcclReshard, "nccl-reshard", "false", "nccl_reshard", kReshardPreset, "NCCL reshard", "shard -> shard",
     "more than 100 B parameters", "nccl", true},
    {kZmqSparse, "zmq-sparse", "false", "vllm_zmq_sparse", kSparsePreset, "sparse delta over ZeroMQ",
     "trainer ranks -> relay -> generation ranks: what changed", "a narrow link; workers reach a relay over TCP",
     "zmq_sparse", false},
    {kS3Sparse, "s3-sparse", "false", "vllm_s3_sparse", kSparsePreset, "sparse delta through S3",
     "trainer ranks -> object store -> generation ranks: what changed", "shared object storage", "s3_sparse", false},
    {kNixl, "nixl", "false", "nixl", kEnginePreset, "checkpoint engine over NIXL",
     "trainer ranks -> generation ranks: full weights", "a UCX/RDMA fabric", "nixl", true, "nixl"},
    {kNixlSharded, "nixl-sharded", "false", "nixl", kEnginePreset, "checkpoint engine over NIXL, sharded experts",
     "trainer ranks -> generation ranks: full weights, each expert only to its owner",
     "a UCX/RDMA fabric, large MoE (`shard_expert_weights: true`)", "nixl", true, "nixl"},
    {kPlugin, "plugin", "false", "module:Class", kEnginePreset, "checkpoint engine of the user", "as the class does it",
     "a transport of one's own", "plugin", false},
}};

constexpr std::string_view kGen = "policy.generation.backend";
constexpr std::string_view kSelector = "policy.generation.refit_transport";
constexpr std::string_view kColocatedKey = "policy.generation.colocated.enabled";
constexpr std::string_view kReloadKey = "policy.generation.vllm_cfg.refit_with_reload_api";
constexpr std::string_view kOffloadKey = "policy.offload_policy_before_refit";
constexpr std::string_view kMegatronKey = "policy.megatron_cfg.enabled";
constexpr std::string_view kDtensorKey = "policy.dtensor_cfg.enabled";
constexpr std::string_view kRolloutKey = "policy.generation.vllm_cfg.precision";
constexpr std::string_view kMxKey = "policy.generation.vllm_cfg.is_mx";
constexpr std::string_view kKvKey = "policy.generation.vllm_cfg.kv_cache_dtype";
constexpr std::string_view kRealQuantKey = "policy.generation.real_quant";
constexpr std::string_view kQuantKey = "policy.generation.quant_cfg";
constexpr std::string_view kFp8Key = "policy.megatron_cfg.fp8_cfg.enabled";
constexpr std::string_view kFp8ParamKey = "policy.megatron_cfg.fp8_cfg.fp8_param";
constexpr std::string_view kRecipeKey = "policy.megatron_cfg.fp8_cfg.fp8_recipe";
constexpr std::string_view kPrecisionKey = "policy.precision";
constexpr std::string_view kExpertsKey = "policy.generation.refit_cfg.nixl.shard_expert_weights";
constexpr std::string_view kRatioKey = "policy.generation.refit_cfg.nixl.update_weights_bucket_memory_ratio";
constexpr std::string_view kBucketKey = "policy.generation.refit_cfg.sparse.storage.s3_bucket";
constexpr std::string_view kCopyServiceKey = "policy.generation.mcore_generation_config.refit_backend";
constexpr std::string_view kEplbKey = "policy.generation.vllm_kwargs.enable_eplb";

constexpr std::string_view kLegacyLoader = "set refit_with_reload_api: false (the legacy loader)";
constexpr std::string_view kUseNull = "set refit_transport: null";
constexpr std::string_view kFullWeights = "set shard_expert_weights: false (full weights)";
constexpr std::string_view kCollectiveInstead = "set refit_transport: null (full weights by collective)";

const std::vector<Route> kDedicated = {kCollective, kReload,   kSglangGroup, kNativeRefit, kNcclReshard,
                                       kZmqSparse,  kS3Sparse, kNixl,        kNixlSharded, kPlugin};
const std::vector<Route> kSparse = {kZmqSparse, kS3Sparse};
const std::vector<Route> kEngines = {kNixl, kNixlSharded, kPlugin};

// clang-format off
// The constraints. `.lifted`: `refit.compat: extended` goes beyond the published matrix here.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> table = {
      // Topology and selector
      {.id = "selector.colocated", .routes = {kNcclReshard, kZmqSparse, kS3Sparse, kNixl, kNixlSharded, kPlugin},
       .traits = {T::kColocated}, .paths = {kSelector, kColocatedKey},
       .reason = "this transport is for generation on GPUs of its own",
       .way_out = "set colocated.enabled: false, or refit_transport: null"},
      {.id = "ipc.megatron", .routes = {kIpcMegatron}, .lifted = true, .paths = {kSelector, kGen},
       .reason = "colocated Megatron generation is not refitted over IPC", .way_out = "set refit_transport: mcore"},
      {.id = "policy.two", .traits = {T::kBothPolicies}, .paths = {kMegatronKey, kDtensorKey},
       .reason = "two policy backends are switched on", .way_out = "set one of them to false"},
      {.id = "ppo.colocated", .routes = kDedicated, .algorithms = {A::kPpo}, .paths = {kColocatedKey},
       .reason = "PPO needs colocated generation", .way_out = "set colocated.enabled: true"},
      // Megatron's own refit
      {.id = "mcore.generation", .routes = {kWakeReshard, kNativeRefit}, .backends = {B::kVllm, B::kSglang},
       .paths = {kSelector, kGen}, .reason = "mcore moves weights into Megatron generation only",
       .way_out = "set backend: megatron, or refit_transport: null"},
      {.id = "mcore.policy", .routes = {kWakeReshard, kNativeRefit}, .policies = {P::kDtensor},
       .paths = {kSelector, kDtensorKey}, .reason = "mcore needs a Megatron policy", .way_out = kUseNull},
      {.id = "mcore.nvshmem", .routes = {kNativeRefit}, .traits = {T::kNvshmem}, .paths = {kCopyServiceKey},
       .reason = "the nvshmem copy service is broken upstream", .way_out = "set refit_backend: gloo, nccl or nccl_m2n"},
      {.id = "mcore.copy-service", .routes = {kNativeRefit}, .traits = {T::kCopyServiceOther}, .paths = {kCopyServiceKey},
       .reason = "this copy service is not known", .way_out = "set refit_backend: gloo, nccl or nccl_m2n"},
      // SGLang
      {.id = "sglang.selector", .routes = {kWakeReshard, kNativeRefit, kNcclReshard, kNixl, kNixlSharded, kPlugin},
       .backends = {B::kSglang}, .paths = {kSelector, kGen}, .reason = "SGLang is refitted with refit_transport: null only",
       .way_out = kUseNull},
      {.id = "sglang.sparse", .routes = kSparse, .backends = {B::kSglang}, .lifted = true, .paths = {kSelector, kGen},
       .reason = "SGLang is refitted with refit_transport: null only", .way_out = kUseNull},
      {.id = "sglang.policy", .routes = {kSglangGroup}, .policies = {P::kDtensor}, .lifted = true,
       .paths = {kGen, kColocatedKey, kDtensorKey}, .reason = "non-colocated SGLang needs a Megatron policy",
       .way_out = "set megatron_cfg.enabled: true, or colocated.enabled: true"},
      // NCCL reshard
      {.id = "reshard.policy", .routes = {kNcclReshard}, .policies = {P::kDtensor}, .lifted = true,
       .paths = {kSelector, kDtensorKey}, .reason = "NCCL reshard needs a Megatron policy", .way_out = kCollectiveInstead},
      {.id = "reshard.precision", .routes = {kNcclReshard}, .traits = {T::kPrecisionOther}, .paths = {kPrecisionKey},
       .reason = "NCCL reshard moves BF16 or blockwise FP8 weights", .way_out = "set policy.precision: bfloat16"},
      {.id = "reshard.bf16-to-fp8", .routes = {kNcclReshard}, .traits = {T::kTrainBf16, T::kRolloutFp8},
       .paths = {kSelector, kRolloutKey, kFp8Key},
       .reason = "BF16 training into FP8 generation has no shard-to-shard form (BF16 or MXFP8 has)",
       .way_out = "train in blockwise FP8, generate in BF16 or MXFP8, or set refit_transport: null"},
      {.id = "reshard.fp8-to-bf16", .routes = {kNcclReshard}, .traits = {T::kTrainFp8, T::kRolloutBf16},
       .paths = {kSelector, kFp8Key, kRolloutKey}, .reason = "blockwise-FP8 training goes into FP8 generation only",
       .way_out = "set vllm_cfg.precision: fp8, fp8_cfg.fp8_param: false, or refit_transport: null"},
      {.id = "reshard.fp8-to-mxfp8", .routes = {kNcclReshard}, .traits = {T::kTrainFp8, T::kRolloutMxfp8},
       .paths = {kSelector, kFp8Key, kMxKey}, .reason = "MXFP8 generation is made from BF16 training",
       .way_out = "set fp8_cfg.fp8_param: false, or refit_transport: null"},
      {.id = "reshard.recipe", .routes = {kNcclReshard}, .traits = {T::kTrainFp8, T::kTrainNotBlockwise},
       .paths = {kSelector, kRecipeKey}, .reason = "FP8 training weights must be blockwise",
       .way_out = "set fp8_recipe: blockwise, or refit_transport: null"},
      {.id = "reshard.modelopt", .routes = {kNcclReshard}, .traits = {T::kModelopt},
       .paths = {kSelector, kRealQuantKey, kQuantKey}, .reason = "ModelOpt weights go through the engine's loader",
       .way_out = kCollectiveInstead},
      // Sparse delta
      {.id = "sparse.generation", .routes = kSparse, .backends = {B::kMegatron}, .paths = {kSelector, kGen},
       .reason = "sparse delta refits vLLM", .way_out = kUseNull},
      {.id = "sparse.policy", .routes = kSparse, .policies = {P::kDtensor}, .lifted = true,
       .paths = {kSelector, kDtensorKey}, .reason = "sparse delta needs a Megatron policy", .way_out = kCollectiveInstead},
      {.id = "sparse.precision", .routes = kSparse, .traits = {T::kPrecisionOther}, .paths = {kPrecisionKey},
       .reason = "sparse delta moves BF16 or FP16 weights", .way_out = "set policy.precision: bfloat16"},
      {.id = "sparse.fp8", .routes = kSparse, .traits = {T::kRolloutFp8}, .paths = {kSelector, kRolloutKey},
       .reason = "sparse delta needs an unquantized rollout", .way_out = kCollectiveInstead},
      {.id = "sparse.mxfp8", .routes = kSparse, .traits = {T::kRolloutMxfp8}, .paths = {kSelector, kMxKey},
       .reason = "sparse delta needs an unquantized rollout", .way_out = kCollectiveInstead},
      {.id = "sparse.modelopt", .routes = kSparse, .traits = {T::kModelopt}, .paths = {kSelector, kRealQuantKey, kQuantKey},
       .reason = "sparse delta needs an unquantized rollout", .way_out = kCollectiveInstead},
      {.id = "sparse.distillation", .routes = kSparse, .algorithms = {A::kDistillation}, .paths = {kSelector},
       .reason = "sparse delta is not for distillation", .way_out = kCollectiveInstead},
      {.id = "sparse.algorithm", .routes = kSparse, .algorithms = {A::kPpo}, .lifted = true, .paths = {kSelector},
       .reason = "sparse delta is for GRPO", .way_out = kCollectiveInstead},
      {.id = "sparse.bucket", .routes = {kS3Sparse}, .traits = {T::kNoBucket}, .paths = {kBucketKey},
       .reason = "vllm_s3_sparse needs a bucket", .way_out = "set storage.s3_bucket to its name"},
      // Checkpoint engines
      {.id = "nixl.generation", .routes = {kNixl, kNixlSharded}, .backends = {B::kMegatron}, .paths = {kSelector, kGen},
       .reason = "the NIXL checkpoint engine refits vLLM", .way_out = kUseNull},
      {.id = "nixl.algorithm", .routes = {kNixl, kNixlSharded}, .algorithms = {A::kPpo}, .paths = {kSelector},
       .reason = "NIXL is for GRPO and distillation", .way_out = "set colocated.enabled: true and refit_transport: null"},
      {.id = "nixl.kv-scales", .routes = {kNixl, kNixlSharded}, .policies = {P::kDtensor}, .traits = {T::kFp8Kv},
       .paths = {kSelector, kKvKey, kDtensorKey}, .reason = "FP8 KV scales of a DTensor policy do not travel over NIXL",
       .way_out = "set kv_cache_dtype: auto, or refit_transport: null"},
      {.id = "nixl.bucket", .routes = {kNixl, kNixlSharded}, .traits = {T::kSmallNixlBucket}, .paths = {kRatioKey},
       .reason = "this share of the declared device memory is a bucket under 1 MiB", .way_out = "raise the ratio"},
      {.id = "nixl.experts-fp8", .routes = {kNixlSharded}, .traits = {T::kRolloutFp8}, .paths = {kExpertsKey, kRolloutKey},
       .reason = "sharded experts need an unquantized BF16/FP16 MoE", .way_out = kFullWeights},
      {.id = "nixl.experts-mxfp8", .routes = {kNixlSharded}, .traits = {T::kRolloutMxfp8}, .paths = {kExpertsKey, kMxKey},
       .reason = "sharded experts need an unquantized BF16/FP16 MoE", .way_out = kFullWeights},
      {.id = "nixl.experts-modelopt", .routes = {kNixlSharded}, .traits = {T::kModelopt},
       .paths = {kExpertsKey, kRealQuantKey, kQuantKey}, .reason = "sharded experts need an unquantized BF16/FP16 MoE",
       .way_out = kFullWeights},
      {.id = "nixl.experts-eplb", .routes = {kNixlSharded}, .traits = {T::kEplb}, .paths = {kExpertsKey, kEplbKey},
       .reason = "sharded experts need a fixed expert placement", .way_out = kFullWeights},
      {.id = "nixl.experts-redundant", .routes = {kNixlSharded}, .traits = {T::kRedundantExperts}, .paths = {kExpertsKey},
       .reason = "sharded experts cannot serve redundant experts", .way_out = kFullWeights},
      {.id = "nixl.experts-triton", .routes = {kNixlSharded}, .traits = {T::kNotTritonMoe}, .paths = {kExpertsKey},
       .reason = "sharded experts need the Triton MoE kernels", .way_out = kFullWeights},
      {.id = "plugin.generation", .routes = {kPlugin}, .backends = {B::kMegatron}, .lifted = true,
       .paths = {kSelector, kGen}, .reason = "checkpoint engines refit vLLM", .way_out = kUseNull},
      // vLLM's reload API
      {.id = "reload.backend", .backends = {B::kSglang, B::kMegatron}, .traits = {T::kReloadApi}, .paths = {kReloadKey, kGen},
       .reason = "the reload API is vLLM's", .way_out = kLegacyLoader},
      {.id = "reload.colocated", .traits = {T::kReloadApi, T::kColocated}, .paths = {kReloadKey, kColocatedKey},
       .reason = "the reload API installs what the collective brings, to generation on GPUs of its own",
       .way_out = kLegacyLoader},
      {.id = "reload.nccl-reshard", .routes = {kNcclReshard}, .traits = {T::kReloadApi}, .paths = {kReloadKey, kSelector},
       .reason = "NCCL reshard writes shards in place, the reload API loads full tensors", .way_out = kLegacyLoader},
      {.id = "reload.sparse", .routes = kSparse, .traits = {T::kReloadApi}, .paths = {kReloadKey, kSelector},
       .reason = "a sparse delta changes bytes in place, the reload API loads full tensors", .way_out = kLegacyLoader},
      {.id = "reload.engine", .routes = kEngines, .traits = {T::kReloadApi}, .paths = {kReloadKey, kSelector},
       .reason = "checkpoint engines have a loader of their own", .way_out = kLegacyLoader},
      {.id = "reload.mcore", .routes = {kWakeReshard, kNativeRefit}, .traits = {T::kReloadApi},
       .paths = {kReloadKey, kSelector}, .reason = "the reload API needs refit_transport: null", .way_out = kLegacyLoader},
      {.id = "reload.modelopt", .routes = {kReload}, .traits = {T::kModelopt}, .paths = {kReloadKey, kRealQuantKey, kQuantKey},
       .reason = "ModelOpt weights are not reloaded through it", .way_out = kLegacyLoader},
      {.id = "reload.draft", .routes = {kReload}, .traits = {T::kDraft}, .paths = {kReloadKey, "policy.draft.enabled"},
       .reason = "draft weights (Eagle, MTP) from the trainer are not reloaded through it", .way_out = kLegacyLoader},
      {.id = "reload.grouped-mxfp8", .routes = {kReload}, .traits = {T::kRolloutMxfp8, T::kGroupedSlabs},
       .paths = {kReloadKey, kMxKey}, .reason = "grouped MoE expert slabs in MXFP8 are not reloaded through it",
       .way_out = kLegacyLoader},
      {.id = "vllm.grouped-mxfp8", .backends = {B::kVllm}, .traits = {T::kRolloutMxfp8, T::kGroupedSlabs},
       .paths = {kMxKey},
       .reason = "vLLM refit does not take grouped MoE expert slabs (mlp.experts.gate_up_proj, down_proj) in MXFP8",
       .way_out = "export the experts one by one, or generate in BF16"},
      // Offloading and KV scales
      {.id = "offload.policy", .policies = {P::kDtensor}, .traits = {T::kOffloadPolicy}, .paths = {kOffloadKey, kDtensorKey},
       .reason = "gradient buffers are dropped before a refit of a Megatron policy only",
       .way_out = "set offload_policy_before_refit: false"},
      {.id = "offload.transport",
       .routes = {kIpc, kHttp, kIpcMegatron, kWakeReshard, kSglangGroup, kZmqSparse, kS3Sparse, kNixl, kNixlSharded, kPlugin},
       .traits = {T::kOffloadPolicy}, .paths = {kOffloadKey, kSelector, kColocatedKey},
       .reason = "gradient buffers are dropped before a non-colocated vLLM collective, NCCL reshard or Megatron refit only",
       .way_out = "set offload_policy_before_refit: false"},
      {.id = "kv-scales.transport",
       .routes = {kHttp, kIpcMegatron, kWakeReshard, kNativeRefit, kZmqSparse, kS3Sparse, kPlugin}, .traits = {T::kFp8Kv},
       .paths = {kKvKey, kSelector}, .reason = "this transport does not carry the scales of an FP8 KV cache",
       .way_out = "set kv_cache_dtype: auto, or a transport that does"},
  };
  return table;
}
// clang-format on

// Does `value` lie in `set`? An empty set takes any.
template <typename V>
Tri within(const std::vector<V>& set, const std::optional<V>& value) {
  if (set.empty()) return true;
  if (!value) return std::nullopt;
  return std::ranges::find(set, *value) != set.end();
}

}  // namespace

std::span<const RouteRow> route_rows() { return kRouteRows; }
std::span<const Rule> constraint_rules() { return rules(); }

Tri judge(const Rule& rule, const Facts& facts, std::string* unknown) {
  if (!*within(rule.routes, std::optional(facts.route)) || !*within(rule.backends, std::optional(facts.backend)))
    return false;
  std::string missing;
  const auto holds = [&](const Tri& t, std::string_view what) {
    if (!t) missing += (missing.empty() ? "" : ", ") + std::string(what);
    return !t || *t;
  };
  if (!holds(within(rule.policies, facts.policy), "the policy backend")) return false;
  if (!holds(within(rule.algorithms, facts.algorithm), "the algorithm")) return false;
  for (const Trait t : rule.traits)
    if (!holds(facts[t], to_string(t))) return false;
  if (missing.empty()) return true;
  if (unknown) *unknown = missing;
  return std::nullopt;
}

std::string_view to_string(Backend backend) {
  constexpr std::string_view kNames[] = {"vllm", "sglang", "megatron"};
  return kNames[static_cast<int>(backend)];
}
std::string_view to_string(Policy policy) { return policy == Policy::kDtensor ? "dtensor" : "megatron"; }
std::string_view to_string(Algorithm algorithm) {
  constexpr std::string_view kNames[] = {"grpo", "ppo", "distillation"};
  return kNames[static_cast<int>(algorithm)];
}
std::string_view to_string(Trait trait) {
  constexpr std::string_view kNames[kTraits] = {"colocated",
                                                "ModelOpt quantization",
                                                "draft weights from the trainer",
                                                "offload_policy_before_refit",
                                                "the reload API",
                                                "BF16/FP16 rollout",
                                                "FP8 rollout",
                                                "MXFP8 rollout",
                                                "BF16 training weights",
                                                "FP8 training weights",
                                                "a recipe other than blockwise",
                                                "a precision other than BF16/FP16",
                                                "an FP8 KV cache",
                                                "dynamic expert placement",
                                                "redundant experts",
                                                "MoE kernels other than Triton",
                                                "grouped expert slabs",
                                                "no bucket",
                                                "nvshmem",
                                                "an unknown copy service",
                                                "two policy backends",
                                                "a NIXL bucket under 1 MiB"};
  return kNames[static_cast<int>(trait)];
}

}  // namespace refit::sync
