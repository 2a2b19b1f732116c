// Where the demo's weights come from: a checkpoint directory, or random values for a configuration by name.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/core.h"
#include "engine/engine.h"
#include "files/files.h"
#include "model/model.h"

namespace refit::cli {

class ModelSource {
 public:
  // DIR with config.json and safetensors, or NAME[@layers=N] of a built-in configuration. Errors: kInvalid listing
  // both.
  static Result<ModelSource> open(const std::string& model);

  const std::string& name() const { return name_; }
  bool from_checkpoint() const { return checkpoint_ != nullptr; }
  const std::string& config() const { return config_; }  // text of config.json
  Result<std::shared_ptr<const model::Layout>> layout(const std::string& spec) const;
  Status fill(engine::ReferenceTrainer& trainer, std::uint64_t seed) const;
  // `count` consecutive elements of a logical tensor, before any training step.
  void read(const model::LogicalTensor& tensor, std::uint64_t seed, std::int64_t linear, std::byte* out,
            std::int64_t count) const;
  // A tensor's bytes in the checkpoint; empty without one.
  std::span<const std::byte> checkpoint_bytes(const std::string& tensor) const;
  // Every tensor that `layout` names has bytes of the right size here.
  Status covers(const model::Layout& layout) const;

 private:
  std::string name_, config_;
  std::shared_ptr<const files::Checkpoint> checkpoint_;
};

// How many bytes of `engine` were compared with the model after `steps` training-like steps.
struct Witness {
  std::int64_t bytes = 0;
};
// An independent reading: the checkpoint's own bytes plus the same steps, compared byte for byte with what lies live at
// the places the rank's layout names, through the engine's value transforms. `trainer`: its layout, whose transforms
// round what each step leaves; null where that is not known. kCorrupt naming tensor and element.
Result<Witness> compare_live(const ModelSource& model, std::uint64_t seed, const engine::StepRule& rule,
                             std::int64_t steps, engine::ReferenceEngine& engine,
                             const model::Layout* trainer = nullptr);

}  // namespace refit::cli
