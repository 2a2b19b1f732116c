#include "agent/packer.h"

#include <array>

namespace refit::agent {
namespace {
// Bytes of a run, on average; shorter runs cost more as a scatter list than as a copy.
constexpr std::int64_t kShortestRun = 256;
}  // namespace

Packer::Packer(const Planned& planned, std::span<const memory::RegionRef> lent, const kernel::Exec& exec)
    : planned_(planned), plan_(planned.plan), lent_(lent.begin(), lent.end()), exec_(exec) {
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const plan::Bucket& bucket = plan_.buckets[b];
    layouts_.push_back(packed_layout(plan_, bucket, planned.pack()));
    largest_ = std::max(largest_, layouts_.back().bytes);
    std::int64_t count = 0;
    bool casts = false;
    for (std::uint32_t i = 0; i < bucket.pieces; ++i) {
      const plan::Piece& p = plan_.pieces[bucket.first_piece + i];
      const plan::Geometry& g = plan_.geometries[p.geometry];
      count += runs_of(segment_of(g, p.src_buffer, p.src_offset));
      casts = casts || packed_dtype(g, planned.pack()) != g.src_dtype;
    }
    needs_copy_.push_back(casts || (count > 0 && bucket.bytes / count < kShortestRun));
  }
  find_packed();
}

void Packer::rebind(std::span<const memory::RegionRef> lent) {
  lent_.assign(lent.begin(), lent.end());
  find_packed();
}

// Neighbouring regions may join by chance: this depends on where they lie.
void Packer::find_packed() {
  std::vector<std::span<const std::byte>> runs;
  lies_packed_.assign(plan_.buckets.size(), false);
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    if (needs_copy_[b]) continue;
    parts(b, runs);
    lies_packed_[b] = runs.size() == 1;
  }
}

void Packer::parts(std::size_t bucket, std::vector<std::span<const std::byte>>& out) const {
  static constexpr std::array<std::byte, 16> kPad{};
  const plan::Bucket& b = plan_.buckets[bucket];
  const PackedLayout& layout = layouts_[bucket];
  out.clear();
  std::int64_t at = 0;
  for (std::uint32_t i = 0; i < b.pieces; ++i) {
    const plan::Piece& p = plan_.pieces[b.first_piece + i];
    const Segment s = segment_of(plan_.geometries[p.geometry], p.src_buffer, p.src_offset);
    if (layout.starts[i] > at) out.emplace_back(kPad.data(), static_cast<std::size_t>(layout.starts[i] - at));
    append_runs(s, lent_[s.region].data, out);
    at = layout.ends[i];
  }
}

Status Packer::pack(std::size_t bucket, std::byte* to) const {
  const plan::Bucket& b = plan_.buckets[bucket];
  const PackedLayout& layout = layouts_[bucket];
  std::vector<Dims> strides(b.pieces);
  std::vector<kernel::Job> jobs;
  for (std::uint32_t i = 0; i < b.pieces; ++i) {
    const plan::Piece& p = plan_.pieces[b.first_piece + i];
    const plan::Geometry& g = plan_.geometries[p.geometry];
    const DType packed = packed_dtype(g, planned_.pack());
    strides[i] = packed_strides(g.extents, item_size(packed));
    kernel::Job j;
    j.src = lent_[p.src_buffer].data + p.src_offset;
    j.dst = to + layout.starts[i];
    j.extents = g.extents;
    j.src_strides = g.src_strides;
    j.dst_strides = strides[i];
    j.src_dtype = g.src_dtype;
    j.wire_dtype = j.dst_dtype = packed;
    jobs.push_back(j);
  }
  for (const kernel::Inexact& i : kernel::run(exec_, jobs, {})) {
    const std::string& name = plan_.catalogue->tensors[plan_.pieces[b.first_piece + i.job].tensor.value].name;
    if (!plan::cast_allowed(planned_.options, name))
      return Error(Code::kMismatch, "a cast changes the value at element " + std::to_string(i.linear) +
                                        " of the piece; allow it with --allow-cast")
          .at_bucket(std::to_string(b.id.value))
          .at_tensor(name);
  }
  return {};
}

}  // namespace refit::agent
