// Every row of the menu from its smallest configuration: class and transport.
#include "desk.h"
#include "transport/transport.h"

namespace refit::sync {
namespace {

struct MenuCase {
  const char* file;
  const char* row;
  const char* synchronizer;
  const char* transport;
};
constexpr MenuCase kMenuCases[] = {
    {"colocated", "ipc", "IPCWeightSynchronizer", "CUDA IPC"},
    {"colocated-vllm", "ipc", "IPCWeightSynchronizer", "CUDA IPC"},
    {"colocated-sglang", "http", "HTTPWeightSynchronizer", "CUDA IPC"},
    {"mcore-wake", "mcore-wake", "MegatronWeightSynchronizer", "MCore wake-reshard"},
    {"collective", "collective", "CollectiveWeightSynchronizer", "packed collective (NCCL)"},
    {"collective-megatron", "collective", "CollectiveWeightSynchronizer", "packed collective (NCCL)"},
    {"collective-offload", "collective", "CollectiveWeightSynchronizer", "packed collective (NCCL)"},
    {"sglang-group", "sglang-group", "SGLangCollectiveWeightSynchronizer", "SGLang weight-update group (NCCL)"},
    {"mcore-native", "mcore-native", "MegatronWeightSynchronizer", "MCore native refit (nccl)"},
    {"nccl-reshard", "nccl-reshard", "NcclReshardWeightSynchronizer", "NCCL reshard"},
    {"zmq-sparse", "zmq-sparse", "SparseWeightSynchronizer", "sparse delta over ZeroMQ"},
    {"s3-sparse", "s3-sparse", "SparseWeightSynchronizer", "sparse delta through S3"},
    {"nixl", "nixl", "CheckpointEngineWeightSynchronizer", "checkpoint engine over NIXL"},
    {"nixl-sharded", "nixl-sharded", "CheckpointEngineWeightSynchronizer",
     "checkpoint engine over NIXL, sharded experts"},
    {"plugin", "plugin", "CheckpointEngineWeightSynchronizer",
     "checkpoint engine of the user (my_team.engines:FastEngine)"},
    {"reload", "collective-reload", "CollectiveWeightSynchronizer", "packed collective (NCCL) + reload API"},
    {"project", "nccl-reshard", "NcclReshardWeightSynchronizer", "NCCL reshard"},
    {"project-base", "ipc", "IPCWeightSynchronizer", "CUDA IPC"},
};

TEST(Menu, EveryRowFromItsSmallestConfiguration) {
  for (const MenuCase& c : kMenuCases)
    for (const char* compat : {"strict", "extended"}) {
      SCOPED_TRACE(std::string(c.file) + " " + compat);
      const Decision d = decide_case(c.file, {std::string("refit.compat=") + compat});
      EXPECT_TRUE(d.allowed) << rows_of(d);
      EXPECT_EQ(d.row, c.row);
      EXPECT_EQ(d.synchronizer, c.synchronizer);
      EXPECT_EQ(d.transport, c.transport);
      EXPECT_TRUE(d.lifted.empty());
    }
}

TEST(Menu, EveryRowHasACase) {
  for (const RouteRow& r : route_rows()) {
    if (r.route == Route::kIpcMegatron) continue;  // exists in `extended` only: see the refusals
    EXPECT_TRUE(std::ranges::any_of(kMenuCases, [&](const MenuCase& c) { return r.id == c.row; })) << r.id;
  }
}

TEST(Menu, NothingIsClaimedThatIsNotBuilt) {
  const std::vector<std::string> movers = transport::mover_names();
  for (const MenuCase& c : kMenuCases) {
    const ConfigResult loaded = load_case(c.file);
    const Decision d = decide(loaded.config, {}, movers, built_presets());
    const auto has = [&](const std::string& name) { return std::ranges::find(movers, name) != movers.end(); };
    EXPECT_EQ(d.available, has(d.mover)) << c.file;
    EXPECT_EQ(d.memory == "any", d.available_reason.find("waiting: ") == std::string::npos) << c.file;
    EXPECT_TRUE(d.allowed) << "not built is no refusal of the matrix: " << c.file;
  }
}

TEST(Menu, HostMemoryIsSaidWhereTheRowsOwnMoverWaits) {
  const std::vector<std::string> tcp = {"tcp"};
  const Decision d = decide(load_case("collective").config, {}, tcp, built_presets());
  EXPECT_TRUE(d.available);
  EXPECT_EQ(d.mover, "tcp");
  EXPECT_EQ(d.memory, "host");
  EXPECT_NE(d.available_reason.find("mover 'nccl'"), std::string::npos) << d.available_reason;
  EXPECT_FALSE(decide(load_case("nixl").config, {}, tcp, built_presets()).available);
  const ConfigResult megatron = load_case("collective", {"policy.generation.backend=megatron"});
  EXPECT_NE(decide(megatron.config, {}, tcp, built_presets()).available_reason.find("adapter"), std::string::npos);
}

TEST(Menu, AvailableNeedsTheMoverAndTheSynchronizer) {
  const ConfigResult loaded = load_case("collective");
  const std::vector<std::string> nccl = {"nccl"}, preset = {"CollectiveWeightSynchronizer"};
  EXPECT_FALSE(decide(loaded.config, {}, nccl, {}).available);
  EXPECT_FALSE(decide(loaded.config, {}, {}, preset).available);
  EXPECT_TRUE(decide(loaded.config, {}, nccl, preset).available);
}

TEST(Menu, EachValueKnowsItsPlace) {
  const ConfigResult r = load_case("project", {"policy.offload_policy_before_refit=true"});
  ASSERT_TRUE(r.ok()) << errors_of(r);
  const auto ends = [](const Origin& o, const std::string& tail) { return o.text().ends_with(tail); };
  EXPECT_PRED2(ends, r.config.backend.origin, "project-base.yaml:24");
  EXPECT_PRED2(ends, r.config.colocated.origin, "project.yaml:5");
  EXPECT_PRED2(ends, r.config.rollout_precision.origin, "project-base.yaml:12 via ${policy.precision}");
  EXPECT_PRED2(ends, r.config.bucket_bytes.origin, "project.yaml:9 via ${.staging_bytes}");
  EXPECT_EQ(r.config.offload_policy.origin.text(), "--set");
  EXPECT_EQ(r.config.shadow.origin.text(), "default");
  EXPECT_EQ(r.config.bucket_bytes.value, 512 << 20);
  EXPECT_EQ(r.config.proof_every.value, 42);
}

TEST(Menu, AlgorithmFromArgumentOrSection) {
  EXPECT_EQ(decide_case("project").algorithm, "grpo");
  EXPECT_EQ(decide_case("collective").algorithm, "unknown");
  Declared ppo;
  ppo.algorithm = "ppo";
  EXPECT_EQ(decide_case("project", {}, ppo).algorithm, "ppo");
  const Decision two = decide_case("project", {"ppo.gamma=1"});
  EXPECT_EQ(two.algorithm, "unknown");
  EXPECT_TRUE(std::ranges::any_of(two.warnings, [](const Remark& r) { return r.row == "algorithm.several"; }));
  EXPECT_TRUE(std::ranges::any_of(two.not_judged, [](const Remark& r) { return r.row == "ppo.colocated"; }));
}

TEST(Menu, GpuShareRule) {
  EXPECT_DOUBLE_EQ(gpu_share(true, 1), 0.2);
  EXPECT_DOUBLE_EQ(gpu_share(true, 5), 0.2);
  EXPECT_DOUBLE_EQ(gpu_share(true, 8), 0.125);
  EXPECT_DOUBLE_EQ(gpu_share(false, 8), 1);
  Declared d;
  d.max_colocated_worker_groups = 10;
  EXPECT_DOUBLE_EQ(*decide_case("colocated", {}, d).gpu_share, 0.1);
  EXPECT_FALSE(decide_case("colocated").gpu_share);
  EXPECT_DOUBLE_EQ(*decide_case("collective").gpu_share, 1);
}

TEST(Menu, ShadowLiesInTheFirstPlaceWithRoom) {
  Declared d;
  EXPECT_EQ(decide_case("collective", {}, d).shadow, "auto");
  d.shard_bytes = 100;
  d.device_free_bytes = 100;
  d.host_free_bytes = 100;
  EXPECT_EQ(decide_case("collective", {}, d).shadow, "device");
  d.device_free_bytes = 99;
  EXPECT_EQ(decide_case("collective", {}, d).shadow, "host_pinned");
  d.host_free_bytes = 99;
  EXPECT_EQ(decide_case("collective", {}, d).shadow, "none");
  EXPECT_EQ(decide_case("zmq-sparse", {}, d).shadow, "encoded_delta");
  const Decision forced = decide_case("collective", {"refit.shadow=device"}, d);
  EXPECT_TRUE(forced.refused_by("shadow.room"));
  EXPECT_EQ(forced.shadow, "device");
}

TEST(Menu, WarningsOfTheReloadApi) {
  const auto warns = [](const Decision& d, const char* row) {
    return std::ranges::any_of(d.warnings, [&](const Remark& r) { return r.row == row; });
  };
  const Decision plain = decide_case("reload");
  EXPECT_TRUE(warns(plain, "reload.speed"));
  EXPECT_FALSE(warns(plain, "reload.mxfp8"));
  const Decision mx =
      decide_case("reload", {"policy.generation.vllm_cfg.precision=fp8", "policy.generation.vllm_cfg.is_mx=true"});
  EXPECT_TRUE(warns(mx, "reload.mxfp8"));
  EXPECT_FALSE(warns(decide_case("collective"), "reload.speed"));
  EXPECT_TRUE(warns(decide_case("zmq-sparse", {"refit.kv_scales_unsupported=ignore"}), "kv-scales.ignored"));
}

TEST(Menu, KvScalesThatArrive) {
  const auto verdict = [](const char* file, const char* unsupported, bool any) {
    const std::vector<std::string> sets = {std::string("refit.kv_scales_unsupported=") + unsupported};
    return judge_kv_scales(load_case(file, sets).config, decide_case(file, sets), any);
  };
  for (const MenuCase& c : kMenuCases) EXPECT_EQ(verdict(c.file, "refuse", false), KvScales::kNone) << c.file;
  EXPECT_EQ(verdict("colocated-vllm", "refuse", true), KvScales::kCarried);
  EXPECT_EQ(verdict("collective", "ignore", true), KvScales::kCarried);
  EXPECT_EQ(verdict("colocated-sglang", "refuse", true), KvScales::kRefused);
  EXPECT_EQ(verdict("colocated-sglang", "ignore", true), KvScales::kIgnored);
  EXPECT_EQ(verdict("zmq-sparse", "refuse", true), KvScales::kRefused);
}

TEST(Menu, PagesAreWhatTheTablesPrint) {
  const auto matrix = files::read_text(REFIT_DOCS "/choose-a-transport.md");
  ASSERT_TRUE(matrix.ok()) << matrix.error().to_string();
  EXPECT_TRUE(*matrix == matrix_page()) << "docs/choose-a-transport.md differs: refit check --print-matrix writes it";
  const auto keys = files::read_text(REFIT_DOCS "/configuration.md");
  ASSERT_TRUE(keys.ok()) << keys.error().to_string();
  EXPECT_TRUE(*keys == config_page()) << "docs/configuration.md differs: refit check --print-keys writes it";
}

TEST(Menu, EveryKeyHasItsMeaning) {
  std::vector<std::string> keys, meanings;
  for (const KeyRow& row : config_rows(Config{})) {
    keys.push_back(row.path);
    EXPECT_NE(config_page().find("| `" + row.path + "` |"), std::string::npos)
        << row.path << " is on no section of the page";
  }
  for (const KeyMeaning& m : key_meanings()) meanings.emplace_back(m.path);
  EXPECT_THAT(meanings, testing::UnorderedElementsAreArray(keys)) << "kMeanings of src/sync/config_page.cpp";
}

}  // namespace
}  // namespace refit::sync
