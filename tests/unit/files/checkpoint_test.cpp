// Checkpoint directories: one file or many, and indexes that lie.
#include <sys/stat.h>

#include "unit/files/fixtures.h"

namespace refit::files::test {
namespace {

class CheckpointFolder : public Folder {
 protected:
  void config() const { put("config.json", "{}"); }
  void shard(const std::string& name, const std::vector<std::string>& tensors) const {
    std::string header;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      header +=
          (i ? "," : "") + entry(tensors[i], "U8", "[1]", "[" + std::to_string(i) + "," + std::to_string(i + 1) + "]");
    put(name, raw("{" + header + "}", tensors.size()));
  }
  void index(const std::string& weight_map) const {
    put("model.safetensors.index.json", "{\"metadata\":{\"total_size\":3},\"weight_map\":{" + weight_map + "}}");
  }
  std::string refusal() const {
    const auto opened = Checkpoint::open(path_.string());
    return opened.ok() ? "accepted" : opened.error().to_string();
  }
};

TEST_F(CheckpointFolder, OneFileOrMany) {
  config();
  EXPECT_THAT(refusal(), testing::HasSubstr("has neither model.safetensors nor"));
  shard("model.safetensors", {"b", "a"});
  const auto one = Checkpoint::open(path_.string());
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->tensors().size(), 2u);
  EXPECT_EQ(one->tensors()[0].name, "a");
  EXPECT_EQ(one->find("c"), nullptr);
  EXPECT_EQ(one->config_json(), "{}");
  shard("s1.safetensors", {"x", "y"});
  shard("s2.safetensors", {"z"});
  index(R"("x":"s1.safetensors","y":"s1.safetensors","z":"s2.safetensors")");
  Checkpoint many = Checkpoint::open(path_.string()).value();
  EXPECT_EQ(many.shards().size(), 2u);
  EXPECT_EQ(many.find("z")->shard, 1u);
  EXPECT_EQ(many.bytes(), 3);
  EXPECT_EQ(many.catalogue().tensors[2].shape, (Dims{1}));
  const auto single = Checkpoint::open(at("s1.safetensors"));
  ASSERT_TRUE(single.ok());
  EXPECT_TRUE(single->config_json().empty());
  EXPECT_THAT(checkpoint_layout(*single, "hf").error().message, testing::HasSubstr("has no config.json"));
}

TEST_F(CheckpointFolder, IndexesThatLie) {
  EXPECT_THAT(refusal(), testing::HasSubstr("has no config.json"));
  config();
  shard("s1.safetensors", {"x", "y"});
  shard("s2.safetensors", {"z"});
  const std::pair<const char*, const char*> cases[] = {
      {R"("x":"s1.safetensors","y":"s1.safetensors","z":"s3.safetensors")", "shard s3.safetensors is missing"},
      {R"("x":"s1.safetensors","y":"s2.safetensors","z":"s2.safetensors")",
       "tensor y is in s1.safetensors, not in s2.safetensors"},
      {R"("x":"s1.safetensors","z":"s2.safetensors")", "tensor y of s1.safetensors is not listed"},
      {R"("x":"s1.safetensors","y":"s1.safetensors","w":"s1.safetensors","z":"s2.safetensors")",
       "tensor w is not in s1.safetensors"},
      {R"("x":"../s1.safetensors")", "not in a plain file name"},
      {R"("x":"/etc/passwd")", "not in a plain file name"},
      {R"("x":"..")", "not in a plain file name"},
      {R"("x":"")", "not in a plain file name"},
      {R"("x":7)", "not in a plain file name"},
      {R"("x":"a\u0000b")", "not in a plain file name"},
      {R"("x":"s1.safetensors","x":"s2.safetensors")", "key 'x' appears twice"},
      {"", "'weight_map' is empty"}};
  for (const auto& [map, message] : cases) {
    index(map);
    EXPECT_THAT(refusal(), testing::HasSubstr(message)) << map;
  }
  put("model.safetensors.index.json", "[]");
  EXPECT_THAT(refusal(), testing::HasSubstr("has no object 'weight_map'"));
  // One tensor in two shards.
  shard("s2.safetensors", {"x", "z"});
  index(R"("x":"s1.safetensors","y":"s1.safetensors","z":"s2.safetensors")");
  EXPECT_THAT(refusal(), testing::HasSubstr("tensor x is in s1.safetensors and in s2.safetensors"));
}

TEST_F(CheckpointFolder, OddPathsAreNoCheckpoints) {
  EXPECT_THAT(Checkpoint::open(at("nowhere")).error().to_string(), testing::HasSubstr("no such file"));
  ASSERT_EQ(mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Checkpoint::open(at("pipe")).error().to_string(), testing::HasSubstr("is not a regular file"));
  put("empty", "");
  EXPECT_THAT(Checkpoint::open(at("empty")).error().to_string(), testing::HasSubstr("less than a header length"));
  std::filesystem::create_directory(at("model.safetensors"));
  config();
  EXPECT_THAT(refusal(), testing::HasSubstr("is not a regular file"));
}

TEST_F(CheckpointFolder, LayoutOfItsOwnTensors) {
  const std::string text =
      R"({"model_type":"llama","hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":6,"vocab_size":5,"torch_dtype":"float32"})";
  const auto catalogue = model::catalogue_of(text);
  std::vector<TensorSpec> specs;
  for (const auto& t : catalogue->tensors)
    specs.push_back({t.name, t.name == "model.norm.weight" ? DType::kF64 : t.dtype, t.shape});
  auto writer = SafetensorsWriter::create(at("model.safetensors"), specs);
  ASSERT_TRUE(writer.ok()) << writer.error().to_string();
  ASSERT_TRUE(writer->commit().ok());
  put("config.json", text);
  const auto checkpoint = Checkpoint::open(path_.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto layout = checkpoint_layout(*checkpoint, "hf");
  ASSERT_TRUE(layout.ok()) << layout.error().to_string();
  const auto rank = (*layout)->expand(Rank{0});
  EXPECT_EQ(rank->buffers[0].bytes, checkpoint->bytes());
  EXPECT_EQ(rank->parameters[0].name, "model.norm.weight");
}

}  // namespace
}  // namespace refit::files::test
