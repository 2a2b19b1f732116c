// docs/configuration.md, written from the table of keys: paths, defaults and values come from there, what a key does
// from the table below. A key without a line here, and a line without a key, fail a test.
#include <algorithm>
#include <array>

#include "sync/config.h"
#include "sync/config_keys.h"

namespace refit::sync {
namespace {

#define REFIT_GEN "policy.generation."
#define REFIT_MCFG "policy.megatron_cfg."
#define REFIT_SPARSE "policy.generation.refit_cfg.sparse."
#define REFIT_NIXL "policy.generation.refit_cfg.nixl."

constexpr std::string_view kUnused = "Checked; nothing in this version uses it.";
constexpr std::string_view kModelopt = "ModelOpt quantization; decides which rows refuse it.";

constexpr std::array kMeanings = {
    KeyMeaning{REFIT_GEN "backend", "The engine. Not set: judged for vLLM, with a warning."},
    KeyMeaning{
        REFIT_GEN "colocated.enabled",
        "Whether trainer and engine share GPUs. Not set: taken from a transport that allows one answer only, else "
        "refused."},
    KeyMeaning{REFIT_GEN "refit_transport",
               "Which way the weights go: [the menu](choose-a-transport.md#the-menu). `null`: full weights."},
    KeyMeaning{REFIT_GEN "quant_cfg", kModelopt},
    KeyMeaning{REFIT_GEN "real_quant", kModelopt},
    KeyMeaning{REFIT_GEN "vllm_cfg.refit_with_reload_api",
               "Install through vLLM's native reload (row `collective-reload`). vLLM on GPUs of its own only."},
    KeyMeaning{REFIT_GEN "vllm_cfg.precision",
               "Precision of the rollout: `fp8`, `mxfp8`, else unquantized. Decides the rows about FP8."},
    KeyMeaning{REFIT_GEN "vllm_cfg.is_mx", "With `precision: fp8`: it is MXFP8."},
    KeyMeaning{REFIT_GEN "vllm_cfg.kv_cache_dtype",
               "Begins with `fp8`: an FP8 KV cache, whose scales the transport must carry."},
    KeyMeaning{REFIT_GEN "vllm_kwargs.enable_eplb", "Experts change places while serving; sharded experts refuse it."},
    KeyMeaning{REFIT_GEN "mcore_generation_config.refit_backend",
               "Copy service of `refit_transport: mcore`. `nvshmem` is refused."},
    KeyMeaning{
        REFIT_GEN "sglang_cfg.enable_memory_saver",
        "SGLang releases its memory between rollouts: weights are resumed before a transfer, the KV cache after."},

    KeyMeaning{"policy.precision", "Precision of training. Reshard and sparse rows take BF16 or FP16."},
    KeyMeaning{REFIT_MCFG "enabled", "The trainer is Megatron. Both backends at once are refused."},
    KeyMeaning{"policy.dtensor_cfg.enabled", "The trainer is DTensor (FSDP2, Automodel)."},
    KeyMeaning{REFIT_MCFG "fp8_cfg.enabled", "Training in FP8; decides the reshard rows."},
    KeyMeaning{REFIT_MCFG "fp8_cfg.fp8_param", "With FP8 training: parameters are FP8 too. Not set: they are."},
    KeyMeaning{REFIT_MCFG "fp8_cfg.fp8_recipe", "With FP8 parameters: reshard needs `blockwise`."},
    KeyMeaning{REFIT_MCFG "fp8_cfg.force_clear_fp8_caches", kUnused},
    KeyMeaning{"policy.draft.enabled",
               "Draft weights (Eagle, MTP) come from the trainer; the reload API refuses them."},
    KeyMeaning{
        "policy.offload_policy_before_refit",
        "The trainer drops gradient buffers before a refit (`offload_before_refit`) and brings them back after. "
        "Megatron policy, and the rows that [`offload.transport`](choose-a-transport.md#every-constraint) leaves."},
    KeyMeaning{"policy.offload_optimizer_for_refit",
               "The optimizer goes to the CPU for a refit. Not set: where both sides share GPUs."},
    KeyMeaning{"policy.refit_buffer_size_gb",
               "Staging of the rows `ipc` and `http`, in 10^9 bytes, in place of `refit.staging_bytes`."},

    KeyMeaning{REFIT_SPARSE "delta_compression.encoding",
               "Form of deltas: `xor` means the undoable form (differences), `overwrite` the new elements."},
    KeyMeaning{REFIT_SPARSE "delta_compression.sparse_bucket_size_bytes",
               "Checked; buckets have the size of `refit.bucket_bytes`."},
    KeyMeaning{REFIT_SPARSE "delta_compression.export_chunk_bytes.s3",
               "Size of data objects in a store (`publish --config`)."},
    KeyMeaning{REFIT_SPARSE "delta_compression.export_chunk_bytes.zmq",
               "Checked; buckets have the size of `refit.bucket_bytes`."},
    KeyMeaning{REFIT_SPARSE "delta_compression.zstd_threads.s3", "Checked; Refit's codec has no zstd stage."},
    KeyMeaning{REFIT_SPARSE "delta_compression.zstd_threads.zmq", "Checked; Refit's codec has no zstd stage."},
    KeyMeaning{REFIT_SPARSE "storage.s3_bucket",
               "Bucket of `vllm_s3_sparse`, and of `publish` and `serve --follow` with `--config`."},
    KeyMeaning{REFIT_SPARSE "storage.s3_region", "Region of that bucket, where the command line names none."},
    KeyMeaning{REFIT_SPARSE "storage.s3_prefix", "Prefix inside that bucket."},
    KeyMeaning{REFIT_SPARSE "storage.staging_dir", kUnused},
    KeyMeaning{REFIT_SPARSE "baseline.in_memory",
               "Checked; the base of deltas is in memory, in `refit demo` in a file with `--baseline-mmap-dir`."},
    KeyMeaning{REFIT_SPARSE "baseline.mmap_dir", "Checked; as above. Together with `in_memory: true` it is refused."},
    KeyMeaning{REFIT_SPARSE "verify_samples_per_payload",
               "Checked; every byte of a payload is under a digest, so there is nothing to sample."},
    KeyMeaning{REFIT_SPARSE "request_timeout_s", "How long one version may take to a store or from it."},

    KeyMeaning{REFIT_NIXL "update_weights_bucket_memory_ratio",
               "Share of the device memory that a bucket may take; under 1 MiB is refused."},
    KeyMeaning{REFIT_NIXL "device", "`cpu`: weights in host memory. `cuda` is permitted and not built."},
    KeyMeaning{REFIT_NIXL "backend_name", "NIXL plugin; the same on all sides. Only UCX was tried."},
    KeyMeaning{REFIT_NIXL "release_after_refit", "Whether memory is deregistered after each round."},
    KeyMeaning{REFIT_NIXL "shard_expert_weights", "Each expert goes to its owner only (row `nixl-sharded`)."},

    KeyMeaning{"refit.compat",
               "`strict`: the published matrix of what may be combined. `extended` lifts "
               "[named rows](choose-a-transport.md#every-constraint), and each decision lists which."},
    KeyMeaning{"refit.staging_bytes", "Memory in which a target rank receives, allocated once."},
    KeyMeaning{"refit.bucket_bytes", "Largest bucket. At most `refit.staging_bytes`."},
    KeyMeaning{
        "refit.proof_every",
        "Every so many versions each rank reads its live bytes again; so it does on the first version of a plan and "
        "after a repair."},
    KeyMeaning{"refit.commit",
               "`rolling`: each replica pauses for itself. `barrier`: no gate opens before all are shut."},
    KeyMeaning{"refit.on_target_loss", "`fail`: the round is aborted. `continue`: a lost replica is left out of it."},
    KeyMeaning{"refit.min_targets", "With `continue`: fewer replicas than this abort the round all the same."},
    KeyMeaning{"refit.serve_lagging", "`true` is refused: not built."},
    KeyMeaning{
        "refit.snapshot",
        "Whether the trainer's weights are copied before they are sealed. `true` is refused here: not built behind "
        "this key. `refit demo --snapshot` and `Coordinator(snapshot=True)` have it."},
    KeyMeaning{
        "refit.shadow",
        "Where the next version's bytes lie beside the live ones. `auto` and `host` work; the others are judged by "
        "`refit check` and refused by a job."},
    KeyMeaning{"refit.stall_timeout_s", "How long a stage may show no progress before the round is aborted."},
    KeyMeaning{"refit.allow_cast", "Tensors whose casts may lose values; every other such cast is refused by name."},
    KeyMeaning{"refit.port_range", "Ports to listen on, for firewalls. Not set: any."},
    KeyMeaning{"refit.advertise_address", "The address under which this process is reached."},
    KeyMeaning{
        "refit.security.bulk",
        "Weights over a network: `mac` tags every frame, `none` must be spelled out; `aes_gcm` is refused: not built "
        "([threat model](threat-model.md))."},
    KeyMeaning{"refit.kv_scales_unsupported",
               "What happens to `kv_scales` that nobody can install: `refuse`, or `ignore` and count them."},
    KeyMeaning{
        "refit.compare_only",
        "Compare the engine's weights with what would be installed, and install nothing. SGLang by its loader only "
        "([guide](guides/sglang.md))."},
};

#undef REFIT_GEN
#undef REFIT_MCFG
#undef REFIT_SPARSE
#undef REFIT_NIXL

// The page's sections; a key belongs to the first whose prefix it has.
struct PageSection {
  std::string_view prefix, title, text;
};
constexpr PageSection kSections[] = {
    {"refit.", "Refit's own keys",
     "Refit reads these itself; frameworks do not know them. Every key below `refit` must be known."},
    {"policy.generation.refit_cfg.sparse.", "Sparse deltas",
     "Read for `vllm_zmq_sparse` and `vllm_s3_sparse`, and by `refit publish` and `refit serve --follow` with "
     "`--config`. "
     "Every key below `refit_cfg` must be known."},
    {"policy.generation.refit_cfg.nixl.", "NIXL", "Read for `refit_transport: nixl`."},
    {"policy.generation.", "The engine", "What the loop says about generation."},
    {"policy.", "The trainer", "What the loop says about training."},
};

std::string_view meaning_of(std::string_view path) {
  const auto* found = std::ranges::find(kMeanings, path, &KeyMeaning::path);
  return found == kMeanings.end() ? std::string_view("**undocumented**") : found->text;
}

std::string section_table(const PageSection& section) {
  std::string out = "\n## " + std::string(section.title) + "\n\n" + std::string(section.text) +
                    "\n\n| key | default | value | what it does |\n|---|---|---|---|\n";
  for (const KeyRow& row : config_rows(Config{})) {
    const auto* home =
        std::ranges::find_if(kSections, [&](const PageSection& s) { return row.path.starts_with(s.prefix); });
    if (home == std::end(kSections) || home->prefix != section.prefix) continue;
    const bool unset = row.value == "null" || row.value.empty();
    out += "| `" + row.path + "` | " + (unset ? "–" : "`" + row.value + "`") + " | " + row.needs + " | " +
           std::string(meaning_of(row.path)) + " |\n";
  }
  return out;
}

}  // namespace

std::span<const KeyMeaning> key_meanings() { return kMeanings; }

std::string config_page() {
  std::string out =
      "<!-- Generated: refit check --print-keys > docs/configuration.md -->\n"
      "# Configuration reference\n\n"
      "One YAML file serves the training loop and Refit: Refit reads the keys below out of it and leaves the others "
      "alone. "
      "`refit check CONFIG.yaml` says what the file means, where each value came from, and what is wrong with it.\n\n"
      "- A key inside `policy.generation.refit_cfg` or `refit` that is not listed is refused, with the nearest name. "
      "Elsewhere a name one or two letters away from a listed one is refused.\n"
      "- `${a.b}`, `${.x}`, `${oc.env:NAME,default}`, `defaults:`, anchors and merge keys are resolved where these "
      "keys need "
      "them. The same key twice in one map is refused.\n"
      "- Sizes are whole numbers of bytes or texts such as `512MiB`; `–` means not set (`null`).\n"
      "- `--set path=value` lays a value over the file; it may be repeated.\n"
      "- All errors come at once, each with its option path and the file and line that it came from.\n";
  for (const PageSection& section : kSections) out += section_table(section);
  out += "\n## Handed on unread\n\nWhat lies below these belongs to somebody else and is accepted as it is:";
  for (const std::string_view open : kOpenSections) out += " `" + std::string(open) + "`";
  return out +
         ", and `policy.generation.refit_cfg[\"module:Class\"]`, the arguments of a checkpoint engine of the user.\n";
}

}  // namespace refit::sync
