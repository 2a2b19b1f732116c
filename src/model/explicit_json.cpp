#include "model/explicit_json.h"

#include <map>
#include <nlohmann/json.hpp>

#include "model/series.h"

namespace refit::model {
namespace {
using nlohmann::json;

// Without a name and an offset.
json holding_json(const Holding& h, const LogicalTensor& tensor, const RankLayout& rank) {
  json box = json::array();
  for (const Interval& i : h.box) box.push_back({i.lo, i.hi});
  json out{{"box", box}, {"buffer", rank.buffers[h.buffer].name}, {"strides", h.strides}};
  if (h.dtype != tensor.dtype) out["dtype"] = std::string(to_string(h.dtype));
  if (h.view != View::trivial(tensor.shape)) out["view"] = h.view.radices.get();
  return out;
}

json tensor_json(const LogicalTensor& t) { return {{"shape", t.shape}, {"dtype", std::string(to_string(t.dtype))}}; }

// Equal for tensors whose entries are.
Dims content_of(const LogicalTensor& t) {
  Dims out{static_cast<std::int64_t>(t.dtype), static_cast<std::int64_t>(t.shape.size())};
  out.insert(out.end(), t.shape.begin(), t.shape.end());
  return out;
}

// Equal for holdings whose entries are, but for the name and the offset.
Dims content_of(const Holding& h, const LogicalTensor& t) {
  Dims out = content_of(t);
  out.insert(out.end(), {static_cast<std::int64_t>(h.buffer), static_cast<std::int64_t>(h.dtype)});
  for (const Dims& axis : h.view.radices) {
    out.push_back(static_cast<std::int64_t>(axis.size()));
    out.insert(out.end(), axis.begin(), axis.end());
  }
  for (const Interval& i : h.box) out.insert(out.end(), {i.lo, i.hi});
  out.insert(out.end(), h.strides.begin(), h.strides.end());
  return out;
}

// Entries with equal content get one number, under which `first` has one of them.
class Alike {
 public:
  std::size_t number(Dims content, std::size_t entry) {
    const auto [at, fresh] = known_.emplace(std::move(content), first.size());
    if (fresh) first.push_back(entry);
    return at->second;
  }
  std::vector<std::size_t> first;

 private:
  std::map<Dims, std::size_t> known_;
};

void write_tensors(const Catalogue& catalogue, Text form, json& top) {
  top["tensors"] = json::object();
  if (form == Text::kOneByOne) {
    for (const LogicalTensor& t : catalogue.tensors) top["tensors"][t.name] = tensor_json(t);
    return;
  }
  Alike alike;
  std::vector<Series> items;
  for (std::size_t i = 0; i < catalogue.tensors.size(); ++i) {
    items.push_back(series_of(catalogue.tensors[i].name));
    items.back().alike = alike.number(content_of(catalogue.tensors[i]), i);
  }
  for (const Series& s : joined_series(std::move(items))) {
    json entry = tensor_json(catalogue.tensors[alike.first[s.alike]]);
    if (s.runs.empty()) {
      top["tensors"][s.pattern] = std::move(entry);
      continue;
    }
    entry["name"] = s.pattern;
    for (const Run& r : s.runs) entry["over"].push_back({r.first, r.count, r.step});
    top["series"].push_back(std::move(entry));
  }
}

json holdings_json(const Catalogue& catalogue, const RankLayout& rank, Text form) {
  Alike alike;
  std::vector<Series> items;
  for (std::size_t i = 0; i < rank.holdings.size(); ++i) {
    const Holding& h = rank.holdings[i];
    const LogicalTensor& tensor = catalogue.tensors[h.tensor.value];
    Series& s = items.emplace_back(form == Text::kSeries ? series_of(tensor.name) : Series{.pattern = tensor.name});
    s.alike = form == Text::kSeries ? alike.number(content_of(h, tensor), i) : i;
    s.offset = h.offset;
  }
  if (form == Text::kSeries) items = joined_series(std::move(items));
  json out = json::array();
  for (const Series& s : items) {
    const Holding& h = rank.holdings[form == Text::kSeries ? alike.first[s.alike] : s.alike];
    json entry = holding_json(h, catalogue.tensors[h.tensor.value], rank);
    entry["tensor"] = s.pattern;
    entry["offset"] = s.offset;
    for (const Run& r : s.runs) entry["over"].push_back({r.first, r.count, r.step, r.bytes});
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

std::string write_explicit(const Catalogue& catalogue, const std::vector<RankLayout>& ranks, std::int64_t instances,
                           Text form) {
  json top{{"ranks", json::array()}, {"tied", json::array()}};
  write_tensors(catalogue, form, top);
  for (const auto& [a, b] : catalogue.tied) top["tied"].push_back({a, b});
  if (instances != 1) top["instances"] = instances;
  for (const RankLayout& r : ranks) {
    json rank{{"rank", r.rank.value}, {"buffers", json::object()}, {"holdings", holdings_json(catalogue, r, form)}};
    if (!r.host.empty()) rank["host"] = r.host;
    for (const BufferSpec& b : r.buffers) {
      json& spec = rank["buffers"][b.name] = {{"bytes", b.bytes}, {"fill", b.fill}};
      if (!b.file.empty()) spec["file"] = b.file;
    }
    top["ranks"].push_back(std::move(rank));
  }
  return top.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace refit::model
