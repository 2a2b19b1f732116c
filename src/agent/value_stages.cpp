#include "agent/value_stages.h"

#include <algorithm>
#include <cstring>

#include "agent/lower.h"
#include "model/model.h"

namespace refit::agent {
namespace {
constexpr std::int64_t kAtOnce = 1 << 20;  // elements that are brought to f32 at a time, if a row is not longer
}

Status ValueStages::run(std::span<const memory::RegionRef> stored, std::byte* values, const kernel::Exec& exec) {
  kernel::LossyCasts lossy;
  for (const plan::ValueStage& s : plan_.stages) {
    REFIT_ASSIGN(const bool exact, run_one(s, stored[s.buffer].data + s.offset, values + s.values, exec));
    const std::string& name = plan_.catalogue->tensors[s.tensor.value].name;
    if (!exact && !plan::cast_allowed(options_, name)) lossy.add(name);
  }
  if (lossy.empty()) return {};
  return lossy.error("a value transform or the cast to its tensor's dtype").at_stage("seal");
}

// Slab by slab of the outermost loop. False when a value cannot be brought back: the stored one has more digits than
// the tensor's dtype, or the transform's inverse gives another one.
Result<bool> ValueStages::run_one(const plan::ValueStage& s, const std::byte* from, std::byte* to,
                                  const kernel::Exec& exec) {
  Dims extents = s.extents, strides = s.strides;
  if (extents.empty()) extents = {1}, strides = {item_size(s.stored)};
  std::int64_t row = 1;
  for (std::size_t k = 1; k < extents.size(); ++k) row *= extents[k];
  const std::int64_t rows = extents[0], step = std::max<std::int64_t>(1, kAtOnce / row);
  bool exact = true;
  for (std::int64_t lo = 0; lo < rows; lo += step) {
    extents[0] = std::min(step, rows - lo);
    const auto count = static_cast<std::size_t>(extents[0] * row);
    scratch_.resize(std::max(scratch_.size(), count));
    const std::span<float> part(scratch_.data(), count);
    const Dims packed = packed_strides(extents, sizeof(float));
    kernel::Job j;
    j.src = from + lo * strides[0];
    j.dst = part.data();
    j.extents = extents;
    j.src_strides = strides;
    j.dst_strides = packed;
    j.src_dtype = s.stored;
    j.wire_dtype = s.undo.empty() ? s.logical : DType::kF32;
    j.dst_dtype = DType::kF32;
    exact = kernel::run(exec, {&j, 1}, {}).empty() && exact;
    if (!s.undo.empty()) {
      REFIT_ASSIGN(const std::int64_t bad, model::undo_value(s.undo, part, s.logical));
      exact = exact && bad < 0;
    }
    // Forwards nothing is lost that the target would have had: it is the engine's own function of the tensor's values.
    if (!s.apply.empty()) REFIT_TRY(model::apply_value(s.apply, part, s.logical));
    const std::int64_t n = extents[0] * row, item = item_size(s.wire);
    const Dims one{n}, wide{sizeof(float)}, narrow{item};
    kernel::Job out;
    out.src = part.data();
    out.dst = to + lo * row * item;
    out.extents = one;
    out.src_strides = wide;
    out.dst_strides = narrow;
    out.src_dtype = DType::kF32;
    out.wire_dtype = out.dst_dtype = s.wire;
    exact = kernel::run(exec, {&out, 1}, {}).empty() && exact;
  }
  return exact;
}

}  // namespace refit::agent
