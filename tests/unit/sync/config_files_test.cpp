// Files under files, interpolations, assignments over them.
#include "config_desk.h"

namespace refit::sync {
namespace {

using testing::HasSubstr;

TEST(ConfigFiles, DefaultsMergeDepthFirstOwnKeysLast) {
  const ConfigResult r =
      load_texts({{"a.yaml", "defaults: [base/b.yaml, c]\nrefit: {min_targets: 4}\n"},
                  {"base/b.yaml", "defaults: d.yaml\nrefit: {min_targets: 2, proof_every: 2, commit: barrier}\n"},
                  {"base/d.yaml", "refit: {min_targets: 1, shadow: host}\n"},
                  {"c.yaml", "refit: {proof_every: 3}\n"}});
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(r.config.min_targets.value, 4);
  EXPECT_EQ(r.config.proof_every.value, 3);
  EXPECT_EQ(r.config.commit.value, "barrier");
  EXPECT_EQ(r.config.commit.origin.text(), "base/b.yaml:2");
  EXPECT_EQ(r.config.shadow.origin.text(), "base/d.yaml:1");
}

TEST(ConfigFiles, SelfSaysWhereOwnKeysLie) {
  const ConfigResult r = load_texts(
      {{"a.yaml", "defaults: [_self_, b]\nrefit: {min_targets: 4}\n"}, {"b.yaml", "refit: {min_targets: 2}\n"}});
  EXPECT_EQ(r.config.min_targets.value, 2);
}

TEST(ConfigFiles, GroupsGoUnderTheirName) {
  const ConfigResult r =
      load_texts({{"a.yaml", "defaults: [{refit: fast}]\n"}, {"refit/fast.yaml", "proof_every: 99\n"}});
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(r.config.proof_every.value, 99);
}

TEST(ConfigFiles, OverrideMarkerReplacesASection) {
  const ConfigResult r = load_texts({{"a.yaml", "defaults: b\nrefit: {_override_: true, min_targets: 4}\n"},
                                     {"b.yaml", "refit: {proof_every: 2}\n"}});
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(r.config.proof_every.value, 10);
  EXPECT_EQ(r.config.min_targets.value, 4);
}

TEST(ConfigFiles, WhatIsWrongWithDefaults) {
  expect_refused(load_texts({{"a.yaml", "defaults: b"}, {"b.yaml", "defaults: a"}}),
                 {"cycle", "a.yaml -> b.yaml -> a.yaml"});
  expect_refused(load_texts({{"a.yaml", "defaults: missing"}}), {"missing.yaml", "no such file"});
  expect_refused(load_text("defaults: ['${x}']"), {"a.yaml:1", "${x}"});
  expect_refused(load_text("defaults: [{a: b, c: d}]"), {"defaults:"});
  expect_refused(load_text("defaults: ['x', {'override hydra/launcher': y}]"), {"override hydra/launcher"});
  expect_refused(load_text("defaults: [{db@pkg: y}]"), {"db@pkg"});
  expect_refused(load_texts({{"a.yaml", "defaults: b"}, {"b.yaml", "- 1"}}), {"b.yaml", "a map"});
  Texts many{{"a.yaml", "defaults: b0"}};
  for (int i = 0; i < 100; ++i) many["b" + std::to_string(i) + ".yaml"] = "defaults: b" + std::to_string(i + 1);
  expect_refused(load_texts(many), {"files"});
}

TEST(ConfigFiles, InterpolationsThatAreResolved) {
  const ConfigResult r = load_texts({{"a.yaml", R"(
sizes: {small: 2MiB, list: [1, 7]}
where: {name: sizes}
gen: {backend: sglang, colocated: {enabled: true}}
policy:
  generation: ${gen}
refit:
  bucket_bytes: ${sizes.small}
  staging_bytes: ${.bucket_bytes}
  proof_every: ${sizes.list[1]}
  min_targets: ${oc.env:N,3}
  security: {bulk: "${...sizes.bulk}"}
  commit: ${oc.env:COMMIT}
  stall_timeout_s: ${oc.env:NONE,${sizes.list.0}}
  advertise_address: host-${sizes.list[0]}-\${x}
  shadow: ${${where.name}.shadow}
)"}},
                                    {"sizes.shadow=host", "sizes.bulk=none"}, {{"COMMIT", "barrier"}});
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(*r.config.backend.value, "sglang");
  EXPECT_TRUE(*r.config.colocated.value);
  EXPECT_EQ(r.config.staging_bytes.value, 2 << 20);
  EXPECT_EQ(r.config.proof_every.value, 7);
  EXPECT_EQ(r.config.min_targets.value, 3);
  EXPECT_EQ(r.config.commit.value, "barrier");
  EXPECT_EQ(r.config.stall_timeout_s.value, 1);
  EXPECT_EQ(*r.config.advertise_address.value, "host-1-${x}");
  EXPECT_EQ(r.config.shadow.value, "host");
  EXPECT_EQ(r.config.security_bulk.value, "none");
  EXPECT_THAT(r.config.commit.origin.text(), HasSubstr("a.yaml:13 via ${oc.env:COMMIT}"));
}

TEST(ConfigFiles, RelativeInterpolationsMeanTheirOwnPlace) {
  const ConfigResult r = load_text(
      "other: {enabled: '${.flag}', flag: true}\npolicy: {generation: {colocated: '${other}', flag: false}}\n");
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_TRUE(*r.config.colocated.value);
}

TEST(ConfigFiles, InterpolationsThatAreRefusedNameThemselvesAndThePath) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"refit: {commit: '${no.such}'}", {"refit.commit (a.yaml:1)", "${no.such}"}},
      {"refit: {commit: '${mul:2,3}'}", {"refit.commit", "${mul:2,3}", "--set refit.commit"}},
      {"refit: {commit: '${oc.env:UNSET}'}", {"refit.commit", "UNSET"}},
      {"refit: {commit: '${.commit}'}", {"refit.commit", "cycle"}},
      {"a: '${refit.commit}'\nrefit: {commit: '${a}'}", {"cycle", "refit.commit -> a -> refit.commit"}},
      {"refit: '${refit.x}'", {"refit", "cycle"}},
      {"refit: {commit: '${....x}'}", {"refit.commit", "above the top"}},
      {"refit: {commit: 'a${'}", {"refit.commit", "without its '}'"}},
      {"refit: {commit: '${}'}", {"refit.commit", "not a path"}},
      {"refit: {commit: 'x${refit}'}", {"refit.commit", "not a single value"}},
      {"refit: {commit: '${miss}'}\nmiss: \"?\?\?\"", {"miss (a.yaml:2)", "missing"}},
      {"refit: '${policy.y}'\npolicy: {y: [1]}", {"refit", "a list"}},
  };
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    expect_refused(load_text(text), parts);
  }
}

TEST(ConfigFiles, UnknownKeysAreFoundBehindInterpolationsAnchorsAndMergeKeys) {
  expect_refused(load_text("x: {nope: 1}\nrefit: '${x}'"), {"refit.nope"});
  expect_refused(load_text("x: &x {nope: 1}\nrefit: *x"), {"refit.nope"});
  expect_refused(load_text("x: &x {nope: 1}\nrefit: {<<: *x}"), {"refit.nope"});
}

TEST(ConfigFiles, MergeKeysGiveWhatTheMapDoesNotHave) {
  const ConfigResult r = load_text(
      "a: &a {min_targets: 2, proof_every: 2}\nb: &b {min_targets: 3, commit: barrier}\nrefit:\n  <<: [*a, *b]\n  "
      "proof_every: 5\n");
  ASSERT_TRUE(r.ok()) << all_errors(r);
  EXPECT_EQ(r.config.min_targets.value, 2);
  EXPECT_EQ(r.config.proof_every.value, 5);
  EXPECT_EQ(r.config.commit.value, "barrier");
  expect_refused(load_text("refit: {<<: 3}"), {"'<<'"});
}

TEST(ConfigFiles, Assignments) {
  EXPECT_EQ(load_text("", {"++refit.min_targets=6"}).config.min_targets.value, 6);
  EXPECT_EQ(load_text("refit: {min_targets: 1}", {"refit={min_targets: 8}"}).config.min_targets.value, 8);
  EXPECT_TRUE(load_text("", {"policy.generation.refit_cfg[\"a.b:C\"].x=1"}).ok());
  expect_refused(load_text("", {"refit.min_targets"}), {"path=value"});
  expect_refused(load_text("", {"refit..x=1"}), {"'refit..x'"});
  expect_refused(load_text("", {"=1"}), {"path"});
  expect_refused(load_text("policy: [1]", {"policy.x=1"}), {"--set policy.x"});
  expect_refused(load_text("", {"refit.commit={a: b"}), {"--set"});
}

}  // namespace
}  // namespace refit::sync
