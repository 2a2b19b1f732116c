// Worked cases of Megatron's pipelines: layouts written out by hand, embedding and loss counted as layers, draft layers
// on a stage of their own; and what is refused.
#include "unit/model/fixtures.h"

namespace refit::model::test {
namespace {

// "E 0 1 2 | 3 4 | … | 7 L" of each rank's chunks, "/" between the chunks: which global layer each local one is.
std::string stages_of(const Layout& layout) {
  std::string out;
  for (std::uint32_t r = 0; r < layout.world(); ++r) {
    std::map<std::int64_t, std::string> chunks;
    const RankLayout rank = rank_of(layout, r);
    for (const Parameter& p : rank.parameters) {
      const bool several = p.name.starts_with("chunk");
      std::string& chunk = chunks[several ? p.name[5] - '0' : 0];
      const std::string name = several ? p.name.substr(7) : p.name;
      const auto source = [&] {
        const std::string all = contents(layout, r, p.name).at(0);
        return all.substr(0, all.find('['));
      };
      if (name == "embedding.word_embeddings.weight") chunk += " E";
      if (name == "output_layer.weight") chunk += " L";
      if (name == "decoder.final_layernorm.weight") chunk += " N";
      if (name.find("mtp.layers.") == 0 && name.ends_with("hnorm.weight")) chunk += " m" + name.substr(11, 1);
      if (name.starts_with("decoder.layers.") && name.ends_with("linear_proj.weight")) {
        const std::string local = name.substr(15, name.find('.', 15) - 15), from = source().substr(13);
        chunk += " " + local + "=" + from.substr(0, from.find('.'));
      }
    }
    if (r > 0) out += " |";
    for (const auto& [v, text] : chunks) out += (v > 0 ? " /" : "") + text;
  }
  return out.empty() ? out : out.substr(1);
}

std::string latent(std::int64_t layers, std::int64_t drafts) {
  return R"({"model_type":"deepseek_v3","hidden_size":8,"num_attention_heads":2,"q_lora_rank":4,"kv_lora_rank":4,)"
         R"("qk_nope_head_dim":2,"qk_rope_head_dim":2,"v_head_dim":2,"intermediate_size":8,"n_routed_experts":2,)"
         R"("moe_intermediate_size":4,"n_shared_experts":1,"vocab_size":128,"first_k_dense_replace":1,)"
         R"("num_hidden_layers":)" +
         std::to_string(layers) + R"(,"num_nextn_predict_layers":)" + std::to_string(drafts) + "}";
}

struct Laid {
  std::string config_json, spec, want;
};
void PrintTo(const Laid& c, std::ostream* out) { *out << c.spec; }
class Layouts : public testing::TestWithParam<Laid> {};
TEST_P(Layouts, StagesAsWritten) {
  EXPECT_EQ(stages_of(*must(GetParam().config_json, GetParam().spec)), GetParam().want);
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, Layouts,
    testing::Values(
        Laid{config({.layers = 8}), "megatron:pp=2,layout=Et*3|(tt|)*2tL",
             "0=0 1=1 2=2 E / 0=5 1=6 | 0=3 1=4 / N 0=7 L"},
        Laid{config({.layers = 7}), "megatron:pp=3,layout=Et|t*5|tL", "0=0 E | 0=1 1=2 2=3 3=4 4=5 | N 0=6 L"},
        Laid{config({.layers = 2}), "megatron:pp=4,layout=E|t|t|L", "E | 0=0 | 0=1 | N L"},
        Laid{config({.layers = 3}), "megatron:pp=2,vpp=2,layout=Et||tt|L", "0=0 E / 0=1 1=2 | / N L"},
        Laid{config({.layers = 2, .tied = true}), "megatron:pp=3,layout=E|tt|L", "E | 0=0 1=1 | N L"},
        Laid{config({.layers = 2}), "megatron:layout=EttL", "N 0=0 1=1 E L"},
        // An embedding or a loss that counts as a layer.
        Laid{config({.layers = 7}), "megatron:pp=2,vpp=2,account=embedding", "0=0 E / 0=3 1=4 | 0=1 1=2 / N 0=5 1=6 L"},
        Laid{config({.layers = 6}), "megatron:pp=2,vpp=2,account=both", "0=0 E / 0=3 1=4 | 0=1 1=2 / N 0=5 L"},
        Laid{config({.layers = 7}), "megatron:pp=4,account=loss", "0=0 1=1 E | 0=2 1=3 | 0=4 1=5 | N 0=6 L"},
        Laid{config({.layers = 4}), "megatron:pp=3,account=both", "0=0 E | 0=1 1=2 | N 0=3 L"},
        // Draft layers wherever they are written, an embedding beside them, the norm with the decoder's last layer.
        Laid{latent(2, 1), "megatron:pp=2,layout=Et|tmL", "0=0 E | N 0=1 E m0 L"},
        Laid{latent(2, 1), "megatron:pp=4,layout=Et|t|m|L", "0=0 E | N 0=1 | E m0 | L"},
        Laid{latent(2, 1), "megatron:pp=2,layout=E|tt|m|L", "E / E m0 | N 0=0 1=1 / L"},
        Laid{latent(2, 2), "megatron:pp=2,layout=Ettmm|L", "N 0=0 1=1 E m0 m1 | L"},
        Laid{latent(2, 1), "megatron:pp=2,draft=skip,layout=Et|tL", "0=0 E | N 0=1 L"},
        Laid{latent(1, 1), "megatron:pp=2,account=loss", "N 0=0 E | E m0 L"}));

TEST(Layouts, OneMeaningOneText) {
  for (const auto& [text, want] : std::map<std::string, std::string>{{"Ettt|tt|tt|tL", "Ettt|(tt|)*2tL"},
                                                                     {"E(t)*3|t*2|(tt)*1|tL", "Ettt|(tt|)*2tL"},
                                                                     {"Et*3|(tt|)*29m|L", "Ettt|(tt|)*29m|L"},
                                                                     {"E|*3tttt|tttt|tttt", "E||*2(t*4|)*2t*4"},
                                                                     {"E||*2(t*4|)*2t*4", "E||*2(t*4|)*2t*4"}}) {
    const auto read = parse_spec("megatron:layout=" + text + ",pp=" + (text.find("29") != text.npos ? "32" : "2"));
    const Spec spec = read.ok() ? *read : Spec{};
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(spec.texts.at("layout"), want);
  }
  const std::string text = config({.layers = 8});
  const auto laid = must(text, "megatron:pp=2,layout=Ettt|tt|tt|tL");
  EXPECT_EQ(laid->recipe()->spec, "megatron:pp=2,vpp=2,layout=Ettt|(tt|)*2tL");
  EXPECT_EQ(must(text, laid->recipe()->spec)->digest(), laid->digest());
  EXPECT_EQ(must(text, "megatron:pp=2,vpp=2,layout=Ettt|(tt|)*2tL")->digest(), laid->digest());
  EXPECT_NE(must(text, "megatron:pp=2,layout=Etttt|t|tt|tL")->digest(), laid->digest());
}

struct NoLayout {
  std::string config_json, spec, message;
};
void PrintTo(const NoLayout& c, std::ostream* out) { *out << c.spec; }
class NoLayouts : public testing::TestWithParam<NoLayout> {};
TEST_P(NoLayouts, SaysWhy) {
  EXPECT_THAT(refusal(GetParam().config_json, GetParam().spec), testing::HasSubstr(GetParam().message));
}

const std::string kFour = config({.layers = 4});
INSTANTIATE_TEST_SUITE_P(
    Pipelines, NoLayouts,
    testing::Values(
        NoLayout{kFour, "megatron:pp=2,layout=Ett|ttx", "layout='Ett|ttx': 'x' is none of E t m L | ( ) *"},
        NoLayout{kFour, "megatron:pp=2,layout=Et,t|ttL",
                 "'t|ttL' is not key=value (layout= is written without commas)"},
        NoLayout{kFour, "megatron:pp=2,layout=E(tt|ttL", "'(' needs ')*N'"},
        NoLayout{kFour, "megatron:pp=2,layout=E(tt)|ttL", "'(' needs ')*N'"},
        NoLayout{kFour, "megatron:pp=2,layout=E((t)*2)*2|L", "groups are neither empty nor in one another"},
        NoLayout{kFour, "megatron:pp=2,layout=Et*|L", "'*' needs a whole number"},
        NoLayout{kFour, "megatron:pp=2,layout=Et*0|L", "'*' needs a whole number"},
        NoLayout{kFour, "megatron:pp=2,layout=E(t*60000)*2|L", "more than 65536 letters when written out"},
        NoLayout{kFour, "megatron:pp=2,layout=E)t|L", "')' is none of"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|ttL,layout=Ett|ttL", "key 'layout' is given twice"},
        NoLayout{kFour, "megatron:pp=3,layout=Ett|ttL", "has 2 stages, no multiple of pp=3"},
        NoLayout{kFour, "megatron:layout=Ett|ttL", "has 2 stages, pp is 1"},
        NoLayout{kFour, "megatron:pp=2,vpp=2,layout=Ett|ttL", "has 2 stages, not pp*vpp = 2*2"},
        NoLayout{kFour, "megatron:pp=2,vpp=1,layout=Et|t|t|tL", "has 4 stages, not pp*vpp = 2*1"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|tL", "it has 3 decoder layers (t), the configuration 4"},
        NoLayout{kFour, "megatron:pp=2,layout=tt|ttL", "E stands 0 times; it must once"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|EttL", "E stands 2 times; it must once"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|tt", "L stands 0 times; it must once"},
        NoLayout{kFour, "megatron:pp=2,layout=EttL|ttL", "L stands 2 times; it must once"},
        NoLayout{kFour, "megatron:pp=2,layout=tEt|ttL", "E must be the first of the first stage"},
        NoLayout{kFour, "megatron:pp=2,layout=|EttttL", "E must be the first of the first stage"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|tLt", "L must be the last of the last stage"},
        NoLayout{kFour, "megatron:pp=2,layout=Ett|ttmL", "it has 1 draft layers (m), the configuration 0"},
        NoLayout{latent(2, 1), "megatron:pp=2,layout=Et|tL", "it has 0 draft layers (m), the configuration 1"},
        NoLayout{latent(2, 1), "megatron:pp=2,draft=skip,layout=Et|tmL", "the configuration 0 under draft=skip"},
        NoLayout{latent(2, 1), "megatron:pp=2,layout=Etm|tL", "draft layers (m) must follow all decoder layers (t)"},
        NoLayout{latent(2, 2), "megatron:pp=2,layout=Ettm|mL", "all draft layers (m) must lie in one stage"},
        NoLayout{latent(2, 1), "megatron:pp=2,layout=Et|tm||L", "in the last virtual chunk of their rank"},
        NoLayout{kFour, "megatron:pp=2,first=2,layout=Ett|ttL", "layout= cannot stand beside first="},
        NoLayout{kFour, "megatron:pp=2,account=loss,layout=Ett|ttL",
                 "layout= cannot stand beside first=, last= or account="},
        NoLayout{kFour, "megatron:pp=2,account=loss,last=1", "account= cannot stand beside first= or last="},
        NoLayout{kFour, "megatron:pp=2,account=loss", "5 layers do not divide by 2 stages, account=loss counted in"},
        NoLayout{kFour, "megatron:pp=6,account=head", "account='head' must be embedding|loss|both"},
        NoLayout{kFour, "vllm:layout=Ett|ttL", "unknown key 'layout'"}));

}  // namespace
}  // namespace refit::model::test
