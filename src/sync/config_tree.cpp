#include "sync/config_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <optional>
#include <sstream>

namespace refit::sync {
namespace {

constexpr std::string_view kYamlTags = "tag:yaml.org,2002:";
constexpr std::string_view kPlainTags[] = {"int", "float", "bool", "null", "map", "seq"};

std::string place_of(const std::string& file, int line) { return line > 0 ? file + ":" + std::to_string(line) : file; }

// The first byte that is not UTF-8, or a control character that YAML does not allow.
std::optional<std::size_t> bad_byte(std::string_view s) {
  for (std::size_t i = 0; i < s.size();) {
    const auto at = [&](std::size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
    const unsigned c = at(i);
    if (c < 0x80) {
      if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) return i;
      ++i;
      continue;
    }
    const std::size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4) return i;
    for (std::size_t k = 1; k < n; ++k)
      if ((at(i + k) & 0xc0) != 0x80) return i;
    const unsigned second = at(i + 1);
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) || (c == 0xf0 && second < 0x90) ||
        (c == 0xf4 && second > 0x8f))
      return i;
    i += n;
  }
  return std::nullopt;
}

struct Weight {
  std::size_t nodes = 0, text = 0;
};
void weigh(const ConfigNode& node, Weight& w) {
  ++w.nodes;
  w.text += node.text.size();
  for (const auto& [key, value] : node.map) {
    w.text += key.size();
    weigh(value, w);
  }
  for (const ConfigNode& item : node.items) weigh(item, w);
}

// Builds the tree from the parser's events. After the first error the rest of the (bounded) events is ignored: the
// parser offers no way to stop it but an exception.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { leaf(fresh(mark), anchor); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    ConfigNode node = fresh(mark);
    node.kind = ConfigNode::Kind::kScalar;
    node.text = value;
    node.plain = tag != "!" && tag != std::string(kYamlTags) + "str";
    set_tag(node, tag);
    leaf(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (error_) return;
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) return fail(mark, "an alias that refers to the node it lies in");
    if (charge(found->second.second, mark)) add(ConfigNode(found->second.first), mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, ConfigNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  Result<ConfigNode> take() {
    if (error_) return std::move(*error_);
    return std::move(root_);
  }

 private:
  struct Open {
    ConfigNode node;
    YAML::anchor_t anchor = 0;
    std::optional<std::string> key;    // of a map: read, its value not yet
    std::map<std::string, int> lines;  // of the keys so far
  };

  ConfigNode fresh(const YAML::Mark& mark) const {
    ConfigNode node;
    node.at = {file_, mark.line + 1, {}};
    return node;
  }
  static void set_tag(ConfigNode& node, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!" || tag == std::string(kYamlTags) + "str") return;
    for (const std::string_view name : kPlainTags)
      if (tag == std::string(kYamlTags) + std::string(name)) return;
    node.tag = tag;
  }
  void fail(const YAML::Mark& mark, const std::string& what, Code code = Code::kInvalid) {
    if (!error_) error_ = Error(code, place_of(file_, mark.line + 1) + ": " + here() + what);
  }
  // "policy.generation: " of the innermost open map, for messages.
  std::string here() const {
    ConfigPath path;
    for (const Open& o : stack_)
      if (o.key) path.push_back(*o.key);
    return path.empty() ? "" : to_string(path) + ": ";
  }
  bool charge(const Weight& w, const YAML::Mark& mark) {
    used_.nodes += w.nodes;
    used_.text += w.text;
    if (used_.nodes <= kMaxConfigNodes && used_.text <= kMaxConfigText) return true;
    fail(mark,
         "more than " + std::to_string(kMaxConfigNodes) + " values or " + std::to_string(kMaxConfigText) +
             " bytes once its aliases are expanded",
         Code::kExhausted);
    return false;
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, ConfigNode::Kind kind) {
    if (error_) return;
    if (stack_.size() >= static_cast<std::size_t>(kMaxConfigDepth))
      return fail(mark, "nested deeper than " + std::to_string(kMaxConfigDepth), Code::kExhausted);
    if (wants_key()) return fail(mark, "a key must be a plain word");
    Open o;
    o.node = fresh(mark);
    o.node.kind = kind;
    o.anchor = anchor;
    set_tag(o.node, tag);
    if (charge({1, 0}, mark)) stack_.push_back(std::move(o));
  }
  void leaf(ConfigNode node, YAML::anchor_t anchor) {
    if (error_) return;
    YAML::Mark mark;
    mark.line = node.at.line - 1;
    if (!charge({1, node.text.size()}, mark)) return;
    keep(node, anchor, mark);
    if (!error_) add(std::move(node), mark);
  }
  // An anchored node is copied once here and once per alias: each copy is charged.
  void keep(const ConfigNode& node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (anchor == 0) return;
    Weight w;
    weigh(node, w);
    if (charge(w, mark)) anchors_[anchor] = {node, w};
  }
  bool wants_key() const { return !stack_.empty() && stack_.back().node.is_map() && !stack_.back().key; }

  void add(ConfigNode node, const YAML::Mark& mark) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (!top.node.is_map()) {
      top.node.items.push_back(std::move(node));
      return;
    }
    if (!top.key) return add_key(top, node, mark);
    std::string key = std::move(*top.key);
    top.key.reset();
    top.node.map.emplace_back(std::move(key), std::move(node));
  }
  void add_key(Open& top, const ConfigNode& node, const YAML::Mark& mark) {
    if (node.kind != ConfigNode::Kind::kScalar || node.text.empty()) return fail(mark, "a key must be a plain word");
    const auto [it, is_new] = top.lines.emplace(node.text, mark.line + 1);
    if (!is_new)
      return fail(mark, "key '" + node.text + "' is given twice, first in line " + std::to_string(it->second));
    top.key = node.text;
  }
  void close() {
    if (error_) return;
    Open o = std::move(stack_.back());
    stack_.pop_back();
    YAML::Mark mark;
    mark.line = o.node.at.line - 1;
    if (o.node.is_map()) merge_keys(o, mark);
    if (error_) return;
    keep(o.node, o.anchor, mark);
    if (!error_) add(std::move(o.node), mark);
  }
  // `<<: *base` or a list of them: keys that the map does not have itself; the earlier base wins.
  void merge_keys(Open& o, const YAML::Mark& mark) {
    if (!o.lines.contains("<<")) return;
    std::vector<std::pair<std::string, ConfigNode>> own;
    ConfigNode bases;
    for (auto& entry : o.node.map)
      (entry.first == "<<" ? (void)(bases = std::move(entry.second)) : (void)own.push_back(std::move(entry)));
    std::vector<ConfigNode> list;
    if (bases.kind == ConfigNode::Kind::kSequence)
      list = std::move(bases.items);
    else
      list.push_back(std::move(bases));
    for (ConfigNode& base : list) {
      if (!base.is_map()) return fail(mark, "'<<' needs a map or a list of maps");
      for (auto& [key, value] : base.map)
        if (o.lines.emplace(key, value.at.line).second) own.emplace_back(key, std::move(value));
    }
    o.node.map = std::move(own);
  }

  const std::string& file_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, std::pair<ConfigNode, Weight>> anchors_;
  Weight used_;
  ConfigNode root_;
  std::optional<Error> error_;
};

}  // namespace

std::string Origin::text() const {
  if (is_default()) return "default";
  return place_of(file, line) + (via.empty() ? "" : " via " + via);
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, value] : map)
    if (name == key) return &value;
  return nullptr;
}
ConfigNode* ConfigNode::find(std::string_view key) { return const_cast<ConfigNode*>(std::as_const(*this).find(key)); }

Result<ConfigNode> parse_yaml(std::string_view text, const std::string& file) {
  if (static_cast<std::int64_t>(text.size()) > kMaxConfigBytes)
    return Error(Code::kExhausted, file + ": too large for a configuration")
        .amounts(static_cast<std::int64_t>(text.size()), kMaxConfigBytes);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (const auto bad = bad_byte(text))
    return Error(Code::kInvalid, file + ": byte " + std::to_string(*bad) + " is not UTF-8 text");
  // The parser takes an open quote up to the end of the input as a value, and with it every key behind the quote. A
  // document marker inside of quotes it refuses: so the text gets one.
  std::string closed(text);
  if (!closed.empty() && !closed.ends_with('\n')) closed += '\n';
  closed += "...\n";
  std::istringstream in{closed};
  TreeBuilder builder(file);
  try {
    YAML::Parser parser(in);
    if (parser.HandleNextDocument(builder)) {
      TreeBuilder second(file);
      if (parser.HandleNextDocument(second))
        return Error(Code::kInvalid, file + ": holds more than one document ('---'); give one");
    }
  } catch (const YAML::Exception& e) {  // the vendor's way to report, ended here
    return Error(Code::kInvalid, place_of(file, e.mark.line + 1) + ": " + e.msg);
  }
  return builder.take();
}

std::string to_string(const ConfigPath& path) {
  std::string out;
  for (const std::string& segment : path) {
    const bool word = segment.find_first_of(".[]:\"= ") == std::string::npos;
    out += word ? (out.empty() ? "" : ".") + segment : "[\"" + segment + "\"]";
  }
  return out;
}

Result<ConfigPath> parse_path(std::string_view text) {
  const auto bad = [&] {
    return Error(Code::kInvalid, "'" + std::string(text) + "' is not a path such as a.b.c or a[\"b.c\"]");
  };
  ConfigPath path;
  std::size_t i = 0;
  while (i < text.size()) {
    if (text[i] == '[') {
      const std::size_t end = text.find(text.substr(i + 1).starts_with('"') ? "\"]" : "]", i + 2);
      if (end == std::string_view::npos) return bad();
      const std::size_t quoted = text[i + 1] == '"' ? 1 : 0;
      path.emplace_back(text.substr(i + 1 + quoted, end - i - 1 - quoted));
      i = end + 1 + quoted;
    } else {
      if (!path.empty() && text[i++] != '.') return bad();
      const std::size_t end = std::min(text.find_first_of(".[", i), text.size());
      path.emplace_back(text.substr(i, end - i));
      i = end;
    }
    if (path.back().empty()) return bad();
  }
  if (path.empty()) return bad();
  return path;
}

}  // namespace refit::sync
