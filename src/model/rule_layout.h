// RuleLayout: a layout that is its recipe. Ranks and patterns are made from the rules when asked for.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/families/config.h"
#include "model/layout.h"
#include "model/rules/arrangement.h"
#include "model/sides/side.h"

namespace refit::model {

// What a checkpoint adds to its configuration.
struct CheckpointFacts {
  bool fused = false;                   // experts stacked on disk
  bool tied_copy = false;               // lm_head.weight is there although it is tied
  std::map<std::string, DType> dtypes;  // logical tensors that differ from the configuration's dtype
  friend bool operator==(const CheckpointFacts&, const CheckpointFacts&) = default;
};

// Compares a checkpoint's tensors with the configuration's. Errors: kMismatch naming tensors that are missing, unknown or
// of another shape.
Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& names);

// A row that this model has, with its rule on this side and its tensors.
struct ActiveRow {
  const Row* row = nullptr;
  SideRule rule;
  std::vector<std::int64_t> layers;
  std::vector<Dims> shapes;            // by member
  std::int64_t experts = 1;            // tensors a member has in one layer
  std::size_t first = 0;               // of its tensors in RuleLayout::ids_
  std::vector<std::string_view> names;  // of parameters; empty: logical ones
  std::string_view copy;               // a second parameter that holds the same tensor

  bool per_expert() const { return row->kind == Kind::kExpertGateUp || row->kind == Kind::kExpertDown; }
  std::size_t index(std::size_t layer, std::int64_t expert, int member) const {
    const auto e = static_cast<std::size_t>(expert < 0 ? 0 : expert);
    return first + (layer * static_cast<std::size_t>(experts) + e) * shapes.size() + static_cast<std::size_t>(member);
  }
};

class RuleLayout final : public Layout {
 public:
  static Result<std::shared_ptr<const RuleLayout>> make(ModelConfig config, Spec spec, CheckpointFacts facts);

  const Catalogue& catalogue() const override { return catalogue_; }
  std::int64_t world() const override { return mesh_.size(); }
  std::int64_t instances() const override { return spec_.number("replicas"); }
  Hash128 digest() const override { return digest_; }
  Result<RankLayout> expand(Rank rank) const override;
  std::string host(Rank rank) const override;
  std::span<const Pattern> patterns() const override;
  std::span<const std::uint32_t> pattern_of() const override;
  const Recipe* recipe() const override { return &recipe_; }
  std::string serialise() const override;

  const ModelConfig& config() const { return config_; }
  const CheckpointFacts& facts() const { return facts_; }

 private:
  // One parameter's array on one rank, for every layer alike.
  struct Template {
    Dims shape;
    std::optional<DType> cast;
    struct Part {
      int member = 0;
      std::int64_t expert = -1;
      Lie lie;
    };
    std::vector<Part> parts;
  };
  struct Draft;  // a parameter on its way into the buffer

  Status activate_rows();
  Status build_catalogue();
  Status check_dtypes() const;
  void seal();
  // The arrays of a row at a rank: one a member for Per::kTensor, else one.
  Result<std::vector<Template>> templates(const ActiveRow& row, const Coordinates& at) const;
  std::vector<Draft> drafts_of(const ActiveRow& row, const std::vector<Template>& made) const;
  Status build_patterns() const;
  std::string parameter_name(const ActiveRow& row, std::size_t name, std::int64_t layer, std::int64_t expert, int member) const;

  ModelConfig config_;
  Spec spec_;
  CheckpointFacts facts_;
  const Side* side_ = nullptr;
  Mesh mesh_;
  Symbols symbols_;  // of the configuration, the SPEC and the mesh
  std::vector<ActiveRow> rows_;
  Catalogue catalogue_;
  std::vector<TensorId> ids_;
  Recipe recipe_;
  Hash128 digest_;

  // Made on first use; shared by threads behind the flag.
  mutable std::once_flag patterns_made_;
  mutable std::vector<Pattern> patterns_;
  mutable std::vector<std::uint32_t> pattern_of_;
};

}  // namespace refit::model
