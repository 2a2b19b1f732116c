// Lowering: from a rank's plan to what its executor works with.
#pragma once
#include "install/install.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "plan/plan.h"

namespace refit::agent {

// The strided bytes of a piece at its sender: what a pull lane asks for.
Segment segment_of(const plan::Geometry& geometry, std::uint32_t buffer, std::int64_t offset);

// In which type packed bytes travel: the sender's storage dtype, or the tensor's, in which deltas are made.
enum class Pack : std::uint8_t { kStorage, kWire };
DType packed_dtype(const plan::Geometry& geometry, Pack pack);

// How a bucket's pieces lie in packed bytes: in order, row-major, each start aligned to its item size. Both ends of a
// push compute the same.
struct PackedLayout {
  std::vector<std::int64_t> starts, ends;  // per piece
  std::int64_t bytes = 0;
};
PackedLayout packed_layout(const plan::RankPlan& plan, const plan::Bucket& bucket, Pack pack = Pack::kStorage);
// Longest runs of pieces of one item size.
std::vector<install::Section> sections_of(const plan::RankPlan& plan, const plan::Bucket& bucket);
Dims packed_strides(const Dims& extents, std::int64_t item);
// Contiguous runs of a segment, neighbours joined: their number, and where they lie.
std::int64_t runs_of(const Segment& segment);
void append_runs(const Segment& segment, const std::byte* region, std::vector<std::span<const std::byte>>& out);

// A target's landing table. `member_of` maps a source rank to its member number; `packed`
// tells how buckets arrive: packed bytes, or views of the sender's memory. Those packed as on the wire may be deltas.
install::LandingTable lower_target(const plan::RankPlan& plan, const model::Layout& target,
                                   const model::RankLayout& rank, const std::vector<std::uint32_t>& member_of,
                                   const plan::Options& options, bool packed, Pack pack = Pack::kStorage);

// Byte ranges of buffer `buffer` where no holding lies.
std::vector<std::pair<std::int64_t, std::int64_t>> gaps_of(const model::RankLayout& rank, std::uint32_t buffer);

}  // namespace refit::agent
