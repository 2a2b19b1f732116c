#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "model/explicit_check.h"
#include "model/explicit_json.h"
#include "model/layout.h"
#include "model/outside_names.h"
#include "model/recipe.h"
#include "model/series.h"

namespace refit::model {
namespace {
using nlohmann::json;

// What a text may stand for through its series: those of the largest models on some thousand ranks, and no more, so
// that a short message cannot ask for all memory.
constexpr std::size_t kMostTensors = 1 << 20, kMostHoldings = 1 << 23;

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

// "over": [[first, count, step(, bytes)], …]. A series of one where the key is missing.
Result<Series> read_series(const json& value, const std::string& where, std::string name, std::size_t numbers) {
  Series out{.pattern = std::move(name)};
  if (!value.contains("over")) return out;
  const json& over = value["over"];
  if (!over.is_array() || over.empty()) return invalid(where + ".over", "must be a list of at least one run");
  for (const json& run : over) {
    REFIT_ASSIGN(const Dims n, integers(run, where + ".over"));
    if (n.size() != numbers)
      return invalid(where + ".over",
                     "a run must be " + std::to_string(numbers) + " integers, not " + std::to_string(n.size()));
    out.runs.push_back({n[0], n[1], n[2], numbers > 3 ? n[3] : 0});
  }
  return out;
}

// Tensors that stand in the text as series.
Status add_series(const json& list, Catalogue& out) {
  if (!list.is_array()) return invalid("series", "must be a list");
  std::size_t number = 0;
  for (const json& spec : list) {
    const std::string where = "series[" + std::to_string(number++) + "]";
    REFIT_TRY(check_keys(spec, where, {{"name", true}, {"over", true}, {"shape", true}, {"dtype", true}}));
    REFIT_ASSIGN(std::string name, text(spec["name"], where + ".name"));
    REFIT_ASSIGN(const Series series, read_series(spec, where, std::move(name), 3));
    REFIT_ASSIGN(const Dims shape, integers(spec["shape"], where + ".shape"));
    if (shape.size() > static_cast<std::size_t>(kMaxFactors)) return invalid(where + ".shape", "too many axes");
    REFIT_ASSIGN(const DType type, dtype(spec["dtype"], where + ".dtype"));
    REFIT_ASSIGN(const auto names, names_in(series, kMostTensors - std::min(kMostTensors, out.tensors.size())));
    for (const auto& [each, offset] : names) out.tensors.push_back({each, shape, type});
  }
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](const LogicalTensor& a, const LogicalTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < out.tensors.size(); ++i)
    if (out.tensors[i].name == out.tensors[i - 1].name)
      return invalid("series", "the tensor '" + out.tensors[i].name + "' appears twice").at_tensor(out.tensors[i].name);
  return {};
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
  if (top.contains("series")) REFIT_TRY(add_series(top["series"], out));
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

// A holding, or one of each tensor of a series.
Status read_holdings(const json& value, const std::string& where, const Catalogue& catalogue,
                     const std::vector<BufferSpec>& buffers, std::vector<Holding>& out) {
  REFIT_TRY(check_keys(value, where,
                       {{"tensor", true},
                        {"box", true},
                        {"buffer", true},
                        {"offset", true},
                        {"strides", true},
                        {"dtype", false},
                        {"view", false},
                        {"over", false}}));
  REFIT_ASSIGN(const std::string name, text(value["tensor"], where + ".tensor"));
  REFIT_ASSIGN(const std::string buffer, text(value["buffer"], where + ".buffer"));
  const auto at = std::find_if(buffers.begin(), buffers.end(), [&](const BufferSpec& b) { return b.name == buffer; });
  if (at == buffers.end()) return invalid(where, "unknown buffer '" + buffer + "'").at_tensor(plain_name(name));
  Holding h{.tensor = TensorId(0),
            .buffer = static_cast<std::uint32_t>(at - buffers.begin()),
            .view = {},
            .box = {},
            .offset = 0,
            .strides = {},
            .dtype = {}};
  REFIT_ASSIGN(h.box, read_box(value["box"], where + ".box"));
  REFIT_ASSIGN(h.offset, integer(value["offset"], where + ".offset"));
  REFIT_ASSIGN(h.strides, integers(value["strides"], where + ".strides"));
  if (value.contains("dtype")) {
    REFIT_ASSIGN(h.dtype, dtype(value["dtype"], where + ".dtype"));
  }
  if (value.contains("view")) {
    REFIT_ASSIGN(h.view, read_view(value["view"], where + ".view"));
  }
  // Before it is copied for each tensor of a series.
  const auto most = static_cast<std::size_t>(kMaxFactors);
  if (h.box.size() > most || h.strides.size() > most || h.view.radices.size() > most || h.view.factors() > kMaxFactors)
    return invalid(where, "has more than " + std::to_string(kMaxFactors) + " axes or factors")
        .at_tensor(plain_name(name));
  REFIT_ASSIGN(Series series, read_series(value, where, name, 4));
  series.offset = h.offset;
  REFIT_ASSIGN(const auto names, names_in(series, std::min(catalogue.tensors.size(),
                                                           kMostHoldings - std::min(kMostHoldings, out.size()))));
  for (const auto& [each, offset] : names) {
    const std::string plain = plain_name(each);
    const std::int64_t tensor = catalogue.find(plain);
    if (tensor < 0) return invalid(where, "unknown tensor '" + plain + "'").at_tensor(plain);
    const LogicalTensor& logical = catalogue.tensors[static_cast<std::size_t>(tensor)];
    Holding& own = out.emplace_back(h);
    own.tensor = TensorId(static_cast<std::uint32_t>(tensor));
    own.offset = offset;
    if (!value.contains("dtype")) own.dtype = logical.dtype;
    if (!value.contains("view")) own.view = View::trivial(logical.shape);
  }
  return {};
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
  std::size_t entry = 0;
  for (const json& h : value["holdings"])
    REFIT_TRY(read_holdings(h, where + ", holding " + std::to_string(entry++), catalogue, out.buffers, out.holdings));
  return out;
}

Result<std::shared_ptr<const Layout>> read_explicit(const json& top) {
  REFIT_TRY(check_keys(top, "layout",
                       {{"tensors", true}, {"series", false}, {"ranks", true}, {"tied", false}, {"instances", false}}));
  REFIT_ASSIGN(Catalogue catalogue, read_catalogue(top));
  if (!top["ranks"].is_array() || top["ranks"].empty()) return invalid("ranks", "must be a list of at least one rank");
  std::vector<RankLayout> ranks;
  std::size_t holdings = 0;
  for (const json& r : top["ranks"]) {
    REFIT_ASSIGN(RankLayout rank, read_rank(r, "ranks[" + std::to_string(ranks.size()) + "]", catalogue));
    holdings += rank.holdings.size();
    if (holdings > kMostHoldings)
      return invalid("ranks", "more than " + std::to_string(kMostHoldings) + " holdings when written out");
    ranks.push_back(std::move(rank));
  }
  std::int64_t instances = 1;
  if (top.contains("instances")) {
    REFIT_ASSIGN(instances, integer(top["instances"], "instances"));
  }
  return explicit_layout(std::move(catalogue), std::move(ranks), instances);
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
  std::string text = write_explicit(made.catalogue(), ranks, made.instances(), Text::kOneByOne);
  // Both are objects: one text in the other's braces.
  std::string recipe = made.serialise();
  recipe.erase(recipe.find_last_of('}'));
  while (recipe.back() == '\n' || recipe.back() == ' ') recipe.pop_back();
  return recipe + "," + text.substr(1);
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
