// Landing tables: where the bytes of each bucket land in a target's memory, and what that memory must hold afterwards.
// The agent lowers a plan to them; this room never sees a plan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/core.h"
#include "install/bucket_delta.h"
#include "kernel/kernel.h"

namespace refit::install {

// Loops over strided bytes of one logical tensor, as kernel::Job takes them.
struct LoopNest {
  Dims extents, src_strides, dst_strides;  // bytes
  std::vector<int> axis;
  Dims steps;
  DType src_dtype = DType::kBF16, wire_dtype = DType::kBF16, dst_dtype = DType::kBF16;
};

struct TensorRef {
  std::string name;  // logical
  Dims shape;
};

// One destination of one segment of a bucket.
struct LandingEntry {
  std::uint32_t segment = 0;  // index into the bucket's segments (lease bases)
  std::uint32_t tensor = 0;   // index into LandingTable::tensors
  std::uint32_t nest = 0;
  std::uint32_t origin = 0;
  std::uint32_t holding = 0;  // index into LandingTable::holdings
  std::uint32_t copy = 0;     // which storage of the segment this is: each storage must add up to the sealed digest
  std::int64_t dst_offset = 0;
  bool counted = false;
};

struct BucketTable {
  BucketId id;
  std::uint32_t sender = 0;  // member number
  std::uint32_t first_entry = 0, entries = 0;
  std::vector<Segment> segments;            // at the sender: what to ask for
  std::vector<std::int64_t> packed_starts;  // where each segment begins when the bucket arrives packed
  std::int64_t packed_bytes = 0;
  std::int64_t bytes = 0;
  std::vector<Section> sections{};  // of the packed bytes, where the bucket may arrive as a delta; else empty
};

// A box of a tensor in this rank's own memory: what a re-read digests.
struct HoldingRef {
  std::uint32_t tensor = 0;
  std::uint32_t nest = 0;  // src_strides describe the holding
  std::uint32_t origin = 0;
  std::uint32_t buffer = 0;
  std::int64_t offset = 0;
};

struct BufferRef {
  std::int64_t bytes = 0;
  std::uint8_t fill = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps;  // [lo, hi) where no holding lies
};

struct LandingTable {
  std::vector<TensorRef> tensors;
  std::vector<LoopNest> nests;
  std::vector<Dims> origins;
  std::vector<LandingEntry> entries;  // bucket after bucket
  std::vector<BucketTable> buckets;
  std::vector<HoldingRef> holdings;
  std::vector<BufferRef> buffers;
  // allowed[tensor]: its casts may lose values.
  std::vector<bool> lossy_cast_allowed;
  // Buckets arrive packed in the tensors' dtype, complete or as deltas.
  bool deltas = false;
};

}  // namespace refit::install
