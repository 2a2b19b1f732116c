// `defaults:` lists and `--set`: how several sources become one tree.
#include <algorithm>

#include "sync/config_tree.h"

namespace refit::sync {
namespace {

constexpr std::size_t kMaxConfigFiles = 64;

std::string in_directory_of(const std::string& file, const std::string& name) {
  if (name.starts_with('/')) return name;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? name : file.substr(0, slash + 1) + name;
}

void merge_into(ConfigNode& base, ConfigNode over) {
  if (!base.is_map() || !over.is_map()) {
    base = std::move(over);
    return;
  }
  for (auto& [key, value] : over.map) {
    if (ConfigNode* old = base.find(key))
      merge_into(*old, std::move(value));
    else
      base.map.emplace_back(key, std::move(value));
  }
}

// As the loops' own loader does it: the marker counts in a section of the top level only.
void merge_file(ConfigNode& base, ConfigNode over) {
  for (auto& [key, value] : over.map) {
    const ConfigNode* marker = value.find("_override_");
    if (!marker || marker->text != "true") continue;
    std::erase_if(value.map, [](const auto& entry) { return entry.first == "_override_"; });
    std::erase_if(base.map, [&name = key](const auto& entry) { return entry.first == name; });
  }
  merge_into(base, std::move(over));
}

struct DefaultEntry {
  std::string file;   // "" is _self_
  std::string group;  // the section it goes under, or ""
};

class Composer {
 public:
  explicit Composer(const ReadConfigFile& read) : read_(read) {}

  Result<ConfigNode> load(const std::string& path) {
    if (std::ranges::find(chain_, path) != chain_.end()) {
      std::string chain;
      for (const std::string& p : chain_) chain += p + " -> ";
      return Error(Code::kInvalid, "defaults: a cycle of files: " + chain + path);
    }
    if (++files_ > kMaxConfigFiles)
      return Error(Code::kExhausted, path + ": defaults: more than " + std::to_string(kMaxConfigFiles) + " files");
    REFIT_ASSIGN(const std::string text, read_(path));
    REFIT_ASSIGN(ConfigNode own, parse_yaml(text, path));
    if (own.is_null()) own.kind = ConfigNode::Kind::kMap;
    if (!own.is_map()) return Error(Code::kInvalid, path + ": the document must be a map of sections");
    REFIT_ASSIGN(const std::vector<DefaultEntry> entries, take_defaults(own, path));
    chain_.push_back(path);
    auto merged = under(std::move(own), entries);
    chain_.pop_back();
    return merged;
  }

 private:
  static Result<DefaultEntry> entry_of(const ConfigNode& item, const std::string& path) {
    const auto bad = [&](const std::string& what) {
      return Error(Code::kInvalid,
                   item.at.text() + ": defaults: " + what + "; needs a file name, _self_, or 'group: option'");
    };
    if (item.kind == ConfigNode::Kind::kScalar) {
      if (item.text == "_self_") return DefaultEntry{};
      if (item.text.find("${") != std::string::npos) return bad("the interpolation '" + item.text + "' in a file name");
      return DefaultEntry{in_directory_of(path, with_suffix(item.text)), ""};
    }
    if (!item.is_map() || item.map.size() != 1) return bad("an entry that is neither a name nor one 'group: option'");
    const auto& [group, option] = item.map.front();
    if (group.find_first_of("@/ ") != std::string::npos || option.kind != ConfigNode::Kind::kScalar ||
        option.text.find("${") != std::string::npos)
      return bad("'" + group + ": " + option.text + "' is a form that Refit does not read");
    return DefaultEntry{in_directory_of(path, group + "/" + with_suffix(option.text)), group};
  }
  static std::string with_suffix(const std::string& name) {
    return name.ends_with(".yaml") || name.ends_with(".yml") ? name : name + ".yaml";
  }
  static Result<std::vector<DefaultEntry>> take_defaults(ConfigNode& own, const std::string& path) {
    std::vector<DefaultEntry> entries;
    const ConfigNode* defaults = own.find("defaults");
    if (defaults && !defaults->is_null()) {
      std::vector<ConfigNode> items = defaults->items;
      if (defaults->kind != ConfigNode::Kind::kSequence) items = {*defaults};
      for (const ConfigNode& item : items) {
        REFIT_ASSIGN(DefaultEntry entry, entry_of(item, path));
        entries.push_back(std::move(entry));
      }
    }
    std::erase_if(own.map, [](const auto& e) { return e.first == "defaults"; });
    if (std::ranges::none_of(entries, [](const DefaultEntry& e) { return e.file.empty(); })) entries.emplace_back();
    return entries;
  }
  Result<ConfigNode> under(ConfigNode own, const std::vector<DefaultEntry>& entries) {
    ConfigNode merged;
    merged.kind = ConfigNode::Kind::kMap;
    merged.at = own.at;
    for (const DefaultEntry& entry : entries) {
      if (entry.file.empty()) {
        merge_file(merged, own);
        continue;
      }
      REFIT_ASSIGN(ConfigNode parent, load(entry.file));
      if (entry.group.empty()) {
        merge_file(merged, std::move(parent));
        continue;
      }
      ConfigNode section;
      section.kind = ConfigNode::Kind::kMap;
      section.map.emplace_back(entry.group, std::move(parent));
      merge_file(merged, std::move(section));
    }
    return merged;
  }

  const ReadConfigFile& read_;
  std::vector<std::string> chain_;
  std::size_t files_ = 0;
};

}  // namespace

Result<ConfigNode> compose_config(const std::string& path, const ReadConfigFile& read) {
  return Composer(read).load(path);
}

Status apply_set(ConfigNode& root, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos)
    return Error(Code::kInvalid, "--set '" + std::string(assignment) + "' needs the form path=value");
  std::string_view name = assignment.substr(0, equals);
  while (name.starts_with('+')) name.remove_prefix(1);  // Hydra's mark for a new key
  REFIT_ASSIGN(const ConfigPath path, parse_path(name));
  REFIT_ASSIGN(ConfigNode value, parse_yaml(assignment.substr(equals + 1), "--set"));
  ConfigNode* node = &root;
  for (const std::string& segment : path) {
    if (node->is_null()) node->kind = ConfigNode::Kind::kMap;
    if (!node->is_map())
      return Error(Code::kInvalid, "--set " + std::string(name) + ": a part before '" + segment + "' is not a map");
    ConfigNode* next = node->find(segment);
    if (!next) {
      next = &node->map.emplace_back(segment, ConfigNode{}).second;
      next->at = {"--set", 0, {}};
    }
    node = next;
  }
  *node = std::move(value);
  node->at = {"--set", 0, {}};
  return {};
}

}  // namespace refit::sync
