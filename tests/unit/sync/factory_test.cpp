// From a configuration to the synchronizer's options; what is not built is refused, not ignored.
#include "config_desk.h"

namespace refit::sync {
namespace {

TEST(Factory, OptionsComeFromTheRefitSection) {
  const ConfigResult r = load_text(R"(refit:
  bucket_bytes: 2MiB
  staging_bytes: 8MiB
  allow_cast: [a*]
  proof_every: 3
  commit: barrier
  on_target_loss: continue
  min_targets: 2
  stall_timeout_s: 5
)");
  const auto options = options_from(r.config, {});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->plan.bucket_bytes, 2 << 20);
  EXPECT_EQ(options->plan.staging_bytes, 8 << 20);
  EXPECT_EQ(options->plan.allow_cast, std::vector<std::string>{"a*"});
  EXPECT_EQ(options->proof_every, 3);
  EXPECT_TRUE(options->barrier);
  EXPECT_EQ(options->on_target_loss, OnTargetLoss::kContinue);
  EXPECT_EQ(options->min_targets, 2u);
  EXPECT_EQ(options->stall_timeout_s, 5);
}

TEST(Factory, KeysThatAreNotBuiltAreRefusedByName) {
  EXPECT_TRUE(options_from(Config{}, {}).ok());
  for (const std::string set : {"refit.serve_lagging=true", "refit.snapshot=true", "refit.shadow=device",
                                "refit.security.bulk=aes_gcm", "refit.compare_only=true"}) {
    const auto options = options_from(load_text("", {set}).config, {});
    ASSERT_FALSE(options.ok()) << set;
    EXPECT_EQ(options.error().code, Code::kUnsupported);
    EXPECT_THAT(options.error().message, testing::HasSubstr(set.substr(0, set.find('='))));
  }
}

TEST(Factory, NetworkKeysSayWhereATcpCoordinatorIsReached) {
  const auto listening = [](const std::string& address, std::vector<std::string> sets) {
    SyncOptions base;
    base.control_address = address;
    return options_from(load_text("", std::move(sets)).config, base);
  };
  const auto both = listening("tcp://0.0.0.0:0", {"refit.port_range=7000-7010", "refit.advertise_address=node7"});
  ASSERT_TRUE(both.ok()) << both.error().to_string();
  EXPECT_EQ(both->control_address, "tcp://0.0.0.0:7000-7010");
  EXPECT_EQ(both->advertise_address, "node7");
  EXPECT_EQ(listening("tcp://[::1]:5", {"refit.port_range=7-9"})->control_address, "tcp://[::1]:7-9");
  EXPECT_EQ(listening("tcp://host", {"refit.port_range=7-9"})->control_address, "tcp://host:7-9");
  EXPECT_EQ(listening("tcp://host:3", {})->control_address, "tcp://host:3");
  for (const std::string set : {"refit.port_range=1-2", "refit.advertise_address=x"}) {
    const auto nowhere = listening("ipc:///run/x", {set});
    ASSERT_FALSE(nowhere.ok()) << set;
    EXPECT_EQ(nowhere.error().code, Code::kInvalid);
    EXPECT_THAT(nowhere.error().message, testing::HasSubstr(set.substr(0, set.find('='))));
  }
}

TEST(Factory, SparseTransportsTakeTheirEncoding) {
  const auto encoding = [](const std::string& transport, const std::string& value) {
    return options_from(load_text("policy: {generation: {colocated: {enabled: false}, refit_transport: " + transport +
                                  ", refit_cfg: {sparse: {delta_compression: {encoding: " + value + "}}}}}")
                            .config,
                        {})
        ->encoding;
  };
  EXPECT_EQ(encoding("vllm_zmq_sparse", "xor"), "xor");
  EXPECT_EQ(encoding("vllm_zmq_sparse", "overwrite"), "overwrite");
  EXPECT_EQ(encoding("null", "overwrite"), "raw");
}

TEST(Factory, RefusalsAndMissingMoversAreErrors) {
  const auto made = [](const std::string& text) {
    const ConfigResult r = load_text(text);
    EXPECT_TRUE(r.ok()) << all_errors(r);
    auto control = transport::make_mover("loopback", {});
    EXPECT_TRUE(control.ok());
    const std::vector<std::string> movers = transport::mover_names();
    return create_weight_synchronizer(r.config, {}, {}, movers, **control).error();
  };
  const Error refused = made("policy: {generation: {colocated: {enabled: true}, refit_transport: nixl}}");
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_THAT(refused.message, testing::HasSubstr("selector.colocated"));
  EXPECT_THAT(refused.message, testing::HasSubstr("policy.generation.refit_transport (a.yaml:1)"));
  const Error missing = made("policy: {generation: {colocated: {enabled: false}, refit_transport: nixl}}");
  EXPECT_EQ(missing.code, Code::kUnsupported);
  EXPECT_THAT(missing.message, testing::HasSubstr("device: cpu is"));
}

}  // namespace
}  // namespace refit::sync
