#include "model/rules/arrangement.h"

#include <algorithm>
#include <numeric>

namespace refit::model {
namespace {

Error wrong(const std::string& what) { return Error(Code::kInternal, "rule program: " + what); }

Piece whole_piece(int member, const Dims& shape) {
  Piece p{.member = member,
          .expert = -1,
          .view = View::trivial(shape),
          .box = whole(shape),
          .places = {},
          .base = Dims(shape.size(), 0)};
  for (std::size_t a = 0; a < shape.size(); ++a) p.places.push_back({static_cast<int>(a), 1});
  return p;
}

// Last array index + 1 that factors `order[k…]` of a piece reach from their start.
std::int64_t span_of(const Piece& p, const std::vector<std::size_t>& order, std::size_t k) {
  std::int64_t span = 1;
  for (; k < order.size(); ++k) span += (p.box[order[k]].size() - 1) * p.places[order[k]].step;
  return span;
}

// Boxes of `p` whose index on the cut axis lies in `keep`; `start` is the index of the first element so far. Steps nest
// (a step is at least the span of the factors inside it), so each factor adds at most two partial edges.
void keep_interval(const Piece& p, const std::vector<std::size_t>& order, std::size_t k, std::int64_t start,
                   Interval keep, std::vector<Piece>& out) {
  if (k == order.size()) {
    if (start >= keep.lo && start < keep.hi) out.push_back(p);
    return;
  }
  const std::size_t f = order[k];
  const std::int64_t step = p.places[f].step, span = span_of(p, order, k + 1), n = p.box[f].size();
  const auto narrowed = [&](std::int64_t lo, std::int64_t hi) {
    Piece q = p;
    q.box[f] = {p.box[f].lo + lo, p.box[f].lo + hi};
    return q;
  };
  const std::int64_t full_lo = std::clamp<std::int64_t>(keep.lo <= start ? 0 : ceil_div(keep.lo - start, step), 0, n);
  const std::int64_t room = keep.hi - span - start;
  const std::int64_t full_hi = std::clamp<std::int64_t>(room < 0 ? 0 : room / step + 1, full_lo, n);
  const auto edge = [&](std::int64_t i) {
    if (i >= 0 && i < n) keep_interval(narrowed(i, i + 1), order, k + 1, start + i * step, keep, out);
  };
  edge(full_lo - 1);
  if (full_hi > full_lo) out.push_back(narrowed(full_lo, full_hi));
  edge(full_hi);
}

void cut_piece(const Piece& p, int axis, Interval keep, std::vector<Piece>& out) {
  const auto a = static_cast<std::size_t>(axis);
  std::vector<std::size_t> order;
  for (std::size_t f = 0; f < p.places.size(); ++f)
    if (p.places[f].axis == axis) order.push_back(f);
  std::sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
    return p.places[x].step != p.places[y].step ? p.places[x].step > p.places[y].step : x < y;
  });
  const std::size_t first = out.size();
  keep_interval(p, order, 0, p.base[a], keep, out);
  for (std::size_t i = first; i < out.size(); ++i) {
    for (std::size_t f : order) out[i].base[a] += (out[i].box[f].lo - p.box[f].lo) * p.places[f].step;
    out[i].base[a] -= keep.lo;
  }
}

void cut_to(Arrangement& array, int axis, Interval keep) {
  std::vector<Piece> kept;
  for (const Piece& p : array.pieces)
    if (!empty(p.box)) cut_piece(p, axis, keep, kept);
  array.pieces = std::move(kept);
  array.shape[static_cast<std::size_t>(axis)] = keep.size();
}

Status factor(Arrangement& array, int axis, const Dims& radices) {
  if (array.pieces.size() != 1) return wrong("view of something other than a whole tensor");
  Piece& p = array.pieces[0];
  const auto a = static_cast<std::size_t>(axis);
  if (!p.view.is_trivial() || p.box != whole(array.shape)) return wrong("view of a tensor that is not whole");
  p.view.radices.set(a, radices);
  REFIT_TRY(p.view.validate(array.shape));
  p.box = whole(p.view.extents());
  p.places.clear();
  const std::vector<int> axis_of = p.view.axis_of();
  const Dims steps = p.view.steps();
  for (std::size_t f = 0; f < steps.size(); ++f) p.places.push_back({axis_of[f], steps[f]});
  return {};
}

// See op::unfold.
Status unfold(Arrangement& array, int axis, const Dims& radices) {
  REFIT_TRY(factor(array, axis, radices));
  const auto a = static_cast<std::size_t>(axis);
  array.shape.erase(array.shape.begin() + axis);
  array.shape.insert(array.shape.begin() + axis, radices.begin(), radices.end());
  Piece& p = array.pieces[0];
  const std::vector<int> axis_of = p.view.axis_of();
  p.base.assign(array.shape.size(), 0);
  int inner = 0;
  for (std::size_t f = 0; f < p.places.size(); ++f) {
    if (axis_of[f] == axis)
      p.places[f] = {axis + inner++, 1};
    else if (axis_of[f] > axis)
      p.places[f].axis += static_cast<int>(radices.size()) - 1;
  }
  REFIT_CHECK(static_cast<std::size_t>(inner) == radices.size() && a < array.shape.size());
  return {};
}

// See op::component.
Status narrow_to(Arrangement& array, int axis, std::size_t k, const Dims& sizes, Dims groups) {
  const auto a = static_cast<std::size_t>(axis);
  if (k >= sizes.size()) return wrong("component that the list lacks");
  const std::int64_t lo =
      std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(k), std::int64_t{0});
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  groups.push_back(total);
  const std::int64_t count = groups.size() > 1 ? array.shape[a] / std::max<std::int64_t>(total, 1) : 1;
  REFIT_TRY(factor(array, axis, groups));
  Piece& p = array.pieces[0];
  const std::vector<int> axis_of = p.view.axis_of();
  for (std::size_t f = 0; f < p.places.size(); ++f) {
    if (axis_of[f] != axis) continue;
    const bool inner = f + 1 == p.places.size() || axis_of[f + 1] != axis;
    if (inner)
      p.box[f] = {lo, lo + sizes[k]};
    else
      p.places[f].step = p.places[f].step / total * sizes[k];
  }
  array.shape[a] = count * sizes[k];
  return {};
}

Status append(Arrangement& into, Arrangement&& next, int axis) {
  const auto a = static_cast<std::size_t>(axis);
  for (std::size_t i = 0; i < into.shape.size(); ++i)
    if (next.shape.size() != into.shape.size() || (i != a && next.shape[i] != into.shape[i]))
      return wrong("concat of different shapes");
  if (next.cast || !next.value.empty()) return wrong("concat after a cast");
  for (Piece& p : next.pieces) {
    p.base[a] += into.shape[a];
    into.pieces.push_back(std::move(p));
  }
  into.shape[a] += next.shape[a];
  return {};
}

// Widens the outer factor's step on `axis` from the array's own slice to the whole group's.
Result<std::int64_t> slice_of(const Arrangement& array, int axis, std::int64_t groups) {
  const std::int64_t extent = array.shape[static_cast<std::size_t>(axis)];
  if (groups <= 0 || extent % groups != 0) return wrong("interleave of different outer extents");
  return extent / groups;
}

Result<Arrangement> interleave_all(std::vector<Arrangement> arrays, int axis) {
  const auto a = static_cast<std::size_t>(axis);
  const std::int64_t groups = arrays[0].pieces.at(0).view.radices.at(a).at(0);
  std::int64_t slot = 0, total = 0;
  std::vector<std::int64_t> slices;
  for (const Arrangement& array : arrays) {
    REFIT_ASSIGN(slices.emplace_back(), slice_of(array, axis, groups));
    total += slices.back();
  }
  Arrangement out{.shape = arrays[0].shape, .pieces = {}, .cast = {}, .value = {}};
  out.shape[a] = groups * total;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    for (Piece& p : arrays[i].pieces) {
      if (p.view.radices.at(a).size() < 2 || p.view.radices[a][0] != groups)
        return wrong("interleave needs one outer factor");
      for (Piece::Place& place : p.places)
        if (place.axis == axis && place.step == slices[i]) {
          place.step = total;
          break;
        }
      p.base[a] += slot;
      out.pieces.push_back(std::move(p));
    }
    slot += slices[i];
  }
  return out;
}

Arrangement stack_experts(const Arrangement& one, const Dims& experts) {
  Arrangement out{.shape = one.shape, .pieces = {}, .cast = one.cast, .value = one.value};
  out.shape.insert(out.shape.begin(), static_cast<std::int64_t>(experts.size()));
  for (std::size_t slot = 0; slot < experts.size(); ++slot)
    for (Piece p : one.pieces) {
      p.expert = experts[slot];
      for (Piece::Place& place : p.places) place.axis += place.axis >= 0 ? 1 : 0;
      p.base.insert(p.base.begin(), static_cast<std::int64_t>(slot));
      out.pieces.push_back(std::move(p));
    }
  return out;
}

Status permute(Arrangement& array, const Dims& order) {
  Dims inverse(order.size());
  std::vector<bool> seen(order.size(), false);
  if (order.size() != array.shape.size()) return wrong("permute of another number of axes");
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto from = static_cast<std::size_t>(order[i]);
    if (from >= order.size() || seen[from]) return wrong("permute order is no permutation");
    seen[from] = true;
    inverse[from] = static_cast<std::int64_t>(i);
  }
  const auto moved = [&](const Dims& d) {
    Dims out(d.size());
    for (std::size_t i = 0; i < d.size(); ++i) out[i] = d[static_cast<std::size_t>(order[i])];
    return out;
  };
  array.shape = moved(array.shape);
  for (Piece& p : array.pieces) {
    p.base = moved(p.base);
    for (Piece::Place& place : p.places)
      if (place.axis >= 0) place.axis = static_cast<int>(inverse[static_cast<std::size_t>(place.axis)]);
  }
  return {};
}

Status squeeze(Arrangement& array, int axis) {
  if (array.shape[static_cast<std::size_t>(axis)] != 1)
    return Error(Code::kInvalid, "axis " + std::to_string(axis) + " to squeeze is longer than 1");
  array.shape.erase(array.shape.begin() + axis);
  for (Piece& p : array.pieces) {
    p.base.erase(p.base.begin() + axis);
    for (Piece::Place& place : p.places)
      place.axis = place.axis == axis ? -1 : place.axis - (place.axis > axis ? 1 : 0);
  }
  return {};
}

// Row-major: a step on the outer axis is as many as the inner one is long.
Status merge(Arrangement& array, int axis) {
  const auto a = static_cast<std::size_t>(axis);
  if (a + 1 >= array.shape.size()) return wrong("merge of the last axis");
  const std::int64_t inner = array.shape[a + 1];
  array.shape[a] *= inner;
  array.shape.erase(array.shape.begin() + axis + 1);
  for (Piece& p : array.pieces) {
    p.base[a] = p.base[a] * inner + p.base[a + 1];
    p.base.erase(p.base.begin() + axis + 1);
    for (Piece::Place& place : p.places) {
      if (place.axis == axis) place.step *= inner;
      if (place.axis > axis) --place.axis;
    }
  }
  return {};
}

// Runs a program; one method per kind of op.
class Machine {
 public:
  Machine(const Program& program, const Frame& frame) : program_(program), frame_(frame) {}

  Result<Arrangement> run() {
    for (at_ = 0; at_ < program_.size(); ++at_) REFIT_TRY(step(program_[at_]));
    if (stack_.size() != 1) return wrong("ends with " + std::to_string(stack_.size()) + " arrays");
    return std::move(stack_.back());
  }

 private:
  Status step(const Op& op) {
    if (op.code == OpCode::kLoad) return load(op);
    if (op.code == OpCode::kHole) {
      REFIT_ASSIGN(const Dims shape, evaluate_terms(op.term, *frame_.symbols));
      stack_.push_back({.shape = shape, .pieces = {}, .cast = {}, .value = {}});
      return {};
    }
    const bool joins = op.code == OpCode::kConcat || op.code == OpCode::kInterleave;
    if (stack_.empty() || (joins && (op.count < 1 || stack_.size() < static_cast<std::size_t>(op.count))))
      return wrong("takes more arrays than there are");
    if (op.code != OpCode::kStack && static_cast<std::size_t>(op.axis) >= std::max<std::size_t>(1, top().shape.size()))
      return wrong("axis out of range");
    switch (op.code) {
      case OpCode::kView: {
        REFIT_ASSIGN(const Dims radices, evaluate_terms(op.term, *frame_.symbols));
        return factor(top(), op.axis, radices);
      }
      case OpCode::kUnfold: {
        REFIT_ASSIGN(const Dims radices, evaluate_terms(op.term, *frame_.symbols));
        return unfold(top(), op.axis, radices);
      }
      case OpCode::kCut: {
        REFIT_ASSIGN(const Interval keep, interval(op.cut, top().shape[static_cast<std::size_t>(op.axis)]));
        cut_to(top(), op.axis, keep);
        return {};
      }
      case OpCode::kComponent: {
        REFIT_ASSIGN(const Dims sizes, evaluate_terms(op.term, *frame_.symbols));
        Dims groups;
        if (!op.cut.units.empty()) {
          REFIT_ASSIGN(groups, evaluate_terms(op.cut.units, *frame_.symbols));
        }
        return narrow_to(top(), op.axis, static_cast<std::size_t>(op.count), sizes, std::move(groups));
      }
      case OpCode::kPad:
        return pad(op);
      case OpCode::kConcat:
        return concat(op);
      case OpCode::kInterleave: {
        REFIT_ASSIGN(Arrangement joined, interleave_all(take(op.count), op.axis));
        stack_.push_back(std::move(joined));
        return {};
      }
      case OpCode::kStack:
        return stack();
      case OpCode::kPick:
        cut_to(top(), 0, {frame_.pick, frame_.pick + 1});
        return squeeze(top(), 0);
      case OpCode::kOnly:
        if (frame_.mesh->part(op.cut.over, *frame_.at).index > 0) top().pieces.clear();
        return {};
      case OpCode::kPermute: {
        Dims order(top().shape.size());
        if (op.term != "reverse") {
          REFIT_ASSIGN(order, evaluate_terms(op.term, *frame_.symbols));
        } else {
          std::iota(order.rbegin(), order.rend(), 0);
        }
        return permute(top(), order);
      }
      case OpCode::kValue: {
        REFIT_ASSIGN(top().value, value_of(op.term, *frame_.symbols));
        top().cast = DType::kF32;
        return {};
      }
      case OpCode::kSqueeze:
        return squeeze(top(), op.axis);
      case OpCode::kCast: {
        top().cast = dtype_from_string(op.term);
        if (!top().cast) return wrong("cast to an unknown dtype");
        return {};
      }
      case OpCode::kMerge:
        return merge(top(), op.axis);
      case OpCode::kLoad:
      case OpCode::kHole:
        break;
    }
    return wrong("unknown op");
  }

  Arrangement& top() { return stack_.back(); }
  std::vector<Arrangement> take(int count) {
    const auto first = stack_.end() - count;
    std::vector<Arrangement> out(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return out;
  }
  Result<Interval> interval(const Cut& cut, std::int64_t extent) const {
    return cut_interval(cut, extent, frame_.mesh->part(cut.over, *frame_.at), *frame_.symbols);
  }

  Status load(const Op& op) {
    if (static_cast<std::size_t>(op.count) >= frame_.members.size()) return wrong("loads a member that the row lacks");
    const Dims& shape = frame_.members[static_cast<std::size_t>(op.count)];
    stack_.push_back({.shape = shape, .pieces = {whole_piece(op.count, shape)}, .cast = {}, .value = {}});
    return {};
  }
  Status pad(const Op& op) {
    REFIT_ASSIGN(const std::int64_t each, evaluate_term(op.term, *frame_.symbols));
    const auto multiple = checked_mul(each, frame_.mesh->part(op.cut.over, *frame_.at).count);
    std::int64_t& extent = top().shape[static_cast<std::size_t>(op.axis)];
    const auto padded = multiple && *multiple > 0 ? checked_mul(ceil_div(extent, *multiple), *multiple) : std::nullopt;
    if (!padded)
      return Error(Code::kInvalid, "an axis padded to a multiple of " + std::to_string(each) + " passes 2^63");
    extent = *padded;
    return {};
  }
  Status concat(const Op& op) {
    std::vector<Arrangement> arrays = take(op.count);
    for (std::size_t i = 1; i < arrays.size(); ++i) REFIT_TRY(append(arrays[0], std::move(arrays[i]), op.axis));
    stack_.push_back(std::move(arrays[0]));
    return {};
  }
  // Cuts of the expert axis that follow choose the experts before they are laid: same meaning, no work for the others.
  Status stack() {
    Dims experts(static_cast<std::size_t>(frame_.experts));
    std::iota(experts.begin(), experts.end(), 0);
    while (at_ + 1 < program_.size() && program_[at_ + 1].code == OpCode::kCut && program_[at_ + 1].axis == 0) {
      const Cut& cut = program_[++at_].cut;
      Dims kept;
      if (cut.rule == CutRule::kRobin) {
        const Mesh::Part part = frame_.mesh->part(cut.over, *frame_.at);
        for (auto i = static_cast<std::size_t>(part.index); i < experts.size();
             i += static_cast<std::size_t>(part.count))
          kept.push_back(experts[i]);
      } else {
        REFIT_ASSIGN(const Interval keep, interval(cut, static_cast<std::int64_t>(experts.size())));
        kept.assign(experts.begin() + keep.lo, experts.begin() + keep.hi);
      }
      experts = std::move(kept);
    }
    top() = stack_experts(top(), experts);
    return {};
  }

  const Program& program_;
  const Frame& frame_;
  std::size_t at_ = 0;
  std::vector<Arrangement> stack_;
};

}  // namespace

Result<Interval> cut_interval(const Cut& cut, std::int64_t extent, Mesh::Part part, const Symbols& symbols) {
  const auto chunk = [&](std::int64_t size) {
    const std::int64_t lo = size > 0 && part.index > extent / size ? extent : std::min(part.index * size, extent);
    return Interval{lo, std::min(lo + size, extent)};
  };
  std::int64_t units = 1;
  if (!cut.units.empty()) {
    REFIT_ASSIGN(units, evaluate_term(cut.units, symbols));
  }
  switch (cut.rule) {
    case CutRule::kEven:
      if (extent % part.count != 0)
        return Error(Code::kInvalid, "an extent of " + std::to_string(extent) + " does not divide by " +
                                         std::string(cut.over) + "=" + std::to_string(part.count));
      return chunk(extent / part.count);
    case CutRule::kChunk:
      return chunk(ceil_div(extent, part.count));
    case CutRule::kBlock:
      return chunk(ceil_div(ceil_div(extent, part.count), units) * units);
    case CutRule::kLinear: {
      const std::int64_t base = extent / part.count, rest = extent % part.count;
      const std::int64_t lo = part.index * base + std::min(part.index, rest);
      return Interval{lo, lo + base + (part.index < rest ? 1 : 0)};
    }
    case CutRule::kRobin:
      break;
    case CutRule::kShare: {
      const std::int64_t most = std::max(units, part.count), least = std::min(units, part.count);
      if (units < 1 || most % least != 0 || extent % units != 0)
        return Error(Code::kInvalid, std::to_string(units) + " heads and " + std::string(cut.over) + "=" +
                                         std::to_string(part.count) + ": neither divides the other");
      const std::int64_t copies = part.count > units ? part.count / units : 1;
      const std::int64_t rows = extent / units * (units > part.count ? units / part.count : 1);
      return Interval{part.index / copies * rows, part.index / copies * rows + rows};
    }
  }
  return wrong("a cut of single indices, of something other than a stack");
}

Result<Arrangement> run(const Program& program, const Frame& frame) { return Machine(program, frame).run(); }

Result<Arrangement> in_blocks(Arrangement array, const Dims& blocks, const std::vector<Dims>& members,
                              const std::vector<std::string_view>& names) {
  if (array.shape.size() < blocks.size()) return wrong("blocks of fewer axes");
  const std::size_t outer = array.shape.size() - blocks.size();  // a stack's own axis has no blocks
  for (Piece& p : array.pieces) {
    const auto member = static_cast<std::size_t>(p.member);
    if (!p.view.is_trivial() || p.box.size() != blocks.size()) return wrong("blocks of a factored array");
    for (std::size_t f = 0; f < blocks.size(); ++f) {
      const std::int64_t block = blocks[f], full = members.at(member)[f];
      std::int64_t& base = p.base[f + outer];
      Interval& i = p.box[f];
      if (p.places[f].axis != static_cast<int>(f + outer) || p.places[f].step != 1)
        return wrong("blocks of a turned array");
      // Only the tensor's own last block may be short; whatever follows it then begins inside a block.
      if (i.lo % block != 0 || (i.hi % block != 0 && i.hi != full) || base % block != 0)
        return Error(Code::kInvalid, std::string(names.at(member)) + ": " + (f == 0 ? "rows" : "columns") + " [" +
                                         std::to_string(i.lo) + ", " + std::to_string(i.hi) + ") at " +
                                         std::to_string(base) + " of the parameter are not whole blocks of " +
                                         std::to_string(block));
      i = {i.lo / block, ceil_div(i.hi, block)};
      base /= block;
      p.view.radices.set(f, {ceil_div(full, block)});
    }
  }
  for (std::size_t f = 0; f < blocks.size(); ++f) array.shape[f + outer] = ceil_div(array.shape[f + outer], blocks[f]);
  return array;
}

Lie lie_of(const Piece& piece, const Dims& shape) {
  Dims axis_stride(shape.size(), 1);
  for (std::size_t a = shape.size(); a-- > 1;) axis_stride[a - 1] = axis_stride[a] * shape[a];
  Lie out;
  for (std::size_t a = 0; a < shape.size(); ++a) out.offset += piece.base[a] * axis_stride[a];
  std::size_t f = 0;
  for (const Dims& radices : piece.view.radices) {
    Dims kept;
    for (std::size_t i = 0; i < radices.size(); ++i, ++f) {
      const Piece::Place& place = piece.places[f];
      const std::int64_t stride = place.axis < 0 ? 0 : place.step * axis_stride[static_cast<std::size_t>(place.axis)];
      const Interval inner = piece.box[f];
      if (i > 0) {
        Interval& outer = out.box.back();
        const bool nests = inner == Interval{0, radices[i]} && out.strides.back() == radices[i] * stride;
        if (outer.size() == 1 || nests) {
          outer = {outer.lo * radices[i] + inner.lo, (outer.hi - 1) * radices[i] + inner.hi};
          out.strides.back() = stride;
          kept.back() *= radices[i];
          continue;
        }
      }
      kept.push_back(radices[i]);
      out.box.push_back(inner);
      out.strides.push_back(stride);
    }
    out.view.radices.push_back(std::move(kept));
  }
  return out;
}

std::vector<Lie> flat_range(const Dims& shape, Interval range) {
  Arrangement all{.shape = shape, .pieces = {whole_piece(0, shape)}, .cast = {}, .value = {}};
  while (all.shape.size() > 1) REFIT_CHECK(merge(all, 0).ok());
  if (!all.shape.empty()) cut_to(all, 0, range);
  std::vector<Lie> out;
  for (const Piece& p : all.pieces)
    if (!empty(p.box)) out.push_back(lie_of(p, all.shape));
  return out;
}

std::string to_string(const Program& program) {
  static constexpr std::string_view kOps[] = {"load",       "view",  "component", "cut",   "pad",     "concat",
                                              "interleave", "stack", "pick",      "only",  "permute", "squeeze",
                                              "cast",       "value", "hole",      "merge", "unfold"};
  static constexpr std::string_view kCuts[] = {"even", "chunk", "block", "share", "linear", "robin"};
  std::string out;
  for (const Op& op : program) {
    out += std::string(out.empty() ? "" : " ") + std::string(kOps[static_cast<std::size_t>(op.code)]);
    if (op.code == OpCode::kCut) out += "." + std::string(kCuts[static_cast<std::size_t>(op.cut.rule)]);
    out += "(" + std::to_string(op.axis) + "," + std::to_string(op.count) + "," + std::string(op.cut.over) + "," +
           std::string(op.cut.units) + "," + std::string(op.term) + ")";
  }
  return out;
}

}  // namespace refit::model
