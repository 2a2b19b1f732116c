// The header parser against hostile bytes: every lie is named, nothing is believed.
#include <random>

#include "unit/files/fixtures.h"

namespace refit::files::test {
namespace {

TEST(Safetensors, ReadsWhatIsRight) {
  const auto parsed = parse(raw("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "F32", "[2,1]", "[6,14]") + "," +
                                    entry("a", "BF16", "[3]", "[0,6]") + "," + entry("none", "I64", "[0,7]", "[6,6]") +
                                    "," + entry("one", "F8_E4M3", "[]", "[14,15]") + "}   ",
                                15));
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[1].name, "none");
  EXPECT_EQ(parsed->tensors[2].shape, (Dims{2, 1}));
  EXPECT_EQ(parsed->tensors[3].dtype, DType::kF8E4M3);
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  EXPECT_EQ(refusal(raw("{}", 0)), "accepted");
}

struct Case {
  std::string file, message;
};
class Hostile : public testing::TestWithParam<Case> {};
TEST_P(Hostile, IsNamed) { EXPECT_THAT(refusal(GetParam().file), testing::HasSubstr(GetParam().message)); }

std::string with_length(std::uint64_t length) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + "{}";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Hostile,
    testing::Values(Case{"", "0 bytes, less than a header length"}, Case{"1234567", "7 bytes, less than"},
                    Case{with_length(3), "claims 3 bytes, the file has 2"},
                    Case{with_length(0), "does not start with '{'"},
                    Case{with_length(UINT64_MAX), "claims 18446744073709551615 bytes, at most"},
                    Case{with_length((100u << 20) + 1), "at most 104857600"}, Case{with_length(1), "not valid JSON"},
                    Case{raw("[]", 0), "does not start with '{'"}, Case{raw("{\"a\":}", 0), "not valid JSON"},
                    Case{raw("{} {}", 0), "not valid JSON"}, Case{raw("{\"\xff\":1}", 0), "not valid JSON"},
                    Case{raw(std::string("{\0}", 3), 0), "not valid JSON"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[0,1]") + "}", 1),
                         "key 'a' appears twice"},
                    Case{raw(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                         "key 'dtype' appears twice"},
                    Case{raw(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1),
                         "must have exactly dtype, shape and data_offsets"},
                    Case{raw(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "must have exactly"},
                    Case{raw(R"({"a":7})", 1), "must have exactly"},
                    Case{raw(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1), "wrong type"},
                    Case{raw("{" + entry("a", "U8", "{}", "[0,1]") + "}", 1), "wrong type"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0]") + "}", 1), "wrong type"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,1,2]") + "}", 1), "wrong type"},
                    Case{raw("{" + entry("a", "Q4", "[1]", "[0,1]") + "}", 1), "unsupported: safetensors: dtype 'Q4'"},
                    Case{raw("{" + entry("a", "U8", "[-1]", "[0,1]") + "}", 1), "no size"},
                    Case{raw("{" + entry("a", "U8", "[1.0]", "[0,1]") + "}", 1), "no size"},
                    Case{raw("{" + entry("a", "U8", "[\"1\"]", "[0,1]") + "}", 1), "no size"},
                    Case{raw("{" + entry("a", "U8", "[18446744073709551615]", "[0,1]") + "}", 1), "no size"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,18446744073709551615]") + "}", 1), "no size"},
                    Case{raw("{" + entry("a", "U8", "[2]", "[0,2]") + "}", 1), "ends outside"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[1,0]") + "}", 1), "ends outside"},
                    Case{raw("{" + entry("a", "F32", "[1]", "[0,1]") + "}", 1),
                         "has 1 bytes, which its dtype and shape do not make"},
                    Case{raw("{" + entry("a", "U8", "[4294967296,4294967296,0]", "[0,0]") + "}", 0), "do not make"},
                    Case{raw("{" + entry("a", "F64", "[4611686018427387904,2]", "[0,0]") + "}", 0), "do not make"},
                    Case{raw("{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[1,3]") + "}", 3),
                         "tensor 'b' overlaps"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[0,1]") + "}", 1),
                         "tensor 'b' overlaps"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[1]", "[2,3]") + "}", 3),
                         "tensor 'b' leaves a gap"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[1,2]") + "}", 2), "leaves a gap"},
                    Case{raw("{" + entry("a", "U8", "[1]", "[0,1]") + "}", 2), "1 bytes after the last tensor"},
                    Case{raw("{}", 1), "1 bytes after the last tensor"},
                    Case{raw("{" +
                                 entry(
                                     "a", "U8",
                                     "[1" +
                                         [] {
                                           std::string s;
                                           for (int i = 0; i < 64; ++i) s += ",1";
                                           return s;
                                         }() +
                                         "]",
                                     "[0,1]") +
                                 "}",
                             1),
                         "more than 64 axes"},
                    Case{raw(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
                    Case{raw(R"({"__metadata__":{"a":1}})", 0), "key 'a' is not a string"}));

TEST(Safetensors, DeepNestingIsNoStackOverflow) {
  EXPECT_THAT(refusal(raw("{\"a\":" + std::string(200'000, '['), 0)), testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(raw("{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}", 0)),
              testing::HasSubstr("must have exactly"));
}

// Any damage to a good file is refused or leaves a header that still describes the file exactly.
TEST(Safetensors, RandomDamage) {
  const std::string good =
      raw("{" + entry("a", "BF16", "[3,2]", "[0,12]") + "," + entry("b", "U8", "[5]", "[12,17]") + "}", 17);
  constexpr std::uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (std::uint64_t n = random() % 3 + 1; n > 0; --n) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bad.resize(random() % (bad.size() + 1));
    const auto parsed = parse(bad);
    if (!parsed.ok()) continue;
    std::int64_t end = 0;
    for (const TensorEntry& t : parsed->tensors) {
      EXPECT_EQ(t.offset, end) << "seed " << kSeed << " round " << i;
      end += t.bytes;
    }
    EXPECT_EQ(end + parsed->data_offset, static_cast<std::int64_t>(bad.size())) << "seed " << kSeed << " round " << i;
  }
}

}  // namespace
}  // namespace refit::files::test
