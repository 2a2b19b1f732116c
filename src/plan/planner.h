// Inside plan: both layouts as classes of tensors; every public function starts here.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/draft.h"
#include "plan/plan.h"
#include "plan/quantising.h"
#include "plan/stages.h"

namespace refit::plan {

// One logical tensor, or the several that ties make one.
struct Group {
  std::uint32_t ordinal = 0;                  // of its lowest name, in byte order of all names
  std::span<const std::uint32_t> source, target;  // ordinals in either side's own catalogue
};

// Tensors of equal patterns on both sides.
struct TensorClass {
  Dims shape;
  DType dtype = DType::kBF16;
  Composite source, target;
  const OwnerTable* source_owners = nullptr;
  const OwnerTable* target_owners = nullptr;
  const Frame* frame = nullptr;
  const Draft* draft = nullptr;
  std::vector<std::uint32_t> sets;    // DraftPiece::recipients -> RankSets
  std::vector<std::uint32_t> groups;  // its tensors, ascending
  std::int64_t item = 0;
};

// Errors as they are found; `text()` shows at most 20 and the total.
class Findings {
 public:
  void add(std::string text, const std::string& tensor = {}) {
    if (list_.empty()) tensor_ = tensor;
    list_.push_back(std::move(text));
  }
  bool empty() const { return list_.empty(); }
  Error error() const;

 private:
  std::vector<std::string> list_;
  std::string tensor_;
};

// *thread-compatible*; immutable after make().
class Planner {
 public:
  static Result<std::unique_ptr<Planner>> make(const model::Layout& source, const model::Layout& target,
                                               const Options& options);

  const model::Layout& source() const { return *source_; }
  const model::Layout& target() const { return *target_; }
  const Options& options() const { return options_; }
  const Hosts& hosts() const { return hosts_; }
  const RankSets& sets() const { return sets_; }
  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<TensorClass>& classes() const { return classes_; }
  const std::vector<std::uint32_t>& class_of() const { return class_of_; }  // per group; kNone: nothing moves
  const std::vector<std::string>& unwanted() const { return unwanted_; }
  std::shared_ptr<const model::Catalogue> catalogue() const { return catalogue_; }
  const std::string& name(const Group& g) const { return catalogue_->tensors[g.ordinal].name; }
  const Staged& staged() const { return staged_; }
  const Quantised& quantised() const { return quantised_; }
  std::vector<QuantTensor> quant_tensors() const;
  std::vector<Transform> transforms() const;
  // Codes and their scales are one atomic group: one sender in turn, and one bucket where they fit together.
  std::uint32_t turn(std::uint32_t ordinal) const {
    const auto at = codes_of_.find(ordinal);
    return at == codes_of_.end() ? ordinal : at->second;
  }
  std::uint32_t scales_of(std::uint32_t codes) const {  // kNone: no codes
    const auto at = scales_of_.find(codes);
    return at == scales_of_.end() ? kNone : at->second;
  }
  // Does a group of so many bytes need a bucket of its own, where the open one has `fill`?
  bool opens(std::int64_t fill, std::int64_t atom) const {
    constexpr std::int64_t kAligned = 16;  // most that starts of both tensors may be moved
    return atom > 0 && atom + kAligned <= limit_ && fill + atom + kAligned > limit_;
  }
  std::int64_t limit() const { return limit_; }
  std::int64_t instance() const { return target_->world() / target_->instances(); }
  // Bucket ids: tensor ordinal above, position of the bucket's first piece in its tensor below.
  int position_bits() const { return position_bits_; }

  // Adds a finding for each cell of a class (of one rank, or of all) that no source holds.
  void find_holes(const TensorClass& c, const Ranks* only, Findings& out) const;

  static constexpr std::uint32_t kNone = 0xffffffffu;

 private:
  Planner() = default;
  Status build();
  void match_names(Findings& out);
  Status classify();
  Result<std::uint32_t> class_for(const Group& g);
  Status complete(TensorClass& c, const std::vector<std::uint32_t>& source_key,
                  const std::vector<std::uint32_t>& target_key);
  Draft draft_of(const TensorClass& c, const OwnerTable& source, const OwnerTable& target, bool targets);
  void join_scales();
  Status choose_limit();

  Staged staged_;
  Quantised quantised_;
  const model::Layout* source_ = nullptr;  // as staged, where stages run
  const model::Layout* target_ = nullptr;
  Options options_;
  Hosts hosts_;
  RankSets sets_;
  std::shared_ptr<const model::Catalogue> catalogue_;
  std::vector<std::uint32_t> members_;  // of all groups
  std::vector<Group> groups_;
  std::vector<std::uint32_t> class_of_;
  std::vector<TensorClass> classes_;
  std::vector<std::string> unwanted_;
  std::unordered_map<std::uint32_t, std::uint32_t> codes_of_, scales_of_;  // by ordinal
  std::int64_t limit_ = 0;
  int position_bits_ = 0;

  // Interned by pattern number or by the shards without their owners.
  using Key = std::vector<std::uint32_t>;
  std::vector<std::uint32_t> source_shape_, target_shape_;  // pattern -> number of its shape
  std::map<std::pair<Key, Key>, std::uint32_t> class_by_patterns_;
  std::unordered_map<std::uint64_t, std::uint32_t> plain_classes_;
  std::map<Key, OwnerTable> source_owners_, target_owners_;
  std::map<std::pair<Key, Key>, Frame> frames_;
  std::map<std::pair<Key, Key>, Draft> drafts_;
  std::map<std::pair<const Frame*, std::vector<std::int64_t>>, std::shared_ptr<const DraftPieces>> draft_pieces_;
  std::map<std::pair<const Frame*, const OwnerTable*>, std::vector<std::uint32_t>> frame_sets_;
};

}  // namespace refit::plan
