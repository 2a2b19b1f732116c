#include "model/rule_layout.h"

#include <algorithm>
#include <numeric>

#include "model/recipe.h"

namespace refit::model {
namespace {

// Changes when the meaning of a table entry does.
constexpr std::string_view kRulesVersion = "refit rules 1";

std::string_view side_name(const Side& side, const Row& row) {
  switch (side.names) {
    case Names::kEngine: return row.engine;
    case Names::kMegatron: return row.megatron;
    case Names::kFused: return row.fused;
  }
  return {};
}

Result<Mesh> mesh_of(const Side& side, const Spec& spec) {
  std::vector<Mesh::Axis> axes = side.axes(spec);
  axes.insert(axes.begin(), {"replicas", spec.number("replicas")});
  return Mesh::make(std::move(axes));
}

}  // namespace

struct RuleLayout::Draft {
  Parameter parameter;
  const Template* made = nullptr;
  const ActiveRow* row = nullptr;
  std::size_t layer = 0;
  std::int64_t expert = -1;  // of a parameter of one expert
  int member = 0;            // likewise of one member
};

Result<std::shared_ptr<const RuleLayout>> RuleLayout::make(ModelConfig config, Spec spec, CheckpointFacts facts) {
  auto out = std::make_shared<RuleLayout>();
  out->config_ = std::move(config);
  out->spec_ = std::move(spec);
  out->facts_ = std::move(facts);
  REFIT_ASSIGN(out->side_, side_of(out->spec_.side == "fsdp" ? "fsdp=1" : out->spec_.side));
  if (out->side_ == &hf_side() && out->facts_.fused) out->spec_.texts.emplace("naming", "fused");
  REFIT_TRY(out->side_->check(out->spec_, out->config_));
  REFIT_ASSIGN(out->mesh_, mesh_of(*out->side_, out->spec_));
  out->symbols_ = out->config_.symbols;
  for (const auto& [key, value] : out->spec_.numbers) out->symbols_.emplace(key, value);
  REFIT_TRY(out->activate_rows());
  REFIT_TRY(out->build_catalogue());
  REFIT_TRY(out->check_dtypes());
  // What the rules refuse, they refuse on every rank: try one now.
  REFIT_TRY(out->expand(Rank{0}));
  out->seal();
  return std::shared_ptr<const RuleLayout>(std::move(out));
}

Status RuleLayout::activate_rows() {
  const std::vector<SideRule> rules = side_->rules(spec_);
  std::size_t next = 0;
  for (const Row& row : config_.family->rows) {
    if (!config_.active(row)) continue;
    ActiveRow active;
    active.row = &row;
    active.layers = config_.layers(row);
    if (active.layers.empty()) continue;
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const SideRule& r) { return r.kind == row.kind; });
    if (rule == rules.end()) return Error(Code::kUnsupported, spec_.side + ": no rule for " + std::string(row.members[0].name));
    active.rule = *rule;
    for (const Member& m : row.members) {
      REFIT_ASSIGN(active.shapes.emplace_back(), evaluate_terms(m.shape, symbols_));
    }
    if (active.per_expert()) active.experts = config_.size("E");
    if (active.rule.per != Per::kTensor) {
      const std::string_view own = side_name(*side_, row);
      active.names.push_back(own.empty() ? row.members[0].name : own);
    }
    if (side_ == &hf_side() && facts_.tied_copy && row.members[0].name == kEmbedding) active.copy = kHead;
    active.first = next;
    next += active.layers.size() * static_cast<std::size_t>(active.experts) * active.shapes.size();
    rows_.push_back(std::move(active));
  }
  return {};
}

Status RuleLayout::build_catalogue() {
  std::vector<LogicalTensor> tensors;
  for (const ActiveRow& row : rows_)
    for (std::int64_t layer : row.layers)
      for (std::int64_t e = 0; e < row.experts; ++e)
        for (std::size_t m = 0; m < row.shapes.size(); ++m) {
          LogicalTensor t{instantiate(row.row->members[m].name, layer, e), row.shapes[m], config_.dtype};
          const auto other = facts_.dtypes.find(t.name);
          if (other != facts_.dtypes.end()) t.dtype = other->second;
          tensors.push_back(std::move(t));
        }
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  ids_.resize(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    ids_[order[i]] = TensorId{static_cast<std::uint32_t>(i)};
    catalogue_.tensors.push_back(std::move(tensors[order[i]]));
  }
  if (config_.flag("tied")) catalogue_.tied.emplace_back(kEmbedding, kHead);
  return {};
}

// A parameter has one dtype, so its tensors must.
Status RuleLayout::check_dtypes() const {
  for (const ActiveRow& row : rows_) {
    if (row.rule.per == Per::kTensor) continue;
    const bool stacked = row.rule.per == Per::kStack;
    const std::size_t group = row.shapes.size() * static_cast<std::size_t>(stacked ? row.experts : 1);
    const std::size_t end = row.first + row.layers.size() * static_cast<std::size_t>(row.experts) * row.shapes.size();
    for (std::size_t i = row.first; i < end; ++i) {
      const LogicalTensor& a = catalogue_.tensors[ids_[row.first + (i - row.first) / group * group].value];
      const LogicalTensor& b = catalogue_.tensors[ids_[i].value];
      if (a.dtype != b.dtype)
        return Error(Code::kUnsupported, spec_.side + " holds " + a.name + " (" + std::string(to_string(a.dtype)) + ") and " + b.name + " (" +
                                             std::string(to_string(b.dtype)) + ") in one parameter; their dtypes must agree");
    }
  }
  return {};
}

void RuleLayout::seal() {
  Hasher rules;
  rules.add_text(kRulesVersion).add_text(side_->name);
  for (const ActiveRow& row : rows_) {
    rules.add_u64(static_cast<std::uint64_t>(row.rule.per)).add_text(to_string(row.rule.program));
    for (std::string_view name : row.names) rules.add_text(name);
    for (const Member& m : row.row->members) rules.add_text(m.name).add_text(m.shape);
  }
  recipe_ = {std::string(config_.family->name), canonical_spec(spec_), hash128(config_.canonical), rules.finish()};
  Hasher all;
  all.add_text("rule layout").add_text(recipe_.spec).add_text(recipe_.config_digest.hex()).add_text(recipe_.rules_digest.hex());
  all.add_u64(facts_.tied_copy ? 1 : 0);
  for (const auto& [name, dtype] : facts_.dtypes) all.add_text(name).add_text(to_string(dtype));
  digest_ = all.finish();
}

std::string RuleLayout::host(Rank rank) const {
  const auto prefix = spec_.texts.find("hosts");
  const std::string name = prefix != spec_.texts.end() ? prefix->second : side_->engine ? "tgt" : "src";
  return name + "-" + std::to_string(rank.value / static_cast<std::uint64_t>(spec_.number("gpus_per_host")));
}

Result<std::vector<RuleLayout::Template>> RuleLayout::templates(const ActiveRow& row, const Coordinates& at) const {
  std::vector<Template> out;
  const std::size_t count = row.rule.per == Per::kTensor ? row.shapes.size() : 1;
  for (std::size_t m = 0; m < count; ++m) {
    Frame frame{&symbols_, &mesh_, &at, row.shapes, row.experts};
    if (row.rule.per == Per::kTensor) frame.members = {row.shapes[m]};
    auto made = run(row.rule.program, frame);
    if (!made.ok()) {
      Error e = std::move(made).error();
      e.message = "SPEC '" + canonical_spec(spec_) + "': " + std::string(row.row->members[m].name) + ": " + e.message;
      return e;
    }
    const auto elements = checked_extent_product(made->shape);
    if (!elements || !checked_mul(*elements, 16)) return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': " + std::string(row.row->members[m].name) + " passes 2^63 bytes on a rank");
    Template t{made->shape, made->cast, {}};
    for (const Piece& p : made->pieces)
      if (!empty(p.box)) t.parts.push_back({row.rule.per == Per::kTensor ? static_cast<int>(m) : p.member, p.expert, lie_of(p, made->shape)});
    out.push_back(std::move(t));
  }
  return out;
}

std::string RuleLayout::parameter_name(const ActiveRow& row, std::size_t name, std::int64_t layer, std::int64_t expert, int member) const {
  if (name > 0) return std::string(row.copy);
  return instantiate(row.names.empty() ? row.row->members[static_cast<std::size_t>(member)].name : row.names[0], layer, expert);
}

std::vector<RuleLayout::Draft> RuleLayout::drafts_of(const ActiveRow& row, const std::vector<Template>& made) const {
  std::vector<Draft> out;
  const std::int64_t experts = row.rule.per == Per::kStack ? 1 : row.experts;
  for (std::size_t l = 0; l < row.layers.size(); ++l)
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::size_t m = 0; m < made.size(); ++m)
        for (std::size_t name = 0; name < (row.copy.empty() ? 1u : 2u); ++name) {
          const int member = static_cast<int>(m);
          Draft d{.parameter = {}, .made = &made[m], .row = &row, .layer = l, .expert = e, .member = member};
          d.parameter.name = parameter_name(row, name, row.layers[l], e, member);
          d.parameter.shape = made[m].shape;
          d.parameter.dtype = made[m].cast.value_or(catalogue_.tensors[ids_[row.index(l, e, member)].value].dtype);
          out.push_back(std::move(d));
        }
  return out;
}

Result<RankLayout> RuleLayout::expand(Rank rank) const {
  if (rank.value >= world()) return Error(Code::kInvalid, "rank " + std::to_string(rank.value) + " is outside the " + std::to_string(world()) + " ranks of SPEC '" + canonical_spec(spec_) + "'");
  const Coordinates at = mesh_.coordinates(rank.value);
  std::vector<std::vector<Template>> made(rows_.size());
  std::vector<Draft> drafts;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    REFIT_ASSIGN(made[r], templates(rows_[r], at));
    std::vector<Draft> some = drafts_of(rows_[r], made[r]);
    drafts.insert(drafts.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  // Wide items first, then names: every parameter is aligned to its items without gaps, so that the buffer's bytes are
  // the data section of a safetensors file.
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    const auto wa = item_size(a.parameter.dtype), wb = item_size(b.parameter.dtype);
    return wa != wb ? wa > wb : a.parameter.name < b.parameter.name;
  });
  RankLayout out{.rank = rank, .host = host(rank), .buffers = {}, .holdings = {}, .parameters = {}};
  std::int64_t end = 0;
  for (Draft& d : drafts) {
    const std::int64_t item = item_size(d.parameter.dtype);
    d.parameter.offset = end;
    const auto next = checked_add(end, elements(whole(d.parameter.shape)) * item);
    if (!next) return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': one rank's weights pass 2^63 bytes");
    end = *next;
    for (const Template::Part& part : d.made->parts) {
      const TensorId id = ids_[d.row->index(d.layer, part.expert >= 0 ? part.expert : d.expert, part.member)];
      Holding h{.tensor = id, .buffer = 0, .view = part.lie.view, .box = part.lie.box, .offset = d.parameter.offset + part.lie.offset * item, .strides = part.lie.strides, .dtype = d.parameter.dtype};
      for (std::int64_t& s : h.strides) s *= item;
      out.holdings.push_back(std::move(h));
    }
    out.parameters.push_back(std::move(d.parameter));
  }
  std::sort(out.holdings.begin(), out.holdings.end(), [](const Holding& a, const Holding& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    const auto before = [](Interval x, Interval y) { return x.lo < y.lo; };
    if (std::lexicographical_compare(a.box.begin(), a.box.end(), b.box.begin(), b.box.end(), before)) return true;
    if (std::lexicographical_compare(b.box.begin(), b.box.end(), a.box.begin(), a.box.end(), before)) return false;
    return a.offset < b.offset;
  });
  out.buffers.push_back({.name = "weights", .bytes = end, .fill = 0, .file = {}});
  return out;
}

std::span<const Pattern> RuleLayout::patterns() const {
  std::call_once(patterns_made_, [this] { REFIT_CHECK(build_patterns().ok()); });
  return patterns_;
}

std::span<const std::uint32_t> RuleLayout::pattern_of() const {
  patterns();
  return pattern_of_;
}

Result<std::shared_ptr<const Layout>> rule_layout(std::string_view config_json, std::string_view spec_text, const Catalogue* names) {
  REFIT_ASSIGN(ModelConfig config, read_config(config_json));
  REFIT_ASSIGN(Spec spec, parse_spec(spec_text));
  CheckpointFacts facts;
  if (names) {
    REFIT_ASSIGN(facts, read_facts(config, *names));
  }
  REFIT_ASSIGN(auto made, RuleLayout::make(std::move(config), std::move(spec), std::move(facts)));
  return std::shared_ptr<const Layout>(std::move(made));
}

Result<std::shared_ptr<const Layout>> sibling_layout(const Layout& made, std::string_view spec_text) {
  const auto* rules = dynamic_cast<const RuleLayout*>(&made);
  if (!rules) return Error(Code::kUnsupported, "SPEC '" + std::string(spec_text) + "' needs a layout made by rules; this one has explicit holdings");
  REFIT_ASSIGN(Spec spec, parse_spec(spec_text));
  REFIT_ASSIGN(auto out, RuleLayout::make(rules->config(), std::move(spec), rules->facts()));
  return std::shared_ptr<const Layout>(std::move(out));
}

}  // namespace refit::model
