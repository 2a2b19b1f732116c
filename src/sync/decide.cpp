// From a configuration to a row of the menu and the judgement of every rule.
#include <algorithm>
#include <cmath>

#include "sync/constraints.h"
#include "sync/lifecycle.h"

namespace refit::sync {
namespace {

constexpr std::string_view kTransportPath = "policy.generation.refit_transport";
constexpr std::string_view kColocatedPath = "policy.generation.colocated.enabled";
constexpr double kMinNixlBucket = 1 << 20;

bool is_identifier(std::string_view s) {
  const auto word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (s.empty() || !word(s.front())) return false;
  return std::ranges::all_of(s, [&](char c) { return word(c) || (c >= '0' && c <= '9'); });
}

// `package.module:Class`
bool is_plugin(std::string_view selector) {
  const std::size_t colon = selector.find(':');
  if (colon == std::string_view::npos || !is_identifier(selector.substr(colon + 1))) return false;
  std::string_view module = selector.substr(0, colon);
  while (true) {
    const std::size_t dot = module.find('.');
    if (!is_identifier(module.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    module.remove_prefix(dot + 1);
  }
}

bool among(const std::optional<std::string>& value, std::initializer_list<std::string_view> list) {
  return value && std::ranges::find(list, std::string_view(*value)) != list.end();
}
bool given(const std::optional<std::string>& value) { return value && !value->empty(); }

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm a : {Algorithm::kGrpo, Algorithm::kPpo, Algorithm::kDistillation})
    if (name == to_string(a)) return a;
  if (name == "on_policy_distillation") return Algorithm::kDistillation;
  return std::nullopt;
}

class Judge {
 public:
  Judge(const Config& config, const Declared& declared) : c_(config), d_(declared) {}

  Decision run(std::span<const std::string> movers, std::span<const std::string> presets) {
    fill_sides();
    if (const auto route = pick_route()) {
      facts_.route = *route;
      fill_traits();
      describe(route_rows()[static_cast<std::size_t>(*route)], movers, presets);
      for (const Rule& rule : constraint_rules()) apply(rule);
      choose_shadow();
      warn();
    }
    out_.allowed = out_.refusals.empty();
    return std::move(out_);
  }

 private:
  Tri& trait(Trait t) { return facts_[t]; }
  bool dedicated() const { return colocated_ == Tri(false); }
  std::string selector() const { return c_.refit_transport.value.value_or(""); }

  void fill_sides() {
    if (!c_.backend.value)
      out_.warnings.push_back({"backend.unset", "policy.generation.backend is not set: judged for vllm"});
    for (const Backend b : {Backend::kVllm, Backend::kSglang, Backend::kMegatron})
      if (c_.backend.value == to_string(b)) facts_.backend = b;
    const bool megatron = c_.megatron_enabled.value.value_or(false), dtensor = c_.dtensor_enabled.value.value_or(false);
    if (megatron != dtensor) facts_.policy = megatron ? Policy::kMegatron : Policy::kDtensor;
    trait(Trait::kBothPolicies) = megatron && dtensor;
    fill_algorithm();
    out_.backend = to_string(facts_.backend);
    out_.policy = facts_.policy ? to_string(*facts_.policy) : "unknown";
    out_.algorithm = facts_.algorithm ? to_string(*facts_.algorithm) : "unknown";
  }
  void fill_algorithm() {
    if (d_.algorithm) {
      facts_.algorithm = algorithm_named(*d_.algorithm);
      if (!facts_.algorithm)
        out_.warnings.push_back({"algorithm.unknown", "no row speaks about the algorithm '" + *d_.algorithm + "'"});
      return;
    }
    std::vector<std::string> named;
    for (const std::string& section : c_.sections)
      if (algorithm_named(section)) named.push_back(section);
    if (named.size() == 1) facts_.algorithm = algorithm_named(named.front());
    if (named.size() > 1)
      out_.warnings.push_back({"algorithm.several", "the sections '" + named[0] + "' and '" + named[1] +
                                                        "' both name an algorithm: say which with --algorithm"});
  }

  void refuse(std::string row, std::vector<std::string> paths, std::string reason, std::string way_out) {
    out_.refusals.push_back({std::move(row), std::move(paths), std::move(reason), std::move(way_out)});
  }
  std::string with_place(std::string_view path) const {
    for (const KeyRow& row : rows_)
      if (row.path == path) return std::string(path) + " (" + row.origin.text() + ")";
    return std::string(path);
  }

  // Which row the selector asks for, before any rule is looked at.
  std::optional<Route> pick_route() {
    const std::string name = selector();
    colocated_ = c_.colocated.value;
    const auto only_dedicated = dedicated_route(name);
    if (!only_dedicated && !name.empty() && name != "mcore") return unknown_selector(name);
    if (!colocated_) infer_topology(name, only_dedicated.has_value());
    if (!colocated_) {
      refuse("colocated.unset", {with_place(kColocatedPath)}, "nothing tells whether both sides share GPUs",
             "set colocated.enabled: true or false");
      return std::nullopt;
    }
    trait(Trait::kColocated) = *colocated_;
    if (only_dedicated) return only_dedicated;
    if (name == "mcore") return *colocated_ ? Route::kWakeReshard : Route::kNativeRefit;
    if (*colocated_)
      return facts_.backend == Backend::kSglang     ? Route::kHttp
             : facts_.backend == Backend::kMegatron ? Route::kIpcMegatron
                                                    : Route::kIpc;
    if (facts_.backend == Backend::kSglang) return Route::kSglangGroup;
    return facts_.backend == Backend::kVllm && c_.reload_api.value ? Route::kReload : Route::kCollective;
  }
  std::optional<Route> dedicated_route(const std::string& name) const {
    if (name == "nccl_reshard") return Route::kNcclReshard;
    if (name == "vllm_zmq_sparse") return Route::kZmqSparse;
    if (name == "vllm_s3_sparse") return Route::kS3Sparse;
    if (name == "nixl") return c_.shard_expert_weights.value ? Route::kNixlSharded : Route::kNixl;
    if (is_plugin(name)) return Route::kPlugin;
    return std::nullopt;
  }
  std::optional<Route> unknown_selector(const std::string& name) {
    refuse("selector.unknown", {with_place(kTransportPath)}, "'" + name + "' is no transport",
           "set null, mcore, nccl_reshard, vllm_zmq_sparse, vllm_s3_sparse, nixl or module:Class");
    return std::nullopt;
  }
  // Only where one reading is legal.
  void infer_topology(const std::string& name, bool only_dedicated) {
    const bool native = name == "mcore" && !c_.mcore_refit_backend.origin.is_default();
    if (!only_dedicated && !native) return;
    colocated_ = false;
    out_.warnings.push_back({"colocated.inferred", std::string(kColocatedPath) + " is not set: '" + name + "'" +
                                                       (native ? " with a copy service" : "") + " means false"});
  }

  void fill_traits() {
    fill_precision();
    trait(Trait::kModelopt) = c_.real_quant.value.value_or(false) || given(c_.quant_cfg.value);
    trait(Trait::kDraft) = c_.draft_enabled.value.value_or(false);
    trait(Trait::kOffloadPolicy) = c_.offload_policy.value;
    trait(Trait::kReloadApi) = c_.reload_api.value;
    trait(Trait::kEplb) = c_.enable_eplb.value.value_or(false);
    trait(Trait::kRedundantExperts) = d_.redundant_experts;
    trait(Trait::kNotTritonMoe) = d_.not_triton_moe;
    trait(Trait::kGroupedSlabs) = d_.grouped_slabs;
    trait(Trait::kNoBucket) = !given(c_.s3_bucket.value);
    const std::string& service = c_.mcore_refit_backend.value;
    trait(Trait::kNvshmem) = service == "nvshmem";
    trait(Trait::kCopyServiceOther) = !among(service, {"gloo", "nccl", "nccl_m2n", "nvshmem"});
    if (d_.device_free_bytes)
      trait(Trait::kSmallNixlBucket) =
          c_.nixl_ratio.value * static_cast<double>(*d_.device_free_bytes) < kMinNixlBucket;
  }
  void fill_precision() {
    trait(Trait::kPrecisionOther) =
        given(c_.precision.value) && !among(c_.precision.value, {"bfloat16", "bf16", "float16", "fp16", "half"});
    const bool fp8 = c_.fp8_enabled.value && c_.fp8_param.value.value_or(true);
    trait(Trait::kTrainFp8) = fp8;
    trait(Trait::kTrainBf16) = !fp8;
    trait(Trait::kTrainNotBlockwise) = given(c_.fp8_recipe.value) && *c_.fp8_recipe.value != "blockwise";
    // The keys of the rollout's precision are vLLM's; for other engines nothing here tells.
    if (facts_.backend != Backend::kVllm) return;
    const bool mx = c_.rollout_precision.value == "mxfp8" ||
                    (c_.rollout_precision.value == "fp8" && c_.rollout_is_mx.value.value_or(false));
    const bool plain_fp8 = c_.rollout_precision.value == "fp8" && !mx;
    trait(Trait::kRolloutMxfp8) = mx;
    trait(Trait::kRolloutFp8) = plain_fp8;
    trait(Trait::kRolloutBf16) = !mx && !plain_fp8;
    trait(Trait::kFp8Kv) = c_.kv_cache_dtype.value && c_.kv_cache_dtype.value->starts_with("fp8");
  }

  void describe(const RouteRow& row, std::span<const std::string> movers, std::span<const std::string> presets) {
    out_.row = row.id;
    out_.synchronizer = row.synchronizer;
    out_.transport = row.transport;
    if (row.route == Route::kNativeRefit) out_.transport += " (" + c_.mcore_refit_backend.value + ")";
    if (row.route == Route::kPlugin) out_.transport += " (" + selector() + ")";
    out_.path = row.path;
    out_.kv_scales = row.kv_scales;
    if (dedicated()) out_.needs = {"train_cluster", "inference_world_size or inference_cluster"};
    for (const PhaseRow& p : lifecycle(lifecycle_facts(c_, row.route, facts_.backend)))
      out_.phases.push_back((p.half == Half::kCleanUp ? "always: " : "") + std::string(to_string(p.phase)));
    describe_availability(row, movers, presets);
    out_.gpu_share_rule = dedicated() ? "a whole GPU" : "min(0.2, 1/max_colocated_worker_groups)";
    if (dedicated() || d_.max_colocated_worker_groups)
      out_.gpu_share = gpu_share(!dedicated(), d_.max_colocated_worker_groups.value_or(1));
  }
  void describe_availability(const RouteRow& row, std::span<const std::string> movers,
                             std::span<const std::string> presets) {
    std::string built;
    for (const std::string& m : movers) built += (built.empty() ? "" : ", ") + m;
    const auto has = [&](const std::string& name) { return std::ranges::find(movers, name) != movers.end(); };
    const std::string own(row.mover), host(row.host_mover);
    const std::string waiting = "waiting: mover '" + own + "' is not built";
    if (std::ranges::find(presets, row.synchronizer) == presets.end()) {
      out_.available_reason = "waiting: " + std::string(row.synchronizer) + " is not built";
    } else if (facts_.backend == Backend::kMegatron) {
      out_.available_reason = "waiting: the engine adapter of Megatron generation is not built";
    } else if (own == "nixl" && has(own)) {
      const std::string device = "weights in device memory (policy.generation.refit_cfg.nixl.device: cuda)";
      if (c_.nixl_device.value == "cpu") {
        out_.mover = own;
        out_.memory = "host";
        out_.available_reason = "over 'nixl', for weights in host memory; waiting: " + device;
      } else {
        out_.available_reason = "waiting: " + device +
                                " are not moved over NIXL in this build; device: cpu is, for weights "
                                "in host memory";
      }
    } else if (has(own)) {
      out_.mover = own;
      out_.memory = "any";
    } else if (!host.empty() && has(host)) {
      out_.mover = host;
      out_.memory = "host";
      out_.available_reason = "over '" + host + "', for weights in host memory; device memory is " + waiting;
    } else {
      out_.available_reason = waiting + " (built: " + built + ")";
    }
    out_.available = !out_.mover.empty();
  }

  void apply(const Rule& rule) {
    std::string unknown;
    const Tri verdict = judge(rule, facts_, &unknown);
    if (!verdict) {
      out_.not_judged.push_back({std::string(rule.id), "not known: " + unknown});
      return;
    }
    if (!*verdict) return;
    std::vector<std::string> paths;
    for (const std::string_view p : rule.paths) paths.push_back(with_place(p));
    Refusal r{std::string(rule.id), std::move(paths), std::string(rule.reason), std::string(rule.way_out)};
    (rule.lifted && c_.compat.value == "extended" ? out_.lifted : out_.refusals).push_back(std::move(r));
  }

  // Where the shadow (the bytes of w beside those of v) lives: first place with room for a rank's shard.
  void choose_shadow() {
    out_.shadow = c_.shadow.value;
    const auto room = [&](const std::optional<std::int64_t>& free) {
      return free && d_.shard_bytes && *free >= *d_.shard_bytes;
    };
    if (out_.shadow != "auto") {
      out_.shadow_why = "refit.shadow (" + c_.shadow.origin.text() + ")";
      const bool device = out_.shadow == "device", host = out_.shadow.starts_with("host");
      const auto& free = device ? d_.device_free_bytes : d_.host_free_bytes;
      if ((device || host) && free && d_.shard_bytes && !room(free))
        refuse("shadow.room", {with_place("refit.shadow")},
               "needs " + std::to_string(*d_.shard_bytes) + " bytes, declared free are " + std::to_string(*free),
               "set refit.shadow: auto");
      return;
    }
    if (!d_.shard_bytes || (!d_.device_free_bytes && !d_.host_free_bytes)) {
      out_.shadow_why = "chosen when the targets declare their free bytes";
      return;
    }
    const std::string need = std::to_string(*d_.shard_bytes) + " bytes a rank";
    const bool sparse = facts_.route == Route::kZmqSparse || facts_.route == Route::kS3Sparse;
    if (room(d_.device_free_bytes))
      set_shadow("device", need + " fit beside the weights on the device");
    else if (room(d_.host_free_bytes))
      set_shadow("host_pinned", need + " do not fit on the device, but in host memory");
    else if (sparse)
      set_shadow("encoded_delta", need + " fit nowhere; the encoded delta is kept instead");
    else
      set_shadow("none", need + " fit nowhere: in place, under the gate");
  }
  void set_shadow(std::string where, std::string why) {
    out_.shadow = std::move(where);
    out_.shadow_why = std::move(why);
  }

  void warn() {
    for (const std::string& note : c_.notes) out_.warnings.push_back({"not-read", note});
    if (facts_.route == Route::kReload) {
      out_.warnings.push_back(
          {"reload.speed",
           "the reload API was measured upstream faster for Llama 8B and Qwen3 32B, but about 44 % slower "
           "for Qwen3 30B-A3B; use it where post-load processing is needed after every refit"});
      if (facts_[Trait::kRolloutMxfp8] == Tri(true))
        out_.warnings.push_back({"reload.mxfp8",
                                 "with MXFP8 the reload API was measured about 2 times slower, with a higher "
                                 "peak: leave KV headroom (lower gpu_memory_utilization)"});
    }
    const bool optimizer = c_.offload_optimizer.value.value_or(!dedicated());
    if (!out_.kv_scales && c_.kv_scales_unsupported.value == "ignore")
      out_.warnings.push_back(
          {"kv-scales.ignored", "kv_scales that arrive are ignored on this transport, and counted"});
    if (dedicated() && optimizer && !c_.offload_policy.value && c_.offload_optimizer.value)
      out_.warnings.push_back(
          {"offload.optimizer", "the optimizer goes to the CPU in every refit, though no GPU is shared"});
  }

  const Config& c_;
  const Declared& d_;
  std::vector<KeyRow> rows_ = config_rows(c_);
  Facts facts_;
  Tri colocated_;
  Decision out_;
};

}  // namespace

bool Decision::refused_by(std::string_view row_id) const {
  return std::ranges::any_of(refusals, [&](const Refusal& r) { return r.row == row_id; });
}

double gpu_share(bool colocated, std::int64_t max_colocated_worker_groups) {
  if (!colocated) return 1;
  return std::min(0.2, 1.0 / static_cast<double>(std::max<std::int64_t>(1, max_colocated_worker_groups)));
}

KvScales judge_kv_scales(const Config& config, const Decision& decision, bool any) {
  if (!any) return KvScales::kNone;
  if (decision.kv_scales) return KvScales::kCarried;
  return config.kv_scales_unsupported.value == "ignore" ? KvScales::kIgnored : KvScales::kRefused;
}

std::vector<std::string> built_presets() {
  return {"IPCWeightSynchronizer",        "HTTPWeightSynchronizer",
          "CollectiveWeightSynchronizer", "SGLangCollectiveWeightSynchronizer",
          "SparseWeightSynchronizer",     "CheckpointEngineWeightSynchronizer"};
}

Decision decide(const Config& config, const Declared& declared, std::span<const std::string> movers,
                std::span<const std::string> presets) {
  return Judge(config, declared).run(movers, presets);
}

}  // namespace refit::sync
