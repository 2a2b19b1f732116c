#include "sync/config_keys.h"

#include <array>

namespace refit::sync {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kMaxSize = 9e18;
constexpr double kMaxCount = 1e9;

constexpr std::string_view kBool = "true or false";
constexpr std::string_view kText = "text";
constexpr std::string_view kTextOrNull = "text or null";
constexpr std::string_view kBucket = "a size of at least 1MiB";
constexpr std::string_view kPositive = "a number above 0";
constexpr std::string_view kCount = "a whole number from 0";

#define REFIT_GEN "policy.generation."
#define REFIT_SPARSE "policy.generation.refit_cfg.sparse."
#define REFIT_NIXL "policy.generation.refit_cfg.nixl."

const std::array kSpecs = {
    KeySpec{REFIT_GEN "backend", &Config::backend, "vllm, sglang or megatron", "vllm|sglang|megatron"},
    KeySpec{REFIT_GEN "colocated.enabled", &Config::colocated, kBool},
    KeySpec{REFIT_GEN "refit_transport", &Config::refit_transport,
            "null, mcore, nccl_reshard, vllm_zmq_sparse, vllm_s3_sparse, nixl or module:Class"},
    KeySpec{"policy.precision", &Config::precision, kTextOrNull},
    KeySpec{"policy.megatron_cfg.enabled", &Config::megatron_enabled, kBool},
    KeySpec{"policy.dtensor_cfg.enabled", &Config::dtensor_enabled, kBool},
    KeySpec{"policy.megatron_cfg.fp8_cfg.enabled", &Config::fp8_enabled, kBool},
    KeySpec{"policy.megatron_cfg.fp8_cfg.fp8_param", &Config::fp8_param, kBool},
    KeySpec{"policy.megatron_cfg.fp8_cfg.fp8_recipe", &Config::fp8_recipe, kTextOrNull},
    KeySpec{"policy.megatron_cfg.fp8_cfg.force_clear_fp8_caches", &Config::force_clear_fp8_caches, kBool},
    KeySpec{"policy.draft.enabled", &Config::draft_enabled, kBool},
    KeySpec{"policy.offload_policy_before_refit", &Config::offload_policy, kBool},
    KeySpec{"policy.offload_optimizer_for_refit", &Config::offload_optimizer, kBool},
    KeySpec{"policy.refit_buffer_size_gb", &Config::refit_buffer_size_gb, kPositive, {}, 0, 1e6, true},
    KeySpec{REFIT_GEN "quant_cfg", &Config::quant_cfg, kTextOrNull},
    KeySpec{REFIT_GEN "real_quant", &Config::real_quant, kBool},
    KeySpec{REFIT_GEN "vllm_cfg.refit_with_reload_api", &Config::reload_api, kBool},
    KeySpec{REFIT_GEN "vllm_cfg.precision", &Config::rollout_precision, kTextOrNull},
    KeySpec{REFIT_GEN "vllm_cfg.is_mx", &Config::rollout_is_mx, kBool},
    KeySpec{REFIT_GEN "vllm_cfg.kv_cache_dtype", &Config::kv_cache_dtype, kTextOrNull},
    KeySpec{REFIT_GEN "vllm_kwargs.enable_eplb", &Config::enable_eplb, kBool},
    KeySpec{REFIT_GEN "mcore_generation_config.refit_backend", &Config::mcore_refit_backend, "gloo, nccl or nccl_m2n"},
    KeySpec{REFIT_GEN "sglang_cfg.enable_memory_saver", &Config::enable_memory_saver, kBool},

    KeySpec{REFIT_SPARSE "delta_compression.encoding", &Config::sparse_encoding, "xor or overwrite", "xor|overwrite"},
    KeySpec{REFIT_SPARSE "delta_compression.sparse_bucket_size_bytes",
            &Config::sparse_bucket_size_bytes,
            kBucket,
            {},
            kMiB,
            kMaxSize,
            false,
            true},
    KeySpec{REFIT_SPARSE "delta_compression.export_chunk_bytes.s3",
            &Config::sparse_export_s3,
            kBucket,
            {},
            kMiB,
            kMaxSize,
            false,
            true},
    KeySpec{REFIT_SPARSE "delta_compression.export_chunk_bytes.zmq",
            &Config::sparse_export_zmq,
            kBucket,
            {},
            kMiB,
            kMaxSize,
            false,
            true},
    KeySpec{REFIT_SPARSE "delta_compression.zstd_threads.s3", &Config::sparse_zstd_s3, kCount, {}, 0, kMaxCount},
    KeySpec{REFIT_SPARSE "delta_compression.zstd_threads.zmq", &Config::sparse_zstd_zmq, kCount, {}, 0, kMaxCount},
    KeySpec{REFIT_SPARSE "storage.s3_bucket", &Config::s3_bucket, "a bucket's name or null"},
    KeySpec{REFIT_SPARSE "storage.s3_region", &Config::s3_region, kText},
    KeySpec{REFIT_SPARSE "storage.s3_prefix", &Config::s3_prefix, kText},
    KeySpec{REFIT_SPARSE "storage.staging_dir", &Config::staging_dir, kText},
    KeySpec{REFIT_SPARSE "baseline.in_memory", &Config::baseline_in_memory, kBool},
    KeySpec{REFIT_SPARSE "baseline.mmap_dir", &Config::baseline_mmap_dir, kTextOrNull},
    KeySpec{REFIT_SPARSE "verify_samples_per_payload", &Config::verify_samples_per_payload, kCount, {}, 0, kMaxCount},
    KeySpec{REFIT_SPARSE "request_timeout_s", &Config::sparse_request_timeout_s, kPositive, {}, 0, 1e6, true},

    KeySpec{REFIT_NIXL "update_weights_bucket_memory_ratio",
            &Config::nixl_ratio,
            "a number between 0 and 1",
            {},
            0,
            1,
            true},
    KeySpec{REFIT_NIXL "device", &Config::nixl_device, "cuda or cpu", "cuda|cpu"},
    KeySpec{REFIT_NIXL "backend_name", &Config::nixl_backend_name, kText},
    KeySpec{REFIT_NIXL "release_after_refit", &Config::nixl_release_after_refit, kBool},
    KeySpec{REFIT_NIXL "shard_expert_weights", &Config::shard_expert_weights, kBool},

    KeySpec{"refit.compat", &Config::compat, "strict or extended", "strict|extended"},
    KeySpec{"refit.staging_bytes", &Config::staging_bytes, kBucket, {}, kMiB, kMaxSize, false, true},
    KeySpec{"refit.bucket_bytes", &Config::bucket_bytes, kBucket, {}, kMiB, kMaxSize, false, true},
    KeySpec{"refit.proof_every", &Config::proof_every, "a whole number from 1", {}, 1, kMaxCount},
    KeySpec{"refit.commit", &Config::commit, "rolling or barrier", "rolling|barrier"},
    KeySpec{"refit.on_target_loss", &Config::on_target_loss, "fail or continue", "fail|continue"},
    KeySpec{"refit.min_targets", &Config::min_targets, "a whole number from 1", {}, 1, kMaxCount},
    KeySpec{"refit.serve_lagging", &Config::serve_lagging, kBool},
    KeySpec{"refit.snapshot", &Config::snapshot, kBool},
    KeySpec{"refit.shadow", &Config::shadow, "auto, host, host_pinned, device, encoded_delta or none",
            "auto|host|host_pinned|device|encoded_delta|none"},
    KeySpec{"refit.stall_timeout_s", &Config::stall_timeout_s, kPositive, {}, 0, 1e6, true},
    KeySpec{"refit.allow_cast", &Config::allow_cast, "a list of tensor name patterns"},
    KeySpec{"refit.port_range", &Config::port_range, "low-high with 1 <= low <= high <= 65535, or null"},
    KeySpec{"refit.advertise_address", &Config::advertise_address, kTextOrNull},
    KeySpec{"refit.security.bulk", &Config::security_bulk, "mac, none or aes_gcm", "mac|none|aes_gcm"},
    KeySpec{"refit.kv_scales_unsupported", &Config::kv_scales_unsupported, "refuse or ignore", "refuse|ignore"},
    KeySpec{"refit.compare_only", &Config::compare_only, kBool},
};

#undef REFIT_GEN
#undef REFIT_SPARSE
#undef REFIT_NIXL

}  // namespace

std::span<const KeySpec> key_specs() { return kSpecs; }

}  // namespace refit::sync
