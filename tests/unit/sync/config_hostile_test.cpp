// Hostile files: bounded, refused with a reason, never a crash. Properties with printed seeds.
#include <random>

#include "config_desk.h"

namespace refit::sync {
namespace {

std::string repeat(const std::string& s, std::size_t n) {
  std::string out;
  out.reserve(s.size() * n);
  for (std::size_t i = 0; i < n; ++i) out += s;
  return out;
}

TEST(ConfigHostile, RefusedWithAReason) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeat(last + ", ", 8) + last + "]\n";
  }
  const std::string big(1 << 20, 'x');
  const std::string text_bomb = "a: &a " + big + "\nb: [" + repeat("*a, ", 40) + "*a]\n";
  std::string doubling = "x0: aaaaaaaaaaaaaaaa\n";
  for (int i = 1; i < 40; ++i)
    doubling += "x" + std::to_string(i) + ": ${x" + std::to_string(i - 1) + "}${x" + std::to_string(i - 1) + "}\n";
  const std::pair<std::string, std::string> cases[] = {
      {repeat("[", 100) + repeat("]", 100), "nested"},
      {repeat("[", 200'000), "a.yaml"},
      {repeat("{a: ", 400) + "1" + repeat("}", 400), "nested"},
      {repeat("- ", 50'000) + "x", "a.yaml"},
      {bomb, "aliases"},
      {text_bomb, "aliases"},
      {"a: &a [*a]", "an alias"},
      {"a: &a {b: {c: *a}}", "an alias"},
      {"a: *nowhere", "a.yaml:1"},
      {std::string(3 << 20, '#'), "too large"},
      {"a: \xff\xfe", "UTF-8"},
      {"a: \xc0\xaf", "UTF-8"},
      {"a: \xed\xa0\x80", "UTF-8"},
      {std::string("a: x\0y", 6), "UTF-8"},
      {"a: \x1b[31m", "UTF-8"},
      {"a:\n\tb: 1\n", "a.yaml"},
      {"a: 1\na: 2\n", "given twice, first in line 1"},
      {"policy:\n  x: 1\n  y:\n    z: 1\n    z: 2\n", "policy.y: key 'z'"},
      {"? [a, b]\n: c\n", "plain word"},
      {"? {a: b}\n: c\n", "plain word"},
      {"~: c\n", "plain word"},
      {"'': c\n", "plain word"},
      {"a: 1\n---\nb: 2\n", "more than one document"},
      {"- 1\n- 2\n", "a map"},
      {"just text", "a map"},
      {"a: [1, 2\n", "a.yaml"},
      {"a: \"unclosed\nb: 1\n", "a.yaml"},
      {"a: 'unclosed\nb: 1", "a.yaml"},
      {"%YAML 9.9\n---\na: 1\n", ""},
      {doubling + "refit: {commit: '${x39}'}", "refit.commit"},
      {"refit: {commit: '" + repeat("${", 20'000) + "x" + repeat("}", 20'000) + "'}", "refit.commit"},
      {"refit: {commit: " + big + "}", "refit.commit"},
      {"refit: {" + big + ": 1}", "a.yaml"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    const ConfigResult r = load_text(text);
    if (part.empty()) continue;  // the parser's choice; it must only end
    expect_refused(r, {part});
    EXPECT_LT(all_errors(r).size(), 4096u);
  }
}

TEST(ConfigHostile, ALongChainOfInterpolationsEnds) {
  std::string chain = "x0: barrier\n";
  for (int i = 1; i < 500; ++i) chain += "x" + std::to_string(i) + ": ${x" + std::to_string(i - 1) + "}\n";
  expect_refused(load_text(chain + "refit: {commit: '${x499}'}"), {"refit.commit"});
  EXPECT_EQ(load_text(chain + "refit: {commit: '${x20}'}").config.commit.value, "barrier");
}

TEST(ConfigHostile, ByteOrderMarkIsFine) { EXPECT_TRUE(load_text("\xef\xbb\xbfrefit: {min_targets: 2}").ok()); }

const char* const kSeedText = R"(
defaults: b.yaml
policy: &p
  precision: bfloat16
  megatron_cfg: {enabled: true, fp8_cfg: {enabled: false}}
  generation:
    backend: vllm
    colocated: {enabled: false}
    refit_transport: ${oc.env:T,nixl}
    refit_cfg: {nixl: {device: cuda, shard_expert_weights: ${..flag}}, flag: null}
copy: *p
refit:
  staging_bytes: 256MiB
  allow_cast: [a, "b*"]
  security: {bulk: mac}
)";

TEST(ConfigHostile, MutationsNeverCrash) {
  constexpr char kBytes[] = " \n\t:-[]{}&*!|>'\"%@`#,?$\\.~=<0aZ\xc3\xff";
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string text = kSeedText;
    const auto edits = 1 + random() % 6;
    for (std::size_t e = 0; e < edits; ++e) {
      const std::size_t at = random() % text.size();
      const char byte = kBytes[random() % (sizeof(kBytes) - 1)];
      switch (random() % 4) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + random() % 4);
          break;
        default: {  // a piece of the text, elsewhere
          const std::string piece = text.substr(at, random() % 40);
          text.insert(random() % text.size(), piece);
        }
      }
      if (text.empty()) text = "a";
    }
    const ConfigResult r = load_texts({{"a.yaml", text}, {"b.yaml", "refit: {min_targets: 2}"}});
    if (!r.ok()) continue;
    const Decision d = decide(r.config, {}, {}, {});
    EXPECT_EQ(d.allowed, d.refusals.empty());
  }
}

TEST(ConfigHostile, UnknownKeysInTheStrictSectionsAreAlwaysRefused) {
  const char* const sections[] = {"refit",
                                  "refit.security",
                                  "policy.generation.refit_cfg",
                                  "policy.generation.refit_cfg.sparse",
                                  "policy.generation.refit_cfg.nixl",
                                  "policy.generation.refit_cfg.sparse.storage",
                                  "policy.generation.refit_cfg.sparse.baseline",
                                  "policy.generation.refit_cfg.sparse.delta_compression",
                                  "policy.generation.refit_cfg.sparse.delta_compression.zstd_threads"};
  std::vector<std::string> known = {"policy.generation.refit_cfg.sparse.tuning",
                                    "policy.generation.refit_cfg.nixl.backend_init_params"};
  for (const KeyRow& row : config_rows(Config{})) known.push_back(row.path);
  const auto is_known = [&](const std::string& path) {
    return std::ranges::any_of(known, [&](const std::string& k) { return k == path || k.starts_with(path + "."); });
  };
  for (std::uint32_t seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    const std::string section = sections[random() % std::size(sections)];
    std::string name;
    const std::string& like = known[random() % known.size()];
    if (random() % 2) name = like.substr(like.rfind('.') + 1);  // a key of ours, perhaps in the wrong place
    for (std::size_t i = 0, n = name.empty() ? 1 + random() % 12 : random() % 2; i < n; ++i)
      name.insert(random() % (name.size() + 1), 1, static_cast<char>('a' + random() % 26));
    if (is_known(section + "." + name)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + section + "." + name);
    expect_refused(load_text("", {section + "." + name + "=1"}), {section + "." + name});
  }
}

}  // namespace
}  // namespace refit::sync
