#include "model/rule_layout.h"

#include <algorithm>
#include <numeric>

namespace refit::model {
namespace {

// Changes when the meaning of a table entry does.
constexpr std::string_view kRulesVersion = "refit rules 2";

bool lies_in(const PatternShard& shard, const Lie& lie, std::int64_t item) {
  if (shard.box != lie.box || shard.view != lie.view) return false;
  for (std::size_t f = 0; f < lie.strides.size(); ++f)
    if (shard.strides[f] != lie.strides[f] * item) return false;
  return true;
}

Result<std::vector<Mesh>> meshes_of(const Side& side, const Spec& spec) {
  std::vector<Mesh> out;
  for (std::vector<Mesh::Axis> axes : side.grids(spec)) {
    axes.insert(axes.begin(), {"replicas", spec.number("replicas")});
    REFIT_ASSIGN(out.emplace_back(), Mesh::make(std::move(axes)));
    REFIT_CHECK(out.back().size() == out.front().size());
  }
  return out;
}

// The value transform of a row's parameters; none: empty.
std::string_view transform_of(const ActiveRow& row, const Program& program) {
  for (const Op& op : program)
    if (op.code == OpCode::kValue) {
      const auto name = value_of(op.term, row.symbols);
      return name.ok() ? *name : std::string_view();  // the program has run with the same symbols
    }
  return {};
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
  REFIT_ASSIGN(out->meshes_, meshes_of(*out->side_, out->spec_));
  REFIT_TRY(out->activate_rows());
  REFIT_TRY(out->build_catalogue());
  REFIT_TRY(out->check_dtypes());
  REFIT_TRY(out->build_slots());
  out->seal();
  return std::shared_ptr<const RuleLayout>(std::move(out));
}

Status RuleLayout::activate_rows() {
  const std::vector<SideRule> rules = side_->rules(spec_, config_);
  const std::vector<Preset>* presets = side_->presets ? side_->presets(spec_, config_) : nullptr;
  if (const auto quant = spec_.texts.find("quant"); quant != spec_.texts.end()) {
    const BlockFormat& format = *block_format(quant->second);
    if (format.rows > 0 && format.cols > 0) config_.symbols["bn"] = format.rows, config_.symbols["bk"] = format.cols;
  }
  REFIT_ASSIGN(const std::vector<ChosenRow> chosen, choose_rows(config_, spec_, made_rows_));
  for (const ChosenRow& row : chosen)
    if (!row.layers.empty()) REFIT_TRY(activate(row, rules, presets));
  return {};
}

Status RuleLayout::activate(const ChosenRow& chosen, const std::vector<SideRule>& rules,
                            const std::vector<Preset>* presets) {
  const Row& row = *chosen.row;
  ActiveRow active;
  active.row = &row;
  active.codes = chosen.codes;
  active.scales = chosen.scales;
  active.kind = row.kind;
  active.layers = chosen.layers;
  if (presets) {
    REFIT_TRY(take_presets(active, *presets));
  } else {
    REFIT_TRY(choose_rule(active, rules));
  }
  REFIT_ASSIGN(active.symbols, config_.symbols_of(row));
  for (const auto& [key, value] : spec_.numbers) active.symbols.emplace(key, value);
  REFIT_ASSIGN(active.shapes, config_.shapes(row));
  if (side_->engine) {
    REFIT_ASSIGN(active.scaled, config_.scaled(row));
  }
  if (chosen.scales && active.scaled.empty())
    for (Program& program : active.programs) program = scale_program(program, *chosen.scales);
  active.experts = active.scanned.empty() ? config_.experts(row) : static_cast<std::int64_t>(active.scanned.size());
  active.picks = active.per == Per::kExpert && active.experts == 1;
  active.stacks = std::any_of(active.programs[0].begin(), active.programs[0].end(),
                              [](const Op& op) { return op.code == OpCode::kStack; });
  active.grid = is_expert(row.kind) ? meshes_.size() - 1 : 0;
  if (row.shared && spec_.given("shared")) {
    REFIT_TRY(join_experts(active));
  } else if (!presets) {
    active.names = side_->name_of(spec_, config_, row, active.per);
  }
  REFIT_TRY(share_out(active));
  active.parameter_experts = active.stacked() ? 1 : active.picks ? config_.size("E") : active.experts;
  REFIT_TRY(place(active));
  if (!rows_.empty()) {
    const ActiveRow& last = rows_.back();
    active.first = last.first + last.layers.size() * static_cast<std::size_t>(last.experts) * last.shapes.size();
    active.first_slot =
        last.first_slot + last.layers.size() * last.own_experts() * last.own_members() * last.copies();
  }
  rows_.push_back(std::move(active));
  return {};
}

Status RuleLayout::choose_rule(ActiveRow& active, const std::vector<SideRule>& rules) const {
  const Row& row = *active.row;
  const std::string name = config_.name(row.members[0].name, active.layers[0], 0);
  const auto take = [&](Names side) {
    for (const Own& own : row.own)
      if (own.side == side) active.per = own.per, active.programs.push_back(own.program);
  };
  take(side_->names);
  if (active.programs.empty() && side_->engine) take(Names::kEngine);
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const SideRule& r) { return r.kind == row.kind; });
  if (active.programs.empty() && rule != rules.end()) active.per = rule->per, active.programs = {rule->program};
  const std::string_view own_name = side_->names == Names::kMegatron ? row.megatron
                                    : side_->names == Names::kJax    ? row.jax
                                    : side_->names == Names::kSglang ? row.sglang
                                                                     : std::string_view();
  if (active.programs.empty() || own_name == kUnknownName)
    return Error(Code::kUnsupported, spec_.side + ": no rule for " + name).at_tensor(name);
  return {};
}

// The shared expert is cut as a routed one and has a place behind theirs on every rank.
Status RuleLayout::join_experts(ActiveRow& active) const {
  using namespace op;
  const Row& row = *active.row;
  const bool down = row.kind == Kind::kMlpDown;
  const Kind kind = down ? Kind::kExpertDown : Kind::kExpertGateUp;
  const auto host = std::ranges::find_if(config_.family->rows, [&](const Row& r) {
    return r.kind == kind && r.when == row.when && r.members[0].of.empty() == row.members[0].of.empty();
  });
  if (host == config_.family->rows.end())
    return Error(Code::kInternal, "rule table: no experts beside " + std::string(row.members[0].name));
  active.names = side_->name_of(spec_, config_, *host, Per::kStack);
  active.programs = {down ? Program{load(0), cut(1, CutRule::kEven, "moe_tp")}
                          : Program{load(0), cut(0, CutRule::kEven, "moe_tp"), load(1),
                                    cut(0, CutRule::kEven, "moe_tp"), concat(0, 2)}};
  active.per = Per::kRow;
  active.grid = meshes_.size() - 1;
  active.guest = true;
  return {};
}

// Each member's own program and name; layers that are scanned become the places of a stack.
Status RuleLayout::take_presets(ActiveRow& active, const std::vector<Preset>& presets) const {
  bool scanned = false;
  for (const Member& m : active.row->members) {
    const auto found = std::ranges::find(presets, m.name, &Preset::tensor);
    if (found == presets.end()) {
      const std::string name = config_.name(m.name, active.layers[0], 0);
      return Error(Code::kUnsupported, spec_.side + ": preset=" + spec_.texts.find("preset")->second +
                                           " is not built for " + name + " of family " +
                                           std::string(config_.family->name))
          .at_tensor(name);
    }
    active.programs.push_back(found->program);
    active.names.emplace_back(found->name);
    scanned = found->scanned;
  }
  active.per = scanned ? Per::kStackEach : Per::kTensor;
  if (!scanned) return {};
  active.scanned = active.layers;
  active.layers.resize(1);
  return {};
}

// Which parameter holds which member.
Status RuleLayout::share_out(ActiveRow& active) const {
  const std::size_t members = active.shapes.size();
  if (active.per == Per::kRow && active.programs.size() == 1 && active.names.size() == members && members > 1)
    active.per = Per::kTensor;
  active.parameter_of.assign(members, 0);
  if (active.split()) {
    if (active.programs.size() != members) active.programs.assign(members, active.programs[0]);
    std::iota(active.parameter_of.begin(), active.parameter_of.end(), 0u);
  } else {
    for (std::size_t p = 0; p < active.programs.size(); ++p)
      for (const Op& op : active.programs[p])
        if (op.code == OpCode::kLoad) active.parameter_of.at(static_cast<std::size_t>(op.count)) = p;
  }
  if (active.names.size() == active.programs.size()) return {};
  return Error(Code::kInternal, "rule table: " + spec_.side + " names " + std::to_string(active.names.size()) +
                                    " parameters of " + std::string(active.row->members[0].name) + ", its rule makes " +
                                    std::to_string(active.programs.size()));
}

// The pipeline stage of each layer, and further parameters of the same tensor.
Status RuleLayout::place(ActiveRow& active) const {
  const std::int64_t decoder = config_.size("L");
  const bool drafts = side_->drafts && !spec_.given("draft");
  Pipeline pipeline;
  if (side_->pipeline) {
    REFIT_ASSIGN(pipeline, side_->pipeline(spec_, config_));
  }
  // What closes the decoder is built with its last layer where draft layers come between that and the head.
  const bool closes = active.row->closes_decoder && drafts && config_.draft_layers() > 0 && !pipeline.layers.empty();
  const Stage end = closes ? pipeline.layers.back() : pipeline.last;
  const std::string_view name = active.row->members[0].name;
  const bool own = spec_.draft_model();  // with an embedding and heads beside the draft layers
  for (std::int64_t layer : active.layers) {
    if (own && layer < decoder && !active.row->first_stage && name != kHead)
      active.spots.push_back({-1, 0, layer});
    else if (layer < 0)
      active.spots.push_back(active.row->first_stage ? Stage{} : Stage{end.stage, end.chunk, 0});
    else if (layer >= decoder)
      active.spots.push_back({drafts || own ? pipeline.drafts.stage : -1, pipeline.drafts.chunk,
                              side_->pipeline ? layer - decoder : layer});
    else
      active.spots.push_back(pipeline.layers.empty() ? Stage{0, 0, layer}
                                                     : pipeline.layers[static_cast<std::size_t>(layer)]);
  }
  if (side_ == &hf_side()) {
    for (const auto& [primary, copy] : config_.ties())
      if (primary == name && facts_.copies.contains(copy)) active.extra.push_back({copy, {}});
  } else if (own && name == kHead) {
    // Where checkpoints have a head for each draft layer, so has the draft model; else it has the model's.
    std::vector<std::string> heads;
    for (const auto& [primary, copy] : config_.ties())
      if (primary == name) heads.push_back(copy);
    if (!heads.empty()) active.names = {heads[0]};
    for (std::size_t k = 1; k < heads.size(); ++k) active.extra.push_back({heads[k], {}});
  } else if (side_->copies) {
    for (const TiedCopy& copy : side_->copies(spec_, config_, pipeline))
      if (copy.logical == name) active.extra.push_back({std::string(copy.parameter), copy.at});
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
          const Member& member = rows_[r].row->members[m];
          const std::vector<std::int64_t>& scanned = rows_[r].scanned;
          LogicalTensor t{scanned.empty() ? config_.name(member.name, rows_[r].layers[l], e)
                                          : config_.name(member.name, scanned[static_cast<std::size_t>(e)], 0),
                          rows_[r].shapes[m], config_.dtype_of(member)};
          refs.push_back({static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(l), e, static_cast<int>(m)});
          const auto other = facts_.dtypes.find(t.name);  // of the checkpoint's values, not of codes made of them
          if (other != facts_.dtypes.end() && !rows_[r].codes) t.dtype = other->second;
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
  for (std::size_t i = 1; i < catalogue_.tensors.size(); ++i)
    if (catalogue_.tensors[i].name == catalogue_.tensors[i - 1].name)
      return Error(Code::kUnsupported, "family " + std::string(config_.family->name) +
                                           ": this configuration has two tensors named " + catalogue_.tensors[i].name)
          .at_tensor(catalogue_.tensors[i].name);
  catalogue_.tied = config_.ties();
  return {};
}

// A parameter has one dtype, so its tensors must.
Status RuleLayout::check_dtypes() const {
  for (const ActiveRow& row : rows_)
    for (std::size_t l = 0; l < row.layers.size(); ++l)
      for (std::int64_t e = 0; e < row.experts; ++e)
        for (std::size_t m = 0; m < row.shapes.size(); ++m) {
          const int member = static_cast<int>(m);
          const std::size_t anchor = row.index(l, row.stacked() ? 0 : e, row.member_in(row.parameter_of[m]));
          const LogicalTensor& a = catalogue_.tensors[ids_[anchor].value];
          const LogicalTensor& b = catalogue_.tensors[ids_[row.index(l, e, member)].value];
          if (a.dtype != b.dtype)
            return Error(Code::kUnsupported, spec_.side + " holds " + a.name + " (" + std::string(to_string(a.dtype)) +
                                                 ") and " + b.name + " (" + std::string(to_string(b.dtype)) +
                                                 ") in one parameter; their dtypes must agree")
                .at_tensor(b.name);
        }
  return {};
}

void RuleLayout::seal() {
  Hasher rules;
  rules.add_text(kRulesVersion).add_text(side_->name);
  for (const ActiveRow& row : rows_) {
    rules.add_u64(static_cast<std::uint64_t>(row.per));
    for (const Program& program : row.programs) rules.add_text(to_string(program));
    for (const std::string& name : row.names) rules.add_text(name);
    if (row.guest) rules.add_text("guest");
    for (const ActiveRow::Copy& copy : row.extra) rules.add_text(copy.name);
    for (const Member& m : row.row->members) {
      rules.add_text(m.name).add_text(m.shape).add_text(m.dtype);
      if (!m.of.empty()) rules.add_text("of").add_text(m.of);
    }
  }
  ModelLayout::seal(rules.finish());
}

std::vector<std::pair<TensorId, std::string_view>> RuleLayout::values() const {
  std::vector<std::pair<TensorId, std::string_view>> out;
  for (const ActiveRow& row : rows_)
    for (std::size_t m = 0; m < row.shapes.size(); ++m) {
      const std::string_view value = transform_of(row, row.programs[row.parameter_of[m]]);
      for (std::size_t l = 0; l < row.layers.size() && !value.empty(); ++l)
        for (std::int64_t e = 0; e < row.experts && row.spots[l].stage >= 0; ++e)
          out.emplace_back(ids_[row.index(l, e, static_cast<int>(m))], value);
    }
  return out;
}

std::vector<QuantisedWeight> RuleLayout::quantised() const {
  std::vector<QuantisedWeight> out;
  const bool of_config = config_.flag("fp8") && config_.block() == Dims{128, 128};
  for (std::size_t r = 0; r + 1 < rows_.size(); ++r) {
    const ActiveRow &codes = rows_[r], &scales = rows_[r + 1];
    const bool named = of_config && codes.row->members[0].dtype == "f8_e4m3" && !scales.row->members[0].of.empty();
    const BlockFormat* format = codes.codes ? codes.codes : named ? block_format("fp8_block") : nullptr;
    if (format == nullptr) continue;
    for (std::size_t l = 0; l < codes.layers.size(); ++l)
      for (std::int64_t e = 0; e < codes.experts && codes.spots[l].stage >= 0; ++e)
        for (int m = 0; m < static_cast<int>(codes.shapes.size()); ++m)
          out.push_back({ids_[codes.index(l, e, m)], ids_[scales.index(l, e, m)], format});
  }
  return out;
}

Interval RuleLayout::experts_at(const ActiveRow& row, const Coordinates& at) const {
  const Mesh::Part part = meshes_[row.grid].part("ep", at);
  const std::int64_t each = row.parameter_experts / part.count;
  return {part.index * each, (part.index + 1) * each};
}

Result<RuleLayout::Template> RuleLayout::one_template(const ActiveRow& row, const Frame& frame,
                                                      std::size_t member) const {
  const std::string name(row.row->members[static_cast<std::size_t>(row.member_in(member))].name);
  auto made = run(row.programs[member], frame);
  if (made.ok() && !row.scaled.empty()) {
    std::vector<std::string_view> names;
    for (const Member& m : row.row->members) names.push_back(m.name);
    if (row.split()) names = {names[member]};
    made = in_blocks(std::move(*made), config_.block(), frame.members, names);
  }
  if (!made.ok()) {
    Error e = std::move(made).error();
    e.message = "SPEC '" + canonical_spec(spec_) + "': " + name + ": " + e.message;
    return std::move(e).at_tensor(name);
  }
  const auto elements = checked_extent_product(made->shape);
  if (!elements || !checked_mul(*elements, 16))
    return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': " + name + " passes 2^63 bytes on a rank");
  Template t{made->shape, *elements, made->cast, made->value, {}};
  if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) t.elements = 0;
  for (const Piece& p : made->pieces)
    if (!empty(p.box))
      t.parts.push_back({row.split() ? static_cast<int>(member) : p.member, p.expert, lie_of(p, made->shape)});
  return t;
}

Result<std::vector<RuleLayout::Template>> RuleLayout::templates(const ActiveRow& row, const Coordinates& at,
                                                                std::int64_t experts) const {
  std::vector<Template> out;
  if (row.nowhere()) return out;
  const Interval picked = row.picks ? experts_at(row, at) : Interval{0, 1};
  for (std::int64_t e = picked.lo; e < picked.hi; ++e)
    for (std::size_t m = 0; m < row.own_members(); ++m) {
      const std::vector<Dims>& shapes = row.scaled.empty() ? row.shapes : row.scaled;
      Frame frame{&row.symbols, &meshes_[row.grid], &at, shapes, experts, e};
      if (row.split()) frame.members = {shapes[m]};
      REFIT_ASSIGN(out.emplace_back(), one_template(row, frame, m));
    }
  return out;
}

Result<const RuleLayout::Templates*> RuleLayout::shared_templates(std::size_t row, const Coordinates& at) const {
  const std::vector<bool> read = read_axes(rows_[row], meshes_[rows_[row].grid]);
  std::pair<std::size_t, Coordinates> key(row, at);
  for (std::size_t a = 0; a < at.size(); ++a)
    if (!read[a]) key.second[a] = 0;
  const std::lock_guard lock(made_mutex_);
  std::unique_ptr<const Templates>& held = made_[key];
  if (!held) {
    Templates made;
    REFIT_ASSIGN(made.list, templates(rows_[row], key.second));
    made.lie = lie_hash(rows_[row], made.list);
    held = std::make_unique<const Templates>(std::move(made));
  }
  return held.get();
}

Hash128 RuleLayout::lie_hash(const ActiveRow& row, const std::vector<Template>& made) const {
  const auto tied = [&](std::string_view name) {
    return std::ranges::any_of(catalogue_.tied, [&](const auto& t) { return t.first == name || t.second == name; });
  };
  const bool boxes = std::ranges::any_of(row.row->members, [&](const Member& m) { return tied(m.name); });
  Hasher h;
  for (const Template& t : made) {
    h.add_i64(t.elements).add_u64(t.cast ? static_cast<std::uint64_t>(*t.cast) + 1 : 0).add_u64(t.parts.size());
    for (const Template::Part& p : t.parts) {
      h.add_i64(p.member).add_i64(p.expert).add_i64(p.lie.offset).add_u64(p.lie.strides.size());
      for (std::size_t f = 0; f < p.lie.strides.size(); ++f)
        h.add_i64(p.lie.strides[f]).add_i64(p.lie.box[f].size()).add_i64(boxes ? p.lie.box[f].lo : 0);
    }
  }
  return h.finish();
}

// Ranks of one pipeline stage and one share of the experts have the same parameters; what is left are their sizes.
Result<std::vector<std::uint32_t>> RuleLayout::alike() const {
  std::map<Hash128, std::uint32_t> first;
  std::vector<std::uint32_t> out;
  for (std::uint32_t r = 0; r < static_cast<std::uint32_t>(world()); ++r) {
    REFIT_ASSIGN(const Made made, make_all(Rank(r)));
    Hasher h;
    h.add_i64(made.stage).add_u64(made.part);
    for (const Templates* row : made.rows) h.add_u64(row->lie.hi).add_u64(row->lie.lo);
    out.push_back(first.emplace(h.finish(), r).first->second);
  }
  return out;
}

Result<RuleLayout::Made> RuleLayout::make_all(Rank rank) const {
  if (rank.value >= world())
    return Error(Code::kInvalid, "rank " + std::to_string(rank.value) + " is outside the " + std::to_string(world()) +
                                     " ranks of SPEC '" + canonical_spec(spec_) + "'");
  std::vector<Coordinates> at;
  for (const Mesh& mesh : meshes_) at.push_back(mesh.coordinates(rank.value));
  Made out;
  out.stage = meshes_[0].part("pp", at[0]).index;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const ActiveRow& row = rows_[r];
    REFIT_ASSIGN(const Templates* made, shared_templates(r, at[row.grid]));
    out.rows.push_back(made);
    if (row.per != Per::kExpert) continue;
    out.experts = experts_at(row, at[row.grid]);
    out.part = static_cast<std::size_t>(meshes_[row.grid].part("ep", at[row.grid]).index);
  }
  return out;
}

const RuleLayout::Template* RuleLayout::find(const Made& made, const Slot& slot) const {
  const ActiveRow& row = rows_[slot.row];
  const Stage& spot = slot.copy > 0 ? row.extra[slot.copy - 1].spot : row.spots[slot.layer];
  if (spot.stage != made.stage) return nullptr;
  auto which = static_cast<std::size_t>(slot.member);
  if (row.per == Per::kExpert) {
    if (slot.expert < made.experts.lo || slot.expert >= made.experts.hi) return nullptr;
    if (row.picks) which += static_cast<std::size_t>(slot.expert - made.experts.lo) * row.own_members();
  }
  return &made.rows[slot.row]->list[which];
}

std::string RuleLayout::parameter_name(const Slot& slot) const {
  const ActiveRow& row = rows_[slot.row];
  const Stage& spot = slot.copy > 0 ? row.extra[slot.copy - 1].spot : row.spots[slot.layer];
  std::string name = slot.copy > 0 ? row.extra[slot.copy - 1].name : row.names[static_cast<std::size_t>(slot.member)];
  const std::int64_t layer = row.layers[slot.layer], draft = layer - config_.size("L");
  if (draft >= 0 && !side_->draft.empty() && name.starts_with(side_->decoder))
    name.replace(0, side_->decoder.size(), side_->draft);
  std::int64_t expert = slot.expert;
  if (row.per == Per::kExpert) {
    const Coordinates first(meshes_[row.grid].axes().size(), 0);
    expert %= std::max<std::int64_t>(1, experts_at(row, first).size());
  }
  if (!side_->pipeline) {
    name = config_.name(name, layer, expert);
    if (draft >= 0 && spec_.draft_model()) name = side_->draft_parameter(*row.row, std::move(name));
    constexpr std::string_view kModelPart = "model.";
    if (side_ == &hf_side() && !facts_.prefix.empty() && name.starts_with(kModelPart))
      name.replace(0, kModelPart.size(), facts_.prefix);
    return name;
  }
  name = instantiate(name, spot.layer, draft, expert);
  if (spec_.number("vpp") == 1) return name;
  return "chunk" + std::to_string(spot.chunk) + "." + name;
}

// Wide items first, then names: every parameter is aligned to its items without gaps, so that the buffer's bytes are
// the data section of a safetensors file. The order does not depend on the rank.
Status RuleLayout::build_slots() {
  REFIT_ASSIGN(const Made made, make_all(Rank{0}));
  std::vector<std::pair<std::string, Slot>> named;
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t l = 0; l < rows_[r].layers.size(); ++l)
      for (std::size_t e = 0; e < rows_[r].own_experts(); ++e)
        for (std::size_t m = 0; m < rows_[r].own_members(); ++m)
          for (std::size_t copy = 0; copy < rows_[r].copies(); ++copy) {
            Slot s{static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(l),    static_cast<std::int64_t>(e),
                   static_cast<int>(m),           static_cast<std::uint32_t>(copy), {}};
            const TensorId id = ids_[rows_[r].index(l, s.expert, rows_[r].member_in(m))];
            s.dtype = catalogue_.tensors[id.value].dtype;
            if (!made.rows[r]->list.empty()) s.dtype = made.rows[r]->list[m].cast.value_or(s.dtype);
            // No name has this character, and none of the same length follows it.
            named.emplace_back(parameter_name(s) + (rows_[r].guest ? "\x01" : ""), s);
          }
  std::vector<std::uint32_t> order(named.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto wa = item_size(named[a].second.dtype), wb = item_size(named[b].second.dtype);
    return wa != wb ? wa > wb : named[a].first < named[b].first;
  });
  slot_of_.resize(named.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    slot_of_[order[i]] = static_cast<std::uint32_t>(i);
    slots_.push_back(named[order[i]].second);
  }
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (rows_[slots_[i].row].guest && (i == 0 || slots_[i - 1].dtype != slots_[i].dtype ||
                                       parameter_name(slots_[i - 1]) != parameter_name(slots_[i])))
      return Error(Code::kUnsupported, spec_.side + ": shared=fused: " + parameter_name(slots_[i]) +
                                           " would hold experts of different dtypes");
  sort_by_stage();
  // What the rules refuse, they refuse on rank 0 too; the sizes are checked again for each rank that is expanded.
  REFIT_TRY(offsets(made));
  return {};
}

// Planning asks many ranks for their offsets, and a rank holds few of all slots where stages and experts are apart.
void RuleLayout::sort_by_stage() {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    const ActiveRow& row = rows_[s.row];
    const Stage& spot = s.copy > 0 ? row.extra[s.copy - 1].spot : row.spots[s.layer];
    if (spot.stage < 0) continue;
    const auto stage = static_cast<std::size_t>(spot.stage);
    if (stages_.size() <= stage) stages_.resize(stage + 1);
    std::vector<std::uint32_t>* list = &stages_[stage].everywhere;
    if (row.per == Per::kExpert) {
      const Coordinates first(meshes_[row.grid].axes().size(), 0);
      const auto part = static_cast<std::size_t>(s.expert / std::max<std::int64_t>(1, experts_at(row, first).size()));
      auto& parts = stages_[stage].of_part;
      if (parts.size() <= part) parts.resize(part + 1);
      list = &parts[part];
    }
    list->push_back(i);
  }
}

Result<RuleLayout::Offsets> RuleLayout::offsets(const Made& made) const {
  Offsets out;
  if (const auto stage = static_cast<std::size_t>(made.stage); stage < stages_.size()) {
    const StageSlots& own = stages_[stage];
    static const std::vector<std::uint32_t> kNoSlots;
    const auto& part = made.part < own.of_part.size() ? own.of_part[made.part] : kNoSlots;
    out.slots.resize(own.everywhere.size() + part.size());
    std::merge(own.everywhere.begin(), own.everywhere.end(), part.begin(), part.end(), out.slots.begin());
  }
  out.at.reserve(out.slots.size() + 1);
  out.at.push_back(0);
  for (std::uint32_t slot : out.slots) {
    const Template* t = find(made, slots_[slot]);
    const auto next = checked_add(out.at.back(), t ? t->elements * item_size(slots_[slot].dtype) : 0);
    if (!next) return Error(Code::kInvalid, "SPEC '" + canonical_spec(spec_) + "': one rank's weights pass 2^63 bytes");
    out.at.push_back(*next);
  }
  return out;
}

Result<RankLayout> RuleLayout::expand(Rank rank) const {
  REFIT_ASSIGN(const Made made, make_all(rank));
  REFIT_ASSIGN(const Offsets own, offsets(made));
  RankLayout out{.rank = rank, .host = host(rank), .buffers = {}, .holdings = {}, .parameters = {}};
  // Ordered before the holdings are made: these are small, holdings are not.
  struct Key {
    TensorId tensor;
    const Template::Part* part;
    std::int64_t offset, item;
    DType dtype;
  };
  std::vector<Key> keys;
  for (std::size_t i = 0; i < own.slots.size(); ++i) {
    const Slot& s = slots_[own.slots[i]];
    const Template* t = find(made, s);
    if (!t) continue;
    const std::int64_t item = item_size(s.dtype);
    for (const Template::Part& part : t->parts)
      keys.push_back({ids_[rows_[s.row].index(s.layer, part.expert >= 0 ? part.expert : s.expert, part.member)], &part,
                      own.at[i] + part.lie.offset * item, item, s.dtype});
    if (rows_[s.row].guest) {
      // Its host comes right before it, and holds one expert more.
      out.parameters.back().shape[0] += 1;
      continue;
    }
    out.parameters.push_back({parameter_name(s), t->shape, s.dtype, 0, own.at[i], std::string(t->value)});
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    if (a.tensor != b.tensor) return a.tensor < b.tensor;
    const Box &x = a.part->lie.box, &y = b.part->lie.box;
    for (std::size_t f = 0; f < std::min(x.size(), y.size()); ++f)
      if (x[f].lo != y[f].lo) return x[f].lo < y[f].lo;
    return a.offset < b.offset;
  });
  out.holdings.reserve(keys.size());
  for (const Key& k : keys) {
    Holding& h = out.holdings.emplace_back();
    h = {.tensor = k.tensor,
         .buffer = 0,
         .view = k.part->lie.view,
         .box = k.part->lie.box,
         .offset = k.offset,
         .strides = k.part->lie.strides,
         .dtype = k.dtype};
    for (std::int64_t& stride : h.strides) stride *= k.item;
  }
  out.buffers.push_back({.name = "weights", .bytes = own.at.back(), .fill = 0, .file = {}});
  return out;
}

Result<std::vector<Place>> RuleLayout::places(Rank rank, std::span<const TensorId> tensors) const {
  REFIT_ASSIGN(const Made made, make_all(rank));
  REFIT_ASSIGN(const Offsets own, offsets(made));
  std::vector<Place> out;
  std::vector<std::pair<const Template::Part*, std::int64_t>> mine;  // parts of one tensor, with their offsets
  for (TensorId id : tensors) {
    const Ref& ref = refs_[id.value];
    const ActiveRow& row = rows_[ref.row];
    mine.clear();
    const Interval experts = row.picks ? made.experts : Interval{0, 1};
    for (std::int64_t e = experts.lo; e < experts.hi; ++e)
      for (std::size_t copy = 0; copy < row.copies(); ++copy) {
        const std::uint32_t slot = slot_of_[row.slot(ref.layer, row.picks ? e : ref.expert, ref.member, copy)];
        const Template* t = find(made, slots_[slot]);
        if (!t) continue;
        for (const Template::Part& part : t->parts_of(row.stacks ? ref.expert : -1))
          if (part.member == ref.member)
            mine.emplace_back(&part, own.of(slot) + part.lie.offset * item_size(slots_[slot].dtype));
      }
    if (mine.size() < 2) {
      for (const auto& [part, offset] : mine) out.push_back({0, offset});
      continue;
    }
    // Several: in the order of the pattern's shards, equal ones by offset.
    std::sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const std::int64_t item =
        item_size(slots_[slot_of_[row.slot(ref.layer, row.picks ? 0 : ref.expert, ref.member, 0)]].dtype);
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

}  // namespace refit::model
