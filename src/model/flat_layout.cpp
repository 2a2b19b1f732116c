#include "model/flat_layout.h"

#include <algorithm>
#include <map>

#include "model/rule_layout.h"
#include "model/rules/arrangement.h"

namespace refit::model {
namespace {

constexpr std::string_view kFlatVersion = "refit flat 1";
constexpr std::int64_t kAlignBytes = 16;

// Order of registration in the modules of transformers 5, where a family's own list does not say otherwise. Parameters
// of a module come before its children, and names are only ever compared with their siblings.
constexpr std::string_view kModules =
    "model embed_tokens layers self_attn mlp q_proj q_a_proj q_a_layernorm q_b_proj k_proj v_proj kv_a_proj_with_mqa "
    "kv_a_layernorm kv_b_proj o_proj q_norm k_norm gate_up_proj gate_proj up_proj down_proj experts gate "
    "shared_experts input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm norm "
    "lm_head weight bias";

std::ptrdiff_t place_in(const std::vector<std::string_view>& list, std::string_view part) {
  const auto at = std::find(list.begin(), list.end(), part);
  return at == list.end() ? -1 : at - list.begin();
}

// Names by the order in which a family's modules register their parameters.
class ModuleOrder {
 public:
  explicit ModuleOrder(const Family& family) : family_(family), own_(split(family.modules, ' ')) {}

  Status check(std::string_view name) const {
    for (std::string_view part : split(name, '.'))
      if (!parse_number(part) && place_in(own_, part) < 0 && place_in(common_, part) < 0)
        return Error(Code::kUnsupported, "flat=fsdp1: where modules of family " + std::string(family_.name) +
                                             " register '" + std::string(part) + "' is not known (" +
                                             std::string(name) + ")")
            .at_tensor(std::string(name));
    return {};
  }
  bool before(std::string_view a, std::string_view b) const {
    const auto x = split(a, '.'), y = split(b, '.');
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (x[i] != y[i]) return less(x[i], y[i]);
    return x.size() < y.size();
  }

 private:
  bool less(std::string_view a, std::string_view b) const {
    const auto m = parse_number(a), n = parse_number(b);
    if (m && n) return *m < *n;
    const bool own = place_in(own_, a) >= 0 && place_in(own_, b) >= 0;
    return place_in(own ? own_ : common_, a) < place_in(own ? own_ : common_, b);
  }

  const Family& family_;
  std::vector<std::string_view> own_, common_ = split(kModules, ' ');
};

// "model.layers.3.mlp.up_proj.weight" -> "model.layers.3."; the root's unit has no name.
std::string_view unit_of(std::string_view name) {
  constexpr std::string_view kLayers = ".layers.";
  const std::size_t at = name.find(kLayers);
  return at == std::string_view::npos ? std::string_view() : name.substr(0, name.find('.', at + kLayers.size()) + 1);
}

Result<Flat> flat_of(const Spec& spec) {
  if (spec.number("tp") > 1)
    return Error(Code::kUnsupported, "SPEC '" + canonical_spec(spec) +
                                         "': flat= with tp is not built; FSDP1 and ZeRO-3 flatten whole parameters");
  const std::string& text = spec.texts.find("flat")->second;
  return text == "zero3" ? Flat::kZero3 : text == "fsdp1" ? Flat::kFsdp1 : Flat::kFsdp1Orig;
}

std::vector<std::string> buffer_names(const ModelConfig& config) {
  std::vector<std::string> out;
  for (const Row& row : config.family->rows)
    if (row.buffer && config.active(row))
      for (std::int64_t layer : config.layers(row))
        for (const Member& m : row.members) out.push_back(config.name(m.name, layer, 0));
  return out;
}

std::int64_t round_up(std::int64_t n, std::int64_t multiple) { return ceil_div(n, multiple) * multiple; }

}  // namespace

Result<std::shared_ptr<const FlatLayout>> FlatLayout::make(ModelConfig config, Spec spec, CheckpointFacts facts) {
  REFIT_ASSIGN(const Flat flat, flat_of(spec));
  // The module, on one rank: its parameters, and the tensors of each in the order of their elements.
  CheckpointFacts once = facts;
  once.copies.clear();
  once.prefix.clear();
  const std::string module_text = spec.fused() ? "hf:naming=fused" : "hf:naming=per-expert";
  REFIT_ASSIGN(Spec module_spec, parse_spec(module_text + (spec.given("draft") ? ",draft=skip" : "")));
  REFIT_ASSIGN(const auto module, RuleLayout::make(config, std::move(module_spec), std::move(once)));
  REFIT_ASSIGN(const RankLayout held, module->expand(Rank(0)));
  auto out = std::make_shared<FlatLayout>();
  out->config_ = std::move(config);
  out->spec_ = std::move(spec);
  out->facts_ = std::move(facts);
  out->side_ = &sharded_side();
  out->ranks_ = out->spec_.number("fsdp");
  if (const auto world = checked_mul(out->ranks_, out->instances()); !world || *world > Mesh::kMaxRanks)
    return Error(Code::kInvalid, "SPEC '" + canonical_spec(out->spec_) + "' makes more than " +
                                     std::to_string(Mesh::kMaxRanks) + " ranks");
  out->catalogue_ = module->catalogue();
  REFIT_TRY(out->gather(held, flat));
  out->place();
  out->build_patterns();
  Hasher rules;
  rules.add_text(kFlatVersion).add_text(kModules).add_text(out->config_.family->modules);
  rules.add_text(module->recipe()->rules_digest.hex());
  for (const std::string& name : buffer_names(out->config_)) rules.add_text(name);
  out->seal(rules.finish());
  return std::shared_ptr<const FlatLayout>(std::move(out));
}

Status FlatLayout::gather(const RankLayout& module, Flat flat) {
  // Holdings by their place in memory, which is the order of the elements in each parameter.
  std::map<std::int64_t, const Holding*> at;
  for (const Holding& h : module.holdings) at.emplace(h.offset, &h);
  const std::vector<std::string> buffers = buffer_names(config_);
  const ModuleOrder order(*config_.family);
  const auto is_buffer = [&](const std::string& name) {
    return std::find(buffers.begin(), buffers.end(), name) != buffers.end();
  };
  std::vector<const Parameter*> sorted;
  for (const Parameter& p : module.parameters) {
    sorted.push_back(&p);
    if (flat != Flat::kZero3 && !is_buffer(p.name)) REFIT_TRY(order.check(p.name));
  }
  std::sort(sorted.begin(), sorted.end(), [&](const Parameter* a, const Parameter* b) {
    const bool whole_a = is_buffer(a->name), whole_b = is_buffer(b->name);
    if (whole_a != whole_b) return whole_b;
    return flat == Flat::kZero3 || whole_a ? a->name < b->name : order.before(a->name, b->name);
  });
  std::map<std::string, Array> units;
  for (const Parameter* p : sorted) {
    const bool whole = is_buffer(p->name);
    const bool alone = whole || flat == Flat::kZero3;
    Array& array = units[alone ? p->name : std::string(unit_of(p->name)) + "_flat_param"];
    if (array.name.empty()) {
      array.name = alone ? p->name : std::string(unit_of(p->name)) + "_flat_param";
      array.dtype = p->dtype;
      array.whole = whole;
      array.shape = p->shape;
    }
    if (array.dtype != p->dtype)
      return Error(Code::kUnsupported, "fsdp: " + array.name + " would hold " + p->name + " (" +
                                           std::string(to_string(p->dtype)) + ") beside parameters of " +
                                           std::string(to_string(array.dtype)) + "; a flat parameter has one dtype")
          .at_tensor(p->name);
    if (flat == Flat::kFsdp1Orig) array.elements = round_up(array.elements, kAlignBytes / item_size(p->dtype));
    const std::int64_t item = item_size(p->dtype), bytes = refit::elements(refit::whole(p->shape)) * item;
    for (auto next = at.lower_bound(p->offset); next != at.end() && next->first < p->offset + bytes; ++next) {
      const Holding& h = *next->second;
      array.spans.push_back({h.tensor, array.elements + (h.offset - p->offset) / item, refit::elements(h.box)});
    }
    const auto sum = checked_add(array.elements, bytes / item);
    if (!sum || !checked_mul(*sum, 16)) return Error(Code::kInvalid, "fsdp: " + array.name + " passes 2^63 bytes");
    array.elements = *sum;
  }
  for (auto& [name, array] : units) arrays_.push_back(std::move(array));
  return {};
}

// Wide items first, then names, as in every layout of rules.
void FlatLayout::place() {
  std::stable_sort(arrays_.begin(), arrays_.end(), [](const Array& a, const Array& b) {
    const auto x = item_size(a.dtype), y = item_size(b.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  for (Array& a : arrays_) {
    a.shard = a.whole ? a.elements : ceil_div(a.elements, ranks_);
    a.offset = bytes_;
    bytes_ += a.shard * item_size(a.dtype);
  }
}

Result<RankLayout> FlatLayout::expand(Rank rank) const {
  if (rank.value >= world())
    return Error(Code::kInvalid, "rank " + std::to_string(rank.value) + " is outside the " + std::to_string(world()) +
                                     " ranks of SPEC '" + canonical_spec(spec_) + "'");
  const std::int64_t part = static_cast<std::int64_t>(rank.value) % ranks_;
  RankLayout out{.rank = rank, .host = host(rank), .buffers = {}, .holdings = {}, .parameters = {}};
  for (const Array& a : arrays_) {
    const std::int64_t item = item_size(a.dtype);
    out.parameters.push_back({a.name, a.whole ? a.shape : Dims{a.shard}, a.dtype, 0, a.offset, {}});
    const Interval mine = a.whole ? Interval{0, a.elements} : Interval{part * a.shard, (part + 1) * a.shard};
    for (const Span& span : a.spans) {
      const Interval in_tensor = intersect(Interval{mine.lo - span.at, mine.hi - span.at}, {0, span.count});
      if (in_tensor.empty()) continue;
      for (Lie& lie : flat_range(catalogue_.tensors[span.tensor.value].shape, in_tensor)) {
        for (std::int64_t& stride : lie.strides) stride *= item;
        out.holdings.push_back({.tensor = span.tensor,
                                .buffer = 0,
                                .view = std::move(lie.view),
                                .box = std::move(lie.box),
                                .offset = a.offset + (span.at + in_tensor.lo - mine.lo + lie.offset) * item,
                                .strides = std::move(lie.strides),
                                .dtype = a.dtype});
      }
    }
  }
  std::stable_sort(out.holdings.begin(), out.holdings.end(), [](const Holding& a, const Holding& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    for (std::size_t f = 0; f < std::min(a.box.size(), b.box.size()); ++f)
      if (a.box[f].lo != b.box[f].lo) return a.box[f].lo < b.box[f].lo;
    return a.offset < b.offset;
  });
  out.buffers.push_back({.name = "weights", .bytes = bytes_, .fill = 0, .file = {}});
  return out;
}

// One for each tensor: where it is cut depends on what lies before it.
void FlatLayout::build_patterns() {
  pattern_of_.resize(catalogue_.tensors.size());
  for (std::size_t t = 0; t < catalogue_.tensors.size(); ++t) {
    pattern_of_[t] = static_cast<std::uint32_t>(t);
    patterns_.push_back({catalogue_.tensors[t].shape, catalogue_.tensors[t].dtype, {}});
  }
  const auto copies = static_cast<std::uint32_t>(instances()), ranks = static_cast<std::uint32_t>(ranks_);
  for (const Array& a : arrays_)
    for (const Span& span : a.spans) {
      const Dims& shape = catalogue_.tensors[span.tensor.value].shape;
      const std::int64_t first = a.whole || a.shard == 0 ? 0 : span.at / a.shard;
      const std::int64_t last = a.whole || a.shard == 0 ? 0 : (span.at + span.count - 1) / a.shard;
      for (std::int64_t r = first; r <= last && span.count > 0; ++r) {
        const Interval mine =
            a.whole ? Interval{0, span.count}
                    : intersect(Interval{r * a.shard - span.at, (r + 1) * a.shard - span.at}, {0, span.count});
        for (Lie& lie : flat_range(shape, mine)) {
          PatternShard& s = patterns_[span.tensor.value].shards.emplace_back();
          s = {.view = std::move(lie.view),
               .box = std::move(lie.box),
               .strides = std::move(lie.strides),
               .dtype = a.dtype,
               .first = static_cast<std::uint32_t>(r),
               .progressions = {}};
          for (std::int64_t& stride : s.strides) stride *= item_size(a.dtype);
          if (a.whole && copies * ranks > 1) s.progressions = {{copies * ranks, 1}};
          if (!a.whole && copies > 1) s.progressions = {{copies, ranks}};
        }
      }
    }
}

}  // namespace refit::model
