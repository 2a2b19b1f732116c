#include "plan/storage.h"

#include <algorithm>
#include <tuple>

namespace refit::plan {
namespace {

constexpr std::size_t kMaxRuns = 1u << 22;  // most byte runs that are compared one by one

struct Loop {
  std::int64_t extent = 1, stride = 0;
};

// Bytes of a holding: `item` bytes at lo + Σ i_k·stride_k, strides positive and falling.
struct Bytes {
  std::int64_t lo = 0, run = 0;
  std::vector<Loop> loops;
  std::int64_t span(std::size_t from = 0) const {
    std::int64_t s = run;
    for (std::size_t k = from; k < loops.size(); ++k) s += (loops[k].extent - 1) * loops[k].stride;
    return s;
  }
};

// Into `out`, whose memory is used again: this runs for each of 10⁵ holdings.
void bytes_of(const model::Holding& h, Bytes& out) {
  out.lo = h.offset;
  out.run = item_size(h.dtype);
  out.loops.clear();
  for (std::size_t k = 0; k < h.box.size(); ++k) {
    const std::int64_t n = h.box[k].size(), s = h.strides[k];
    if (n == 1) continue;
    if (s < 0) out.lo += (n - 1) * s;
    out.loops.push_back({n, s < 0 ? -s : s});
  }
  std::sort(out.loops.begin(), out.loops.end(), [](const Loop& a, const Loop& b) { return a.stride > b.stride; });
  // Innermost loops that touch each other are one longer run.
  while (!out.loops.empty() && out.loops.back().stride == out.run) {
    out.run *= out.loops.back().extent;
    out.loops.pop_back();
  }
  for (std::size_t k = out.loops.size(); k-- > 1;) {
    const auto reach =
        static_cast<std::uint64_t>(out.loops[k].stride) * static_cast<std::uint64_t>(out.loops[k].extent);
    if (static_cast<std::uint64_t>(out.loops[k - 1].stride) != reach) continue;
    out.loops[k - 1] = {out.loops[k - 1].extent * out.loops[k].extent, out.loops[k].stride};
    out.loops.erase(out.loops.begin() + static_cast<std::ptrdiff_t>(k));
  }
}

bool nested(const Bytes& b) {
  for (std::size_t k = 0; k < b.loops.size(); ++k)
    if (b.loops[k].stride < b.span(k + 1)) return false;
  return true;
}

// Same loops above `k`'s inner part: the question at each level is by how many steps the two are shifted.
bool same_pitches(const Bytes& a, const Bytes& b) {
  if (a.loops.size() != b.loops.size()) return false;
  for (std::size_t k = 0; k < a.loops.size(); ++k)
    if (a.loops[k].stride != b.loops[k].stride) return false;
  return true;
}

// Do a at offset 0 and b at offset `shift` share a byte, from loop k inwards? Both nest, with the same strides.
bool meet(const Bytes& a, const Bytes& b, std::int64_t shift, std::size_t k) {
  if (shift >= a.span(k) || -shift >= b.span(k)) return false;
  if (k == a.loops.size()) return true;
  const std::int64_t stride = a.loops[k].stride;
  std::int64_t q = shift / stride;
  if (shift % stride < 0) --q;
  // Row i of a meets row i-q of b shifted by the rest, or row i-q-1 shifted by the rest less one stride.
  for (std::int64_t steps : {q, q + 1}) {
    const std::int64_t lo = std::max<std::int64_t>(0, steps),
                       hi = std::min(a.loops[k].extent, b.loops[k].extent + steps);
    if (lo < hi && meet(a, b, shift - steps * stride, k + 1)) return true;
  }
  return false;
}

bool runs_of(const Bytes& b, std::vector<Interval>& out) {
  std::size_t count = 1;
  for (const Loop& l : b.loops) {
    if (static_cast<std::size_t>(l.extent) > kMaxRuns / count) return false;
    count *= static_cast<std::size_t>(l.extent);
  }
  std::vector<std::int64_t> starts{b.lo};
  for (const Loop& l : b.loops) {
    std::vector<std::int64_t> next;
    next.reserve(starts.size() * static_cast<std::size_t>(l.extent));
    for (std::int64_t s : starts)
      for (std::int64_t i = 0; i < l.extent; ++i) next.push_back(s + i * l.stride);
    starts = std::move(next);
  }
  for (std::int64_t s : starts) out.push_back({s, s + b.run});
  return true;
}

enum class Answer { kApart, kShared, kUnknown };

Answer share(const Bytes& a, const Bytes& b) {
  if (a.lo + a.span() <= b.lo || b.lo + b.span() <= a.lo) return Answer::kApart;
  if (same_pitches(a, b) && nested(a) && nested(b))
    return meet(a, b, b.lo - a.lo, 0) ? Answer::kShared : Answer::kApart;
  std::vector<Interval> x, y;
  if (!runs_of(a, x) || !runs_of(b, y)) return Answer::kUnknown;
  std::sort(x.begin(), x.end());
  std::sort(y.begin(), y.end());
  for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    if (!intersect(x[i], y[j]).empty()) return Answer::kShared;
    (x[i].hi < y[j].hi ? i : j)++;
  }
  return Answer::kApart;
}

Answer self_share(const Bytes& b) {
  if (nested(b)) return Answer::kApart;
  if (!b.loops.empty() && b.loops.back().stride == 0) return Answer::kShared;
  std::vector<Interval> runs;
  if (!runs_of(b, runs)) return Answer::kUnknown;
  std::sort(runs.begin(), runs.end());
  for (std::size_t i = 1; i < runs.size(); ++i)
    if (runs[i].lo < runs[i - 1].hi) return Answer::kShared;
  return Answer::kApart;
}

// Where logical index 0 of every factor would lie: equal for two holdings of one tensor whose bytes mean the same.
bool same_meaning(const model::Holding& a, const model::Holding& b) {
  if (a.view != b.view || a.strides != b.strides || a.dtype != b.dtype) return false;
  const auto base = [](const model::Holding& h) {
    auto at = static_cast<std::uint64_t>(h.offset);  // wrapping: only equality matters
    for (std::size_t k = 0; k < h.box.size(); ++k)
      at -= static_cast<std::uint64_t>(h.box[k].lo) * static_cast<std::uint64_t>(h.strides[k]);
    return at;
  };
  return base(a) == base(b);
}

std::string describe(const model::Layout& layout, const model::Holding& h) {
  return layout.catalogue().tensors[h.tensor.value].name + " " + to_string(h.box) + " at offset " +
         std::to_string(h.offset);
}

}  // namespace

Status find_overlaps(const model::Layout& layout, const model::RankLayout& rank,
                     std::span<const std::uint32_t> group_of, Findings& out) {
  struct Entry {
    std::uint32_t buffer, holding;
    std::int64_t lo, end;
  };
  const std::string who = "target rank " + std::to_string(rank.rank.value);
  const auto name = [&](const model::Holding& h) { return layout.catalogue().tensors[h.tensor.value].name; };
  const auto tangled = [&](const model::Holding& h) {
    return Error(Code::kExhausted,
                 who + ": whether bytes overlap takes more than " + std::to_string(kMaxRuns) + " runs to decide")
        .at_tensor(name(h));
  };
  std::vector<Entry> entries;
  entries.reserve(rank.holdings.size());
  Bytes bytes, other;
  for (std::uint32_t i = 0; i < rank.holdings.size(); ++i) {
    const model::Holding& h = rank.holdings[i];
    if (empty(h.box)) continue;
    bytes_of(h, bytes);
    entries.push_back({h.buffer, i, bytes.lo, bytes.lo + bytes.span()});
    const Answer own = self_share(bytes);
    if (own == Answer::kUnknown) return tangled(h);
    if (own == Answer::kShared)
      out.add("overlap: " + who + " holds " + describe(layout, h) + " with strides by which it overlaps itself",
              name(h));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.buffer, a.lo, a.holding) < std::tie(b.buffer, b.lo, b.holding);
  });
  std::vector<const Entry*> open;  // those that may still reach the next start
  for (const Entry& e : entries) {
    std::erase_if(open, [&](const Entry* o) { return o->buffer != e.buffer || o->end <= e.lo; });
    for (const Entry* o : open) {
      const model::Holding &before = rank.holdings[o->holding], &here = rank.holdings[e.holding];
      const bool one = group_of[before.tensor.value] == group_of[here.tensor.value] && before.tensor != here.tensor;
      if (one && same_meaning(before, here)) continue;
      bytes_of(before, bytes);
      bytes_of(here, other);
      const Answer a = share(bytes, other);
      if (a == Answer::kUnknown) return tangled(here);
      if (a == Answer::kShared)
        out.add("overlap: " + who + " holds " + describe(layout, before) + " and " + describe(layout, here) +
                    " in the same bytes of buffer '" + rank.buffers[here.buffer].name + "'",
                name(here));
    }
    open.push_back(&e);
  }
  return {};
}

}  // namespace refit::plan
