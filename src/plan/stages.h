// Inside plan: value transforms of a live job. Both sides as they look once the source has run its stages: what a side
// stores through a transform is brought to the other side's values before anything is sealed, in a buffer of its own.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace refit::plan {

// One tensor's way between the sides' values; the names are those of model/values.h, empty for none.
struct Staging {
  std::uint32_t source = 0, target = 0;  // TensorIds of either side
  std::string undo, apply;
  DType wire = DType::kBF16;  // what travels
  bool runs() const { return undo != apply; }
};

// Both layouts after the stages. The layouts given must outlive it.
struct Staged {
  std::vector<Staging> tensors;  // by name
  std::shared_ptr<const model::Layout> source, target;

  // What `rank` of the source runs, with TensorIds of `plan`, and how many bytes its value buffer takes.
  Result<std::vector<ValueStage>> stages_of(Rank rank, const model::Catalogue& plan) const;
  std::int64_t bytes_of(Rank rank) const;
};

// `tensors` is empty, and the layouts null, where neither side stores anything through a transform. Errors:
// kUnsupported naming a tensor that is tied, or of a dtype that transforms do not take.
Result<Staged> stage_values(const model::Layout& source, const model::Layout& target);

}  // namespace refit::plan
