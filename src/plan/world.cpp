// The world's proof, byte matrix and counts. Pieces are counted, never stored.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "plan/planner.h"
#include "plan/storage.h"

namespace refit::plan {
namespace {

constexpr std::size_t kPairsByRank = 4096;  // above, the matrix is by host

// A bucket stream while it is being filled.
struct Stream {
  std::uint32_t sender = 0, set = 0;
  std::int64_t fill = -1;  // bytes in the open bucket; -1: none open
  std::int64_t buckets = 0, bytes = 0;
};

// A piece of a class: which stream it goes to (one of `turns`, by tensor ordinal) and the sizes of its parts.
struct Entry {
  std::uint32_t first_stream = 0, turns = 1;
  std::uint32_t first_size = 0, sizes = 0;
};

class Counter {
 public:
  explicit Counter(const Planner& p) : planner_(p) {}

  Result<World> run() {
    REFIT_TRY(prove());
    for (const TensorClass& c : planner_.classes()) REFIT_TRY(add_class(c));
    count();
    need();
    matrix();
    out_.coverage = 1.0;
    out_.unwanted = planner_.unwanted();
    out_.catalogue = planner_.catalogue();
    out_.transforms = planner_.transforms();
    out_.quantised = planner_.quant_tensors();
    out_.bucket_limit = planner_.limit();
    return std::move(out_);
  }

 private:
  Status prove() {
    Findings findings;
    for (const TensorClass& c : planner_.classes()) planner_.find_holes(c, nullptr, findings);
    const model::Layout& target = planner_.target();
    std::vector<std::uint32_t> group_of(target.catalogue().tensors.size(), 0);
    for (std::uint32_t g = 0; g < planner_.groups().size(); ++g)
      for (std::uint32_t t : planner_.groups()[g].target) group_of[t] = g;
    // Where bytes lie is one question for all ranks that lie alike.
    REFIT_ASSIGN(const std::vector<std::uint32_t> alike, target.alike());
    for (std::uint32_t r = 0; r < alike.size(); ++r) {
      if (alike[r] != r) continue;
      REFIT_ASSIGN(const model::RankLayout rank, target.expand(Rank(r)));
      REFIT_TRY(find_overlaps(target, rank, group_of, findings));
    }
    if (!findings.empty()) return findings.error();
    return {};
  }

  Status add_class(const TensorClass& c) {
    auto& entries = entries_.emplace_back();
    const std::int64_t most = std::int64_t{1} << planner_.position_bits();
    std::int64_t position = 0;
    for (const DraftPiece& p : c.draft->pieces()) {
      Entry e;
      const std::uint32_t set = c.sets[p.recipients];
      const auto& owners = c.draft->owners[p.owners];
      if (p.turn >= 0) {
        e.first_stream = refer(stream(owners[static_cast<std::size_t>(p.turn)].rank, set));
      } else {
        e.turns = static_cast<std::uint32_t>(owners.size());
        e.first_stream = static_cast<std::uint32_t>(refs_.size());
        for (const Owner& o : owners) refs_.push_back(stream(o.rank, set));
      }
      e.first_size = static_cast<std::uint32_t>(sizes_.size());
      if (const std::int64_t bytes = elements(p.box) * c.item; bytes <= planner_.limit())
        sizes_.push_back(bytes);
      else
        for (const Box& b : split_box(p.box, c.item, planner_.limit())) sizes_.push_back(elements(b) * c.item);
      e.sizes = static_cast<std::uint32_t>(sizes_.size()) - e.first_size;
      position += e.sizes;
      entries.push_back(e);
    }
    if (position > most)
      return Error(Code::kExhausted,
                   "one tensor falls into more than " + std::to_string(most) + " pieces: raise refit.bucket_bytes")
          .at_tensor(planner_.name(planner_.groups()[c.groups[0]]))
          .amounts(position, most);
    return {};
  }

  std::uint32_t refer(std::uint32_t stream) {
    refs_.push_back(stream);
    return static_cast<std::uint32_t>(refs_.size() - 1);
  }

  std::uint32_t stream(std::uint32_t sender, std::uint32_t set) {
    const auto [at, fresh] =
        stream_of_.emplace(std::uint64_t{sender} << 32 | set, static_cast<std::uint32_t>(streams_.size()));
    if (fresh) streams_.push_back({.sender = sender, .set = set});
    return at->second;
  }

  std::uint32_t stream_in(const Entry& e, std::uint32_t turn) const {
    return refs_[e.first_stream + (e.turns == 1 ? 0 : turn % e.turns)];
  }

  // Bytes of codes and scales by stream, where the group is one of codes.
  std::map<std::uint32_t, std::int64_t> atoms_of(std::size_t g) const {
    std::map<std::uint32_t, std::int64_t> out;
    const std::vector<Group>& groups = planner_.groups();
    const std::uint32_t scales = planner_.scales_of(groups[g].ordinal);
    if (scales == Planner::kNone) return out;
    const auto other = std::ranges::lower_bound(groups, scales, {}, &Group::ordinal);
    if (other == groups.end() || other->ordinal != scales) return out;
    for (const std::size_t each : {g, static_cast<std::size_t>(other - groups.begin())}) {
      const std::uint32_t number = planner_.class_of()[each];
      if (number == Planner::kNone) continue;
      for (const Entry& e : entries_[number])
        for (std::uint32_t i = e.first_size; i < e.first_size + e.sizes; ++i)
          out[stream_in(e, planner_.turn(groups[each].ordinal))] += sizes_[i];
    }
    return out;
  }

  // Fills every stream in tensor order, as a rank plan does, keeping only the fill of the open bucket.
  void count() {
    const std::int64_t limit = planner_.limit();
    for (std::size_t g = 0; g < planner_.groups().size(); ++g) {
      const std::uint32_t number = planner_.class_of()[g];
      if (number == Planner::kNone) continue;
      const std::int64_t item = planner_.classes()[number].item;
      const std::uint32_t ordinal = planner_.groups()[g].ordinal, turn = planner_.turn(ordinal);
      std::map<std::uint32_t, std::int64_t> atoms = atoms_of(g);
      for (const Entry& e : entries_[number]) {
        const std::uint32_t stream = stream_in(e, turn);
        Stream& s = streams_[stream];
        if (const auto atom = atoms.find(stream); atom != atoms.end()) {
          if (s.fill >= 0 && planner_.opens(s.fill, atom->second)) s.fill = -1;
          atoms.erase(atom);
        }
        for (std::uint32_t i = e.first_size; i < e.first_size + e.sizes; ++i) {
          const std::int64_t start = (s.fill + item - 1) & -item;  // item sizes are powers of two
          const bool fits = s.fill >= 0 && start + sizes_[i] <= limit;
          s.buckets += !fits;
          s.fill = (fits ? start : 0) + sizes_[i];
          s.bytes += sizes_[i];
        }
        out_.segments += e.sizes * static_cast<std::int64_t>(planner_.sets()[s.set].size());
      }
    }
  }

  // What each target rank needs, and the most that any rank sends or receives.
  void need() {
    std::vector<std::int64_t> received(static_cast<std::size_t>(planner_.target().world()), 0);
    std::vector<std::int64_t> sent(static_cast<std::size_t>(planner_.source().world()), 0);
    for (const TensorClass& c : planner_.classes())
      for (std::uint32_t cell = 0; cell < c.frame->cells.size(); ++cell)
        for (std::uint32_t r : c.frame->owners(cell, *c.target_owners))
          received[r] += elements(c.frame->cells[cell].box) * c.item * static_cast<std::int64_t>(c.groups.size());
    for (const Stream& s : streams_) {
      sent[s.sender] += s.bytes;
      out_.buckets += s.buckets;
      out_.bytes_moved += s.bytes * static_cast<std::int64_t>(planner_.sets()[s.set].size());
    }
    for (std::int64_t n : received) out_.bytes_needed += n;
    for (const auto* side : {&received, &sent})
      for (std::int64_t n : *side) out_.bound_bytes = std::max(out_.bound_bytes, n);
  }

  // Streams of one sender at a time, added up in a row over the recipients.
  template <typename Emit>
  void rows(const std::vector<std::uint32_t>& from_of, const std::vector<std::uint32_t>& to_of, std::size_t columns,
            const Emit& emit) {
    std::vector<std::uint32_t> order(streams_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return from_of[streams_[a].sender] < from_of[streams_[b].sender];
    });
    std::vector<std::int64_t> row(columns, 0);
    std::vector<std::uint32_t> touched;
    for (std::size_t i = 0; i < order.size();) {
      const std::uint32_t from = from_of[streams_[order[i]].sender];
      for (; i < order.size() && from_of[streams_[order[i]].sender] == from; ++i) {
        const Stream& s = streams_[order[i]];
        if (s.bytes == 0) continue;
        for (std::uint32_t r : planner_.sets()[s.set]) {
          if (row[to_of[r]] == 0) touched.push_back(to_of[r]);
          row[to_of[r]] += s.bytes;
        }
      }
      std::sort(touched.begin(), touched.end());
      for (std::uint32_t to : touched) {
        emit(from, to, row[to]);
        row[to] = 0;
      }
      touched.clear();
    }
  }

  void matrix() {
    const auto sources = static_cast<std::size_t>(planner_.source().world()),
               targets = static_cast<std::size_t>(planner_.target().world());
    std::vector<std::uint32_t> from_rank(sources), to_rank(targets);
    for (std::uint32_t i = 0; i < sources; ++i) from_rank[i] = i;
    for (std::uint32_t i = 0; i < targets; ++i) to_rank[i] = i;
    std::vector<std::uint32_t> from_host, to_host;
    name_hosts(from_host, to_host);
    std::size_t pairs = 0;
    rows(from_rank, to_rank, targets, [&](std::uint32_t from, std::uint32_t to, std::int64_t bytes) {
      ++pairs;
      if (from_host[from] == to_host[to]) out_.bytes_local += bytes;
      if (pairs <= kPairsByRank) out_.links.push_back({from, to, bytes});
    });
    out_.by_host = pairs > kPairsByRank;
    if (!out_.by_host) return out_.hosts.clear();
    out_.links.clear();
    rows(from_host, to_host, out_.hosts.size(), [&](std::uint32_t from, std::uint32_t to, std::int64_t bytes) {
      out_.links.push_back({from, to, bytes});
    });
  }

  // Ordinals of hosts on both sides; a rank without a host is one of its own.
  void name_hosts(std::vector<std::uint32_t>& from, std::vector<std::uint32_t>& to) {
    std::unordered_map<std::string, std::uint32_t> known;
    const auto number = [&](std::string host, const char* role, std::int64_t rank) {
      const bool own = host.empty();
      if (!own) out_.rank_hosts[std::string(role) + ":" + std::to_string(rank)] = host;
      if (own) host = std::string(role) + ":" + std::to_string(rank);
      // The marker keeps a stated host apart from a rank that is alone.
      const auto [at, fresh] = known.emplace((own ? "\1" : "\2") + host, static_cast<std::uint32_t>(out_.hosts.size()));
      if (fresh) out_.hosts.push_back(std::move(host));
      return at->second;
    };
    for (std::int64_t r = 0; r < planner_.source().world(); ++r)
      from.push_back(number(planner_.source().host(Rank(static_cast<std::uint32_t>(r))), "source", r));
    for (std::int64_t r = 0; r < planner_.target().world(); ++r)
      to.push_back(number(planner_.target().host(Rank(static_cast<std::uint32_t>(r))), "target", r));
  }

  const Planner& planner_;
  World out_;
  std::vector<Stream> streams_;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_of_;
  std::vector<std::uint32_t> refs_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::vector<Entry>> entries_;  // by class
};

}  // namespace

Result<World> make_world(const model::Layout& source, const model::Layout& target, const Options& options) {
  REFIT_ASSIGN(const std::unique_ptr<Planner> planner, Planner::make(source, target, options));
  REFIT_ASSIGN(World world, Counter(*planner).run());
  REFIT_ASSIGN(world.id, plan_id(source, target, options));
  return world;
}

}  // namespace refit::plan
