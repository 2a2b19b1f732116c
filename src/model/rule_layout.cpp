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
    case Names::kEngine:
      return row.engine;
    case Names::kMegatron:
      return row.megatron;
    case Names::kFused:
      return row.fused;
  }
  return {};
}

bool in_order(const Holding& a, const Holding& b) {
  if (a.tensor != b.tensor) return a.tensor < b.tensor;
  for (std::size_t f = 0; f < std::min(a.box.size(), b.box.size()); ++f)
    if (a.box[f].lo != b.box[f].lo) return a.box[f].lo < b.box[f].lo;
  return a.offset < b.offset;
}

bool lies_in(const PatternShard& shard, const Lie& lie, std::int64_t item) {
  if (shard.box != lie.box || shard.view != lie.view) return false;
  for (std::size_t f = 0; f < lie.strides.size(); ++f)
    if (shard.strides[f] != lie.strides[f] * item) return false;
  return true;
}

Result<Mesh> mesh_of(const Side& side, const Spec& spec) {
  std::vector<Mesh::Axis> axes = side.axes(spec);
  axes.insert(axes.begin(), {"replicas", spec.number("replicas")});
  return Mesh::make(std::move(axes));
}

}  // namespace

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
  REFIT_TRY(out->build_slots());
  out->seal();
  return std::shared_ptr<const RuleLayout>(std::move(out));
}

Status RuleLayout::activate_rows() {
  const std::vector<SideRule> rules = side_->rules(spec_);
  std::size_t next = 0, next_slot = 0;
  for (const Row& row : config_.family->rows) {
    if (!config_.active(row)) continue;
    ActiveRow active;
    active.row = &row;
    active.layers = config_.layers(row);
    if (active.layers.empty()) continue;
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const SideRule& r) { return r.kind == row.kind; });
    if (rule == rules.end())
      return Error(Code::kUnsupported, spec_.side + ": no rule for " + std::string(row.members[0].name));
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
    active.first_slot = next_slot;
    next += active.layers.size() * static_cast<std::size_t>(active.experts) * active.shapes.size();
    next_slot += active.layers.size() * active.own_experts() * active.own_members() * active.copies();
    rows_.push_back(std::move(active));
  }
  return {};
}

Status RuleLayout::build_catalogue() {
  std::vector<LogicalTensor> tensors;
  std::vector<Ref> refs;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t l = 0; l < rows_[r].layers.size(); ++l)
      for (std::int64_t e = 0; e < rows_[r].experts; ++e)
        for (std::size_t m = 0; m < rows_[r].shapes.size(); ++m) {
          LogicalTensor t{instantiate(rows_[r].row->members[m].name, rows_[r].layers[l], e), rows_[r].shapes[m],
                          config_.dtype};
          refs.push_back({static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(l), e, static_cast<int>(m)});
          const auto other = facts_.dtypes.find(t.name);
          if (other != facts_.dtypes.end()) t.dtype = other->second;
          tensors.push_back(std::move(t));
        }
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  ids_.resize(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    ids_[order[i]] = TensorId{static_cast<std::uint32_t>(i)};
    refs_.push_back(refs[order[i]]);
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
        return Error(Code::kUnsupported, spec_.side + " holds " + a.name + " (" + std::string(to_string(a.dtype)) +
                                             ") and " + b.name + " (" + std::string(to_string(b.dtype)) +
                                             ") in one parameter; their dtypes must agree");
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
  all.add_text("rule layout")
      .add_text(recipe_.spec)
      .add_text(recipe_.config_digest.hex())
      .add_text(recipe_.rules_digest.hex());
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
    if (!elements || !checked_mul(*elements, 16))
      return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': " + std::string(row.row->members[m].name) +
                                       " passes 2^63 bytes on a rank");
    Template t{made->shape, *elements, made->cast, {}};
    if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) t.elements = 0;
    for (const Piece& p : made->pieces)
      if (!empty(p.box))
        t.parts.push_back(
            {row.rule.per == Per::kTensor ? static_cast<int>(m) : p.member, p.expert, lie_of(p, made->shape)});
    out.push_back(std::move(t));
  }
  return out;
}

std::string RuleLayout::parameter_name(const Slot& slot) const {
  const ActiveRow& row = rows_[slot.row];
  if (slot.copy) return std::string(row.copy);
  return instantiate(row.names.empty() ? row.row->members[static_cast<std::size_t>(slot.member)].name : row.names[0],
                     row.layers[slot.layer], slot.expert);
}

// Wide items first, then names: every parameter is aligned to its items without gaps, so that the buffer's bytes are
// the data section of a safetensors file. The order does not depend on the rank.
Status RuleLayout::build_slots() {
  REFIT_ASSIGN(const Templates made, all_templates(Rank{0}));
  std::vector<std::pair<std::string, Slot>> named;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t l = 0; l < rows_[r].layers.size(); ++l)
      for (std::size_t e = 0; e < rows_[r].own_experts(); ++e)
        for (std::size_t m = 0; m < rows_[r].own_members(); ++m)
          for (std::size_t copy = 0; copy < rows_[r].copies(); ++copy) {
            Slot s{static_cast<std::uint32_t>(r),
                   static_cast<std::uint32_t>(l),
                   static_cast<std::int64_t>(e),
                   static_cast<int>(m),
                   copy > 0,
                   {}};
            s.dtype =
                made[r][m].cast.value_or(catalogue_.tensors[ids_[rows_[r].index(l, s.expert, s.member)].value].dtype);
            named.emplace_back(parameter_name(s), s);
          }
  std::vector<std::uint32_t> order(named.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto wa = item_size(named[a].second.dtype), wb = item_size(named[b].second.dtype);
    return wa != wb ? wa > wb : named[a].first < named[b].first;
  });
  slot_of_.resize(named.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    slot_of_[order[i]] = static_cast<std::uint32_t>(i);
    slots_.push_back(named[order[i]].second);
  }
  // What the rules refuse, they refuse on rank 0 too, which holds no less than any other.
  REFIT_TRY(offsets(made));
  return {};
}

Result<RuleLayout::Templates> RuleLayout::all_templates(Rank rank) const {
  if (rank.value >= world())
    return Error(Code::kInvalid, "rank " + std::to_string(rank.value) + " is outside the " + std::to_string(world()) +
                                     " ranks of SPEC '" + canonical_spec(spec_) + "'");
  const Coordinates at = mesh_.coordinates(rank.value);
  Templates out;
  for (const ActiveRow& row : rows_) {
    REFIT_ASSIGN(out.emplace_back(), templates(row, at));
  }
  return out;
}

Result<std::vector<std::int64_t>> RuleLayout::offsets(const Templates& made) const {
  std::vector<std::int64_t> out{0};
  out.reserve(slots_.size() + 1);
  for (const Slot& s : slots_) {
    const Template& t = made[s.row][static_cast<std::size_t>(s.member)];
    const auto next = checked_add(out.back(), t.elements * item_size(s.dtype));
    if (!next) return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': one rank's weights pass 2^63 bytes");
    out.push_back(*next);
  }
  return out;
}

Result<RankLayout> RuleLayout::expand(Rank rank) const {
  REFIT_ASSIGN(const Templates made, all_templates(rank));
  REFIT_ASSIGN(const std::vector<std::int64_t> at, offsets(made));
  RankLayout out{.rank = rank, .host = host(rank), .buffers = {}, .holdings = {}, .parameters = {}};
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    const Template& t = made[s.row][static_cast<std::size_t>(s.member)];
    const std::int64_t item = item_size(s.dtype);
    for (const Template::Part& part : t.parts) {
      const TensorId id = ids_[rows_[s.row].index(s.layer, part.expert >= 0 ? part.expert : s.expert, part.member)];
      Holding h{.tensor = id,
                .buffer = 0,
                .view = part.lie.view,
                .box = part.lie.box,
                .offset = at[i] + part.lie.offset * item,
                .strides = part.lie.strides,
                .dtype = s.dtype};
      for (std::int64_t& stride : h.strides) stride *= item;
      out.holdings.push_back(std::move(h));
    }
    out.parameters.push_back({parameter_name(s), t.shape, s.dtype, 0, at[i]});
  }
  std::sort(out.holdings.begin(), out.holdings.end(), in_order);
  out.buffers.push_back({.name = "weights", .bytes = at.back(), .fill = 0, .file = {}});
  return out;
}

Result<std::vector<Place>> RuleLayout::places(Rank rank, std::span<const TensorId> tensors) const {
  REFIT_ASSIGN(const Templates made, all_templates(rank));
  REFIT_ASSIGN(const std::vector<std::int64_t> at, offsets(made));
  std::vector<Place> out;
  std::vector<std::pair<const Template::Part*, std::int64_t>> mine;  // parts of one tensor, with their offsets
  for (TensorId id : tensors) {
    const Ref& ref = refs_[id.value];
    const ActiveRow& row = rows_[ref.row];
    const Template& t = made[ref.row][row.rule.per == Per::kTensor ? static_cast<std::size_t>(ref.member) : 0];
    mine.clear();
    for (std::size_t copy = 0; copy < row.copies(); ++copy) {
      const std::uint32_t slot = slot_of_[row.slot(ref.layer, ref.expert, ref.member, copy)];
      for (const Template::Part& part : t.parts_of(row.rule.per == Per::kStack ? ref.expert : -1))
        if (part.member == ref.member)
          mine.emplace_back(&part, at[slot] + part.lie.offset * item_size(slots_[slot].dtype));
    }
    if (mine.size() < 2) {
      for (const auto& [part, offset] : mine) out.push_back({0, offset});
      continue;
    }
    // Several: in the order of the pattern's shards, equal ones by offset.
    std::sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::int64_t item = item_size(slots_[slot_of_[row.slot(ref.layer, ref.expert, ref.member, 0)]].dtype);
    for (const PatternShard& shard : patterns()[pattern_of()[id.value]].shards) {
      if (!shard.owned_by(rank)) continue;
      const auto found = std::find_if(mine.begin(), mine.end(),
                                      [&](const auto& m) { return m.first && lies_in(shard, m.first->lie, item); });
      REFIT_CHECK(found != mine.end());
      out.push_back({0, found->second});
      found->first = nullptr;
    }
  }
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

Result<std::shared_ptr<const Layout>> rule_layout(std::string_view config_json, std::string_view spec_text,
                                                  const Catalogue* names) {
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
  if (!rules)
    return Error(Code::kUnsupported,
                 "SPEC '" + std::string(spec_text) + "' needs a layout made by rules; this one has explicit holdings");
  REFIT_ASSIGN(Spec spec, parse_spec(spec_text));
  REFIT_ASSIGN(auto out, RuleLayout::make(rules->config(), std::move(spec), rules->facts()));
  return std::shared_ptr<const Layout>(std::move(out));
}

}  // namespace refit::model
