#include "cli/demo/expected_codes.h"

namespace refit::cli {

Result<ExpectedCodes> ExpectedCodes::make(const ModelSource& model, const model::Layout& engine) {
  ExpectedCodes out;
  const std::vector<model::QuantisedWeight> weights = engine.quantised();
  if (weights.empty()) return out;
  REFIT_ASSIGN(const std::shared_ptr<const model::Layout> plain, model.layout("hf:vision=skip"));
  for (const model::QuantisedWeight& w : weights) {
    const std::string& name = engine.catalogue().tensors[w.codes.value].name;
    const std::int64_t at = plain->catalogue().find(name);
    if (at < 0) return Error(Code::kMismatch, "the model has no such tensor").at_tensor(name);
    const model::LogicalTensor& values = plain->catalogue().tensors[static_cast<std::size_t>(at)];
    if (values.dtype == DType::kF8E4M3) continue;
    const auto quant = codec::quant_named(w.format->name);
    REFIT_CHECK(quant);
    const Weight weight{w.codes, w.scales, values, *quant};
    out.of_.emplace(w.codes, weight);
    out.of_.emplace(w.scales, weight);
  }
  return out;
}

Status ExpectedCodes::quantise(const Weight& w, Result<std::vector<std::byte>> values) {
  if (!values.ok()) return std::move(values).error();
  const codec::Part part{0, 0, w.tensor.shape[0], w.tensor.shape[1], w.tensor.shape[1], w.tensor.dtype};
  codes_.resize(static_cast<std::size_t>(part.elements()));
  scales_.resize(static_cast<std::size_t>(cells_of(w.quant, part).count() * w.quant.scale_bytes()));
  codec::quant_reference().quantise(w.quant, part, values->data(), scales_.data(), codes_.data());
  held_ = w.codes;
  return {};
}

}  // namespace refit::cli
