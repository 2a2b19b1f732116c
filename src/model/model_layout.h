// ModelLayout: what layouts made from a configuration and a SPEC have in common, whatever makes their holdings.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/families/config.h"
#include "model/layout.h"
#include "model/sides/side.h"

namespace refit::model {

// What a checkpoint adds to its configuration.
struct CheckpointFacts {
  bool fused = false;                     // experts stacked on disk
  std::set<std::string> copies;           // tied tensors that are there nevertheless
  std::map<std::string, DType> dtypes;    // logical tensors that differ from the configuration's dtype
  std::string prefix = {};                // what stands for "model." in its names; empty: nothing does
  std::vector<std::string> skipped = {};  // parts that are no language model; not part of a recipe
  friend bool operator==(const CheckpointFacts&, const CheckpointFacts&) = default;
};

inline constexpr std::string_view kLanguagePart = "model.language_model.";

// Compares a checkpoint's tensors with the configuration's. `skip_vision`: those of other parts than the language model
// are passed over. Errors: kMismatch naming tensors that are missing and unknown, both, or one of another shape;
// kUnsupported naming other parts.
Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& names, bool skip_vision);

// Pure and immutable; safe to share between threads.
class ModelLayout : public Layout {
 public:
  const Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t instances() const override { return spec_.number("replicas"); }
  Hash128 digest() const override { return digest_; }
  std::string host(Rank rank) const override;
  const Recipe* recipe() const override { return &recipe_; }
  std::span<const std::string> skipped() const override { return facts_.skipped; }
  std::string serialise() const override;

  const ModelConfig& config() const { return config_; }
  const CheckpointFacts& facts() const { return facts_; }

 protected:
  // Recipe and digest; `rules` is of the compiled tables.
  void seal(Hash128 rules);

  ModelConfig config_;
  Spec spec_;
  CheckpointFacts facts_;
  const Side* side_ = nullptr;
  Catalogue catalogue_;
  Recipe recipe_;
  Hash128 digest_;
};

// The layout of a SPEC: by rules, or, where a trainer flattens its parameters, of its flat buffers.
Result<std::shared_ptr<const ModelLayout>> make_layout(ModelConfig config, Spec spec, CheckpointFacts facts);

}  // namespace refit::model
