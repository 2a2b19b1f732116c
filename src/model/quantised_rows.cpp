#include "model/quantised_rows.h"

#include <algorithm>

#include "model/rules/symbols.h"

namespace refit::model {
namespace {

// The layers of a row that stay as they are.
class Kept {
 public:
  Kept(const ModelConfig& config, const Spec& spec) : config_(config), spec_(spec) {
    if (spec.given("keep"))
      for (std::string_view word : split(spec.texts.find("keep")->second, '+')) words_.push_back({word, false});
    first_ = spec.number("keep_first");
    last_ = config.size("L") - spec.number("keep_last");
  }

  Result<bool> keeps(const Row& row, std::int64_t layer) {
    const bool by_place = layer >= 0 && layer < config_.size("L") && (layer < first_ || layer >= last_);
    std::string in, out;
    for (const Member& m : row.members)
      for (std::int64_t e = 0; e < config_.experts(row); ++e) {
        const std::string name = config_.name(m.name, layer, e);
        (named(name) ? in : out) = name;
      }
    if (!in.empty() && !out.empty() && !by_place)
      return Error(Code::kInvalid, spec_.side + ": keep= names " + in + " and not " + out +
                                       ", which the engine holds in one parameter")
          .at_tensor(in);
    return by_place || !in.empty();
  }

  Status all_used() const {
    for (const auto& [word, used] : words_)
      if (!used)
        return Error(Code::kInvalid, spec_.side + ": keep=" + std::string(word) +
                                         " is in the name of no matrix that quant= would quantise");
    return {};
  }

 private:
  bool named(const std::string& tensor) {
    bool any = false;
    for (auto& [word, used] : words_)
      if (tensor.find(word) != std::string::npos) any = used = true;
    return any;
  }

  const ModelConfig& config_;
  const Spec& spec_;
  std::vector<std::pair<std::string_view, bool>> words_;
  std::int64_t first_ = 0, last_ = 0;
};

// Kernels of MXFP8 read whole blocks of a row.
Status holds(const ModelConfig& config, const Row& row, const BlockFormat& format, std::int64_t layer) {
  REFIT_ASSIGN(const std::vector<Dims> shapes, config.shapes(row));
  for (std::size_t m = 0; m < shapes.size(); ++m) {
    if (shapes[m].size() != 2)
      return Error(Code::kInternal, "rule table: " + std::string(row.members[m].name) + " is no matrix");
    if (format.scale == DType::kU8 && shapes[m][1] % format.cols != 0) {
      const std::string name = config.name(row.members[m].name, layer, 0);
      return Error(Code::kUnsupported, "quant=" + std::string(format.name) + " needs columns in multiples of " +
                                           std::to_string(format.cols) + ", not " + std::to_string(shapes[m][1]) +
                                           "; keep= leaves the tensor as it is")
          .at_tensor(name);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<ChosenRow>> choose_rows(const ModelConfig& config, const Spec& spec, std::deque<Row>& made) {
  std::vector<ChosenRow> out;
  const BlockFormat* format = spec.given("quant") ? block_format(spec.texts.find("quant")->second) : nullptr;
  if (format == nullptr)
    for (std::string_view key : {"keep", "keep_first", "keep_last"})
      if (spec.given(key) || (spec.numbers.contains(key) && spec.number(key) > 0))
        return Error(Code::kInvalid, spec.side + ": " + std::string(key) + "= without quant=");
  if (format != nullptr && (config.flag("fp8") || config.flag("mxfp4")))
    return Error(Code::kUnsupported, spec.side + ": quant= with a checkpoint whose quantization_config says that it is "
                                                 "quantised already; without quant= its codes and scales travel as "
                                                 "they are");
  if (format != nullptr && spec.given("shared"))
    return Error(Code::kUnsupported, spec.side + ": quant= and shared=fused together are not built");
  std::optional<Kept> kept;
  if (format != nullptr) kept.emplace(config, spec);
  for (const Row& row : config.family->rows) {
    if (!config.active(row)) continue;
    ChosenRow plain{&row, config.layers(row)}, codes{nullptr, {}, format};
    if (format != nullptr && row.in_blocks && row.members[0].dtype.empty()) {
      std::vector<std::int64_t> stay;
      for (std::int64_t layer : plain.layers) {
        REFIT_ASSIGN(const bool keeps, kept->keeps(row, layer));
        (keeps ? stay : codes.layers).push_back(layer);
      }
      plain.layers = std::move(stay);
    }
    if (!plain.layers.empty()) out.push_back(std::move(plain));
    if (codes.layers.empty()) continue;
    REFIT_TRY(holds(config, row, *format, codes.layers[0]));
    codes.row = &made.emplace_back(rows::codes_of(row));
    ChosenRow scales{&made.emplace_back(rows::scales_of(row, *format)), codes.layers, nullptr, format};
    out.push_back(std::move(codes));
    out.push_back(std::move(scales));
  }
  if (format != nullptr) {
    REFIT_TRY(kept->all_used());
    if (made.empty())
      return Error(Code::kUnsupported, spec.side + ": quant=" + std::string(format->name) + ": no matrix of family " +
                                           std::string(config.family->name) + " is left to quantise");
  }
  return out;
}

Program scale_program(const Program& weights, const BlockFormat& format) {
  Program out;
  for (const Op& op : weights) {
    const bool one = format.rows == 0;  // of the whole tensor
    if (op.code == OpCode::kCut && (one ? op.cut.over != "ep" : op.axis == 1)) continue;
    out.push_back(op);
    // One number an expert, not a row of one.
    const bool alone = std::ranges::none_of(weights, [](const Op& o) { return o.code == OpCode::kConcat; });
    if (op.code == OpCode::kStack && one && alone) out.push_back(op::squeeze(1));
  }
  return out;
}

}  // namespace refit::model
