// The SPEC grammar: strict, canonical, and hosts.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

struct SpecCase {
  std::string spec, message;
};
class BadSpec : public testing::TestWithParam<SpecCase> {};
TEST_P(BadSpec, SaysWhatIsAllowed) {
  EXPECT_THAT(refusal(config({}), GetParam().spec), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadSpec,
    testing::Values(
        SpecCase{"", "unknown side ''"},
        SpecCase{"torch", "unknown side 'torch' (built: hf, fsdp, tp, vllm, sglang, megatron, jax)"},
        SpecCase{"dtensor:tp=2", "unknown side 'dtensor'"}, SpecCase{"fsdp", "write fsdp=N"},
        SpecCase{"fsdp:2", "write fsdp=N"}, SpecCase{"hf=1", "write hf or hf:key=value"},
        SpecCase{"vllm,tp=2", "write vllm or"}, SpecCase{"vllm:", "'' is not key=value"},
        SpecCase{"vllm:tp", "'tp' is not key=value"}, SpecCase{"vllm:=2", "'=2' is not key=value"},
        SpecCase{"vllm:tp=2,", "'' is not key=value"}, SpecCase{"vllm:tp=", "tp='' must be a whole number"},
        SpecCase{"vllm:tp=0", "tp='0' must be a whole number"}, SpecCase{"vllm:tp=-2", "must be a whole number"},
        SpecCase{"vllm:tp=+2", "must be a whole number"}, SpecCase{"vllm:tp=02", "must be a whole number"},
        SpecCase{"vllm:tp=2x", "must be a whole number"},
        SpecCase{"vllm:tp=99999999999999999999", "must be a whole number"},
        SpecCase{"vllm:tp=1e3", "must be a whole number"}, SpecCase{"vllm:tp=2,tp=2", "key 'tp' is given twice"},
        SpecCase{"vllm:pp=2",
                 "unknown key 'pp' (allowed: tp, ep, dp, placement, shared, quant, keep, keep_first, keep_last, draft, "
                 "replicas, "
                 "gpus_per_host, hosts, vision)"},
        SpecCase{"fsdp=2,ep=2",
                 "unknown key 'ep' (allowed: fsdp, tp, naming, flat, draft, replicas, gpus_per_host, hosts, vision)"},
        SpecCase{"fsdp=2,naming=stacked", "naming='stacked' must be per-expert|fused"},
        SpecCase{"fsdp=2,hosts=a/b", "hosts='a/b' must be"}, SpecCase{"fsdp=999999", "fsdp=999999 is more than 131072"},
        SpecCase{"fsdp=2000,tp=2000", "makes more than 131072 ranks"},
        SpecCase{"fsdp=4,replicas=131072", "makes more than"}));

TEST(Spec, CanonicalForms) {
  const std::map<std::string, std::string> forms{{"hf", "hf"},
                                                 {"hf:naming=per-expert", "hf:naming=per-expert"},
                                                 {"fsdp=2", "fsdp=2"},
                                                 {"tp=2,fsdp=4", "tp=2,fsdp=4"},
                                                 {"tp=2,fsdp=1", "tp=2,fsdp=1"},
                                                 {"vllm", "vllm"},
                                                 {"vllm:dp=2,tp=2", "vllm:tp=2,dp=2"},
                                                 {"vllm:ep=1,tp=2", "vllm:tp=2"},
                                                 {"megatron:pp=1,tp=2,vocab_multiple=128", "megatron:tp=2"},
                                                 {"megatron:tp=2,dp=1", "megatron:tp=2"},
                                                 {"megatron:spec=local,dp=2", "megatron:dp=2,spec=local"},
                                                 {"jax", "jax"},
                                                 {"jax:tp=2,dp=3", "jax:tp=2,dp=3"},
                                                 {"fsdp=2,hosts=a,replicas=2", "fsdp=2,replicas=2,hosts=a"}};
  for (const auto& [spec, canonical] : forms) EXPECT_EQ(must(config({}), spec)->recipe()->spec, canonical);
}

TEST(Spec, WorldInstancesAndHosts) {
  const auto target = must(config({.heads = 4, .kv_heads = 4}), "vllm:tp=2,dp=3,replicas=2");
  EXPECT_EQ(target->world(), 12);
  EXPECT_EQ(target->instances(), 2);
  EXPECT_EQ(target->host(Rank{7}), "tgt-0");
  EXPECT_EQ(target->host(Rank{8}), "tgt-1");
  EXPECT_EQ(must(config({}), "fsdp=2,gpus_per_host=1")->host(Rank{1}), "src-1");
  EXPECT_EQ(must(config({}), "tp=2,hosts=node")->host(Rank{1}), "node-0");
  EXPECT_FALSE(target->expand(Rank{12}).ok());
}

}  // namespace
}  // namespace refit::model::test
