#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "model/explicit_check.h"
#include "model/explicit_json.h"
#include "model/layout.h"
#include "model/outside_names.h"
#include "model/recipe.h"

namespace refit::model {
namespace {
using nlohmann::json;

Error invalid(const std::string& where, const std::string& what) { return {Code::kInvalid, where + ": " + what}; }

// The document, with duplicate keys refused (the parser alone would keep the last one).
Result<json> parse(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second && twice.empty())
      twice = value.get<std::string>();
    return true;
  };
  try {
    json document = json::parse(text, watch);
    if (!twice.empty()) return invalid("layout", "key '" + twice + "' appears twice");
    return document;
  } catch (const json::exception& e) {
    return invalid("layout", std::string("not JSON: ") + e.what());
  }
}

struct Key {
  const char* name;
  bool required;
};

Status check_keys(const json& object, const std::string& where, std::initializer_list<Key> keys) {
  if (!object.is_object()) return invalid(where, "must be an object");
  for (const auto& [name, value] : object.items()) {
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const Key& k) { return name == k.name; });
    if (!known) return invalid(where, "unknown key '" + name + "'");
  }
  for (const Key& k : keys)
    if (k.required && !object.contains(k.name)) return invalid(where, std::string("lacks the key '") + k.name + "'");
  return {};
}

Result<std::int64_t> integer(const json& value, const std::string& where) {
  if (value.is_number_unsigned()) {
    const auto v = narrow<std::int64_t>(value.get<std::uint64_t>());
    if (v) return *v;
  } else if (value.is_number_integer()) {
    return value.get<std::int64_t>();
  }
  return invalid(where, "must be an integer within 64 bits, not " + value.dump().substr(0, 40));
}

Result<std::string> text(const json& value, const std::string& where) {
  if (!value.is_string()) return invalid(where, "must be a string");
  return value.get<std::string>();
}

Result<Dims> integers(const json& value, const std::string& where) {
  if (!value.is_array()) return invalid(where, "must be a list of integers");
  Dims out;
  for (const json& v : value) {
    REFIT_ASSIGN(const std::int64_t i, integer(v, where));
    out.push_back(i);
  }
  return out;
}

Result<DType> dtype(const json& value, const std::string& where) {
  REFIT_ASSIGN(const std::string name, text(value, where));
  if (const auto t = dtype_from_string(name)) return *t;
  return invalid(where, "unknown dtype '" + name + "'");
}

Result<Catalogue> read_catalogue(const json& top) {
  Catalogue out;
  const json& tensors = top["tensors"];
  if (!tensors.is_object()) return invalid("tensors", "must be an object");
  for (const auto& [name, spec] : tensors.items()) {  // in byte order of the names
    const std::string where = "tensors['" + name + "']";
    REFIT_TRY(check_keys(spec, where, {{"shape", true}, {"dtype", true}}));
    REFIT_ASSIGN(Dims shape, integers(spec["shape"], where + ".shape"));
    REFIT_ASSIGN(const DType type, dtype(spec["dtype"], where + ".dtype"));
    out.tensors.push_back({name, std::move(shape), type});
  }
  REFIT_ASSIGN(out, plain_names(std::move(out)));
  if (!top.contains("tied")) return out;
  if (!top["tied"].is_array()) return invalid("tied", "must be a list of pairs of names");
  for (const json& pair : top["tied"]) {
    if (!pair.is_array() || pair.size() != 2) return invalid("tied", "must be a list of pairs of names");
    REFIT_ASSIGN(std::string a, text(pair[0], "tied"));
    REFIT_ASSIGN(std::string b, text(pair[1], "tied"));
    if (a == b) return invalid("tied", "'" + a + "' is tied to itself");
    out.tied.emplace_back(plain_name(a), plain_name(b));
  }
  return out;
}

Result<Box> read_box(const json& value, const std::string& where) {
  if (!value.is_array()) return invalid(where, "must be a list of [lo, hi] pairs");
  Box out;
  for (const json& pair : value) {
    if (!pair.is_array() || pair.size() != 2) return invalid(where, "must be a list of [lo, hi] pairs");
    REFIT_ASSIGN(const std::int64_t lo, integer(pair[0], where));
    REFIT_ASSIGN(const std::int64_t hi, integer(pair[1], where));
    out.push_back({lo, hi});
  }
  return out;
}

Result<View> read_view(const json& value, const std::string& where) {
  if (!value.is_array()) return invalid(where, "must be a list of lists of integers");
  View out;
  for (const json& axis : value) {
    REFIT_ASSIGN(Dims radices, integers(axis, where));
    out.radices.push_back(std::move(radices));
  }
  return out;
}

Result<Holding> read_holding(const json& value, const std::string& where, const Catalogue& catalogue,
                             const std::vector<BufferSpec>& buffers) {
  REFIT_TRY(check_keys(value, where,
                       {{"tensor", true},
                        {"box", true},
                        {"buffer", true},
                        {"offset", true},
                        {"strides", true},
                        {"dtype", false},
                        {"view", false}}));
  REFIT_ASSIGN(std::string name, text(value["tensor"], where + ".tensor"));
  name = plain_name(name);
  const std::int64_t tensor = catalogue.find(name);
  if (tensor < 0) return invalid(where, "unknown tensor '" + name + "'").at_tensor(name);
  const LogicalTensor& logical = catalogue.tensors[static_cast<std::size_t>(tensor)];
  REFIT_ASSIGN(const std::string buffer, text(value["buffer"], where + ".buffer"));
  const auto at = std::find_if(buffers.begin(), buffers.end(), [&](const BufferSpec& b) { return b.name == buffer; });
  if (at == buffers.end()) return invalid(where, "unknown buffer '" + buffer + "'").at_tensor(name);
  Holding h{.tensor = TensorId(static_cast<std::uint32_t>(tensor)),
            .buffer = static_cast<std::uint32_t>(at - buffers.begin()),
            .view = View::trivial(logical.shape),
            .box = {},
            .offset = 0,
            .strides = {},
            .dtype = logical.dtype};
  REFIT_ASSIGN(h.box, read_box(value["box"], where + ".box"));
  REFIT_ASSIGN(h.offset, integer(value["offset"], where + ".offset"));
  REFIT_ASSIGN(h.strides, integers(value["strides"], where + ".strides"));
  if (value.contains("dtype")) {
    REFIT_ASSIGN(h.dtype, dtype(value["dtype"], where + ".dtype"));
  }
  if (value.contains("view")) {
    REFIT_ASSIGN(h.view, read_view(value["view"], where + ".view"));
  }
  return h;
}

Result<std::vector<BufferSpec>> read_buffers(const json& value, const std::string& where) {
  if (!value.is_object()) return invalid(where, "must be an object");
  std::vector<BufferSpec> out;
  for (const auto& [name, spec] : value.items()) {
    const std::string at = where + "['" + name + "']";
    REFIT_TRY(check_keys(spec, at, {{"bytes", true}, {"fill", false}, {"file", false}}));
    BufferSpec b;
    b.name = name;
    REFIT_ASSIGN(b.bytes, integer(spec["bytes"], at + ".bytes"));
    if (spec.contains("fill")) {
      REFIT_ASSIGN(const std::int64_t fill, integer(spec["fill"], at + ".fill"));
      const auto byte = narrow<std::uint8_t>(fill);
      if (!byte) return invalid(at + ".fill", "must be a byte, 0 to 255");
      b.fill = *byte;
    }
    if (spec.contains("file")) {
      REFIT_ASSIGN(b.file, text(spec["file"], at + ".file"));
    }
    out.push_back(std::move(b));
  }
  return out;
}

Result<RankLayout> read_rank(const json& value, const std::string& at, const Catalogue& catalogue) {
  REFIT_TRY(check_keys(value, at, {{"rank", true}, {"host", false}, {"buffers", true}, {"holdings", true}}));
  RankLayout out;
  REFIT_ASSIGN(const std::int64_t number, integer(value["rank"], at + ".rank"));
  const auto rank = narrow<std::uint32_t>(number);
  if (!rank || *rank >= kMaxExplicitRank)
    return invalid(at + ".rank", "must lie in [0, " + std::to_string(kMaxExplicitRank) + ")");
  out.rank = Rank(*rank);
  const std::string where = "rank " + std::to_string(*rank);
  if (value.contains("host")) {
    REFIT_ASSIGN(out.host, text(value["host"], where + ".host"));
    if (out.host.empty()) return invalid(where + ".host", "must not be empty");
  }
  REFIT_ASSIGN(out.buffers, read_buffers(value["buffers"], where + ".buffers"));
  if (!value["holdings"].is_array()) return invalid(where + ".holdings", "must be a list");
  for (const json& h : value["holdings"]) {
    REFIT_ASSIGN(Holding holding,
                 read_holding(h, where + ", holding " + std::to_string(out.holdings.size()), catalogue, out.buffers));
    out.holdings.push_back(std::move(holding));
  }
  return out;
}

Result<std::shared_ptr<const Layout>> read_explicit(const json& top) {
  REFIT_TRY(check_keys(top, "layout", {{"tensors", true}, {"ranks", true}, {"tied", false}, {"instances", false}}));
  REFIT_ASSIGN(Catalogue catalogue, read_catalogue(top));
  if (!top["ranks"].is_array() || top["ranks"].empty()) return invalid("ranks", "must be a list of at least one rank");
  std::vector<RankLayout> ranks;
  for (const json& r : top["ranks"]) {
    REFIT_ASSIGN(RankLayout rank, read_rank(r, "ranks[" + std::to_string(ranks.size()) + "]", catalogue));
    ranks.push_back(std::move(rank));
  }
  std::int64_t instances = 1;
  if (top.contains("instances")) {
    REFIT_ASSIGN(instances, integer(top["instances"], "instances"));
  }
  return explicit_layout(std::move(catalogue), std::move(ranks), instances);
}

json holding_json(const Holding& h, const Catalogue& catalogue, const RankLayout& rank) {
  const LogicalTensor& tensor = catalogue.tensors[h.tensor.value];
  json box = json::array();
  for (const Interval& i : h.box) box.push_back({i.lo, i.hi});
  json out{{"tensor", tensor.name},
           {"box", box},
           {"buffer", rank.buffers[h.buffer].name},
           {"offset", h.offset},
           {"strides", h.strides}};
  if (h.dtype != tensor.dtype) out["dtype"] = std::string(to_string(h.dtype));
  if (h.view != View::trivial(tensor.shape)) out["view"] = h.view.radices.get();
  return out;
}

// What a rank holds, wherever it lies.
std::vector<std::string> boxes_of(const Layout& layout, const RankLayout& rank) {
  std::vector<std::string> out;
  for (const Holding& h : rank.holdings) {
    std::string text = layout.catalogue().tensors[h.tensor.value].name + " " + to_string(h.box) + " " +
                       std::string(to_string(h.dtype));
    for (const Dims& axis : h.view.radices) text += json(axis).dump();
    out.push_back(text + json(h.strides).dump());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Status check_same_boxes(const Layout& made, const Layout& said) {
  if (made.world() != said.world() || made.catalogue().tensors != said.catalogue().tensors)
    return Error(Code::kMismatch, "layout: its recipe makes " + std::to_string(made.world()) + " ranks of " +
                                      std::to_string(made.catalogue().tensors.size()) + " tensors, its lists have " +
                                      std::to_string(said.world()) + " of " +
                                      std::to_string(said.catalogue().tensors.size()));
  for (std::int64_t r = 0; r < made.world(); ++r) {
    const Rank rank(static_cast<std::uint32_t>(r));
    REFIT_ASSIGN(const RankLayout a, made.expand(rank));
    REFIT_ASSIGN(const RankLayout b, said.expand(rank));
    if (boxes_of(made, a) != boxes_of(said, b))
      return Error(Code::kMismatch,
                   "layout: rank " + std::to_string(r) + " lists other holdings than its recipe makes");
  }
  return {};
}

}  // namespace

Result<std::string> describe_files(const Layout& made, const std::vector<RankLayout>& ranks) {
  if (!made.recipe()) return Error(Code::kInternal, "describe_files() of a layout that no rules made");
  std::string text = write_explicit(made.catalogue(), ranks, made.instances());
  // Both are objects: one text in the other's braces.
  std::string recipe = made.serialise();
  recipe.erase(recipe.find_last_of('}'));
  while (recipe.back() == '\n' || recipe.back() == ' ') recipe.pop_back();
  return recipe + "," + text.substr(1);
}

std::string write_explicit(const Catalogue& catalogue, const std::vector<RankLayout>& ranks, std::int64_t instances) {
  json top{{"tensors", json::object()}, {"ranks", json::array()}, {"tied", json::array()}};
  for (const LogicalTensor& t : catalogue.tensors)
    top["tensors"][t.name] = {{"shape", t.shape}, {"dtype", std::string(to_string(t.dtype))}};
  for (const auto& [a, b] : catalogue.tied) top["tied"].push_back({a, b});
  if (instances != 1) top["instances"] = instances;
  for (const RankLayout& r : ranks) {
    json rank{{"rank", r.rank.value}, {"buffers", json::object()}, {"holdings", json::array()}};
    if (!r.host.empty()) rank["host"] = r.host;
    for (const BufferSpec& b : r.buffers) {
      json& spec = rank["buffers"][b.name] = {{"bytes", b.bytes}, {"fill", b.fill}};
      if (!b.file.empty()) spec["file"] = b.file;
    }
    for (const Holding& h : r.holdings) rank["holdings"].push_back(holding_json(h, catalogue, r));
    top["ranks"].push_back(std::move(rank));
  }
  return top.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<std::shared_ptr<const Layout>> read_layout(std::string_view text) {
  REFIT_ASSIGN(const json top, parse(text));
  if (!top.is_object()) return invalid("layout", "must be an object");
  if (!top.contains("recipe")) return read_explicit(top);
  auto made = read_recipe(top["recipe"].dump());
  if (!made.ok() || top.size() == 1) return made;
  json rest = top;
  rest.erase("recipe");
  REFIT_ASSIGN(const auto said, read_explicit(rest));
  REFIT_TRY(check_same_boxes(**made, *said));
  return made;
}

}  // namespace refit::model
