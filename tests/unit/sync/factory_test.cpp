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
  for (const std::string set :
       {"refit.serve_lagging=true", "refit.snapshot=true", "refit.shadow=device", "refit.port_range=1-2",
        "refit.advertise_address=x", "refit.security.bulk=aes_gcm", "refit.compare_only=true"}) {
    const auto options = options_from(load_text("", {set}).config, {});
    ASSERT_FALSE(options.ok()) << set;
    EXPECT_EQ(options.error().code, Code::kUnsupported);
    EXPECT_THAT(options.error().message, testing::HasSubstr(set.substr(0, set.find('='))));
  }
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
  const Error missing = made("policy: {generation: {colocated: {enabled: false}, refit_transport: null}}");
  EXPECT_EQ(missing.code, Code::kUnsupported);
  EXPECT_THAT(missing.message, testing::HasSubstr("'nccl' is not built"));
}

}  // namespace
}  // namespace refit::sync
