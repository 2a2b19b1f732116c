// Front header of plan: from two layouts to what goes where. Pure: no memory, clock, thread or file.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/core.h"
#include "model/model.h"

namespace refit::plan {

// What becomes of tensors that a side stores through a value transform (Layout::values()).
enum class Values : std::uint8_t {
  kRefuse,   // such layouts are refused by name: the caller moves bytes only
  kOutside,  // the caller undoes and applies them before and after the move; the plan moves f32 in their places
  kStages,   // the source runs RankPlan::stages before it seals; what travels is what the target installs
};

struct Options {
  std::int64_t bucket_bytes = 32 << 20;    // option `refit.bucket_bytes`
  std::int64_t staging_bytes = 256 << 20;  // smallest announced staging of any target
  bool partial = false;                    // target declares that it wants only some tensors
  bool files = false;                      // layout files: unwanted names are listed, not refused
  Values values = Values::kRefuse;
  std::vector<std::string> allow_cast;     // tensor name patterns whose casts may lose values
};

// How a piece lies in both memories. Shared by all pieces of a class; loop order is the view's factor order after
// coalescing. Logical index of axis a at loop indices i: piece.origin-independent part is Σ i_k·steps[k] over k with
// axis[k]==a.
struct Geometry {
  Dims extents;           // loop extents, outermost first; {} for one element
  Dims src_strides;       // bytes, in the sender's buffer
  Dims dst_strides;       // bytes, in the recipient's buffer; empty in a sender's plan
  std::vector<int> axis;  // logical axis that each loop belongs to
  Dims steps;             // logical indices of that axis per loop step
  DType src_dtype = DType::kBF16, wire_dtype = DType::kBF16, dst_dtype = DType::kBF16;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// A box of one logical tensor with one sender. Bytes are in the wire dtype.
struct Piece {
  TensorId tensor;
  std::uint32_t geometry = 0;
  std::uint32_t src_buffer = 0;
  std::int64_t src_offset = 0;  // bytes of the first element in the sender's buffer
  std::uint32_t origin = 0;     // index into RankPlan::origins: logical index of the first element per axis
  std::int64_t bytes = 0;
  // Target side: where it lands. A piece with several storages (ties, two holdings of one box) has several landings.
  std::uint32_t first_landing = 0, landings = 0;
};

// One destination of a piece. `counted` pieces make up the replica's version digest: each distinct logical box once
// per replica (the lowest owning rank counts it). Where only a part counts, the planner has split the piece.
struct Landing {
  std::uint32_t holding = 0;  // index into the rank's RankLayout::holdings
  std::uint32_t geometry = 0;
  std::int64_t dst_offset = 0;
  bool counted = false;
};

struct Bucket {
  BucketId id;  // unique within the sender, ascending, not dense
  Rank sender;
  std::vector<Rank> recipients;  // ascending
  std::uint32_t first_piece = 0, pieces = 0;
  std::int64_t bytes = 0;  // packed, each start aligned to its item size
};

inline constexpr std::uint32_t kNoTwin = 0xffffffffu;

// What a source digests when it seals: boxes it holds, each once per rank, for the version digest (counted: this rank
// is the lowest owner) and for comparing replicas (group: hash of the owners' ranks; 0 when it is the only owner).
struct SealBox {
  TensorId tensor;
  std::uint32_t geometry = 0;
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;
  std::uint32_t origin = 0;
  bool counted = false;
  std::uint64_t group = 0;
  std::vector<Rank> owners;  // filled only when there are several
  // Index of the seal box of this rank that holds the same logical box in another storage (a tie, a second holding):
  // both must digest equal. kNoTwin for the first or only one; twins are neither counted nor in a group.
  std::uint32_t twin = kNoTwin;
};

// A tensor whose stored values differ between the sides, and the stages that bring one to the other: first `undo` (the
// source's transform, backwards), then `apply` (the target's). Names of model/values.h; empty: none.
struct Transform {
  TensorId tensor;
  std::string undo, apply;
};

// A source's work before it seals: one of its shards, from where it is stored to the value buffer, which follows the
// buffers of its layout. There the results lie row-major in the wire's dtype.
struct ValueStage {
  TensorId tensor;
  std::string undo, apply;
  DType logical = DType::kBF16;  // of the tensor's own values
  DType stored = DType::kBF16, wire = DType::kBF16;
  Dims extents, strides;  // of the stored shard, outermost first, bytes
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;
  std::int64_t values = 0;  // bytes from the value buffer's begin
};

// A matrix that the sources quantise before they seal: its codes and scales are tensors of the plan and one atomic
// group.
struct QuantTensor {
  TensorId codes, scales;
  const model::BlockFormat* format = nullptr;
  Dims shape;                      // of the matrix
  DType logical = DType::kBF16;    // of its values
  bool exchange = false;           // blocks of it are cut over ranks, which tell each other the largest magnitudes
};

// A source's part of one such matrix: a box of one of its shards, and where the results go in its buffer of codes,
// which follows all others.
struct QuantPart {
  std::uint32_t tensor = 0;  // index into RankPlan::quantised
  Interval rows, cols;
  DType stored = DType::kBF16;
  std::uint32_t buffer = 0;
  std::int64_t offset = 0, row_stride = 0, col_stride = 0;  // bytes
  std::int64_t codes = 0;                                   // bytes from the buffer's begin; [rows, cols] dense
  // The blocks whose first element it holds: their scales are its own to send. Row-major.
  Interval block_rows, block_cols;
  std::int64_t scales = 0;
};
// A block of which this source holds a part only.
struct SharedBlock {
  std::uint32_t tensor = 0;  // index into RankPlan::quantised
  std::uint32_t block = 0;   // row-major
  friend auto operator<=>(const SharedBlock&, const SharedBlock&) = default;
};
struct QuantWork {
  std::vector<QuantPart> parts;     // by tensor
  std::vector<SharedBlock> shared;  // ascending
  std::int64_t bytes = 0;           // of the buffer of codes
};
// Of one rank: they travel in one control message, 12 bytes each.
inline constexpr std::int64_t kMaxSharedBlocks = (std::int64_t{8} << 20) / 12 - 1024;

enum class Side : std::uint8_t { kSource, kTarget };

// One rank's own part of the plan. Deterministic: same inputs, same bytes on every rank, compiler and run.
struct RankPlan {
  PlanId id;
  Side side = Side::kTarget;
  Rank rank;
  // What TensorId means in this plan: the names of both sides in byte order (a side's own catalogue when they agree).
  // Tied tensors travel under their lowest name.
  std::shared_ptr<const model::Catalogue> catalogue;
  std::vector<Geometry> geometries;
  std::vector<Dims> origins;
  std::vector<Piece> pieces;  // bucket after bucket
  std::vector<Landing> landings;
  std::vector<Bucket> buckets;    // a source: what it sends; a target: what it receives; by (sender, id)
  std::vector<SealBox> seal;      // sources only
  // Not empty: every source rank lends one buffer more than its layout has, for the results of its stages.
  std::vector<Transform> transforms;
  std::vector<ValueStage> stages;  // sources only
  std::int64_t value_bytes = 0;    // of this source's value buffer
  // Not empty: every source rank lends one buffer more, behind the values, for codes and scales.
  std::vector<QuantTensor> quantised;
  QuantWork quant;  // sources only
  bool exchanges() const;
  std::int64_t bytes_needed = 0;  // a target: each distinct logical byte once. A source: what it sends, each once
  std::int64_t bytes_moved = 0;   // summed over recipients
  std::int64_t bucket_limit = 0;  // largest bucket of this plan, equal on all ranks
  // Hash of the bucket list shared with one peer; both sides compute the same number.
  std::map<std::uint32_t, Hash128> shared_with;
};

// Does an allow_cast pattern (a name in which `*` stands for any text) name this tensor?
bool cast_allowed(const Options& options, const std::string& tensor);

// Errors list every hole, overlap, unknown name, shape or dtype disagreement with both owners (joined, at most 20 shown
// with the total count).
Result<RankPlan> make_plan(const model::Layout& source, const model::Layout& target, const Options& options, Side side,
                           Rank rank);
// Both layouts worked out once, for a caller that needs the plans of several ranks. The layouts must outlive it.
class Planner;
class Plans {
 public:
  static Result<Plans> make(const model::Layout& source, const model::Layout& target, const Options& options);
  ~Plans();
  Plans(Plans&&) noexcept;
  Plans& operator=(Plans&&) noexcept;
  Result<RankPlan> of(Side side, Rank rank) const;  // equals make_plan()'s

 private:
  explicit Plans(std::unique_ptr<Planner> planner);
  std::unique_ptr<Planner> planner_;
  PlanId id_;
};

Result<PlanId> plan_id(const model::Layout& source, const model::Layout& target, const Options& options);

struct Link {
  std::uint32_t from = 0, to = 0;  // ranks, or host ordinals when by_host
  std::int64_t bytes = 0;
};

// The world's proof and byte matrix.
struct World {
  PlanId id;
  std::int64_t bytes_needed = 0, bytes_moved = 0, bytes_local = 0;
  std::int64_t segments = 0, buckets = 0;
  double coverage = 0;  // 1.0 or the call failed
  std::vector<Link> links;
  bool by_host = false;            // above 4,096 pairs
  std::vector<std::string> hosts;  // names of host ordinals
  std::map<std::string, std::string> rank_hosts;  // "source:0" → host, of ranks whose layout names one
  std::vector<std::string> unwanted;
  std::shared_ptr<const model::Catalogue> catalogue;  // of the plan
  std::vector<Transform> transforms;                  // run by the sources before they seal
  std::vector<QuantTensor> quantised;                 // likewise
  // The most that any one rank must send (each piece once, however many receive it) or receive.
  std::int64_t bound_bytes = 0;
  std::int64_t bucket_limit = 0;
};
// One line about the stages of a plan; empty where none run.
std::string describe_stages(const World& world);
Result<World> make_world(const model::Layout& source, const model::Layout& target, const Options& options);

// Human-readable: every piece of one tensor, from whom to whom and where. Errors: kInvalid for an unknown name.
Result<std::string> explain(const model::Layout& source, const model::Layout& target, const Options& options,
                            const std::string& tensor);

}  // namespace refit::plan

#include "plan/cost.h"  // built on the above
