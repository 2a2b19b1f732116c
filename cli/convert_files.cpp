#include "cli/convert_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace refit::cli {
namespace {

std::string shape_text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

std::int64_t parameter_bytes(const model::Parameter& p) { return elements(whole(p.shape)) * item_size(p.dtype); }

// The logical tensor that a transformed parameter's values come from; transforms are of whole tensors, elementwise.
const model::LogicalTensor& logical_of(const model::Layout& layout, const model::RankLayout& held,
                                       const model::Parameter& p) {
  const auto at = std::find_if(held.holdings.begin(), held.holdings.end(), [&](const model::Holding& h) {
    return h.offset >= p.offset && h.offset < p.offset + parameter_bytes(p);
  });
  REFIT_CHECK(at != held.holdings.end());
  return layout.catalogue().tensors[at->tensor.value];
}

Status inexact(const model::LogicalTensor& tensor, const model::Parameter& p, std::int64_t index,
               const plan::Options& options) {
  if (index < 0 || plan::cast_allowed(options, tensor.name)) return {};
  return Error(Code::kInvalid, fmt::format("the value transform '{}' of {} loses the value at element {} of {} ({}): "
                                           "permit it with --allow-cast '{}'",
                                           p.value, tensor.name, index, p.name, to_string(tensor.dtype), tensor.name))
      .at_tensor(tensor.name);
}

}  // namespace

Status ParameterMemory::add_rank(const model::Layout& layout, Rank rank,
                                 const std::map<std::string, files::TensorRef>& tensors, const std::string& where,
                                 const plan::Options& options) {
  REFIT_ASSIGN(const model::RankLayout held, layout.expand(rank));
  std::vector<Span>& spans = ranks_.emplace_back();
  std::vector<std::string> missing, unknown;
  std::map<std::string_view, const model::Parameter*> wanted;
  for (const model::Parameter& p : held.parameters) {
    wanted.emplace(p.name, &p);
    const auto found = tensors.find(p.name);
    if (found == tensors.end()) {
      missing.push_back(p.name);
      continue;
    }
    const files::TensorRef& t = found->second;
    if (t.shape != p.shape || t.dtype != p.dtype)
      return Error(Code::kMismatch,
                   fmt::format("{}: {} is {} {}, the layout says {} {}", where, p.name, to_string(t.dtype),
                               shape_text(t.shape), to_string(p.dtype), shape_text(p.shape)))
          .at_tensor(p.name);
    const std::byte* data = t.bytes.data();
    if (!p.value.empty() && !t.bytes.empty()) {
      std::vector<float> values(t.bytes.size() / sizeof(float));
      std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
      const model::LogicalTensor& logical = logical_of(layout, held, p);
      REFIT_ASSIGN(const std::int64_t bad, model::undo_value(p.value, values, logical.dtype));
      REFIT_TRY(inexact(logical, p, bad, options));
      std::vector<std::byte>& copy = undone_.emplace_back(t.bytes.size());
      std::memcpy(copy.data(), values.data(), copy.size());
      data = copy.data();
    }
    if (!t.bytes.empty()) spans.push_back({p.offset, data});
  }
  for (const auto& [name, t] : tensors)
    if (!wanted.contains(name)) unknown.push_back(name);
  if (missing.empty() && unknown.empty()) return {};
  std::string what = where + ":";
  if (!missing.empty()) what += " lacks " + model::names_text(missing);
  if (!unknown.empty())
    what += (missing.empty() ? "" : ";") + (" has " + model::names_text(unknown)) + ", which the layout does not know";
  return Error(Code::kMismatch, what).at_tensor(missing.empty() ? unknown[0] : missing[0]);
}

Result<ParameterMemory> ParameterMemory::of_checkpoint(const model::Layout& layout, files::Checkpoint checkpoint,
                                                       const plan::Options& options) {
  ParameterMemory out;
  std::map<std::string, files::TensorRef> tensors;
  REFIT_ASSIGN(const model::RankLayout held, layout.expand(Rank(0)));
  // What rules leave out on purpose (derived buffers) is no leftover; rule_layout() has refused all else.
  for (const model::Parameter& p : held.parameters)
    if (const files::TensorRef* t = checkpoint.find(p.name)) tensors.emplace(p.name, *t);
  REFIT_TRY(out.add_rank(layout, Rank(0), tensors, checkpoint.path(), options));
  out.files_.push_back(std::move(checkpoint));
  return out;
}

Result<ParameterMemory> ParameterMemory::of_ranks(const model::Layout& layout, const std::string& directory,
                                                  const plan::Options& options) {
  namespace fs = std::filesystem;
  ParameterMemory out;
  std::map<std::string, std::vector<std::string>> by_rank;  // "rank7" -> files
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".safetensors"))
      by_rank[name.substr(0, name.find_first_of("-."))].push_back(entry.path().string());
  }
  if (error) return Error(Code::kInvalid, directory + ": cannot list: " + error.message());
  for (std::int64_t r = 0; r < layout.world(); ++r) {
    const std::string stem = "rank" + std::to_string(r);
    auto& paths = by_rank[stem];
    if (paths.empty()) return Error(Code::kInvalid, directory + ": has no " + stem + ".safetensors, nor shards of it");
    std::sort(paths.begin(), paths.end());
    std::map<std::string, files::TensorRef> tensors;
    for (const std::string& path : paths) {
      REFIT_ASSIGN(files::Checkpoint file, files::Checkpoint::open(path));
      for (const files::TensorRef& t : file.tensors())
        if (!tensors.emplace(t.name, t).second)
          return Error(Code::kCorrupt, path + ": " + t.name + " is in another shard too").at_tensor(t.name);
      out.files_.push_back(std::move(file));
    }
    REFIT_TRY(out.add_rank(layout, Rank(static_cast<std::uint32_t>(r)), tensors, directory + "/" + stem, options));
    by_rank.erase(stem);
  }
  if (by_rank.empty()) return out;
  return Error(Code::kMismatch, directory + ": " + by_rank.begin()->second[0] + " is of a rank beyond the layout's " +
                                    std::to_string(layout.world()));
}

const std::byte* ParameterMemory::at(Rank rank, std::uint32_t, std::int64_t offset) const {
  const std::vector<Span>& spans = ranks_[rank.value];
  const auto next =
      std::upper_bound(spans.begin(), spans.end(), offset, [](std::int64_t o, const Span& s) { return o < s.offset; });
  REFIT_CHECK(next != spans.begin());
  return std::prev(next)->data + (offset - std::prev(next)->offset);
}

namespace {

// A rank's parameters in one file, or in shards that begin at parameters.
class SafetensorsRank final : public RankFiles {
 public:
  SafetensorsRank(const model::Layout& layout, const model::RankLayout& held, const plan::Options& options)
      : layout_(layout), held_(held), options_(options) {}

  Status create(const std::string& directory, const std::vector<std::string>& names,
                const std::vector<std::size_t>& firsts) {
    for (std::size_t s = 0; s < names.size(); ++s) {
      const std::size_t end = s + 1 < names.size() ? firsts[s + 1] : held_.parameters.size();
      std::vector<files::TensorSpec> specs;
      for (std::size_t i = firsts[s]; i < end; ++i)
        specs.push_back({held_.parameters[i].name, held_.parameters[i].dtype, held_.parameters[i].shape});
      REFIT_ASSIGN(files::SafetensorsWriter writer,
                   files::SafetensorsWriter::create(directory + "/" + names[s], specs, {{"format", "pt"}}));
      starts_.push_back(firsts[s] < held_.parameters.size() ? held_.parameters[firsts[s]].offset : 0);
      writers_.push_back(std::move(writer));
    }
    return {};
  }
  std::byte* at(std::uint32_t, std::int64_t offset) override {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    const auto shard = static_cast<std::size_t>(next - starts_.begin() - 1);
    return writers_[shard].data().data() + (offset - starts_[shard]);
  }
  std::int64_t bytes() const override { return held_.buffers[0].bytes; }
  Status commit() override {
    for (const model::Parameter& p : held_.parameters)
      if (!p.value.empty() && parameter_bytes(p) > 0) REFIT_TRY(transform(p));
    for (files::SafetensorsWriter& w : writers_) REFIT_TRY(w.commit());
    return {};
  }

 private:
  Status transform(const model::Parameter& p) {
    std::byte* data = at(0, p.offset);
    std::vector<float> values(static_cast<std::size_t>(parameter_bytes(p)) / sizeof(float));
    std::memcpy(values.data(), data, values.size() * sizeof(float));
    const model::LogicalTensor& logical = logical_of(layout_, held_, p);
    REFIT_ASSIGN(const std::int64_t bad, model::apply_value(p.value, values, logical.dtype));
    REFIT_TRY(inexact(logical, p, bad, options_));
    std::memcpy(data, values.data(), values.size() * sizeof(float));
    return {};
  }

  const model::Layout& layout_;
  model::RankLayout held_;
  const plan::Options& options_;
  std::vector<std::int64_t> starts_;  // of shards in the buffer
  std::vector<files::SafetensorsWriter> writers_;
};

// First parameter of each shard.
std::vector<std::size_t> cut_shards(const model::RankLayout& held, std::int64_t limit) {
  std::vector<std::size_t> out{0};
  std::int64_t size = 0;
  for (std::size_t i = 0; i < held.parameters.size(); ++i) {
    const std::int64_t bytes = parameter_bytes(held.parameters[i]);
    if (size > 0 && size + bytes > limit) out.push_back(i), size = 0;
    size += bytes;
  }
  return out;
}

// The rank with a buffer for each file.
model::RankLayout as_files(const model::RankLayout& held, const std::vector<std::string>& names,
                           const std::vector<std::size_t>& firsts) {
  model::RankLayout out{
      .rank = held.rank, .host = held.host, .buffers = {}, .holdings = held.holdings, .parameters = {}};
  std::vector<std::int64_t> starts;
  for (std::size_t first : firsts) starts.push_back(first < held.parameters.size() ? held.parameters[first].offset : 0);
  for (std::size_t s = 0; s < names.size(); ++s) {
    const std::int64_t end = s + 1 < names.size() ? starts[s + 1] : held.buffers[0].bytes;
    const std::string name = names.size() == 1 ? held.buffers[0].name : held.buffers[0].name + std::to_string(s);
    out.buffers.push_back({.name = name, .bytes = end - starts[s], .fill = held.buffers[0].fill, .file = names[s]});
  }
  for (model::Holding& h : out.holdings) {
    const auto s = std::upper_bound(starts.begin(), starts.end(), h.offset) - starts.begin() - 1;
    h.buffer = static_cast<std::uint32_t>(s);
    h.offset -= starts[static_cast<std::size_t>(s)];
  }
  return out;
}

bool is_checkpoint(const model::Layout& layout) {
  return layout.recipe()->spec == "hf" || layout.recipe()->spec.starts_with("hf:");
}

}  // namespace

Result<std::unique_ptr<RankFiles>> ParameterFiles::open(const model::RankLayout& held, const std::string& directory) {
  const std::vector<std::size_t> firsts = cut_shards(held, shard_bytes_);
  const std::string stem = is_checkpoint(layout_) ? "model" : "rank" + std::to_string(held.rank.value);
  std::vector<std::string> names;
  for (std::size_t s = 0; s < firsts.size(); ++s)
    names.push_back(firsts.size() == 1 ? stem + ".safetensors"
                                       : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, s + 1, firsts.size()));
  if (!is_checkpoint(layout_)) {
    lying_.push_back(as_files(held, names, firsts));
  } else if (names.size() > 1) {
    for (std::size_t s = 0; s < names.size(); ++s)
      for (std::size_t i = firsts[s]; i < (s + 1 < names.size() ? firsts[s + 1] : held.parameters.size()); ++i)
        index_.emplace(held.parameters[i].name, names[s]);
  }
  auto out = std::make_unique<SafetensorsRank>(layout_, held, options_);
  REFIT_TRY(out->create(directory, names, firsts));
  return std::unique_ptr<RankFiles>(std::move(out));
}

Status ParameterFiles::write_index(const std::string& directory) const {
  if (index_.empty()) return {};
  REFIT_ASSIGN(const model::RankLayout held, layout_.expand(Rank(0)));
  const nlohmann::json index{{"metadata", {{"total_size", held.buffers[0].bytes}}}, {"weight_map", index_}};
  return files::write_text(directory + "/model.safetensors.index.json", index.dump(2));
}

Status ParameterFiles::finish(const std::string& directory) {
  if (!config_.empty()) REFIT_TRY(files::write_text(directory + "/config.json", config_));
  if (is_checkpoint(layout_)) return write_index(directory);
  REFIT_ASSIGN(const std::string text, model::describe_files(layout_, lying_));
  return files::write_text(directory + "/layout.json", text);
}

}  // namespace refit::cli
