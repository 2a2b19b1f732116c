// The SPEC grammar: strict, canonical, and hosts.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

struct Case {
  std::string spec, message;
};
class BadSpec : public testing::TestWithParam<Case> {};
TEST_P(BadSpec, SaysWhatIsAllowed) {
  EXPECT_THAT(refusal(config({}), GetParam().spec), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadSpec,
    testing::Values(
        Case{"", "unknown side ''"}, Case{"torch", "unknown side 'torch' (built: hf, fsdp, tp, vllm, megatron)"},
        Case{"jax:tp=2", "unsupported: SPEC 'jax:tp=2': the side 'jax' is not built"},
        Case{"sglang:tp=2", "'sglang' is not built"}, Case{"fsdp", "write fsdp=N"}, Case{"fsdp:2", "write fsdp=N"},
        Case{"hf=1", "write hf or hf:key=value"}, Case{"vllm,tp=2", "write vllm or"},
        Case{"vllm:", "'' is not key=value"}, Case{"vllm:tp", "'tp' is not key=value"},
        Case{"vllm:=2", "'=2' is not key=value"}, Case{"vllm:tp=2,", "'' is not key=value"},
        Case{"vllm:tp=", "tp='' must be a whole number"}, Case{"vllm:tp=0", "tp='0' must be a whole number"},
        Case{"vllm:tp=-2", "must be a whole number"}, Case{"vllm:tp=+2", "must be a whole number"},
        Case{"vllm:tp=02", "must be a whole number"}, Case{"vllm:tp=2x", "must be a whole number"},
        Case{"vllm:tp=99999999999999999999", "must be a whole number"}, Case{"vllm:tp=1e3", "must be a whole number"},
        Case{"vllm:tp=2,tp=2", "key 'tp' is given twice"},
        Case{"vllm:pp=2", "unknown key 'pp' (allowed: tp, ep, dp, replicas, gpus_per_host, hosts)"},
        Case{"fsdp=2,ep=2", "unknown key 'ep' (allowed: fsdp, tp, naming, replicas, gpus_per_host, hosts)"},
        Case{"fsdp=2,naming=stacked", "naming='stacked' must be per-expert|fused"},
        Case{"fsdp=2,hosts=a/b", "hosts='a/b' must be"}, Case{"fsdp=999999", "fsdp=999999 is more than 131072"},
        Case{"fsdp=2000,tp=2000", "makes more than 131072 ranks"}, Case{"fsdp=4,replicas=131072", "makes more than"}));

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
