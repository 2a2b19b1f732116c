// Keys: defaults, types, ranges, strict sections, slips of the pen.
#include "config_desk.h"

namespace refit::sync {
namespace {

TEST(Config, DefaultsOfTheRefitSection) {
  const ConfigResult r = load_text("");
  ASSERT_TRUE(r.ok()) << all_errors(r);
  const Config& c = r.config;
  EXPECT_EQ(c.compat.value, "strict");
  EXPECT_EQ(c.staging_bytes.value, 256 << 20);
  EXPECT_EQ(c.bucket_bytes.value, 32 << 20);
  EXPECT_EQ(c.proof_every.value, 10);
  EXPECT_EQ(c.commit.value, "rolling");
  EXPECT_EQ(c.on_target_loss.value, "fail");
  EXPECT_EQ(c.min_targets.value, 1);
  EXPECT_FALSE(c.serve_lagging.value);
  EXPECT_FALSE(c.snapshot.value);
  EXPECT_EQ(c.shadow.value, "auto");
  EXPECT_EQ(c.stall_timeout_s.value, 30);
  EXPECT_TRUE(c.allow_cast.value.empty());
  EXPECT_FALSE(c.port_range.value);
  EXPECT_FALSE(c.advertise_address.value);
  EXPECT_EQ(c.security_bulk.value, "mac");
  EXPECT_EQ(c.kv_scales_unsupported.value, "refuse");
  EXPECT_FALSE(c.compare_only.value);
  EXPECT_EQ(c.sparse_bucket_size_bytes.value, 512 << 20);
  EXPECT_EQ(c.nixl_ratio.value, 0.05);
  EXPECT_EQ(c.sparse_request_timeout_s.value, 600);
  for (const KeyRow& row : config_rows(c)) EXPECT_TRUE(row.origin.is_default()) << row.path;
}

TEST(Config, ReadsEveryKind) {
  const ConfigResult r = load_text(R"(
policy:
  refit_buffer_size_gb: 2.5
  generation:
    backend: sglang
    refit_cfg:
      sparse:
        delta_compression:
          sparse_bucket_size_bytes: 536_870_912
          export_chunk_bytes: {s3: 8MiB, zmq: "16MiB"}
          zstd_threads: 3
        tuning: {whatever: {deep: 1}}
      nixl: {backend_init_params: {a: 1}, device: cpu}
refit:
  allow_cast: ["model.*", lm_head.weight]
  port_range: 5000-5010
  security: {bulk: none}
  serve_lagging: yes
  snapshot: On
  stall_timeout_s: 1e1
)");
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(*r.config.refit_buffer_size_gb.value, 2.5);
  EXPECT_EQ(*r.config.backend.value, "sglang");
  EXPECT_EQ(r.config.sparse_bucket_size_bytes.value, 536870912);
  EXPECT_EQ(r.config.sparse_export_s3.value, 8 << 20);
  EXPECT_EQ(r.config.sparse_export_zmq.value, 16 << 20);
  EXPECT_EQ(r.config.sparse_zstd_s3.value, 3);
  EXPECT_EQ(r.config.sparse_zstd_zmq.value, 3);
  EXPECT_EQ(r.config.nixl_device.value, "cpu");
  EXPECT_EQ(r.config.allow_cast.value, (std::vector<std::string>{"model.*", "lm_head.weight"}));
  EXPECT_EQ(*r.config.port_range.value, "5000-5010");
  EXPECT_EQ(r.config.security_bulk.value, "none");
  EXPECT_TRUE(r.config.serve_lagging.value);
  EXPECT_TRUE(r.config.snapshot.value);
  EXPECT_EQ(r.config.stall_timeout_s.value, 10);
}

struct BadValue {
  const char* assignment;
  const char* needs;
};
constexpr BadValue kBadValues[] = {
    {"refit.compat=loose", "strict or extended"},
    {"refit.staging_bytes=lots", "1MiB"},
    {"refit.staging_bytes=512KiB", "1MiB"},
    {"refit.bucket_bytes=1048575", "1MiB"},
    {"refit.bucket_bytes=512MiB", "at most"},
    {"refit.bucket_bytes=99999999999999999999999", "1MiB"},
    {"refit.bucket_bytes=-1", "1MiB"},
    {"refit.bucket_bytes=[1]", "a list"},
    {"refit.proof_every=0", "from 1"},
    {"refit.proof_every=1.5", "from 1"},
    {"refit.proof_every=null", "null"},
    {"refit.min_targets=-3", "from 1"},
    {"refit.commit=atomic", "rolling or barrier"},
    {"refit.on_target_loss=ignore", "fail or continue"},
    {"refit.serve_lagging=1", "true or false"},
    {"refit.serve_lagging='true'", "true or false"},
    {"refit.snapshot=maybe", "true or false"},
    {"refit.shadow=gpu", "host_pinned"},
    {"refit.stall_timeout_s=0", "above 0"},
    {"refit.stall_timeout_s=.inf", "above 0"},
    {"refit.stall_timeout_s=nan", "above 0"},
    {"refit.allow_cast=all", "a list"},
    {"refit.allow_cast=[1]", "patterns"},
    {"refit.port_range=10-5", "low-high"},
    {"refit.port_range=0-5", "low-high"},
    {"refit.port_range=1-70000", "low-high"},
    {"refit.port_range=80", "low-high"},
    {"refit.security.bulk=tls", "aes_gcm"},
    {"refit.security=mac", "a section"},
    {"refit.kv_scales_unsupported=drop", "refuse or ignore"},
    {"refit.compare_only=!!python/object x", "tag"},
    {"refit=3", "refit"},
    {"policy.generation.backend=tensorrt", "vllm, sglang or megatron"},
    {"policy.generation.colocated.enabled=maybe", "true or false"},
    {"policy.generation.colocated=true", "policy.generation.colocated"},
    {"policy.refit_buffer_size_gb=0", "above 0"},
    {"policy.refit_buffer_size_gb=-1", "above 0"},
    {"policy.refit_buffer_size_gb=2GiB", "above 0"},
    {"policy.generation.refit_cfg.nixl.update_weights_bucket_memory_ratio=0", "between 0 and 1"},
    {"policy.generation.refit_cfg.nixl.update_weights_bucket_memory_ratio=1", "between 0 and 1"},
    {"policy.generation.refit_cfg.nixl.update_weights_bucket_memory_ratio=1.5", "between 0 and 1"},
    {"policy.generation.refit_cfg.nixl.device=tpu", "cuda or cpu"},
    {"policy.generation.refit_cfg.sparse.delta_compression.encoding=zip", "xor or overwrite"},
    {"policy.generation.refit_cfg.sparse.delta_compression.sparse_bucket_size_bytes=1000", "1MiB"},
    {"policy.generation.refit_cfg.sparse.delta_compression.zstd_threads=-1", "from 0"},
    {"policy.generation.refit_cfg.sparse.storage.s3_bucket=5", "name"},
    {"policy.generation.refit_cfg.sparse.request_timeout_s=0", "above 0"},
    {"policy.generation.refit_cfg.sparse=xor", "a section"},
    {"policy.offload_policy_before_refit=null", "true or false"},
};

TEST(Config, ValuesOutOfTypeOrRangeNamePathAndNeed) {
  for (const BadValue& bad : kBadValues) {
    SCOPED_TRACE(bad.assignment);
    const std::string path = std::string(bad.assignment).substr(0, std::string(bad.assignment).find('='));
    expect_refused(load_text("", {bad.assignment}), {path, bad.needs});
  }
}

TEST(Config, ContradictionsInsideOneSection) {
  expect_refused(load_text("policy: {generation: {refit_cfg: {sparse: {baseline: {in_memory: true, mmap_dir: /x}}}}}"),
                 {"baseline.mmap_dir", "in_memory"});
}

TEST(Config, UnknownKeysInsideTheStrictSectionsNameTheNearest) {
  expect_refused(load_text("refit: {stagin_bytes: 1GiB}"), {"refit.stagin_bytes (a.yaml:1)", "refit.staging_bytes"});
  expect_refused(load_text("refit:\n  security:\n    bulks: mac\n"),
                 {"refit.security.bulks (a.yaml:3)", "refit.security.bulk"});
  const std::string gen = "policy.generation.refit_cfg.";
  expect_refused(load_text("", {gen + "sparse.storage.s3_buckets=x"}),
                 {gen + "sparse.storage.s3_buckets", "storage.s3_bucket"});
  expect_refused(load_text("", {gen + "nixl.ratio=0.1"}), {gen + "nixl.ratio"});
  expect_refused(load_text("", {gen + "sparce=1"}), {gen + "sparce", gen + "sparse"});
}

TEST(Config, AnotherPluginsSectionIsNotedNotRead) {
  const ConfigResult r =
      load_text("policy: {generation: {refit_transport: 'a:B', refit_cfg: {'a:B': {x: 1}, 'c.d:E': {}}}}");
  ASSERT_TRUE(r.ok()) << all_errors(r);
  ASSERT_EQ(r.config.notes.size(), 1u);
  EXPECT_THAT(r.config.notes[0], testing::HasSubstr("refit_cfg[\"c.d:E\"]"));
}

TEST(Config, SlipsElsewhereAreRefusedForeignKeysAreNot) {
  for (const char* slip :
       {"policy.generation.refit_transprot", "policy.generation.refit-transport", "policy.generaton.x",
        "policy.generation.colocated.enable", "policy.generation.vllm_cfg.refit_with_reload_apis",
        "policy.ofload_policy_before_refit", "polcy.x", "refits.x", "policy.generation.backends",
        "policy.megatron_cfg.fp8_cfg.force_clear_fp8_cache", "policy.Precision"}) {
    SCOPED_TRACE(slip);
    expect_refused(load_text("policy: {generation: {colocated: {}, vllm_cfg: {}}, megatron_cfg: {fp8_cfg: {}}}",
                             {std::string(slip) + "=nixl"}),
                   {" meant?"});
  }
  const ConfigResult r = load_text(R"(
grpo: {num_prompts_per_step: 1}
policy:
  model_name: x
  tokenizer: {name: x}
  generation: {temperature: 1.0, top_p: 1, top_k: null, stop_strings: null, vllm_kwargs: {}, max_new_tokens: '${nowhere.at.all}'}
  megatron_cfg: {optimizer: {precision_aware: true}, fp8_cfg: {fp8: e4m3}}
)");
  EXPECT_TRUE(r.ok()) << all_errors(r);
}

TEST(Config, ReportsAllThatIsWrong) {
  const ConfigResult r = load_text("refit: {compat: x, proof_every: 0, nope: 1}\npolicy: {precison: bf16}\n");
  EXPECT_EQ(r.errors.size(), 4u) << all_errors(r);
}

TEST(Config, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("transport", "transprot"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

}  // namespace
}  // namespace refit::sync
