// RuleLayout: a layout that is its recipe. Ranks and patterns are made from the rules when asked for.
#pragma once
#include <algorithm>
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

// Compares a checkpoint's tensors with the configuration's. Errors: kMismatch naming tensors that are missing, unknown
// or of another shape.
Result<CheckpointFacts> read_facts(const ModelConfig& config, const Catalogue& names);

// A row that this model has, with its rule on this side and its tensors.
struct ActiveRow {
  const Row* row = nullptr;
  SideRule rule;
  std::vector<std::int64_t> layers;
  std::vector<Dims> shapes;             // by member
  std::int64_t experts = 1;             // tensors a member has in one layer
  std::size_t first = 0;                // of its tensors in RuleLayout::ids_
  std::vector<std::string_view> names;  // of parameters; empty: logical ones
  std::string_view copy;                // a second parameter that holds the same tensor
  std::size_t first_slot = 0;           // of its parameters in RuleLayout::slot_of_

  std::size_t copies() const { return copy.empty() ? 1 : 2; }
  // Parameters of one layer: experts, and members, that are not in one.
  std::size_t own_experts() const { return static_cast<std::size_t>(rule.per == Per::kStack ? 1 : experts); }
  std::size_t own_members() const { return rule.per == Per::kTensor ? shapes.size() : 1; }
  std::size_t slot(std::size_t layer, std::int64_t expert, int member, std::size_t which) const {
    const std::size_t e = rule.per == Per::kStack ? 0 : static_cast<std::size_t>(expert),
                      m = rule.per == Per::kTensor ? static_cast<std::size_t>(member) : 0;
    return first_slot + ((layer * own_experts() + e) * own_members() + m) * copies() + which;
  }
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
  Result<std::vector<Place>> places(Rank rank, std::span<const TensorId> tensors) const override;
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
    std::int64_t elements = 0;
    std::optional<DType> cast;
    struct Part {
      int member = 0;
      std::int64_t expert = -1;
      Lie lie;
    };
    std::vector<Part> parts;  // by expert
    // Those of one expert; of expert -1 where the array holds no stack.
    std::span<const Part> parts_of(std::int64_t expert) const {
      const auto range = std::ranges::equal_range(parts, expert, {}, &Part::expert);
      return {range.begin(), range.end()};
    }
  };
  // A parameter's identity; the same on every rank, in the order of the buffer.
  struct Slot {
    std::uint32_t row = 0, layer = 0;  // ordinals
    std::int64_t expert = 0;           // of a parameter of one expert
    int member = 0;                    // likewise of one member
    bool copy = false;
    DType dtype = DType::kBF16;
  };
  // A tensor's place in the tables.
  struct Ref {
    std::uint32_t row = 0, layer = 0;
    std::int64_t expert = 0;
    int member = 0;
  };
  using Templates = std::vector<std::vector<Template>>;  // by row

  Status activate_rows();
  Status build_catalogue();
  Status check_dtypes() const;
  Status build_slots();
  void seal();
  // The arrays of a row at a rank: one a member for Per::kTensor, else one.
  Result<std::vector<Template>> templates(const ActiveRow& row, const Coordinates& at) const;
  Result<Templates> all_templates(Rank rank) const;
  // Byte offset of each slot's parameter, and of the end.
  Result<std::vector<std::int64_t>> offsets(const Templates& made) const;
  std::string parameter_name(const Slot& slot) const;
  Status build_patterns() const;

  ModelConfig config_;
  Spec spec_;
  CheckpointFacts facts_;
  const Side* side_ = nullptr;
  Mesh mesh_;
  Symbols symbols_;  // of the configuration, the SPEC and the mesh
  std::vector<ActiveRow> rows_;
  Catalogue catalogue_;
  std::vector<TensorId> ids_;
  std::vector<Ref> refs_;               // by TensorId
  std::vector<Slot> slots_;             // in the order of the buffer
  std::vector<std::uint32_t> slot_of_;  // by ActiveRow::slot()
  Recipe recipe_;
  Hash128 digest_;

  // Made on first use; shared by threads behind the flag.
  mutable std::once_flag patterns_made_;
  mutable std::vector<Pattern> patterns_;
  mutable std::vector<std::uint32_t> pattern_of_;
};

}  // namespace refit::model
