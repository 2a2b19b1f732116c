#include "cli/demo/model_source.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "cli/demo/expected_codes.h"

namespace refit::cli {

Result<ModelSource> ModelSource::open(const std::string& model) {
  ModelSource out;
  out.name_ = model;
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored)) {
    REFIT_ASSIGN(files::Checkpoint checkpoint, files::Checkpoint::open(model));
    out.checkpoint_ = std::make_shared<const files::Checkpoint>(std::move(checkpoint));
    out.config_ = out.checkpoint_->config_json();
    return out;
  }
  Result<std::string> config = model::builtin_config(model);
  if (!config.ok())
    return Error(Code::kInvalid,
                 "--model '" + model +
                     "' is neither a checkpoint directory nor a built-in configuration: " + config.error().message);
  out.config_ = std::move(*config);
  return out;
}

Result<std::shared_ptr<const model::Layout>> ModelSource::layout(const std::string& spec) const {
  return checkpoint_ ? files::checkpoint_layout(*checkpoint_, spec) : model::rule_layout(config_, spec);
}

Status ModelSource::covers(const model::Layout& layout) const {
  if (!checkpoint_) return {};
  std::set<std::string> codes, scales;  // made of the checkpoint's values, where it holds none itself
  for (const model::QuantisedWeight& q : layout.quantised()) {
    const std::string& scale = layout.catalogue().tensors[q.scales.value].name;
    if (checkpoint_->find(scale) != nullptr) continue;
    codes.insert(layout.catalogue().tensors[q.codes.value].name);
    scales.insert(scale);
  }
  for (const model::LogicalTensor& t : layout.catalogue().tensors) {
    if (scales.contains(t.name)) continue;
    const files::TensorRef* held = checkpoint_->find(t.name);
    if (held == nullptr) return Error(Code::kMismatch, "the checkpoint has no such tensor").at_tensor(t.name);
    if (held->shape != t.shape || (held->dtype != t.dtype && !codes.contains(t.name)))
      return Error(Code::kMismatch, "the checkpoint has another shape or dtype").at_tensor(t.name);
  }
  return {};
}

Status ModelSource::fill(engine::ReferenceTrainer& trainer, std::uint64_t seed) const {
  if (!checkpoint_) {
    trainer.randomise(seed);
    return {};
  }
  return trainer.load([this](const std::string& name) { return checkpoint_bytes(name); });
}

std::span<const std::byte> ModelSource::checkpoint_bytes(const std::string& tensor) const {
  const files::TensorRef* held = checkpoint_ ? checkpoint_->find(tensor) : nullptr;
  return held ? held->bytes : std::span<const std::byte>{};
}

void ModelSource::read(const model::LogicalTensor& tensor, std::uint64_t seed, std::int64_t linear, std::byte* out,
                       std::int64_t count) const {
  if (!checkpoint_) return engine::initial_values(seed, tensor.name, tensor.dtype, linear, out, count);
  const std::int64_t item = item_size(tensor.dtype);
  std::memcpy(out, checkpoint_->find(tensor.name)->bytes.data() + linear * item,
              static_cast<std::size_t>(count * item));
}

namespace {

// Name of a tensor -> the transform that a layout stores it through.
std::map<std::string, std::string> values_of(const model::Layout& layout) {
  std::map<std::string, std::string> out;
  for (const auto& [tensor, value] : layout.values()) out.emplace(layout.catalogue().tensors[tensor.value].name, value);
  return out;
}

std::string value_in(const std::map<std::string, std::string>& values, const std::string& tensor) {
  const auto at = values.find(tensor);
  return at == values.end() ? std::string() : at->second;
}

// Logical values as they come back from storage behind a transform.
Status through(const std::string& value, DType dtype, std::vector<std::byte>& logical) {
  if (value.empty()) return {};
  std::vector<float> stored(logical.size() / static_cast<std::size_t>(item_size(dtype)));
  REFIT_TRY(model::store_values(value, dtype, logical.data(), stored));
  return model::undone_values(value, dtype, stored, logical.data());
}

}  // namespace

Result<Witness> compare_live(const ModelSource& model, std::uint64_t seed, const engine::StepRule& rule,
                             std::int64_t steps, engine::ReferenceEngine& engine, const model::Layout* trainer) {
  Witness out;
  std::vector<std::byte> expected;
  std::vector<float> values;
  const auto stored_by_trainer = trainer ? values_of(*trainer) : std::map<std::string, std::string>();
  const auto stored_by_engine = values_of(*engine.layout());
  const model::RankLayout& rank = engine.rank_layout();
  REFIT_ASSIGN(ExpectedCodes codes, ExpectedCodes::make(model, *engine.layout()));
  // Values of a tensor, or of a part of it, after the steps.
  const auto stepped = [&](const model::LogicalTensor& tensor, const std::string& from, std::int64_t linear,
                           std::int64_t count, std::vector<std::byte>& to) -> Status {
    to.resize(static_cast<std::size_t>(count * item_size(tensor.dtype)));
    model.read(tensor, seed, linear, to.data(), count);
    REFIT_TRY(through(from, tensor.dtype, to));
    for (std::int64_t s = 1; s <= steps; ++s) {
      engine::apply_step(rule, s, tensor.name, tensor.dtype, linear, to.data(), count);
      REFIT_TRY(through(from, tensor.dtype, to));
    }
    return {};
  };
  const auto whole = [&](const model::LogicalTensor& tensor) -> Result<std::vector<std::byte>> {
    std::vector<std::byte> all;
    REFIT_TRY(stepped(tensor, "", 0, tensor.shape[0] * tensor.shape[1], all));
    return all;
  };
  for (const model::Holding& h : rank.holdings) {
    const model::LogicalTensor& tensor = engine.layout()->catalogue().tensors[h.tensor.value];
    const std::string from = value_in(stored_by_trainer, tensor.name), to = value_in(stored_by_engine, tensor.name);
    const bool wide = h.dtype == DType::kF32 && tensor.dtype == DType::kBF16;
    if (h.dtype != tensor.dtype && !wide)
      return Error(Code::kUnsupported, "the witness compares storage in the tensor's own dtype").at_tensor(tensor.name);
    const std::int64_t stored = item_size(h.dtype);
    std::int64_t wrong = -1;
    Status failed;
    const auto expect = [&](std::int64_t linear, std::int64_t count) -> Status {
      if (codes.has(h.tensor)) {
        REFIT_ASSIGN(const std::span<const std::byte> all, codes.bytes(h.tensor, whole));
        const auto part = all.subspan(static_cast<std::size_t>(linear * stored), static_cast<std::size_t>(count * stored));
        expected.assign(part.begin(), part.end());
        return {};
      }
      REFIT_TRY(stepped(tensor, from, linear, count, expected));
      if (to.empty() && !wide) return {};
      values.resize(static_cast<std::size_t>(count));
      REFIT_TRY(model::store_values(to, tensor.dtype, expected.data(), values));
      expected.resize(static_cast<std::size_t>(count * stored));
      std::memcpy(expected.data(), values.data(), expected.size());
      return {};
    };
    engine::for_each_run(tensor, h, engine.regions()[h.buffer].data,
                         [&](std::int64_t linear, std::byte* live, std::int64_t count) {
                           if (wrong >= 0 || !failed.ok()) return;
                           failed = expect(linear, count);
                           if (failed.ok() && std::memcmp(expected.data(), live, expected.size()) != 0) wrong = linear;
                           out.bytes += count * stored;
                         });
    REFIT_TRY(failed);
    if (wrong >= 0)
      return Error(Code::kCorrupt, "live bytes differ from the checkpoint plus " + std::to_string(steps) +
                                       " steps in the run that starts at element " + std::to_string(wrong))
          .at_tensor(tensor.name);
  }
  return out;
}

}  // namespace refit::cli
