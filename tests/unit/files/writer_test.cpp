// What is written appears complete or not at all.
#include "unit/files/fixtures.h"

namespace refit::files::test {
namespace {

using Writer = Folder;

TEST_F(Writer, RoundTripAlignedAndExact) {
  const std::vector<TensorSpec> specs{{"wide", DType::kF64, {2}},
                                      {"nan", DType::kF32, {3, 1}},
                                      {"half", DType::kBF16, {}},
                                      {"none", DType::kF16, {0, 7}},
                                      {"bytes \"quoted\" é", DType::kBool, {5}}};
  auto writer = SafetensorsWriter::create(at("m.safetensors"), specs, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.error().to_string();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(writer->data().data()) % 64, 0u);
  for (std::size_t i = 0; i < writer->data().size(); ++i) writer->data()[i] = static_cast<std::byte>(i * 37 + 200);
  const std::vector<std::byte> bytes(writer->data().begin(), writer->data().end());
  EXPECT_EQ(writer->tensor(1).size(), 12u);
  EXPECT_EQ(writer->tensor(3).size(), 0u);
  ASSERT_TRUE(writer->commit().ok());
  EXPECT_EQ(list(), std::vector<std::string>{"m.safetensors"});
  const auto back = Checkpoint::open(at("m.safetensors"));
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(back->metadata().at("format"), "pt");
  std::size_t offset = 0;
  for (const TensorSpec& s : specs) {
    const TensorRef* t = back->find(s.name);
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, s.dtype);
    EXPECT_EQ(t->shape, s.shape);
    EXPECT_TRUE(std::equal(t->bytes.begin(), t->bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t->bytes.data()) % static_cast<std::uintptr_t>(item_size(s.dtype)), 0u);
    offset += t->bytes.size();
  }
}

TEST_F(Writer, NothingWithoutCommit) {
  put("kept", "old");
  {
    auto writer = FileWriter::create(at("kept"), 100);
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(list().size(), 2u);
    FileWriter moved = std::move(*writer);
    moved.bytes()[99] = std::byte{1};
  }
  EXPECT_EQ(list(), std::vector<std::string>{"kept"});
  EXPECT_EQ(*read_text(at("kept")), "old");
  ASSERT_TRUE(write_text(at("kept"), "new").ok());
  EXPECT_EQ(*read_text(at("kept")), "new");
  ASSERT_TRUE(write_text(at("empty"), "").ok());
  EXPECT_EQ(*read_text(at("empty")), "");
  EXPECT_EQ(list().size(), 2u);
}

TEST_F(Writer, RefusalsNameThePath) {
  EXPECT_THAT(FileWriter::create(at("no/such"), 1).error().to_string(), testing::HasSubstr("no/such: cannot create"));
  EXPECT_FALSE(FileWriter::create(at("f"), -1).ok());
  const auto huge = FileWriter::create(at("f"), std::int64_t{1} << 60);
  ASSERT_FALSE(huge.ok());
  EXPECT_THAT(huge.error().to_string(), testing::HasSubstr("cannot reserve its space"));
  EXPECT_THAT(SafetensorsWriter::create(at("f"), {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}).error().to_string(),
              testing::HasSubstr("tensor 'a' has a name that is taken"));
  EXPECT_THAT(SafetensorsWriter::create(at("f"), {{"a", DType::kF64, {std::int64_t{1} << 61}}}).error().to_string(),
              testing::HasSubstr("passes 2^63"));
  EXPECT_FALSE(SafetensorsWriter::create(at("f"), {{"__metadata__", DType::kU8, {1}}}).ok());
  EXPECT_TRUE(list().empty());
  put("long", std::string(100, 'x'));
  EXPECT_EQ(read_text(at("long"), 10).error().have, 10);
}

}  // namespace
}  // namespace refit::files::test
