#include "plan/class_view.h"

#include <algorithm>

namespace refit::plan {
namespace {

std::uint64_t content_of(const Coords& coords, const Box& box, std::int64_t bytes) {
  std::vector<std::uint64_t> words;
  const auto add = [&](std::int64_t v) { words.push_back(static_cast<std::uint64_t>(v)); };
  add(bytes);
  add(coords.axes);
  for (std::size_t k = 0; k < box.size(); ++k)
    for (std::int64_t v : {box[k].lo, box[k].hi, std::int64_t{coords.axis[k]}, coords.steps[k]}) add(v);
  return hash_words(std::move(words)).lo;
}

// Names the set of owners; 0 is kept for "no other owner".
std::uint64_t group_of(const std::vector<Rank>& owners) {
  Hasher h;
  for (Rank r : owners) h.add_u64(r.value);
  return std::max<std::uint64_t>(h.finish().lo, 1);
}

bool covers(const Box& outer, const Box& inner) {
  for (std::size_t k = 0; k < inner.size(); ++k)
    if (inner[k].lo < outer[k].lo || inner[k].hi > outer[k].hi) return false;
  return true;
}

bool takes_part(const Composite& side, std::uint32_t rank) {
  return std::any_of(side.begin(), side.end(), [&](const model::Pattern* p) {
    return std::any_of(p->shards.begin(), p->shards.end(),
                       [&](const model::PatternShard& s) { return s.owned_by(Rank(rank)); });
  });
}

}  // namespace

Result<std::optional<ClassView>> ViewBuilder::view(const TensorClass& c) {
  if (!takes_part(side_ == Side::kSource ? c.source : c.target, rank_)) return std::optional<ClassView>();
  c_ = &c;
  out_ = {};
  out_.c = &c;
  keys_.clear();
  slots_of_.clear();
  slot_of_.clear();
  cells_ = &all_cells_[{c.frame, c.target_owners}];
  cells_->owners.resize(c.frame->cells.size());
  cells_->known.resize(c.frame->cells.size());
  const std::int64_t most = std::int64_t{1} << planner_.position_bits();
  std::int64_t position = 0;
  for (const DraftPiece& p : c.draft->pieces()) {
    const std::int64_t parts = split_count(p.box, c.item, planner_.limit());
    if (position + parts > most)
      return Error(Code::kExhausted,
                   "one tensor falls into more than " + std::to_string(most) + " pieces: raise refit.bucket_bytes")
          .at_tensor(planner_.name(planner_.groups()[c.groups[0]]))
          .amounts(most + 1, most);
    if (parts == 1)
      add_piece(p, p.box, static_cast<std::uint32_t>(position));
    else if (takes(p))
      for (std::uint32_t i = 0; const Box& box : split_box(p.box, c.item, planner_.limit()))
        add_piece(p, box, static_cast<std::uint32_t>(position) + i++);
    position += parts;
  }
  if (side_ == Side::kSource) {
    REFIT_TRY(add_seals());
  } else {
    if (cells_->held < 0) {
      cells_->held = 0;
      for (std::uint32_t cell = 0; cell < c.frame->cells.size(); ++cell)
        if (std::binary_search(owners_of(cell).begin(), owners_of(cell).end(), rank_))
          cells_->held += elements(c.frame->cells[cell].box);
    }
    out_.needed = cells_->held * c.item;
  }
  return std::optional<ClassView>(std::move(out_));
}

bool ViewBuilder::receives(std::uint32_t set) {
  if (receives_.size() <= set) receives_.resize(planner_.sets().size(), -1);
  if (receives_[set] < 0) receives_[set] = planner_.sets().contains(set, rank_) ? 1 : 0;
  return receives_[set] == 1;
}

bool ViewBuilder::takes(const DraftPiece& p) {
  if (side_ == Side::kTarget) return receives(c_->sets[p.recipients]);
  const auto& owners = c_->draft->owners[p.owners];
  if (p.turn >= 0) return owners[static_cast<std::size_t>(p.turn)].rank == rank_;
  return std::any_of(owners.begin(), owners.end(), [&](const Owner& o) { return o.rank == rank_; });
}

void ViewBuilder::add_piece(const DraftPiece& p, const Box& box, std::uint32_t position) {
  const auto& owners = c_->draft->owners[p.owners];
  if (!takes(p)) return;
  const auto visit = [&](std::uint32_t i, std::uint32_t turn, std::uint32_t turns) {
    if (side_ == Side::kTarget || owners[i].rank == rank_) add_from(p, box, position, turn, turns, owners[i]);
  };
  if (p.turn >= 0) return visit(static_cast<std::uint32_t>(p.turn), 0, 1);
  const auto count = static_cast<std::uint32_t>(owners.size());
  for (std::uint32_t i = 0; i < count; ++i) visit(i, i, count);
}

void ViewBuilder::add_from(const DraftPiece& p, const Box& box, std::uint32_t position, std::uint32_t turn,
                           std::uint32_t turns, const Owner& owner) {
  const Frame& f = *c_->frame;
  const Flat& from = f.source.boxes[owner.part];
  const Dims& strides = f.source.strides_of(from);
  LocalPiece out{.position = position,
                 .stream = stream(owner.rank, c_->sets[p.recipients]),
                 .turn = turn,
                 .turns = turns,
                 .origin = origin(box),
                 .bytes = elements(box) * c_->item,
                 .content = 0,
                 .from = spot(from, f.source, owner.rank, false, box),
                 .landings = {}};
  out.content = content_of(f.coords, box, out.bytes);
  out.from.geometry = geometry(make_geometry(f.coords, box, strides, nullptr), storage(c_->source, from), c_->dtype);
  if (side_ == Side::kTarget) out.landings = landings(p, box, from, strides);
  out_.pieces.push_back(std::move(out));
}

std::vector<Spot> ViewBuilder::landings(const DraftPiece& p, const Box& box, const Flat& from,
                                        const Dims& from_strides) {
  const Frame& f = *c_->frame;
  std::vector<Spot> out;
  for (std::uint32_t cell : f.groups[f.overlaps[p.overlap].group]) {
    const Ranks& ranks = owners_of(cell);
    if (!std::binary_search(ranks.begin(), ranks.end(), rank_)) continue;
    for (std::uint32_t part : f.parts(cell, rank_, *c_->target_owners)) {
      const Flat& to = f.target.boxes[part];
      Spot s = spot(to, f.target, rank_, true, box);
      s.geometry = geometry(make_geometry(f.coords, box, from_strides, &f.target.strides_of(to)),
                            storage(c_->source, from), storage(c_->target, to));
      s.counted = out.empty() && counts(p, box);  // one storage of several stands for the box
      out.push_back(s);
    }
  }
  return out;
}

// Is this rank the lowest of its instance that holds the box?
bool ViewBuilder::counts(const DraftPiece& p, const Box& box) {
  const Frame& f = *c_->frame;
  const auto first = static_cast<std::uint32_t>(rank_ / planner_.instance() * planner_.instance());
  const auto lower_owner = [&](std::uint32_t cell) {
    const Ranks& ranks = owners_of(cell);
    const auto at = std::lower_bound(ranks.begin(), ranks.end(), first);
    return at != ranks.end() && *at < rank_;
  };
  for (std::uint32_t cell : f.groups[f.overlaps[p.overlap].group]) {
    if (lower_owner(cell)) return false;
    if (f.rivals.empty()) continue;
    for (std::uint32_t rival : f.rivals[cell])
      if (covers(f.cells[rival].box, box) && lower_owner(rival)) return false;
  }
  return true;
}

Status ViewBuilder::add_seals() {
  const Frame& f = *c_->frame;
  for (std::uint32_t a = 0; a < f.atoms.size(); ++a) {
    std::vector<std::uint32_t> mine;
    for (std::uint32_t part : f.atoms[a].parts) {
      const Ranks& r = c_->source_owners->of(f.source.boxes[part]);
      if (std::binary_search(r.begin(), r.end(), rank_)) mine.push_back(part);
    }
    if (mine.empty()) continue;
    const auto owners = c_->source_owners->of(f.atoms[a], f.source.boxes);
    REFIT_ASSIGN(const std::vector<Box> wanted, f.wanted(a));
    for (const Box& box : wanted) add_seal(box, owners, mine);
  }
  return {};
}

void ViewBuilder::add_seal(const Box& box, const std::vector<Owner>& owners, const std::vector<std::uint32_t>& parts) {
  const Frame& f = *c_->frame;
  std::int32_t back = 0;
  for (std::uint32_t part : parts) {
    const Flat& flat = f.source.boxes[part];
    LocalSeal s{.at = spot(flat, f.source, rank_, false, box),
                .origin = origin(box),
                .group = 0,
                .owners = {},
                .twin_back = back++};
    s.at.geometry = geometry(make_geometry(f.coords, box, f.source.strides_of(flat), nullptr),
                             storage(c_->source, flat), c_->dtype);
    if (s.twin_back == 0) {
      s.at.counted = owners[0].rank == rank_;
      if (owners.size() > 1) {
        for (const Owner& o : owners) s.owners.push_back(Rank(o.rank));
        s.group = group_of(s.owners);
      }
    }
    out_.seals.push_back(std::move(s));
  }
}

Spot ViewBuilder::spot(const Flat& flat, const Flats& side, std::uint32_t rank, bool target, const Box& box) {
  const auto [slots, fresh] =
      slots_of_.try_emplace({rank, flat.member, target}, static_cast<std::uint32_t>(keys_.size()));
  if (fresh) {
    keys_.push_back({rank, flat.member, target});
    const model::Pattern& pattern = *(target ? c_->target : c_->source)[flat.member];
    const auto owned = owned_shards(pattern, rank);
    for (std::uint32_t i = 0; i < owned.size(); ++i) slot_of_[{rank, flat.member, target, owned[i]}] = i;
    out_.slots.push_back({.places = {}, .holdings = {}, .width = owned.size()});
  }
  return {.slots = slots->second,
          .slot = slot_of_.at({rank, flat.member, target, flat.shard}),
          .geometry = 0,
          .offset = offset_in(flat, side.strides_of(flat), box),
          .counted = false};
}

std::uint32_t ViewBuilder::geometry(Geometry g, DType src, DType dst) {
  g.src_dtype = src;
  g.wire_dtype = c_->dtype;
  g.dst_dtype = dst;
  std::vector<std::int64_t> key{static_cast<std::int64_t>(src), static_cast<std::int64_t>(g.wire_dtype),
                                static_cast<std::int64_t>(dst), static_cast<std::int64_t>(g.extents.size()),
                                static_cast<std::int64_t>(g.dst_strides.size())};
  for (const Dims* d : {&g.extents, &g.src_strides, &g.dst_strides, &g.steps})
    key.insert(key.end(), d->begin(), d->end());
  key.insert(key.end(), g.axis.begin(), g.axis.end());
  const auto [at, fresh] = geometries_.emplace(std::move(key), static_cast<std::uint32_t>(plan_.geometries.size()));
  if (fresh) plan_.geometries.push_back(std::move(g));
  return at->second;
}

std::uint32_t ViewBuilder::origin(const Box& box) {
  const auto [at, fresh] =
      origins_.emplace(c_->frame->coords.origin(box), static_cast<std::uint32_t>(plan_.origins.size()));
  if (fresh) plan_.origins.push_back(at->first);
  return at->second;
}

std::uint32_t ViewBuilder::stream(std::uint32_t sender, std::uint32_t set) {
  const auto [at, fresh] =
      stream_of_.emplace(std::uint64_t{sender} << 32 | set, static_cast<std::uint32_t>(streams_.size()));
  if (fresh) streams_.push_back({sender, set});
  return at->second;
}

const Ranks& ViewBuilder::owners_of(std::uint32_t cell) {
  if (!cells_->known[cell]) {
    cells_->owners[cell] = c_->frame->owners(cell, *c_->target_owners);
    cells_->known[cell] = true;
  }
  return cells_->owners[cell];
}

}  // namespace refit::plan
