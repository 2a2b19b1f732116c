#include "agent/lower.h"

#include <algorithm>
#include <map>

namespace refit::agent {
namespace {

install::LoopNest nest_of(const plan::Geometry& g) {
  return {g.extents, g.src_strides, g.dst_strides, g.axis, g.steps, g.src_dtype, g.wire_dtype, g.dst_dtype};
}

// A holding as loops over its own memory, reading storage and digesting in the tensor's dtype.
install::LoopNest nest_of(const model::Holding& h, DType wire) {
  install::LoopNest n;
  for (const Interval& i : h.box) n.extents.push_back(i.size());
  n.src_strides = n.dst_strides = h.strides;
  n.axis = h.view.axis_of();
  n.steps = h.view.steps();
  n.src_dtype = n.dst_dtype = h.dtype;
  n.wire_dtype = wire;
  return n;
}

Dims origin_of(const model::Holding& h, std::size_t axes) {
  Dims origin(axes, 0);
  const std::vector<int> axis = h.view.axis_of();
  const Dims steps = h.view.steps();
  for (std::size_t k = 0; k < h.box.size(); ++k) origin[static_cast<std::size_t>(axis[k])] += h.box[k].lo * steps[k];
  return origin;
}

// A side's TensorId → the plan's: the lowest name of its tie, under which the bytes travel and are digested.
std::vector<std::uint32_t> shared_ids(const model::Catalogue& plan, const model::Catalogue& side) {
  std::map<std::string, std::string> lowest;
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [a, b] : plan.tied) {
      const std::string& to_a = lowest.try_emplace(a, a).first->second;
      const std::string& to_b = lowest.try_emplace(b, b).first->second;
      const std::string low = std::min(to_a, to_b);
      changed = changed || to_a != low || to_b != low;
      lowest[a] = lowest[b] = low;
    }
  }
  // A tie may run through a name that neither side has: the lowest name that exists stands for all.
  std::map<std::string, std::uint32_t> stands;
  std::vector<std::uint32_t> of_plan(plan.tensors.size());
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const auto tie = lowest.find(plan.tensors[i].name);
    of_plan[i] = tie == lowest.end() ? i : stands.try_emplace(tie->second, i).first->second;
  }
  std::vector<std::uint32_t> out;
  for (const model::LogicalTensor& t : side.tensors)
    out.push_back(of_plan[static_cast<std::size_t>(plan.find(t.name))]);
  return out;
}

}  // namespace

Segment segment_of(const plan::Geometry& g, std::uint32_t buffer, std::int64_t offset) {
  Segment s{.region = buffer,
            .offset = offset,
            .run_bytes = item_size(g.src_dtype),
            .extents = g.extents,
            .strides = g.src_strides};
  if (!s.extents.empty() && s.strides.back() == s.run_bytes) {
    s.run_bytes *= s.extents.back();
    s.extents.pop_back();
    s.strides.pop_back();
  }
  return s;
}

Dims packed_strides(const Dims& extents, std::int64_t item) {
  Dims out(extents.size());
  for (std::size_t k = extents.size(); k > 0; --k) {
    out[k - 1] = item;
    item *= extents[k - 1];
  }
  return out;
}

DType packed_dtype(const plan::Geometry& g, Pack pack) { return pack == Pack::kWire ? g.wire_dtype : g.src_dtype; }

PackedLayout packed_layout(const plan::RankPlan& plan, const plan::Bucket& b, Pack pack) {
  PackedLayout out;
  for (std::uint32_t i = 0; i < b.pieces; ++i) {
    const plan::Geometry& g = plan.geometries[plan.pieces[b.first_piece + i].geometry];
    const std::int64_t item = item_size(packed_dtype(g, pack));
    std::int64_t bytes = item;
    for (std::int64_t n : g.extents) bytes *= n;
    out.starts.push_back((out.bytes + item - 1) / item * item);
    out.ends.push_back(out.bytes = out.starts.back() + bytes);
  }
  return out;
}

std::vector<install::Section> sections_of(const plan::RankPlan& plan, const plan::Bucket& b) {
  const PackedLayout layout = packed_layout(plan, b, Pack::kWire);
  std::vector<install::Section> out;
  for (std::uint32_t i = 0; i < b.pieces; ++i) {
    const int width = static_cast<int>(item_size(plan.geometries[plan.pieces[b.first_piece + i].geometry].wire_dtype));
    if (out.empty() || out.back().shape.width != width) out.push_back({layout.starts[i], {width, 0}});
    out.back().shape.elements += (layout.ends[i] - layout.starts[i]) / width;
  }
  return out;
}

std::int64_t runs_of(const Segment& s) {
  std::int64_t n = 1;
  for (std::int64_t e : s.extents) n *= e;
  return n;
}

void append_runs(const Segment& s, const std::byte* region, std::vector<std::span<const std::byte>>& out) {
  if (runs_of(s) == 0 || s.run_bytes == 0) return;
  Dims index(s.extents.size(), 0);
  const std::byte* at = region + s.offset;
  while (true) {
    if (!out.empty() && out.back().data() + out.back().size() == at)
      out.back() = {out.back().data(), out.back().size() + static_cast<std::size_t>(s.run_bytes)};
    else
      out.emplace_back(at, static_cast<std::size_t>(s.run_bytes));
    std::size_t k = s.extents.size();
    for (; k > 0; --k) {
      at += s.strides[k - 1];
      if (++index[k - 1] < s.extents[k - 1]) break;
      at -= index[k - 1] * s.strides[k - 1];
      index[k - 1] = 0;
    }
    if (k == 0) return;
  }
}

std::vector<std::pair<std::int64_t, std::int64_t>> gaps_of(const model::RankLayout& rank, std::uint32_t buffer) {
  std::vector<std::pair<std::int64_t, std::int64_t>> used;
  for (const model::Holding& h : rank.holdings) {
    if (h.buffer != buffer || empty(h.box)) continue;
    // Contiguous runs from the innermost factors outwards; the outer loops enumerate run starts.
    std::int64_t run = item_size(h.dtype);
    std::size_t outer = h.box.size();
    while (outer > 0 && (h.strides[outer - 1] == run || h.box[outer - 1].size() == 1)) run *= h.box[--outer].size();
    Dims index(outer, 0);
    std::int64_t at = h.offset;
    while (true) {
      used.emplace_back(at, at + run);
      std::size_t k = outer;
      for (; k > 0; --k) {
        at += h.strides[k - 1];
        if (++index[k - 1] < h.box[k - 1].size()) break;
        at -= index[k - 1] * h.strides[k - 1];
        index[k - 1] = 0;
      }
      if (k == 0) break;
    }
  }
  std::sort(used.begin(), used.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
  std::int64_t end = 0;
  for (const auto& [lo, hi] : used) {
    if (lo > end) gaps.emplace_back(end, lo);
    end = std::max(end, hi);
  }
  if (end < rank.buffers[buffer].bytes) gaps.emplace_back(end, rank.buffers[buffer].bytes);
  return gaps;
}

install::LandingTable lower_target(const plan::RankPlan& plan, const model::Layout& target,
                                   const model::RankLayout& rank, const std::vector<std::uint32_t>& member_of,
                                   const plan::Options& options, bool packed, Pack pack) {
  install::LandingTable table;
  const std::vector<model::LogicalTensor>& tensors = plan.catalogue->tensors;
  const std::vector<std::uint32_t> shared = shared_ids(*plan.catalogue, target.catalogue());
  for (const model::LogicalTensor& t : tensors) {
    table.tensors.push_back({t.name, t.shape});
    table.lossy_cast_allowed.push_back(plan::cast_allowed(options, t.name));
  }
  for (const plan::Geometry& g : plan.geometries) {
    table.nests.push_back(nest_of(g));
    if (!packed) continue;
    table.nests.back().src_dtype = packed_dtype(g, pack);
    table.nests.back().src_strides = packed_strides(g.extents, item_size(packed_dtype(g, pack)));
  }
  table.origins = plan.origins;
  table.deltas = packed && pack == Pack::kWire;

  for (const plan::Bucket& b : plan.buckets) {
    install::BucketTable out{.id = b.id,
                             .sender = member_of[b.sender.value],
                             .first_entry = static_cast<std::uint32_t>(table.entries.size()),
                             .entries = 0,
                             .segments = {},
                             .packed_starts = {},
                             .packed_bytes = 0,
                             .bytes = b.bytes,
                             .sections = {}};
    PackedLayout layout = packed_layout(plan, b, pack);
    if (table.deltas) out.sections = sections_of(plan, b);
    out.packed_starts = std::move(layout.starts);
    out.packed_bytes = layout.bytes;
    for (std::uint32_t p = 0; p < b.pieces; ++p) {
      const plan::Piece& piece = plan.pieces[b.first_piece + p];
      out.segments.push_back(segment_of(plan.geometries[piece.geometry], piece.src_buffer, piece.src_offset));
      for (std::uint32_t l = 0; l < piece.landings; ++l) {
        const plan::Landing& landing = plan.landings[piece.first_landing + l];
        table.entries.push_back({.segment = p,
                                 .tensor = piece.tensor.value,
                                 .nest = landing.geometry,
                                 .origin = piece.origin,
                                 .holding = landing.holding,
                                 .copy = l,
                                 .dst_offset = landing.dst_offset,
                                 .counted = landing.counted});
        ++out.entries;
      }
    }
    table.buckets.push_back(std::move(out));
  }

  // Holdings of one pattern share a nest.
  std::map<std::pair<Dims, std::pair<Dims, Dims>>, std::vector<std::uint32_t>> seen;
  for (const model::Holding& h : rank.holdings) {
    const std::uint32_t id = shared[h.tensor.value];
    const model::LogicalTensor& tensor = tensors[id];
    install::LoopNest nest = nest_of(h, tensor.dtype);
    std::vector<std::uint32_t>& same = seen[{nest.extents, {nest.src_strides, nest.steps}}];
    const auto match = std::find_if(same.begin(), same.end(), [&](std::uint32_t i) {
      const install::LoopNest& n = table.nests[i];
      return n.axis == nest.axis && n.src_dtype == nest.src_dtype && n.wire_dtype == nest.wire_dtype;
    });
    std::uint32_t index = static_cast<std::uint32_t>(table.nests.size());
    if (match != same.end()) {
      index = *match;
    } else {
      same.push_back(index);
      table.nests.push_back(std::move(nest));
    }
    table.holdings.push_back({id, index, static_cast<std::uint32_t>(table.origins.size()), h.buffer, h.offset});
    table.origins.push_back(origin_of(h, tensor.shape.size()));
  }
  for (std::uint32_t b = 0; b < rank.buffers.size(); ++b)
    table.buffers.push_back({rank.buffers[b].bytes, rank.buffers[b].fill, gaps_of(rank, b)});
  return table;
}

}  // namespace refit::agent
