#include "plan/planner.h"

#include <algorithm>
#include <bit>
#include <set>

namespace refit::plan {
namespace {

constexpr std::size_t kShown = 20;  // findings of one report

// Numbers patterns by everything but their owners.
std::vector<std::uint32_t> shapes_of(std::span<const model::Pattern> patterns) {
  std::map<std::vector<std::int64_t>, std::uint32_t> known;
  std::vector<std::uint32_t> out;
  for (const model::Pattern& p : patterns) {
    std::vector<std::int64_t> key{static_cast<std::int64_t>(p.dtype)};
    const auto add = [&](const Dims& d) {
      key.push_back(static_cast<std::int64_t>(d.size()));
      key.insert(key.end(), d.begin(), d.end());
    };
    add(p.shape);
    for (const model::PatternShard& s : p.shards) {
      key.push_back(static_cast<std::int64_t>(s.dtype));
      for (const Dims& r : s.view.radices) add(r);
      for (const Interval& i : s.box) key.insert(key.end(), {i.lo, i.hi});
      add(s.strides);
    }
    out.push_back(known.emplace(std::move(key), static_cast<std::uint32_t>(known.size())).first->second);
  }
  return out;
}

std::vector<std::uint32_t> patterns_of(const model::Layout& layout, std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t t : tensors) out.push_back(layout.pattern_of()[t]);
  return out;
}

Composite composite(const model::Layout& layout, const std::vector<std::uint32_t>& patterns) {
  Composite out;
  for (std::uint32_t p : patterns) out.push_back(&layout.patterns()[p]);
  return out;
}

std::vector<std::uint32_t> mapped(const std::vector<std::uint32_t>& key, const std::vector<std::uint32_t>& by) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t k : key) out.push_back(by[k]);
  return out;
}

Error refuse_value(const model::Layout& layout, TensorId tensor, std::string_view value) {
  const std::string& name = layout.catalogue().tensors[tensor.value].name;
  const model::Recipe* recipe = layout.recipe();
  return Error(Code::kUnsupported, (recipe ? "SPEC '" + recipe->spec + "'" : "a layout") + " stores " + name +
                                       " through the value transform '" + std::string(value) +
                                       "', which this mover does not run; refit convert does")
      .at_tensor(name);
}

}  // namespace

Error Findings::error() const {
  std::string text;
  for (std::size_t i = 0; i < std::min(list_.size(), kShown); ++i) text += (i ? "; " : "") + list_[i];
  if (list_.size() > kShown) text += "; … " + std::to_string(list_.size()) + " findings in all";
  return Error(Code::kMismatch, text).at_tensor(tensor_);
}

Result<std::unique_ptr<Planner>> Planner::make(const model::Layout& source, const model::Layout& target,
                                               const Options& options) {
  std::unique_ptr<Planner> p(new Planner());
  p->source_ = &source;
  p->target_ = &target;
  p->options_ = options;
  REFIT_TRY(p->build());
  return p;
}

Status Planner::build() {
  if (options_.bucket_bytes < 1)
    return Error(Code::kInvalid, "refit.bucket_bytes must be positive, not " + std::to_string(options_.bucket_bytes));
  if (options_.staging_bytes < 1)
    return Error(Code::kInvalid, "refit.staging_bytes must be positive, not " + std::to_string(options_.staging_bytes));
  if (source_->world() < 1 || target_->world() < 1 || target_->world() % target_->instances() != 0)
    return Error(Code::kInvalid, "a layout has no ranks, or its instances are not equal");
  if (options_.values == Values::kStages) {
    const model::Layout& stored = *source_;
    REFIT_ASSIGN(staged_, stage_values(*source_, *target_));
    if (staged_.source) source_ = staged_.source.get(), target_ = staged_.target.get();
    REFIT_ASSIGN(quantised_, Quantised::make(*source_, *target_, stored));
    if (quantised_.runs()) source_ = &quantised_.source();
  }
  for (const model::Layout* layout : {source_, target_})
    if (const auto values = layout->values(); !values.empty() && options_.values == Values::kRefuse)
      return refuse_value(*layout, values.front().first, values.front().second);
  hosts_ = Hosts::of(*source_, *target_);
  Findings findings;
  match_names(findings);
  REFIT_TRY(classify());
  join_scales();
  if (!findings.empty()) return findings.error();
  return choose_limit();
}

void Planner::join_scales() {
  const auto ordinal = [&](TensorId target) {
    return static_cast<std::uint32_t>(catalogue_->find(target_->catalogue().tensors[target.value].name));
  };
  for (const model::QuantisedWeight& q : target_->quantised()) {
    const std::uint32_t codes = ordinal(q.codes), scales = ordinal(q.scales);
    codes_of_.emplace(scales, codes);
    scales_of_.emplace(codes, scales);
  }
}

// The classes of all groups that some target holds bytes of.
Status Planner::classify() {
  source_shape_ = shapes_of(source_->patterns());
  target_shape_ = shapes_of(target_->patterns());
  class_of_.assign(groups_.size(), kNone);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.source.empty() || group.target.empty()) continue;
    const model::Pattern& p = target_->patterns()[target_->pattern_of()[group.target[0]]];
    if (std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) continue;
    auto c = class_for(group);
    if (!c.ok()) {
      Error e = std::move(c).error();
      return std::move(e).at_tensor(name(group));
    }
    class_of_[g] = *c;
    classes_[*c].groups.push_back(g);
  }
  return {};
}

Result<std::uint32_t> Planner::class_for(const Group& g) {
  // Nearly all groups are one tensor on either side: no key needs to be built for them.
  const bool plain = g.source.size() == 1 && g.target.size() == 1;
  const std::uint64_t pair =
      plain ? std::uint64_t{source_->pattern_of()[g.source[0]]} << 32 | target_->pattern_of()[g.target[0]] : 0;
  if (plain)
    if (const auto at = plain_classes_.find(pair); at != plain_classes_.end()) return at->second;
  const Key source_key = patterns_of(*source_, g.source), target_key = patterns_of(*target_, g.target);
  const auto at = class_by_patterns_.find({source_key, target_key});
  if (at != class_by_patterns_.end()) return at->second;
  TensorClass c;
  c.source = composite(*source_, source_key);
  c.target = composite(*target_, target_key);
  c.shape = c.target[0]->shape;
  c.dtype = c.target[0]->dtype;
  c.item = item_size(c.dtype);
  REFIT_TRY(complete(c, source_key, target_key));
  const auto number = static_cast<std::uint32_t>(classes_.size());
  classes_.push_back(std::move(c));
  class_by_patterns_.emplace(std::pair(source_key, target_key), number);
  if (plain) plain_classes_.emplace(pair, number);
  return number;
}

// Which expert or stage a tensor belongs to changes its owners, seldom how many they are: then the pieces are the same.
Draft Planner::draft_of(const TensorClass& c, const OwnerTable& source, const OwnerTable& target, bool targets) {
  const DraftInput in{*c.frame, source, target, hosts_, c.item, instance()};
  if (targets) return make_draft(in);
  Draft out;
  out.owners = draft_owners(*c.frame, source);
  std::vector<std::int64_t> key{c.item};
  for (const auto& owners : out.owners) key.push_back(static_cast<std::int64_t>(owners.size()));
  auto& pieces = draft_pieces_[{c.frame, std::move(key)}];
  if (!pieces) pieces = make_draft(in).shared;
  out.shared = pieces;
  return out;
}

// Frame, draft and recipient sets, each shared with as many classes as its inputs allow.
Status Planner::complete(TensorClass& c, const Key& source_key, const Key& target_key) {
  const auto& so = source_owners_.try_emplace(source_key, c.source).first->second;
  const auto& to = target_owners_.try_emplace(target_key, c.target).first->second;
  c.source_owners = &so;
  c.target_owners = &to;
  const std::pair shapes(mapped(source_key, source_shape_), mapped(target_key, target_shape_));
  // A frame that depends on owners is kept under the patterns themselves; the marker keeps the two kinds apart.
  std::pair owned(source_key, target_key);
  owned.second.push_back(kNone);
  auto frame = frames_.find(shapes);
  if (frame == frames_.end()) frame = frames_.find(owned);
  if (frame == frames_.end()) {
    REFIT_ASSIGN(Frame made, make_frame(c.shape, c.source, c.target, to));
    const bool by_owner = made.by_owner;
    frame = frames_.emplace(by_owner ? owned : shapes, std::move(made)).first;
  }
  c.frame = &frame->second;
  const bool targets = needs_targets(*c.frame, hosts_);
  std::pair key(source_key, mapped(target_key, target_shape_));
  if (targets) {
    key.second = target_key;
    key.second.push_back(kNone);
  }
  auto draft = drafts_.find(key);
  if (draft == drafts_.end()) draft = drafts_.emplace(key, draft_of(c, so, to, targets)).first;
  c.draft = &draft->second;
  if (targets) {
    for (const Ranks& r : c.draft->sets) c.sets.push_back(sets_.intern(r));
    return {};
  }
  const auto [held, fresh] = frame_sets_.try_emplace({c.frame, &to});
  for (const auto& cells : c.frame->groups) {
    if (!fresh) break;
    Ranks all;
    for (std::uint32_t cell : cells) {
      const Ranks r = c.frame->owners(cell, to);
      all.insert(all.end(), r.begin(), r.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    held->second.push_back(sets_.intern(all));
  }
  c.sets = held->second;
  return {};
}

// Bucket limit = min(option, staging ÷ (2 × most senders of any target)), equal on every rank.
Status Planner::choose_limit() {
  const std::size_t words = (static_cast<std::size_t>(source_->world()) + 63) / 64;
  std::vector<std::vector<std::uint64_t>> senders(sets_.size());
  const auto mark = [&](std::uint32_t set, std::uint32_t rank) {
    senders[set].resize(words);
    senders[set][rank / 64] |= std::uint64_t{1} << (rank % 64);
  };
  for (const TensorClass& c : classes_) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> turns;  // owner count -> turns that its tensors take
    for (const DraftPiece& p : c.draft->pieces()) {
      const auto& owners = c.draft->owners[p.owners];
      if (p.turn >= 0) {
        mark(c.sets[p.recipients], owners[static_cast<std::size_t>(p.turn)].rank);
        continue;
      }
      const auto count = static_cast<std::uint32_t>(owners.size());
      auto [at, fresh] = turns.try_emplace(count);
      if (fresh) {
        std::set<std::uint32_t> seen;
        for (std::uint32_t g : c.groups) seen.insert(turn(groups_[g].ordinal) % count);
        at->second.assign(seen.begin(), seen.end());
      }
      for (std::uint32_t t : at->second) mark(c.sets[p.recipients], owners[t].rank);
    }
  }
  std::vector<std::vector<std::uint32_t>> sets_with(static_cast<std::size_t>(target_->world()));
  for (std::uint32_t s = 0; s < sets_.size(); ++s)
    if (!senders[s].empty())
      for (std::uint32_t r : sets_[s]) sets_with[r].push_back(s);
  std::map<std::vector<std::uint32_t>, std::int64_t> counted;
  std::int64_t most = 1;
  for (const auto& list : sets_with) {
    auto [at, fresh] = counted.try_emplace(list, 0);
    if (!fresh) continue;
    for (std::size_t w = 0; w < words; ++w) {
      std::uint64_t all = 0;
      for (std::uint32_t s : list) all |= senders[s][w];
      at->second += std::popcount(all);
    }
    most = std::max(most, at->second);
  }
  limit_ = std::min(options_.bucket_bytes, options_.staging_bytes / (2 * most));
  for (const TensorClass& c : classes_)
    if (c.item > limit_ && !c.groups.empty())
      return Error(Code::kExhausted, "one element of " + std::to_string(c.item) + " bytes does not fit a bucket of " +
                                         std::to_string(limit_) + " bytes: raise refit.bucket_bytes (" +
                                         std::to_string(options_.bucket_bytes) + ") or refit.staging_bytes (" +
                                         std::to_string(options_.staging_bytes) + ", shared by 2 × " +
                                         std::to_string(most) + " senders)")
          .at_tensor(name(groups_[c.groups[0]]))
          .amounts(c.item, limit_);
  const auto highest = catalogue_->tensors.empty() ? 0u : static_cast<std::uint32_t>(catalogue_->tensors.size() - 1);
  position_bits_ = 32 - static_cast<int>(std::bit_width(highest));
  return {};
}

std::vector<Transform> Planner::transforms() const {
  std::vector<Transform> out;
  for (const Staging& s : staged_.tensors) {
    if (!s.runs()) continue;
    const std::int64_t at = catalogue_->find(source_->catalogue().tensors[s.source].name);
    out.push_back({TensorId(static_cast<std::uint32_t>(at)), s.undo, s.apply});
  }
  return out;
}

std::vector<QuantTensor> Planner::quant_tensors() const {
  return quantised_.runs() ? quantised_.tensors(*catalogue_) : std::vector<QuantTensor>();
}

void Planner::find_holes(const TensorClass& c, const Ranks* only, Findings& out) const {
  for (std::uint32_t cell = 0; cell < c.frame->cells.size(); ++cell) {
    if (c.frame->missing[cell] == 0) continue;
    Ranks ranks = c.frame->owners(cell, *c.target_owners);
    if (only) {
      Ranks both;
      std::set_intersection(ranks.begin(), ranks.end(), only->begin(), only->end(), std::back_inserter(both));
      ranks = both;
    }
    if (ranks.empty()) continue;
    std::vector<Box> held;
    for (const Cell& a : c.frame->atoms) held.push_back(a.box);
    std::set<std::uint32_t> offered;
    for (const Cell& a : c.frame->atoms)
      for (const Owner& o : c.source_owners->of(a, c.frame->source.boxes)) offered.insert(o.rank);
    std::string who;
    for (std::uint32_t r : offered) {
      who += (who.empty() ? "" : ", ") + std::to_string(r);
      if (who.size() > 60) {
        who += ", …";
        break;
      }
    }
    const std::string gap = c.frame->coords.text(first_gap(c.frame->cells[cell].box, held));
    for (std::uint32_t g : c.groups)
      out.add("hole: target rank " + std::to_string(ranks[0]) +
                  (ranks.size() > 1 ? " (and " + std::to_string(ranks.size() - 1) + " more)" : "") + " holds " +
                  name(groups_[g]) + " " + c.frame->coords.text(c.frame->cells[cell].box) +
                  ", of which no source holds " + gap +
                  (who.empty() ? " (no source rank holds any of it)" : " (source ranks " + who + " hold the rest)"),
              name(groups_[g]));
  }
}

Result<PlanId> plan_id(const model::Layout& source, const model::Layout& target, const Options& options) {
  constexpr std::uint64_t kPlannerVersion = 1;
  Hasher hash;
  hash.add_text("refit plan").add_u64(kPlannerVersion);
  for (const model::Layout* l : {&source, &target}) hash.add_u64(l->digest().hi).add_u64(l->digest().lo);
  hash.add_i64(options.bucket_bytes).add_i64(options.staging_bytes).add_u64(options.partial).add_u64(options.files);
  std::vector<std::string> casts = options.allow_cast;
  std::sort(casts.begin(), casts.end());
  for (const std::string& c : casts) hash.add_text(c);
  return hash.finish();
}

bool cast_allowed(const Options& options, const std::string& tensor) {
  // Classic wildcard match: on a mismatch the last star takes one more character.
  const auto match = [&](const std::string& p) {
    std::size_t i = 0, j = 0, star = std::string::npos, from = 0;
    while (i < tensor.size()) {
      if (j < p.size() && p[j] == '*')
        star = j++, from = i;
      else if (j < p.size() && p[j] == tensor[i])
        ++i, ++j;
      else if (star != std::string::npos)
        j = star + 1, i = ++from;
      else
        return false;
    }
    while (j < p.size() && p[j] == '*') ++j;
    return j == p.size();
  };
  return std::any_of(options.allow_cast.begin(), options.allow_cast.end(), match);
}

}  // namespace refit::plan
