#include "plan/rank_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "plan/class_view.h"
#include "plan/storage.h"

namespace refit::plan {
namespace {

// One tensor's turn: which view, and which of the class' tensors.
struct Turn {
  std::uint32_t ordinal, view, index;
};

struct Emitted {
  Piece piece;
  std::uint32_t stream, position;
  std::uint64_t content;
};

class RankBuilder {
 public:
  RankBuilder(const Planner& p, Side side, std::uint32_t rank)
      : planner_(p), side_(side), rank_(rank), views_(p, side, rank, plan_) {}

  Result<RankPlan> run() {
    plan_.side = side_;
    plan_.rank = Rank(rank_);
    plan_.catalogue = planner_.catalogue();
    plan_.bucket_limit = planner_.limit();
    plan_.transforms = planner_.transforms();
    if (side_ == Side::kSource && planner_.staged().source) {
      REFIT_ASSIGN(plan_.stages, planner_.staged().stages_of(Rank(rank_), *planner_.catalogue()));
      plan_.value_bytes = planner_.staged().bytes_of(Rank(rank_));
    }
    plan_.quantised = planner_.quant_tensors();
    if (side_ == Side::kSource && planner_.quantised().runs()) {
      REFIT_ASSIGN(plan_.quant, planner_.quantised().work_of(Rank(rank_)));
    }
    if (side_ == Side::kTarget) REFIT_TRY(prove());
    REFIT_TRY(look());
    REFIT_TRY(locate());
    emit();
    pack();
    compare();
    return std::move(plan_);
  }

 private:
  const model::Layout& mine() const { return side_ == Side::kSource ? planner_.source() : planner_.target(); }

  // Every byte that this target rank holds has a source and is written once.
  Status prove() {
    Findings findings;
    const Ranks only{rank_};
    for (const TensorClass& c : planner_.classes()) planner_.find_holes(c, &only, findings);
    REFIT_ASSIGN(own_, planner_.target().expand(Rank(rank_)));
    std::vector<std::uint32_t> group_of(planner_.target().catalogue().tensors.size(), 0);
    for (std::uint32_t g = 0; g < planner_.groups().size(); ++g)
      for (std::uint32_t t : planner_.groups()[g].target) group_of[t] = g;
    REFIT_TRY(find_overlaps(planner_.target(), own_, group_of, findings));
    if (!findings.empty()) return findings.error();
    return {};
  }

  Status look() {
    for (const TensorClass& c : planner_.classes()) {
      REFIT_ASSIGN(auto view, views_.view(c));
      if (!view) continue;
      for (std::uint32_t i = 0; i < c.groups.size(); ++i)
        turns_.push_back({planner_.groups()[c.groups[i]].ordinal, static_cast<std::uint32_t>(list_.size()), i});
      if (side_ == Side::kTarget) plan_.bytes_needed += view->needed * static_cast<std::int64_t>(c.groups.size());
      list_.push_back(std::move(*view));
      keys_.push_back(views_.slot_keys());
    }
    std::sort(turns_.begin(), turns_.end(), [](const Turn& a, const Turn& b) { return a.ordinal < b.ordinal; });
    return {};
  }

  // Asks each rank once for the places of all tensors that take part.
  Status locate() {
    struct Want {
      std::uint32_t tensor, entry, index;  // entry: of those asked of one rank
    };
    struct Asked {
      std::uint32_t rank, view, member, slots;
      bool operator<(const Asked& o) const {
        return std::tie(rank, view, member) < std::tie(o.rank, o.view, o.member);
      }
    };
    std::vector<Asked> asked;
    for (std::uint32_t v = 0; v < list_.size(); ++v)
      for (std::uint32_t s = 0; s < keys_[v].size(); ++s) {
        if (keys_[v][s].own_target)
          REFIT_TRY(locate_own(v, s));
        else
          asked.push_back({keys_[v][s].rank, v, keys_[v][s].member, s});
      }
    std::sort(asked.begin(), asked.end());
    std::span<const Asked> last;
    std::vector<Want> wants;
    std::vector<TensorId> tensors;
    for (std::size_t from = 0, to = 0; from < asked.size(); from = to) {
      const std::uint32_t rank = asked[from].rank;
      while (to < asked.size() && asked[to].rank == rank) ++to;
      const std::span<const Asked> entries = std::span(asked).subspan(from, to - from);
      // Ranks that differ in their cut alone are asked for the same tensors.
      const auto same = [](const Asked& a, const Asked& b) { return a.view == b.view && a.member == b.member; };
      if (!std::equal(entries.begin(), entries.end(), last.begin(), last.end(), same)) {
        wants.clear();
        for (std::uint32_t e = 0; e < entries.size(); ++e) {
          const std::vector<std::uint32_t>& groups = list_[entries[e].view].c->groups;
          for (std::uint32_t i = 0; i < groups.size(); ++i)
            wants.push_back({planner_.groups()[groups[i]].source[entries[e].member], e, i});
        }
        std::sort(wants.begin(), wants.end(), [](const Want& a, const Want& b) { return a.tensor < b.tensor; });
        tensors.clear();
        for (const Want& w : wants) tensors.push_back(TensorId(w.tensor));
        last = entries;
      }
      REFIT_ASSIGN(const std::vector<model::Place> places, planner_.source().places(Rank(rank), tensors));
      std::size_t at = 0;
      for (const Want& w : wants) {
        ClassView& view = list_[entries[w.entry].view];
        Slots& slots = view.slots[entries[w.entry].slots];
        slots.places.resize(slots.width * view.c->groups.size());
        if (at + slots.width > places.size())
          return Error(Code::kInternal,
                       "source rank " + std::to_string(rank) + " placed fewer shards than its patterns name");
        std::copy_n(places.begin() + static_cast<std::ptrdiff_t>(at), slots.width,
                    slots.places.begin() + static_cast<std::ptrdiff_t>(slots.width * w.index));
        at += slots.width;
      }
    }
    return {};
  }

  Status locate_own(std::uint32_t v, std::uint32_t s) {
    Slots& slots = list_[v].slots[s];
    const model::Pattern& pattern = *list_[v].c->target[keys_[v][s].member];
    const auto owned = owned_shards(pattern, rank_);
    for (std::uint32_t g : list_[v].c->groups) {
      const TensorId tensor(planner_.groups()[g].target[keys_[v][s].member]);
      const auto first = std::lower_bound(own_.holdings.begin(), own_.holdings.end(), tensor,
                                          [](const model::Holding& h, TensorId t) { return h.tensor < t; });
      auto last = first;
      while (last != own_.holdings.end() && last->tensor == tensor) ++last;
      std::vector<bool> used(static_cast<std::size_t>(last - first));
      for (std::uint32_t shard : owned) {
        auto at = first;
        while (at != last && (used[static_cast<std::size_t>(at - first)] || !pattern.shards[shard].same_place(*at)))
          ++at;
        if (at == last)
          return Error(Code::kInternal,
                       "target rank " + std::to_string(rank_) + " lacks a shard that its pattern names")
              .at_tensor(planner_.name(planner_.groups()[g]));
        used[static_cast<std::size_t>(at - first)] = true;
        slots.places.push_back({at->buffer, at->offset});
        slots.holdings.push_back(static_cast<std::uint32_t>(at - own_.holdings.begin()));
      }
    }
    return {};
  }

  void emit() {
    for (const Turn& t : turns_) {
      const ClassView& view = list_[t.view];
      for (const LocalPiece& p : view.pieces)
        if (planner_.turn(t.ordinal) % p.turns == p.turn) emit_piece(t, view, p);
      for (const LocalSeal& s : view.seals) emit_seal(t, view, s);
    }
  }

  static const model::Place& place(const ClassView& view, const Spot& s, std::uint32_t index) {
    const Slots& slots = view.slots[s.slots];
    return slots.places[slots.width * index + s.slot];
  }

  void emit_piece(const Turn& t, const ClassView& view, const LocalPiece& p) {
    const model::Place& from = place(view, p.from, t.index);
    Piece out{.tensor = TensorId(t.ordinal),
              .geometry = p.from.geometry,
              .src_buffer = from.buffer,
              .src_offset = from.offset + p.from.offset,
              .origin = p.origin,
              .bytes = p.bytes,
              .first_landing = static_cast<std::uint32_t>(plan_.landings.size()),
              .landings = 0};
    for (const Spot& s : p.landings) {
      const Slots& slots = view.slots[s.slots];
      const model::Place& to = place(view, s, t.index);
      const Landing l{.holding = slots.holdings[slots.width * t.index + s.slot],
                      .geometry = s.geometry,
                      .dst_offset = to.offset + s.offset,
                      .counted = s.counted};
      if (!written(out.first_landing, l, to.buffer)) plan_.landings.push_back(l);
    }
    out.landings = static_cast<std::uint32_t>(plan_.landings.size()) - out.first_landing;
    emitted_.push_back({out, p.stream, p.position, p.content});
  }

  // One storage under two tied names is written once.
  bool written(std::uint32_t first, const Landing& l, std::uint32_t buffer) const {
    for (std::size_t i = first; i < plan_.landings.size(); ++i) {
      const Landing& other = plan_.landings[i];
      if (other.dst_offset == l.dst_offset && other.geometry == l.geometry &&
          own_.holdings[other.holding].buffer == buffer)
        return true;
    }
    return false;
  }

  void emit_seal(const Turn& t, const ClassView& view, const LocalSeal& s) {
    const model::Place& at = place(view, s.at, t.index);
    const auto here = static_cast<std::uint32_t>(plan_.seal.size());
    plan_.seal.push_back({.tensor = TensorId(t.ordinal),
                          .geometry = s.at.geometry,
                          .buffer = at.buffer,
                          .offset = at.offset + s.at.offset,
                          .origin = s.origin,
                          .counted = s.at.counted,
                          .group = s.group,
                          .owners = s.owners,
                          .twin = s.twin_back ? here - static_cast<std::uint32_t>(s.twin_back) : kNoTwin});
  }

  // Greedy, stream by stream, in the order of emission; then all buckets by (sender, id).
  void pack() {
    const auto& streams = views_.streams();
    std::vector<std::size_t> end(streams.size() + 1, 0);
    for (const Emitted& e : emitted_) ++end[e.stream + 1];
    std::partial_sum(end.begin(), end.end(), end.begin());
    std::vector<std::uint32_t> order(emitted_.size());
    std::vector<std::size_t> at(end.begin(), end.end() - 1);
    for (std::uint32_t i = 0; i < emitted_.size(); ++i) order[at[emitted_[i].stream]++] = i;
    std::vector<Bucket> buckets;
    for (std::size_t s = 0; s < streams.size(); ++s)
      pack_stream(streams[s], std::span(order).subspan(end[s], end[s + 1] - end[s]), end[s], buckets);
    std::sort(buckets.begin(), buckets.end(),
              [](const Bucket& a, const Bucket& b) { return std::pair(a.sender, a.id) < std::pair(b.sender, b.id); });
    plan_.pieces.reserve(emitted_.size());
    content_.reserve(emitted_.size());
    for (Bucket& b : buckets) {
      const std::size_t from = b.first_piece;
      b.first_piece = static_cast<std::uint32_t>(plan_.pieces.size());
      for (std::size_t i = from; i < from + b.pieces; ++i) {
        plan_.pieces.push_back(emitted_[order[i]].piece);
        content_.push_back(emitted_[order[i]].content);
      }
      const std::int64_t sent = std::accumulate(plan_.pieces.end() - b.pieces, plan_.pieces.end(), std::int64_t{0},
                                                [](std::int64_t n, const Piece& p) { return n + p.bytes; });
      plan_.bytes_moved += sent * (side_ == Side::kSource ? static_cast<std::int64_t>(b.recipients.size()) : 1);
      if (side_ == Side::kSource) plan_.bytes_needed += sent;
    }
    plan_.buckets = std::move(buckets);
  }

  void pack_stream(const ViewBuilder::Stream& stream, std::span<const std::uint32_t> pieces, std::size_t first,
                   std::vector<Bucket>& out) {
    std::vector<Rank> recipients;
    for (std::uint32_t r : planner_.sets()[stream.set]) recipients.push_back(Rank(r));
    bool open = false;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Emitted& e = emitted_[pieces[i]];
      if (open && planner_.opens(out.back().bytes, atom_bytes(pieces, i))) open = false;
      const std::int64_t item = item_size(plan_.geometries[e.piece.geometry].wire_dtype);
      std::int64_t start = open ? ceil_div(out.back().bytes, item) * item : 0;
      if (!open || start + e.piece.bytes > planner_.limit()) {
        open = true;
        start = 0;
        const BucketId id(
            static_cast<std::uint32_t>(std::uint64_t{e.piece.tensor.value} << planner_.position_bits() | e.position));
        out.push_back({.id = id,
                       .sender = Rank(stream.sender),
                       .recipients = recipients,
                       .first_piece = static_cast<std::uint32_t>(first + i),
                       .pieces = 0,
                       .bytes = 0});
      }
      ++out.back().pieces;
      out.back().bytes = start + e.piece.bytes;
    }
  }

  // What codes and scales take in this stream, at the first piece of codes; else nothing.
  std::int64_t atom_bytes(std::span<const std::uint32_t> pieces, std::size_t first) const {
    const auto tensor = [&](std::size_t i) { return emitted_[pieces[i]].piece.tensor.value; };
    const std::uint32_t codes = tensor(first), scales = planner_.scales_of(codes);
    if (scales == Planner::kNone || (first > 0 && tensor(first - 1) == codes)) return 0;
    std::int64_t bytes = 0;
    for (std::size_t i = first; i < pieces.size() && (tensor(i) == codes || tensor(i) == scales); ++i)
      bytes += emitted_[pieces[i]].piece.bytes;
    return bytes;
  }

  // One number per peer over the buckets shared with it, in (sender, id) order: equal on both sides or the plans
  // differ.
  void compare() {
    std::map<std::uint32_t, std::vector<std::uint64_t>> shared;
    std::vector<std::uint64_t> words;
    for (const Bucket& b : plan_.buckets) {
      words.assign({b.sender.value, b.id.value, static_cast<std::uint64_t>(b.bytes)});
      for (Rank r : b.recipients) words.push_back(r.value);
      for (std::uint32_t i = b.first_piece; i < b.first_piece + b.pieces; ++i)
        words.insert(words.end(), {plan_.pieces[i].tensor.value, content_[i]});
      const Hash128 h = hash_words(words);
      const auto add = [&](Rank peer) {
        auto& list = shared[peer.value];
        list.push_back(h.hi);
        list.push_back(h.lo);
      };
      if (side_ == Side::kTarget)
        add(b.sender);
      else
        for (Rank r : b.recipients) add(r);
    }
    for (const auto& [peer, list] : shared) plan_.shared_with.emplace(peer, hash_words(list));
  }

  const Planner& planner_;
  Side side_;
  std::uint32_t rank_;
  RankPlan plan_;
  ViewBuilder views_;
  model::RankLayout own_;
  std::vector<ClassView> list_;
  std::vector<std::vector<ViewBuilder::SlotKey>> keys_;
  std::vector<Turn> turns_;
  std::vector<Emitted> emitted_;
  std::vector<std::uint64_t> content_;
};

}  // namespace

Result<RankPlan> build_rank_plan(const Planner& planner, Side side, std::uint32_t rank) {
  return RankBuilder(planner, side, rank).run();
}

Plans::Plans(std::unique_ptr<Planner> planner) : planner_(std::move(planner)) {}
Plans::~Plans() = default;
Plans::Plans(Plans&&) noexcept = default;
Plans& Plans::operator=(Plans&&) noexcept = default;

Result<Plans> Plans::make(const model::Layout& source, const model::Layout& target, const Options& options) {
  REFIT_ASSIGN(std::unique_ptr<Planner> planner, Planner::make(source, target, options));
  Plans out(std::move(planner));
  REFIT_ASSIGN(out.id_, plan_id(source, target, options));
  return out;
}

Result<RankPlan> Plans::of(Side side, Rank rank) const {
  const std::int64_t world = (side == Side::kSource ? planner_->source() : planner_->target()).world();
  if (rank.value >= world)
    return Error(Code::kInvalid,
                 "rank " + std::to_string(rank.value) + " is not in a world of " + std::to_string(world));
  REFIT_ASSIGN(RankPlan plan, build_rank_plan(*planner_, side, rank.value));
  plan.id = id_;
  return plan;
}

Result<RankPlan> make_plan(const model::Layout& source, const model::Layout& target, const Options& options, Side side,
                           Rank rank) {
  REFIT_ASSIGN(const Plans plans, Plans::make(source, target, options));
  return plans.of(side, rank);
}

}  // namespace refit::plan
