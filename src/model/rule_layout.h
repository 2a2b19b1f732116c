// RuleLayout: a layout that is its recipe. Ranks and patterns are made from the rules when asked for.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "model/model_layout.h"
#include "model/quantised_rows.h"
#include "model/rules/arrangement.h"

namespace refit::model {

// A row that this model has, with its rule on this side and its tensors.
struct ActiveRow {
  const Row* row = nullptr;
  const BlockFormat *codes = nullptr, *scales = nullptr;  // as in ChosenRow
  Kind kind = Kind::kReplicated;
  Per per = Per::kTensor;
  std::vector<Program> programs;          // by own member
  std::vector<std::size_t> parameter_of;  // by member: which own member holds it
  std::vector<std::int64_t> layers;
  std::vector<std::int64_t> scanned;  // layers that one array holds; they stand in the place of experts then
  std::vector<Stage> spots;           // by layer; stage < 0: nowhere on this side
  std::vector<Dims> shapes;           // by member
  std::vector<Dims> scaled;           // of block scales on a side that cuts them as their weights: the weights' shapes
  Symbols symbols;
  std::size_t grid = 0;                // mesh that places it
  std::int64_t experts = 1;            // tensors a member has in one layer
  std::int64_t parameter_experts = 1;  // parameters a member has in one layer
  bool picks = false;                  // one parameter an expert out of tensors that hold all
  bool stacks = false;                 // its program lays the experts of one array
  bool guest = false;                  // its arrays lie behind those of another row, in its parameters
  std::size_t first = 0;               // of its tensors in RuleLayout::ids_
  std::vector<std::string> names;      // of parameters, by own member
  struct Copy {
    std::string name;
    Stage spot;
  };
  std::vector<Copy> extra;     // further parameters that hold the same tensor
  std::size_t first_slot = 0;  // of its parameters in RuleLayout::slot_of_

  bool stacked() const { return per == Per::kStack || per == Per::kStackEach; }
  bool split() const { return per == Per::kTensor || per == Per::kStackEach; }
  // This side has no place for any of it.
  bool nowhere() const {
    return std::ranges::all_of(spots, [](const Stage& s) { return s.stage < 0; });
  }
  std::size_t copies() const { return 1 + extra.size(); }
  // Parameters of one layer: experts, and members, that are not in one.
  std::size_t own_experts() const { return static_cast<std::size_t>(parameter_experts); }
  std::size_t own_members() const { return programs.size(); }
  // A member that own member `m` holds; the first for a parameter that holds none, whose dtype it shares.
  int member_in(std::size_t m) const {
    const auto found = std::ranges::find(parameter_of, m);
    return found == parameter_of.end() ? 0 : static_cast<int>(found - parameter_of.begin());
  }
  std::size_t slot(std::size_t layer, std::int64_t expert, int member, std::size_t which) const {
    const std::size_t e = stacked() ? 0 : static_cast<std::size_t>(expert),
                      m = parameter_of[static_cast<std::size_t>(member)];
    return first_slot + ((layer * own_experts() + e) * own_members() + m) * copies() + which;
  }
  std::size_t index(std::size_t layer, std::int64_t expert, int member) const {
    const auto e = static_cast<std::size_t>(expert < 0 || picks ? 0 : expert);
    return first + (layer * static_cast<std::size_t>(experts) + e) * shapes.size() + static_cast<std::size_t>(member);
  }
};

// The coordinates that a row's rule reads.
std::vector<bool> read_axes(const ActiveRow& row, const Mesh& mesh);

// A box on the ranks `first` + the free axes, strides in elements.
struct Lying {
  Lie lie;
  std::uint32_t first = 0;
};
using Lyings = std::vector<Lying>;

class RuleLayout final : public ModelLayout {
 public:
  static Result<std::shared_ptr<const RuleLayout>> make(ModelConfig config, Spec spec, CheckpointFacts facts);

  std::int64_t world() const override { return meshes_[0].size(); }
  Result<RankLayout> expand(Rank rank) const override;
  Result<std::vector<Place>> places(Rank rank, std::span<const TensorId> tensors) const override;
  Result<std::vector<std::uint32_t>> alike() const override;
  std::span<const Pattern> patterns() const override;
  std::span<const std::uint32_t> pattern_of() const override;
  std::vector<std::pair<TensorId, std::string_view>> values() const override;
  std::vector<QuantisedWeight> quantised() const override;

 private:
  // One parameter's array on one rank, for every layer alike.
  struct Template {
    Dims shape;
    std::int64_t elements = 0;
    std::optional<DType> cast;
    std::string_view value;
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
  // Of one row, at all places of the mesh that its rule does not tell apart.
  struct Templates {
    std::vector<Template> list;  // by own member, and local expert where a row picks
    Hash128 lie;                 // what alike() compares
  };
  // A parameter's identity; the same on every rank, in the order of the buffer.
  struct Slot {
    std::uint32_t row = 0, layer = 0;  // ordinals
    std::int64_t expert = 0;           // of a parameter of one expert
    int member = 0;                    // own member of the row
    std::uint32_t copy = 0;
    DType dtype = DType::kBF16;
  };
  // A tensor's place in the tables.
  struct Ref {
    std::uint32_t row = 0, layer = 0;
    std::int64_t expert = 0;
    int member = 0;
  };
  // What a rank's place in the mesh makes of each row.
  struct Made {
    std::vector<const Templates*> rows;
    std::int64_t stage = 0;
    Interval experts;      // of the rank, where experts are parameters of their own
    std::size_t part = 0;  // which share of the experts that is
  };
  // Slots of one pipeline stage, in the order of the buffer: on all its ranks, and on those with one share of the
  // experts.
  struct StageSlots {
    std::vector<std::uint32_t> everywhere;
    std::vector<std::vector<std::uint32_t>> of_part;
  };
  // Where a rank's parameters begin.
  struct Offsets {
    std::vector<std::uint32_t> slots;  // ascending
    std::vector<std::int64_t> at;      // by place in `slots`, and the end
    std::int64_t of(std::uint32_t slot) const {
      return at[static_cast<std::size_t>(std::ranges::lower_bound(slots, slot) - slots.begin())];
    }
  };

  Status activate_rows();
  Status activate(const ChosenRow& chosen, const std::vector<SideRule>& rules, const std::vector<Preset>* presets);
  // Its rule on this side. Errors: kUnsupported naming a tensor that the side has none for.
  Status choose_rule(ActiveRow& active, const std::vector<SideRule>& rules) const;
  Status join_experts(ActiveRow& active) const;
  Status take_presets(ActiveRow& active, const std::vector<Preset>& presets) const;
  Status share_out(ActiveRow& active) const;
  Status place(ActiveRow& active) const;
  Status build_catalogue();
  Status check_dtypes() const;
  Status build_slots();
  void seal();
  // The arrays of a row at a place in its mesh.
  Result<std::vector<Template>> templates(const ActiveRow& row, const Coordinates& at) const {
    return templates(row, at, row.experts);
  }
  // The same, made once for all ranks; lives as long as the layout.
  Result<const Templates*> shared_templates(std::size_t row, const Coordinates& at) const;
  Hash128 lie_hash(const ActiveRow& row, const std::vector<Template>& made) const;
  // With the first `experts` of a stack only.
  Result<std::vector<Template>> templates(const ActiveRow& row, const Coordinates& at, std::int64_t experts) const;
  Result<Template> one_template(const ActiveRow& row, const Frame& frame, std::size_t member) const;
  Result<Made> make_all(Rank rank) const;
  Interval experts_at(const ActiveRow& row, const Coordinates& at) const;
  // The array of a parameter on that rank; null when it lies elsewhere.
  const Template* find(const Made& made, const Slot& slot) const;
  void sort_by_stage();
  Result<Offsets> offsets(const Made& made) const;
  std::string parameter_name(const Slot& slot) const;
  struct RowShards;
  Result<RowShards> row_shards(const ActiveRow& row) const;
  Status build_patterns() const;

  std::vector<Mesh> meshes_;  // of the model, of the experts
  std::int64_t chunks_ = 1;
  std::deque<Row> made_rows_;  // rows of codes and scales that `quant=` asks for
  std::vector<ActiveRow> rows_;
  std::vector<TensorId> ids_;
  std::vector<Ref> refs_;               // by TensorId
  std::vector<Slot> slots_;             // in the order of the buffer
  std::vector<std::uint32_t> slot_of_;  // by ActiveRow::slot()
  std::vector<StageSlots> stages_;

  // Made on first use; shared by threads behind the flag.
  mutable std::once_flag patterns_made_;
  mutable std::vector<Pattern> patterns_;
  mutable std::vector<std::uint32_t> pattern_of_;
  mutable std::mutex made_mutex_;
  mutable std::map<std::pair<std::size_t, Coordinates>, std::unique_ptr<const Templates>> made_;
};

}  // namespace refit::model
