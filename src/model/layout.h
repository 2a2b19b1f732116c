// Layout: which rank holds which box of which logical tensor, and where in its memory.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/core.h"
#include "model/block_format.h"

namespace refit::model {

// A tensor in Hugging Face naming: the only namespace in which meaning is expressed.
struct LogicalTensor {
  std::string name;
  Dims shape;
  DType dtype = DType::kBF16;
  friend bool operator==(const LogicalTensor&, const LogicalTensor&) = default;
};

// The logical tensors of one model, in byte order of their names: TensorId is the ordinal. Pure, immutable after build.
struct Catalogue {
  std::vector<LogicalTensor> tensors;
  std::vector<std::pair<std::string, std::string>> tied;  // pairs of names that are one tensor
  // Ordinal of a name, or -1.
  std::int64_t find(std::string_view name) const;
};

// One rank's memory of one kind, addressed by index. Several parameters may share a buffer.
struct BufferSpec {
  std::string name;  // in layout files, and the stem of raw files
  std::int64_t bytes = 0;
  std::uint8_t fill = 0;  // byte value wherever no holding lies
  std::string file;       // optional: file name that holds the buffer's bytes (offsets from its data section)
  friend bool operator==(const BufferSpec&, const BufferSpec&) = default;
};

// (tensor, view, box) and where it lies. `offset` is the address of the box's first element (all lo); one byte stride
// per factor of the view. Stride 0 is legal on a source, strides may be negative inside the buffer.
struct Holding {
  TensorId tensor;
  std::uint32_t buffer = 0;
  View view;                   // trivial() for none
  Box box;                     // one interval per factor
  std::int64_t offset = 0;     // bytes
  Dims strides;                // bytes per factor
  DType dtype = DType::kBF16;  // storage; the wire dtype is the tensor's
  friend bool operator==(const Holding&, const Holding&) = default;
};

// A named parameter of this side, for writing its own checkpoint form. Holdings lie inside it.
struct Parameter {
  std::string name;  // this side's own name, e.g. "model.layers.0.self_attn.qkv_proj.weight"
  Dims shape;        // local
  DType dtype = DType::kBF16;
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;  // bytes in the buffer, row-major from there
  std::string value;        // the transform that makes its values from the logical ones; empty: none
};

// Where one shard of one tensor lies in one rank's memory.
struct Place {
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;  // address of the shard's first element
  friend bool operator==(const Place&, const Place&) = default;
};

// Everything one rank holds. Holdings are ordered by (tensor, box origin, offset).
struct RankLayout {
  Rank rank;
  std::string host;  // ranks with equal host share a machine; empty: a host of its own
  std::vector<BufferSpec> buffers;
  std::vector<Holding> holdings;
  std::vector<Parameter> parameters;  // empty for explicit layouts
};

// A set of tensors whose shards look alike on every rank: same shape, dtype, views, boxes and strides; only buffer and
// offset differ. About 10³ patterns describe DeepSeek-V3 on 10⁴ ranks.
struct PatternShard {
  View view;
  Box box;
  Dims strides;
  DType dtype = DType::kBF16;
  // Owners, ascending. Compact: ranks first + Σ_k i_k·step_k, 0 ≤ i_k < count_k, i_0 slowest, as an explicit generator.
  std::uint32_t first = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> progressions;  // (count, step)
  std::int64_t owners() const;
  std::vector<Rank> list() const;  // sorted
  bool owned_by(Rank rank) const;
  bool same_place(const Holding& h) const;  // equal view, box, strides and dtype
};
struct Pattern {
  Dims shape;
  DType dtype = DType::kBF16;
  std::vector<PatternShard> shards;  // empty: the tensor lies nowhere on this side (absent)
};

// A matrix in codes and the tensor of its blocks' scales: one atomic group.
struct QuantisedWeight {
  TensorId codes, scales;
  const BlockFormat* format = nullptr;
};

// Where a layout came from, when rules made it. Serialised, it is all that travels.
struct Recipe {
  std::string family;     // e.g. "llama"
  std::string spec;       // canonical SPEC, e.g. "fsdp=2,tp=2"
  Hash128 config_digest;  // of the family's own keys of config.json
  Hash128 rules_digest;   // of the rule table that was compiled
};

// Ranks [0, world()) in `instances()` equal groups of world()/instances() consecutive ranks; a target instance is a
// replica. Pure and immutable; safe to share between threads.
class Layout : public std::enable_shared_from_this<Layout> {
 public:
  virtual ~Layout() = default;
  virtual const Catalogue& catalogue() const = 0;
  // The same, keeping the layout alive; null for a layout that no shared_ptr holds.
  std::shared_ptr<const Catalogue> shared_catalogue() const {
    const std::shared_ptr<const Layout> self = weak_from_this().lock();
    return self ? std::shared_ptr<const Catalogue>(self, &catalogue()) : nullptr;
  }
  virtual std::int64_t world() const = 0;
  virtual std::int64_t instances() const = 0;
  // Canonical digest: independent of key order and white space of any file it came from.
  virtual Hash128 digest() const = 0;
  virtual Result<RankLayout> expand(Rank rank) const = 0;
  virtual std::string host(Rank rank) const = 0;  // empty: a host of its own
  // Patterns, and for each tensor (by TensorId) the index of its pattern. Shards that depend on the tensor's global
  // identity (an expert that lives on one EP rank) make patterns of their own.
  virtual std::span<const Pattern> patterns() const = 0;
  virtual std::span<const std::uint32_t> pattern_of() const = 0;
  // For each of `tensors`, and for each shard of its pattern (in order) that `rank` owns: where it lies. The planner
  // asks this of every sender of a rank; the default goes through expand(), a layout that can be quicker overrides it.
  virtual Result<std::vector<Place>> places(Rank rank, std::span<const TensorId> tensors) const;
  // For each rank, a rank (itself or a lower one) whose memory lies alike: as many holdings with the same tensors or
  // tensors of the same row of rules, buffers, offsets, extents and strides; only which boxes they are may differ, and
  // not for tied tensors. What is proven of one's bytes holds for the other's. The default: each for itself.
  virtual Result<std::vector<std::uint32_t>> alike() const;
  // Tensors that this side stores as results of a value transform, with its name. Bytes moved into or out of their
  // holdings are not their values: only a mover that runs the transform may touch them.
  virtual std::vector<std::pair<TensorId, std::string_view>> values() const { return {}; }
  // Matrices that this side holds in codes, with their scales.
  virtual std::vector<QuantisedWeight> quantised() const { return {}; }
  virtual const Recipe* recipe() const { return nullptr; }
  // Tensors of the checkpoint that the SPEC asked to pass over, by name.
  virtual std::span<const std::string> skipped() const { return {}; }
  // JSON from which read_layout() makes an equal layout (recipe with config, or explicit holdings).
  virtual std::string serialise() const = 0;
};

// places() of a layout whose expansion for that rank is at hand.
Result<std::vector<Place>> places_in(const Layout& layout, const RankLayout& mine, std::span<const TensorId> tensors);

// The layout of `ranks` explicit ranks, in any order; ranks that are missing below the highest one hold nothing.
// Errors: kInvalid naming rank, holding and rule for anything that design.md's layout-file contract refuses (boxes
// outside the shape, bytes outside the buffer, unknown tensors, bad strides…).
Result<std::shared_ptr<const Layout>> explicit_layout(Catalogue catalogue, std::vector<RankLayout> ranks,
                                                      std::int64_t instances = 1);

// A layout from rules. `config_json` is the text of config.json; `names` the logical tensors of a checkpoint (for
// dtypes and what exists), or empty to derive them from the config alone. SPEC as on the command line.
// Errors: kUnsupported for a family or side that is not built, kInvalid naming the SPEC key or config key.
Result<std::shared_ptr<const Layout>> rule_layout(std::string_view config_json, std::string_view spec,
                                                  const Catalogue* names = nullptr);

// Parses what serialise() wrote, or a layout file of the command line's contract (strict: unknown or duplicate keys,
// non-integers and an empty `ranks` are refused).
Result<std::shared_ptr<const Layout>> read_layout(std::string_view json);

}  // namespace refit::model
