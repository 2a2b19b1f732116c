// What Refit reads of a user's YAML: one field per key, each with the place it came from.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/config_resolve.h"
#include "sync/config_tree.h"

namespace refit::sync {

template <typename T>
struct Key {
  T value{};
  Origin origin;
};

// Names and meanings are the configuration's own (docs/choose-a-transport.md); an optional is null or not given.
struct Config {
  // What the training loop says about both sides.
  Key<std::optional<std::string>> backend;
  Key<std::optional<bool>> colocated;
  Key<std::optional<std::string>> refit_transport;
  Key<std::optional<std::string>> precision;
  Key<std::optional<bool>> megatron_enabled, dtensor_enabled;
  Key<bool> fp8_enabled, force_clear_fp8_caches;
  Key<std::optional<bool>> fp8_param;
  Key<std::optional<std::string>> fp8_recipe;
  Key<std::optional<std::string>> quant_cfg;
  Key<std::optional<bool>> real_quant, draft_enabled;
  Key<bool> reload_api;
  Key<std::optional<std::string>> rollout_precision, kv_cache_dtype;
  Key<std::optional<bool>> rollout_is_mx, enable_eplb;
  Key<bool> offload_policy;
  Key<std::optional<bool>> offload_optimizer;  // null: true where colocated
  Key<std::optional<double>> refit_buffer_size_gb;
  Key<std::string> mcore_refit_backend{"nccl", {}};
  Key<bool> enable_memory_saver;

  // policy.generation.refit_cfg.sparse
  Key<std::string> sparse_encoding{"xor", {}};
  Key<std::int64_t> sparse_bucket_size_bytes{std::int64_t{512} << 20, {}};
  Key<std::int64_t> sparse_export_s3{std::int64_t{64} << 20, {}}, sparse_export_zmq{std::int64_t{256} << 20, {}};
  Key<std::int64_t> sparse_zstd_s3, sparse_zstd_zmq;
  Key<std::optional<std::string>> s3_bucket;
  Key<std::string> s3_region{"us-east-1", {}}, s3_prefix{"refit", {}}, staging_dir{"/dev/shm", {}};
  Key<bool> baseline_in_memory;
  Key<std::optional<std::string>> baseline_mmap_dir;
  Key<std::int64_t> verify_samples_per_payload;
  Key<double> sparse_request_timeout_s{600, {}};

  // policy.generation.refit_cfg.nixl
  Key<double> nixl_ratio{0.05, {}};
  Key<std::string> nixl_device{"cuda", {}}, nixl_backend_name{"UCX", {}};
  Key<bool> nixl_release_after_refit, shard_expert_weights;
  std::vector<std::pair<std::string, std::string>> nixl_backend_init_params;  // as written

  // refit:
  Key<std::string> compat{"strict", {}};
  Key<std::int64_t> staging_bytes{std::int64_t{256} << 20, {}}, bucket_bytes{std::int64_t{32} << 20, {}};
  Key<std::int64_t> proof_every{10, {}};
  Key<std::string> commit{"rolling", {}}, on_target_loss{"fail", {}};
  Key<std::int64_t> min_targets{1, {}};
  Key<bool> serve_lagging, snapshot;
  Key<std::string> shadow{"auto", {}};
  Key<double> stall_timeout_s{30, {}};
  Key<std::vector<std::string>> allow_cast;
  Key<std::optional<std::string>> port_range, advertise_address;
  Key<std::string> security_bulk{"mac", {}}, kv_scales_unsupported{"refuse", {}};
  Key<bool> compare_only;

  std::vector<std::string> sections;  // of the top level, in file order: they tell the algorithm
  std::vector<std::string> notes;     // what was accepted and is not read, e.g. another mover's section
};

// Reads and checks every key. Reports all that is wrong, not the first alone: unknown keys inside
// `policy.generation.refit_cfg` and `refit`, near-misspellings of keys that are read elsewhere, wrong types, values out
// of range, interpolations that cannot be resolved. Each names the option path, its place and the value needed.
struct ConfigResult {
  Config config;
  std::vector<Error> errors;
  bool ok() const { return errors.empty(); }
};
ConfigResult read_config(const ConfigNode& root, const EnvLookup& env);
// The same from a file, with `--set` assignments laid over it.
ConfigResult load_config(const std::string& path, std::span<const std::string> sets, const ReadConfigFile& read,
                         const EnvLookup& env);

// The same from the file system and this process' environment. With an empty path the configuration is `text`.
ConfigResult load_config_here(const std::string& path, const std::string& text, std::span<const std::string> sets);

// For messages and for documents: every key in order, with its value as text.
struct KeyRow {
  std::string path, value, needs;
  Origin origin;
};
std::vector<KeyRow> config_rows(const Config& config);

// What each key does, in a sentence, and docs/configuration.md, which is printed from it.
struct KeyMeaning {
  std::string_view path, text;
};
std::span<const KeyMeaning> key_meanings();
std::string config_page();

// Optimal string alignment distance: insertions, deletions, substitutions, swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace refit::sync
