// What an engine that holds codes must have: the checkpoint's own values after the same steps, quantised whole by the
// codec's reference. Shares neither shards, plans nor exchanges with the way that the weights took.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cli/demo/model_source.h"
#include "codec/codec.h"

namespace refit::cli {

class ExpectedCodes {
 public:
  // `engine`: its layout, which must outlive this. Of a checkpoint that holds codes itself there are none.
  static Result<ExpectedCodes> make(const ModelSource& model, const model::Layout& engine);
  bool has(TensorId tensor) const { return of_.contains(tensor); }
  // All bytes of codes or scales, row-major. `values`: writes the matrix' values, in its dtype.
  template <typename Values>
  Result<std::span<const std::byte>> bytes(TensorId tensor, const Values& values) {
    const Weight& w = of_.at(tensor);
    if (held_ != w.codes) REFIT_TRY(quantise(w, values(w.tensor)));
    return std::span<const std::byte>(tensor == w.codes ? codes_ : scales_);
  }

 private:
  struct Weight {
    TensorId codes, scales;
    model::LogicalTensor tensor;  // its values
    codec::Quant quant;
  };
  Status quantise(const Weight& w, Result<std::vector<std::byte>> values);

  std::map<TensorId, Weight> of_;
  std::optional<TensorId> held_;
  std::vector<std::byte> codes_, scales_;  // of the weight held
};

}  // namespace refit::cli
