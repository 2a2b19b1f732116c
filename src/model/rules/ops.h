// The rule vocabulary as data: a rule is a short postfix program over arrays of logical tensors. It has one meaning
// (which element lies where), so loading and refitting are the same rule and nobody writes an inverse.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refit::model {

// How an axis is divided among the n coordinates of some mesh axes.
enum class CutRule : std::uint8_t {
  kEven,    // equal parts; an extent that does not divide is refused
  kChunk,   // ceil(extent/n) each, later parts short or empty (torch.chunk, DTensor, FSDP2)
  kBlock,   // as kChunk with the part rounded up to `units`
  kShare,   // `units` heads: whole heads per part, or, with more parts than heads, each head on n/units neighbours
  kLinear,  // extent/n each, the remainder one each to the first parts (a table of ranges)
  kRobin,   // of a stack: part k takes k, k + n, k + 2n, …
};

// `over` names mesh axes joined by '*', the last varying fastest: "tp", "dp*tp".
struct Cut {
  CutRule rule = CutRule::kEven;
  std::string_view over = {};
  std::string_view units = {};
};

enum class OpCode : std::uint8_t {
  kLoad,
  kView,
  kComponent,
  kCut,
  kPad,
  kConcat,
  kInterleave,
  kStack,
  kPick,
  kOnly,
  kPermute,
  kSqueeze,
  kCast,
  kValue,
  kHole,
  kMerge,
  kUnfold,
};

struct Op {
  OpCode code = OpCode::kLoad;
  int axis = 0;
  int count = 0;  // kLoad: member of the row; kComponent: which; kConcat, kInterleave: arrays taken
  Cut cut = {};   // kCut, kOnly; kComponent: the groups in `units`; kPad: `over`
  // kView, kUnfold: radices; kComponent: sizes; kPad: multiple; kPermute: order; kCast, kValue: name; kHole: shape
  std::string_view term = {};
};
using Program = std::vector<Op>;

namespace op {
// Push member `i` of the row, whole.
inline Op load(int i) { return {.code = OpCode::kLoad, .count = i}; }
// Factor an axis of a whole tensor: rows = "Hkv,qpg*hd".
inline Op view(int axis, std::string_view radices) { return {.code = OpCode::kView, .axis = axis, .term = radices}; }
// Of a whole tensor whose axis is made of groups (factors, e.g. "Hkv,qpg"), each of them a run of components of
// `sizes`: the k-th component of every group.
inline Op component(int axis, int k, std::string_view sizes, std::string_view groups = "") {
  return {.code = OpCode::kComponent, .axis = axis, .count = k, .cut = {.units = groups}, .term = sizes};
}
inline Op cut(int axis, CutRule rule, std::string_view over, std::string_view units = "") {
  return {.code = OpCode::kCut, .axis = axis, .cut = {rule, over, units}};
}
// Lengthen an axis to a multiple, for each of the parts of `over`; no holding lies there, so the buffer's fill is what
// it reads.
inline Op pad(int axis, std::string_view multiple, std::string_view over = "") {
  return {.code = OpCode::kPad, .axis = axis, .cut = {.over = over}, .term = multiple};
}
// Push an array that nothing fills: memory that a framework allocates and no tensor has values for.
inline Op hole(std::string_view shape) { return {.code = OpCode::kHole, .term = shape}; }
// Of a whole tensor: an axis becomes several, rows = "Hq,hd" as (heads, size).
inline Op unfold(int axis, std::string_view radices) {
  return {.code = OpCode::kUnfold, .axis = axis, .term = radices};
}
// An axis and the next one become one.
inline Op merge(int axis) { return {.code = OpCode::kMerge, .axis = axis}; }
inline Op concat(int axis, int count) { return {.code = OpCode::kConcat, .axis = axis, .count = count}; }
// Factored arrays with one outer extent: step g holds slice g of each, in order.
inline Op interleave(int axis, int count) { return {.code = OpCode::kInterleave, .axis = axis, .count = count}; }
// All experts of the layer along a new axis 0.
inline Op stack() { return {.code = OpCode::kStack}; }
// One index of axis 0, which goes away: the expert of a parameter that is one expert's.
inline Op pick() { return {.code = OpCode::kPick}; }
// Values on the first of the parts only; elsewhere the buffer's fill is what it reads.
inline Op only(std::string_view over) { return {.code = OpCode::kOnly, .cut = {.over = over}}; }
// "reverse" turns matrices and leaves vectors.
inline Op permute(std::string_view order) { return {.code = OpCode::kPermute, .term = order}; }
inline Op squeeze(int axis) { return {.code = OpCode::kSqueeze, .axis = axis}; }
// A named value transform (model/values.h); the array holds its results, in f32. "over_sqrt:hd" is given the number.
inline Op value(std::string_view name) { return {.code = OpCode::kValue, .term = name}; }
inline Op cast(std::string_view dtype) { return {.code = OpCode::kCast, .term = dtype}; }
}  // namespace op

// Canonical text of a program, for digests and messages.
std::string to_string(const Program& program);

}  // namespace refit::model
