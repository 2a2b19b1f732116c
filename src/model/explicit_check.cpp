#include "model/explicit_check.h"

#include <algorithm>
#include <set>

namespace refit::model {
namespace {

Error invalid(std::string message) { return {Code::kInvalid, std::move(message)}; }

Status check_box(const View& view, const Box& box, const Dims& strides) {
  const Dims extents = view.extents();
  if (box.size() != extents.size())
    return invalid("box has " + std::to_string(box.size()) + " intervals, the view has " +
                   std::to_string(extents.size()) + " factors");
  if (strides.size() != extents.size())
    return invalid("strides has " + std::to_string(strides.size()) + " entries, the view has " +
                   std::to_string(extents.size()) + " factors");
  for (std::size_t k = 0; k < box.size(); ++k)
    if (box[k].lo < 0 || box[k].hi < box[k].lo || box[k].hi > extents[k])
      return invalid("box interval " + std::to_string(k) + " [" + std::to_string(box[k].lo) + ", " +
                     std::to_string(box[k].hi) + ") does not lie in [0, " + std::to_string(extents[k]) + ")");
  return {};
}

// The bytes that the holding touches lie inside its buffer; an empty one still points into it.
Status check_bytes(const Holding& h, const BufferSpec& buffer) {
  Segment s{
      .region = h.buffer, .offset = h.offset, .run_bytes = item_size(h.dtype), .extents = {}, .strides = h.strides};
  for (const Interval& i : h.box) s.extents.push_back(i.size());
  if (h.offset < 0 || h.offset > buffer.bytes)
    return invalid("offset " + std::to_string(h.offset) + " lies outside buffer '" + buffer.name + "' of " +
                   std::to_string(buffer.bytes) + " bytes");
  if (empty(h.box)) return {};
  REFIT_ASSIGN(const ByteRange range, touched(s));
  if (range.lo < 0 || range.hi > buffer.bytes)
    return invalid("bytes [" + std::to_string(range.lo) + ", " + std::to_string(range.hi) + ") lie outside buffer '" +
                   buffer.name + "' of " + std::to_string(buffer.bytes) + " bytes");
  return {};
}

Status check_holding(const Catalogue& catalogue, const RankLayout& rank, const Holding& h) {
  if (h.buffer >= rank.buffers.size()) return invalid("unknown buffer index " + std::to_string(h.buffer));
  const LogicalTensor& tensor = catalogue.tensors[h.tensor.value];
  REFIT_TRY(h.view.validate(tensor.shape));
  REFIT_TRY(check_box(h.view, h.box, h.strides));
  return check_bytes(h, rank.buffers[h.buffer]);
}

bool plain_file_name(const std::string& name) {
  return name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

Status check_catalogue(const Catalogue& catalogue) {
  for (std::size_t i = 0; i < catalogue.tensors.size(); ++i) {
    const LogicalTensor& t = catalogue.tensors[i];
    if (i && !(catalogue.tensors[i - 1].name < t.name))
      return invalid("tensor names are not unique and in byte order").at_tensor(t.name);
    const auto count = checked_extent_product(t.shape);
    if (!count || !checked_mul(*count, item_size(t.dtype)))
      return invalid("shape has a negative extent or more than 2^63-1 bytes").at_tensor(t.name);
    if (t.shape.size() > static_cast<std::size_t>(kMaxFactors))
      return invalid("shape has " + std::to_string(t.shape.size()) + " axes, at most " + std::to_string(kMaxFactors) +
                     " are allowed")
          .at_tensor(t.name);
  }
  for (const auto& [a, b] : catalogue.tied) {
    const std::int64_t ia = catalogue.find(a), ib = catalogue.find(b);
    if (ia < 0 || ib < 0) continue;
    const LogicalTensor& ta = catalogue.tensors[static_cast<std::size_t>(ia)];
    const LogicalTensor& tb = catalogue.tensors[static_cast<std::size_t>(ib)];
    if (ta.shape != tb.shape || ta.dtype != tb.dtype)
      return invalid("tied to '" + b + "', which has another shape or dtype").at_tensor(a);
  }
  return {};
}

Status check_rank(const Catalogue& catalogue, const RankLayout& rank) {
  const std::string who = "rank " + std::to_string(rank.rank.value);
  if (rank.rank.value >= kMaxExplicitRank) return invalid(who + " is not below " + std::to_string(kMaxExplicitRank));
  std::set<std::string_view> names;
  for (const BufferSpec& b : rank.buffers) {
    if (b.bytes < 0) return invalid(who + ": buffer '" + b.name + "' has a negative size");
    if (!plain_file_name(b.name)) return invalid(who + ": buffer name '" + b.name + "' is not a plain file name");
    if (!names.insert(b.name).second) return invalid(who + ": buffer '" + b.name + "' is named twice");
  }
  for (std::size_t i = 0; i < rank.holdings.size(); ++i) {
    const std::string where = who + ", holding " + std::to_string(i) + ": ";
    const Holding& h = rank.holdings[i];
    if (h.tensor.value >= catalogue.tensors.size())
      return invalid(where + "unknown tensor index " + std::to_string(h.tensor.value));
    if (Status s = check_holding(catalogue, rank, h); !s.ok()) {
      Error e = std::move(s).error();
      e.message = where + e.message;
      return std::move(e).at_tensor(catalogue.tensors[h.tensor.value].name);
    }
  }
  return {};
}

}  // namespace refit::model
