// One tensor's way from memory to memory, for people.
#include <algorithm>
#include <map>

#include "plan/planner.h"
#include "plan/rank_plan.h"

namespace refit::plan {
namespace {

constexpr std::size_t kRanksShown = 8;

std::string list(const Ranks& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kRanksShown) return out + ", … (" + std::to_string(ranks.size()) + ")";
    out += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return out;
}

std::string numbers(const Dims& d) {
  std::string out = "[";
  for (std::size_t i = 0; i < d.size(); ++i) out += (i ? ", " : "") + std::to_string(d[i]);
  return out + "]";
}

std::string steps(const Transform& t) {
  if (t.undo.empty()) return "apply " + t.apply;
  return "undo " + t.undo + (t.apply.empty() ? "" : ", then apply " + t.apply);
}

// What the sources run before they seal this tensor.
std::string describe(const Transform& t, const model::Catalogue& catalogue) {
  return "  stages at the source: " + steps(t) + " -> " +
         std::string(to_string(catalogue.tensors[t.tensor.value].dtype)) + " in its value buffer\n";
}

// "buffer+offset" of a box of one shard on one rank.
Result<std::string> where(const model::Layout& layout, std::uint32_t rank, std::uint32_t tensor, const Flat& flat,
                          const Dims& strides, const Box& box) {
  const TensorId id(tensor);
  REFIT_ASSIGN(const std::vector<model::Place> places, layout.places(Rank(rank), std::span(&id, 1)));
  const auto owned = owned_shards(layout.patterns()[layout.pattern_of()[tensor]], rank);
  const auto at = static_cast<std::size_t>(std::find(owned.begin(), owned.end(), flat.shard) - owned.begin());
  if (at >= places.size())
    return Error(Code::kInternal, "rank " + std::to_string(rank) + " lacks a shard that its pattern names");
  return "buffer " + std::to_string(places[at].buffer) + " + " +
         std::to_string(places[at].offset + offset_in(flat, strides, box)) + " strides " + numbers(strides);
}

Result<std::string> landings(const Planner& p, const TensorClass& c, const Group& g, const DraftPiece& piece,
                             const Box& box, std::uint32_t rank) {
  const Frame& f = *c.frame;
  std::string out;
  for (std::uint32_t cell : f.groups[f.overlaps[piece.overlap].group]) {
    const Ranks owners = f.owners(cell, *c.target_owners);
    if (!std::binary_search(owners.begin(), owners.end(), rank)) continue;
    for (std::uint32_t part : f.parts(cell, rank, *c.target_owners)) {
      const Flat& to = f.target.boxes[part];
      REFIT_ASSIGN(const std::string at,
                   where(p.target(), rank, g.target[to.member], to, f.target.strides_of(to), box));
      out += "    -> target " + std::to_string(rank) + " " + at + "\n";
    }
  }
  return out;
}

Result<std::string> pieces(const Planner& p, const TensorClass& c, const Group& g) {
  const Frame& f = *c.frame;
  std::string out;
  for (const DraftPiece& piece : c.draft->pieces()) {
    const Owner& sender = c.draft->sender(piece, p.turn(g.ordinal));
    const Ranks& recipients = p.sets()[c.sets[piece.recipients]];
    for (const Box& box : split_box(piece.box, c.item, p.limit())) {
      const Flat& from = f.source.boxes[sender.part];
      REFIT_ASSIGN(const std::string at,
                   where(p.source(), sender.rank, g.source[from.member], from, f.source.strides_of(from), box));
      out += "  " + f.coords.text(box) + " " + std::to_string(elements(box) * c.item) + " bytes: source " +
             std::to_string(sender.rank) + " " + at + ", to targets " + list(recipients) + "\n";
      for (std::size_t i = 0; i < std::min(recipients.size(), kRanksShown); ++i) {
        REFIT_ASSIGN(const std::string landing, landings(p, c, g, piece, box, recipients[i]));
        out += landing;
      }
    }
  }
  return out;
}

}  // namespace

std::string describe_stages(const World& w) {
  std::map<std::string, std::vector<std::string>> by_steps;
  for (const Transform& t : w.transforms) by_steps[steps(t)].push_back(w.catalogue->tensors[t.tensor.value].name);
  std::string out;
  for (const auto& [what, names] : by_steps)
    out += (out.empty() ? "" : "; ") + what + " of " + std::to_string(names.size()) + " tensor" +
           (names.size() == 1 ? "" : "s") + (names.size() == 1 ? " (" : " (e.g. ") + names[0] + ")";
  std::map<std::string_view, std::pair<std::size_t, std::size_t>> formats;  // tensors, and those with shared blocks
  for (const QuantTensor& t : w.quantised) {
    auto& [all, shared] = formats[t.format->name];
    ++all;
    if (t.exchange) ++shared;
  }
  for (const auto& [format, counts] : formats)
    out += (out.empty() ? "" : "; ") + std::to_string(counts.first) + " matrices to " + std::string(format) +
           (counts.second == 0 ? ""
                               : " (" + std::to_string(counts.second) +
                                     " with blocks cut over sources, which exchange their largest magnitudes)");
  return out.empty() ? out : out + ", at the source before it seals";
}

Result<std::string> explain(const model::Layout& source, const model::Layout& target, const Options& options,
                            const std::string& tensor) {
  REFIT_ASSIGN(const std::unique_ptr<Planner> p, Planner::make(source, target, options));
  const std::int64_t at = p->catalogue()->find(tensor);
  if (at < 0) return Error(Code::kInvalid, "neither side has a tensor of this name").at_tensor(tensor);
  const auto in = [&](const model::Layout& side, std::span<const std::uint32_t> list) {
    return std::any_of(list.begin(), list.end(),
                       [&](std::uint32_t t) { return side.catalogue().tensors[t].name == tensor; });
  };
  for (std::size_t i = 0; i < p->groups().size(); ++i) {
    const Group& g = p->groups()[i];
    if (!in(source, g.source) && !in(target, g.target)) continue;
    const model::LogicalTensor& t = p->catalogue()->tensors[g.ordinal];
    std::string out = tensor + " " + std::string(to_string(t.dtype)) + " " + numbers(t.shape) + "\n";
    if (t.name != tensor) out += "  tied: travels as " + t.name + "\n";
    if (p->class_of()[i] == Planner::kNone) return out + "  nothing moves\n";
    for (const Transform& stage : p->transforms())
      if (stage.tensor.value == g.ordinal) out += describe(stage, *p->catalogue());
    for (const QuantTensor& q : p->quant_tensors())
      if (q.codes.value == g.ordinal || q.scales.value == g.ordinal)
        out += "  quantised at the source: " + std::string(q.format->name) + " of " +
               p->catalogue()->tensors[q.codes.value].name + " in its buffer of codes" +
               (q.exchange ? ", after an exchange of largest magnitudes" : "") + "\n";
    const TensorClass& c = p->classes()[p->class_of()[i]];
    if (c.frame->coords.factors() > static_cast<std::size_t>(c.frame->coords.axes))
      out += "  common factors " + numbers(c.frame->coords.extents) + "\n";
    Findings holes;
    p->find_holes(c, nullptr, holes);
    if (!holes.empty()) return holes.error();
    REFIT_ASSIGN(const std::string body, pieces(*p, c, g));
    return out + body;
  }
  return tensor + "\n  nothing moves\n";
}

}  // namespace refit::plan
