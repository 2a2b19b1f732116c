// Inside plan: a source whose matrices its targets hold in codes. Its layout as it looks once every rank has quantised
// its part: codes and scales are tensors of their own in a buffer after all others, so that everything behind (proof,
// seal, digests, deltas) sees what the targets install.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace refit::plan {

// A box of a matrix, and where it lies: rows × columns of one stride each.
struct Rect {
  Interval rows, cols;
  std::int64_t offset = 0;  // bytes from the shard's first element
  std::int64_t row_stride = 0, col_stride = 0;
};
// A shard as few of them. `shape` has two axes.
std::vector<Rect> rects_of(const model::PatternShard& shard);

// A matrix that the source quantises; ids of its own layout (value stages done).
struct Quantising {
  TensorId tensor;
  const model::BlockFormat* format = nullptr;
  bool exchange = false;  // some rank holds a part of a block
};

class QuantisedSource;
// *thread-compatible*. The layouts given must outlive it.
class Quantised {
 public:
  // Nothing (runs() is false) where the target holds no codes of what the source has in values. Errors: kUnsupported
  // naming a tensor that is tied, stored through a value transform, not a matrix, or of a dtype that is not quantised.
  // `stored`: the source before its value stages.
  static Result<Quantised> make(const model::Layout& source, const model::Layout& target, const model::Layout& stored);
  bool runs() const { return source_ != nullptr; }
  const model::Layout& source() const;
  // The matrices, in order, under ids of the plan's catalogue; the same on every rank of both sides.
  std::vector<QuantTensor> tensors(const model::Catalogue& plan) const;
  // What `rank` does. Errors: kExhausted when it shares more blocks with others than one message may carry.
  Result<QuantWork> work_of(Rank rank) const;

 private:
  std::shared_ptr<const QuantisedSource> source_;
};

}  // namespace refit::plan
