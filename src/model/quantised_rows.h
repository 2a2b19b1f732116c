// Which rows of a family an engine with `quant=` holds in codes, and the rows of codes and scales that take their place.
#pragma once
#include <deque>
#include <vector>

#include "model/block_format.h"
#include "model/families/config.h"
#include "model/sides/side.h"

namespace refit::model {

// A row as a layout activates it: with some of its layers, perhaps in another form.
struct ChosenRow {
  const Row* row = nullptr;
  std::vector<std::int64_t> layers;
  const BlockFormat* codes = nullptr;   // its tensors are codes of this format
  const BlockFormat* scales = nullptr;  // its tensors are scales; the row of codes stands before it
};

// All active rows, in the family's order. `made` keeps the rows that are made here. Errors: kUnsupported for a
// configuration that is quantised already, or for matrices that the format cannot hold; kInvalid for a keep= that
// matches nothing, or only a part of what the engine keeps in one parameter.
Result<std::vector<ChosenRow>> choose_rows(const ModelConfig& config, const Spec& spec, std::deque<Row>& made);

// The rule of a row of scales that are not cut as their blocks: out of the weights' rule, without the cuts of axes that
// all scales share.
Program scale_program(const Program& weights, const BlockFormat& format);

}  // namespace refit::model
