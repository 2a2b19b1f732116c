// ModelLayout: what layouts made from a configuration and a SPEC have in common, whatever makes their holdings.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>

#include "model/families/config.h"
#include "model/layout.h"
#include "model/sides/side.h"

namespace refit::model {

// What a checkpoint adds to its configuration.
struct CheckpointFacts {
  bool fused = false;                   // experts stacked on disk
  std::set<std::string> copies;         // tied tensors that are there nevertheless
  std::map<std::string, DType> dtypes;  // logical tensors that differ from the configuration's dtype
  friend bool operator==(const CheckpointFacts&, const CheckpointFacts&) = default;
};

// Compares a checkpoint's tensors with the configuration's. Errors: kMismatch naming tensors that are missing, unknown
// or of another shape.
Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& names);

// Pure and immutable; safe to share between threads.
class ModelLayout : public Layout {
 public:
  const Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t instances() const override { return spec_.number("replicas"); }
  Hash128 digest() const override { return digest_; }
  std::string host(Rank rank) const override;
  const Recipe* recipe() const override { return &recipe_; }
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
