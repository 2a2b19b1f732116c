// refit inspect PATH: what a checkpoint directory, a safetensors file or a layout file holds.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "files/files.h"
#include "model/model.h"

namespace refit::cli {
namespace {
using nlohmann::json;

constexpr std::int64_t kMaxListedRanks = 4096, kMaxShownRanks = 32;

struct Options {
  std::string path;
  bool all = false;
};

std::string dims_text(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

std::string size_text(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// Numbers between dots replaced by '*': "model.layers.7.mlp" and "model.layers.8.mlp" share a line of the table.
std::string stem(const std::string& name) {
  std::string out;
  std::size_t at = 0;
  while (at <= name.size()) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, dot - at);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    out += (at ? "." : "") + (number ? "*" : part);
    at = dot + 1;
  }
  return out;
}

struct Line {
  std::string name, dtype, shape;
  std::int64_t bytes = 0, count = 0;
};

void print_table(std::vector<Line> lines, bool all) {
  if (!all) {
    std::vector<Line> folded;
    std::map<std::string, std::size_t> known;
    for (Line& l : lines) {
      l.name = stem(l.name);
      const auto [at, fresh] = known.emplace(l.name + l.dtype + l.shape, folded.size());
      if (fresh) {
        folded.push_back(l);
      } else {
        folded[at->second].bytes += l.bytes;
        folded[at->second].count += l.count;
      }
    }
    lines = std::move(folded);
  }
  std::size_t width = 6, shape_width = 5;
  for (const Line& l : lines) {
    width = std::max(width, l.name.size());
    shape_width = std::max(shape_width, l.shape.size());
  }
  fmt::print("  {:<{}}  {:>6}  {:<8}  {:<{}}  {:>10}\n", "tensor", width, "count", "dtype", "shape", shape_width,
             "bytes");
  for (const Line& l : lines)
    fmt::print("  {:<{}}  {:>6}  {:<8}  {:<{}}  {:>10}\n", l.name, width, l.count, l.dtype, l.shape, shape_width,
               size_text(l.bytes));
}

void show_checkpoint(const files::Checkpoint& checkpoint, const Options& options, const Context& context) {
  std::string family, reason;
  if (checkpoint.config_json().empty()) {
    reason = "a single file, no config.json";
  } else if (auto layout = files::checkpoint_layout(checkpoint, "hf"); layout.ok()) {
    family = (*layout)->recipe()->family;
  } else {
    reason = layout.error().to_string();
  }
  if (context.json) {
    json tensors = json::array();
    for (const files::TensorRef& t : checkpoint.tensors())
      tensors.push_back({{"name", t.name},
                         {"dtype", to_string(t.dtype)},
                         {"shape", t.shape},
                         {"bytes", t.bytes.size()},
                         {"file", checkpoint.shards()[t.shard]}});
    fmt::print("{}\n", json{{"ok", true},
                            {"kind", "checkpoint"},
                            {"path", checkpoint.path()},
                            {"parameters", checkpoint.elements()},
                            {"bytes", checkpoint.bytes()},
                            {"files", checkpoint.shards()},
                            {"metadata", checkpoint.metadata()},
                            {"family", family.empty() ? json(nullptr) : json(family)},
                            {"family_reason", reason},
                            {"tensors", tensors}}
                           .dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  fmt::print("{}: checkpoint, {} tensors, {} parameters, {} in {} file{}\n", checkpoint.path(),
             checkpoint.tensors().size(), checkpoint.elements(), size_text(checkpoint.bytes()),
             checkpoint.shards().size(), checkpoint.shards().size() == 1 ? "" : "s");
  fmt::print("rules: {}\n", family.empty() ? "none (" + reason + ")" : family);
  std::vector<Line> lines;
  for (const files::TensorRef& t : checkpoint.tensors())
    lines.push_back(
        {t.name, std::string(to_string(t.dtype)), dims_text(t.shape), static_cast<std::int64_t>(t.bytes.size()), 1});
  print_table(std::move(lines), options.all);
}

std::int64_t buffer_bytes(const model::RankLayout& rank) {
  std::int64_t sum = 0;
  for (const model::BufferSpec& b : rank.buffers) sum += b.bytes;
  return sum;
}

Status show_layout(const model::Layout& layout, const Options& options, const Context& context) {
  const auto& tensors = layout.catalogue().tensors;
  json ranks = json::array();
  const std::int64_t listed = std::min(layout.world(), context.json ? kMaxListedRanks : kMaxShownRanks);
  std::vector<std::string> rows;
  for (std::int64_t r = 0; r < listed; ++r) {
    REFIT_ASSIGN(const model::RankLayout rank, layout.expand(Rank{static_cast<std::uint32_t>(r)}));
    if (context.json)
      ranks.push_back({{"rank", r},
                       {"host", layout.host(rank.rank)},
                       {"bytes", buffer_bytes(rank)},
                       {"holdings", rank.holdings.size()},
                       {"parameters", rank.parameters.size()}});
    else
      rows.push_back(fmt::format("  {:>5}  {:<12}  {:>10}  {:>8}  {:>10}\n", r, layout.host(rank.rank),
                                 size_text(buffer_bytes(rank)), rank.holdings.size(), rank.parameters.size()));
  }
  const model::Recipe* recipe = layout.recipe();
  if (context.json) {
    json names = json::array(), tied = json::array();
    for (const model::LogicalTensor& t : tensors)
      names.push_back({{"name", t.name}, {"dtype", to_string(t.dtype)}, {"shape", t.shape}});
    for (const auto& [a, b] : layout.catalogue().tied) tied.push_back({a, b});
    json out{{"ok", true},
             {"kind", "layout"},
             {"path", options.path},
             {"digest", layout.digest().hex()},
             {"world", layout.world()},
             {"instances", layout.instances()},
             {"ranks", ranks},
             {"tensors", names},
             {"tied", tied},
             {"recipe", nullptr}};
    if (recipe)
      out["recipe"] = {{"family", recipe->family},
                       {"spec", recipe->spec},
                       {"config_digest", recipe->config_digest.hex()},
                       {"rules_digest", recipe->rules_digest.hex()}};
    fmt::print("{}\n", out.dump(-1, ' ', false, json::error_handler_t::replace));
    return {};
  }
  fmt::print("{}: layout of {} rank{} in {} instance{}, {} tensors, digest {}\n", options.path, layout.world(),
             layout.world() == 1 ? "" : "s", layout.instances(), layout.instances() == 1 ? "" : "s", tensors.size(),
             layout.digest().hex());
  fmt::print("made by: {}\n",
             recipe ? fmt::format("rules of {} for {}", recipe->family, recipe->spec) : "explicit holdings");
  fmt::print("  {:>5}  {:<12}  {:>10}  {:>8}  {:>10}\n", "rank", "host", "bytes", "holdings", "parameters");
  for (const std::string& row : rows) fmt::print("{}", row);
  if (listed < layout.world()) fmt::print("  … and {} more ranks\n", layout.world() - listed);
  std::vector<Line> lines;
  for (const model::LogicalTensor& t : tensors)
    lines.push_back({t.name, std::string(to_string(t.dtype)), dims_text(t.shape),
                     elements(whole(t.shape)) * item_size(t.dtype), 1});
  print_table(std::move(lines), options.all);
  return {};
}

Status inspect(const Options& options, const Context& context) {
  // A layout file is JSON from its first byte; a safetensors header starts after eight bytes of length.
  if (options.path.ends_with(".json")) {
    REFIT_ASSIGN(const std::string text, files::read_text(options.path, std::int64_t{1} << 30));
    auto layout = model::read_layout(text);
    if (!layout.ok()) {
      layout.error().message = options.path + ": " + layout.error().message;
      return std::move(layout).error();
    }
    return show_layout(**layout, options, context);
  }
  REFIT_ASSIGN(const files::Checkpoint checkpoint, files::Checkpoint::open(options.path));
  show_checkpoint(checkpoint, options, context);
  return {};
}

void setup_inspect(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a checkpoint directory, a .safetensors file or a layout file (.json) holds");
  command->add_option("PATH", options->path, "checkpoint directory, .safetensors file or layout .json")->required();
  command->add_flag("--all", options->all, "one line per tensor instead of one per kind");
  command->add_flag("--json", context.json, "print one JSON object");
  command->callback([options, &context] {
    if (const Status done = inspect(*options, context); !done.ok()) fail(context, done.error());
  });
}

REFIT_COMMAND("inspect", setup_inspect);

}  // namespace
}  // namespace refit::cli
