#include "files/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace refit::files {
namespace {
using nlohmann::json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}
bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Error corrupt_index(const std::string& what) { return Error(Code::kCorrupt, std::string(kIndex) + ": " + what); }

// Tensor name -> shard file name.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  REFIT_ASSIGN(const std::string text, read_text(path));
  if (Status valid = model::check_json(text); !valid.ok()) return corrupt_index(valid.error().message);
  const json index = json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return corrupt_index("has no object 'weight_map'");
  std::map<std::string, std::string> out;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>()))
      return corrupt_index("tensor '" + name.substr(0, 200) + "' is not in a plain file name of this directory")
          .at_tensor(name.substr(0, 200));
    out.emplace(name, file.get<std::string>());
  }
  if (out.empty()) return corrupt_index("'weight_map' is empty");
  return out;
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  Checkpoint out;
  out.path_ = path;
  if (!is_directory(path)) {
    if (!exists(path)) return Error(Code::kInvalid, path + ": no such file or directory");
    const std::size_t slash = path.rfind('/');
    const bool bare = slash == std::string::npos;
    REFIT_TRY(out.add_shard(bare ? "." : path.substr(0, slash + 1), bare ? path : path.substr(slash + 1)));
    REFIT_TRY(out.finish());
    return out;
  }
  if (!exists(path + "/config.json")) return Error(Code::kInvalid, path + ": has no config.json");
  REFIT_ASSIGN(out.config_, read_text(path + "/config.json"));
  if (exists(path + "/" + kIndex)) {
    REFIT_ASSIGN(const auto weight_map, read_index(path + "/" + kIndex));
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    for (const std::string& name : names) {
      if (!exists(path + "/" + name)) return corrupt_index("shard " + name + " is missing");
      REFIT_TRY(out.add_shard(path, name));
    }
    REFIT_TRY(out.finish());
    REFIT_TRY(out.check_index(weight_map));
    return out;
  }
  if (!exists(path + "/" + kSingle)) return Error(Code::kInvalid, path + ": has neither " + kSingle + " nor " + kIndex);
  REFIT_TRY(out.add_shard(path, kSingle));
  REFIT_TRY(out.finish());
  return out;
}

Status Checkpoint::add_shard(const std::string& directory, const std::string& name) {
  REFIT_ASSIGN(MappedFile file, MappedFile::open(directory + "/" + name));
  auto header = parse_safetensors(file.bytes());
  if (!header.ok()) {
    Error e = std::move(header).error();
    e.message = name + ": " + e.message;
    return e;
  }
  if (shards_.empty()) metadata_ = header->metadata;
  const auto data = file.bytes().subspan(static_cast<std::size_t>(header->data_offset));
  for (TensorEntry& t : header->tensors)
    tensors_.push_back({std::move(t.name), t.dtype, std::move(t.shape),
                        data.subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.bytes)),
                        static_cast<std::uint32_t>(shards_.size())});
  shards_.push_back(name);
  files_.push_back(std::move(file));
  return {};
}

Status Checkpoint::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorRef& a, const TensorRef& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i)
    if (tensors_[i].name == tensors_[i - 1].name)
      return Error(Code::kCorrupt, "tensor " + tensors_[i].name + " is in " + shards_[tensors_[i - 1].shard] +
                                       " and in " + shards_[tensors_[i].shard])
          .at_tensor(tensors_[i].name);
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (std::string plain = model::plain_name(tensors_[i].name); plain != tensors_[i].name)
      plain_.emplace(std::move(plain), i);
  return {};
}

Status Checkpoint::check_index(const std::map<std::string, std::string>& weight_map) const {
  for (const auto& [name, file] : weight_map) {
    const TensorRef* t = find(name);
    if (!t) return corrupt_index("tensor " + name + " is not in " + file).at_tensor(name);
    if (shards_[t->shard] != file)
      return corrupt_index("tensor " + name + " is in " + shards_[t->shard] + ", not in " + file).at_tensor(name);
  }
  for (const TensorRef& t : tensors_)
    if (!weight_map.contains(t.name))
      return corrupt_index("tensor " + t.name + " of " + shards_[t.shard] + " is not listed").at_tensor(t.name);
  return {};
}

const TensorRef* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorRef& t, std::string_view n) { return t.name < n; });
  if (at != tensors_.end() && at->name == name) return &*at;
  const auto plain = plain_.find(name);
  return plain == plain_.end() ? nullptr : &tensors_[plain->second];
}

std::int64_t Checkpoint::bytes() const {
  std::int64_t sum = 0;
  for (const TensorRef& t : tensors_) sum += static_cast<std::int64_t>(t.bytes.size());
  return sum;
}

std::int64_t Checkpoint::elements() const {
  std::int64_t sum = 0;
  for (const TensorRef& t : tensors_) sum += static_cast<std::int64_t>(t.bytes.size()) / item_size(t.dtype);
  return sum;
}

model::Catalogue Checkpoint::catalogue() const {
  model::Catalogue out;
  for (const TensorRef& t : tensors_) out.tensors.push_back({t.name, t.shape, t.dtype});
  return out;
}

Result<std::shared_ptr<const model::Layout>> checkpoint_layout(const Checkpoint& checkpoint, std::string_view spec) {
  if (checkpoint.config_json().empty())
    return Error(Code::kInvalid,
                 checkpoint.path() + ": a single file has no config.json; name the checkpoint's directory");
  const model::Catalogue names = checkpoint.catalogue();
  return model::rule_layout(checkpoint.config_json(), spec, &names);
}

Result<std::shared_ptr<const model::Layout>> model_layout(const std::string& model, const std::string& spec) {
  if (!exists(model)) {
    REFIT_ASSIGN(const std::string config, model::builtin_config(model));
    return model::rule_layout(config, spec);
  }
  std::string config_path = model;
  bool config_only = !model.ends_with(".safetensors");
  if (is_directory(model)) {
    // A directory without weights still has a configuration to plan with.
    config_path += "/config.json";
    config_only = exists(config_path) && !exists(model + "/" + kSingle) && !exists(model + "/" + kIndex);
  }
  if (config_only) {
    REFIT_ASSIGN(const std::string config, read_text(config_path));
    return model::rule_layout(config, spec);
  }
  REFIT_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model));
  return checkpoint_layout(checkpoint, spec);
}

}  // namespace refit::files
