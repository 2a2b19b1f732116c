#include "plan/draft.h"

#include <algorithm>
#include <map>
#include <set>

namespace refit::plan {
namespace {

// Recipients of one overlap that are served by the same owners.
struct Share {
  std::uint32_t owners = 0, recipients = 0;
  std::size_t count = 0;  // owners
};

class Drafter {
 public:
  explicit Drafter(const DraftInput& in) : in_(in), f_(in.frame), with_targets_(needs_targets(in.frame, in.hosts)) {}

  Draft run() {
    for (std::uint32_t i = 0; i < f_.overlaps.size(); ++i) {
      const Overlap& o = f_.overlaps[i];
      if (out_.owners.empty() || o.atom != atom_) start_atom(o.atom);
      for (const Share& s : shares(o)) add(i, s);
    }
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const DraftPiece& a, const DraftPiece& b) {
      for (std::size_t k = 0; k < a.box.size(); ++k)
        if (a.box[k].lo != b.box[k].lo) return a.box[k].lo < b.box[k].lo;
      return false;
    });
    out_.shared = std::make_shared<const DraftPieces>(std::move(pieces_));
    return std::move(out_);
  }

 private:
  void start_atom(std::uint32_t atom) {
    atom_ = atom;
    base_ = static_cast<std::uint32_t>(out_.owners.size());
    out_.owners.push_back(in_.source.of(f_.atoms[atom], f_.source.boxes));
  }

  Ranks recipients(const Overlap& o) const {
    Ranks all;
    for (std::uint32_t c : f_.groups[o.group]) {
      const Ranks r = f_.owners(c, in_.target);
      all.insert(all.end(), r.begin(), r.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }

  std::vector<Share> shares(const Overlap& o) {
    const std::size_t count = out_.owners[base_].size();
    if (!with_targets_) return {{base_, o.group, count}};
    const Ranks all = recipients(o);
    if (count == 1 || !in_.hosts.shared) return {{base_, add_set(all), count}};
    // By host: where owners share the recipient's machine only those count.
    std::map<std::int32_t, std::vector<Owner>> on_host;
    for (const Owner& w : out_.owners[base_])
      if (in_.hosts.source[w.rank] >= 0) on_host[in_.hosts.source[w.rank]].push_back(w);
    std::map<std::int32_t, Ranks> served;  // -1: by all
    for (std::uint32_t r : all) {
      const auto at = on_host.find(in_.hosts.target[r]);
      const bool local = at != on_host.end() && at->second.size() < count;
      served[local ? at->first : -1].push_back(r);
    }
    std::vector<Share> out;
    for (auto& [host, ranks] : served) {
      std::uint32_t owners = base_;
      if (host >= 0) {
        owners = static_cast<std::uint32_t>(out_.owners.size());
        out_.owners.push_back(on_host[host]);
      }
      out.push_back({owners, add_set(std::move(ranks)), out_.owners[owners].size()});
    }
    return out;
  }

  std::uint32_t add_set(Ranks ranks) {
    out_.sets.push_back(std::move(ranks));
    return static_cast<std::uint32_t>(out_.sets.size() - 1);
  }

  void add(std::uint32_t overlap, const Share& s) {
    const Box& box = f_.overlaps[overlap].box;
    const auto owners = static_cast<std::int64_t>(s.count);
    if (owners == 1) return emit(box, overlap, s, 0);
    const auto wide = std::find_if(box.begin(), box.end(), [&](const Interval& i) { return i.size() >= owners; });
    if (elements(box) * in_.item < kRotateBelowBytes || wide == box.end()) return emit(box, overlap, s, -1);
    const std::int64_t lo = wide->lo, n = wide->size();
    Box stripe = box;
    Interval& cut_axis = stripe[static_cast<std::size_t>(wide - box.begin())];
    for (std::int64_t k = 0; k < owners; ++k) {
      cut_axis = {lo + stripe_edge(k, n, owners), lo + stripe_edge(k + 1, n, owners)};
      emit(stripe, overlap, s, static_cast<std::int32_t>(k));
    }
  }
  // k·n/R without overflow.
  static std::int64_t stripe_edge(std::int64_t k, std::int64_t n, std::int64_t r) { return n / r * k + n % r * k / r; }

  void emit(const Box& box, std::uint32_t overlap, const Share& s, std::int32_t turn) {
    if (f_.rivals.empty()) return pieces_.push_back({box, overlap, s.owners, turn, s.recipients});
    for (Box& b : cut(box, knives(overlap, s)))
      pieces_.push_back({std::move(b), overlap, s.owners, turn, s.recipients});
  }

  // Target boxes of the same instances that cover only a part: a recipient counts all of a piece or nothing.
  std::vector<const Box*> knives(std::uint32_t overlap, const Share& s) const {
    std::set<std::int64_t> instances;
    for (std::uint32_t r : out_.sets[s.recipients]) instances.insert(r / in_.instance);
    std::set<std::uint32_t> rivals;
    for (std::uint32_t c : f_.groups[f_.overlaps[overlap].group])
      rivals.insert(f_.rivals[c].begin(), f_.rivals[c].end());
    std::vector<const Box*> out;
    for (std::uint32_t c : rivals) {
      const Ranks ranks = f_.owners(c, in_.target);
      if (std::any_of(ranks.begin(), ranks.end(),
                      [&](std::uint32_t r) { return instances.contains(r / in_.instance); }) &&
          !empty(intersect(f_.cells[c].box, f_.overlaps[overlap].box)))
        out.push_back(&f_.cells[c].box);
    }
    return out;
  }

  const DraftInput& in_;
  const Frame& f_;
  bool with_targets_;
  Draft out_;
  DraftPieces pieces_;
  std::uint32_t atom_ = 0, base_ = 0;
};

}  // namespace

bool needs_targets(const Frame& frame, const Hosts& hosts) { return hosts.shared || frame.by_owner; }

Draft make_draft(const DraftInput& in) { return Drafter(in).run(); }

std::vector<std::vector<Owner>> draft_owners(const Frame& frame, const OwnerTable& source) {
  std::vector<std::vector<Owner>> out;
  std::uint32_t atom = 0;
  for (const Overlap& o : frame.overlaps) {
    if (!out.empty() && o.atom == atom) continue;
    atom = o.atom;
    out.push_back(source.of(frame.atoms[atom], frame.source.boxes));
  }
  return out;
}

std::int64_t split_count(const Box& box, std::int64_t item, std::int64_t limit) {
  if (elements(box) * item <= limit) return 1;
  std::size_t k = box.size() - 1;
  std::int64_t slab = item;
  while (k > 0 && slab * box[k].size() <= limit) slab *= box[k--].size();
  std::int64_t count = ceil_div(box[k].size(), limit / slab);
  while (k-- > 0) count *= box[k].size();
  return count;
}

std::vector<Box> split_box(const Box& box, std::int64_t item, std::int64_t limit) {
  if (elements(box) * item <= limit) return {box};
  // The factor to cut: the outermost of which one step fits.
  std::size_t k = box.size() - 1;
  std::int64_t slab = item;
  while (k > 0 && slab * box[k].size() <= limit) slab *= box[k--].size();
  const std::int64_t step = limit / slab;
  std::vector<Box> out{{}};
  for (std::size_t j = 0; j < box.size(); ++j) {
    std::vector<Box> next;
    for (const Box& head : out) {
      const std::int64_t width = j < k ? 1 : j == k ? step : box[j].size();
      for (std::int64_t lo = box[j].lo; lo < box[j].hi; lo += width) {
        next.push_back(head);
        next.back().push_back({lo, std::min(lo + width, box[j].hi)});
      }
    }
    out = std::move(next);
  }
  return out;
}

}  // namespace refit::plan
