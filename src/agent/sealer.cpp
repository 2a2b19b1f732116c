#include "agent/sealer.h"

#include <algorithm>

#include "agent/lower.h"

namespace refit::agent {

Sealer::Sealer(const plan::RankPlan& plan, std::span<const memory::RegionRef> regions, std::uint64_t digest_seed,
               const kernel::Exec& exec, const plan::Options* options)
    : plan_(plan), regions_(regions.begin(), regions.end()), exec_(exec), options_(options) {
  const std::vector<model::LogicalTensor>& tensors = plan.catalogue->tensors;
  key_of_tensor_.assign(tensors.size(), ~0u);
  for (const plan::Piece& p : plan.pieces)
    piece_place_.push_back(place({p.tensor, p.geometry, p.src_buffer, p.origin, p.src_offset}));
  seal_place_.resize(plan.seal.size());
  for (const bool counted : {true, false}) {
    for (std::size_t i = 0; i < plan.seal.size(); ++i) {
      const plan::SealBox& b = plan.seal[i];
      if (b.counted == counted) seal_place_[i] = place({b.tensor, b.geometry, b.buffer, b.origin, b.offset});
    }
    if (counted) needed_ = places_.size();
  }
  for (const Place& p : places_) {
    if (key_of_tensor_[p.tensor.value] != ~0u) continue;
    key_of_tensor_[p.tensor.value] = static_cast<std::uint32_t>(keys_.size());
    keys_.push_back(kernel::DigestKeys::make(digest_seed, tensors[p.tensor.value].name, tensors[p.tensor.value].shape));
  }
  for (const model::LogicalTensor& t : tensors) names_.push_back(t.name);
  index_.clear();
}

std::uint32_t Sealer::place(const Place& p) {
  const auto [it, fresh] =
      index_.try_emplace({p.tensor.value, p.geometry, p.buffer, p.offset}, static_cast<std::uint32_t>(places_.size()));
  if (fresh) places_.push_back(p);
  return it->second;
}

Status Sealer::scan(std::size_t count, std::vector<kernel::Digest>& out) {
  jobs_.clear();
  scanned_bytes_ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Place& p = places_[i];
    const plan::Geometry& g = plan_.geometries[p.geometry];
    kernel::Job j;
    j.src = regions_[p.buffer].data + p.offset;
    j.extents = g.extents;
    j.src_strides = g.src_strides;
    j.axis = g.axis;
    j.steps = g.steps;
    j.origin = plan_.origins[p.origin];
    j.src_dtype = g.src_dtype;
    j.wire_dtype = j.dst_dtype = g.wire_dtype;
    j.keys = &keys_[key_of_tensor_[p.tensor.value]];
    jobs_.push_back(j);
    std::int64_t n = item_size(g.src_dtype);
    for (std::int64_t e : g.extents) n *= e;
    scanned_bytes_ += n;
  }
  out.assign(count, {});
  return judge(kernel::run(exec_, jobs_, out));
}

// All at once, before anything is sent: a target would meet them bucket by bucket.
Status Sealer::judge(std::span<const kernel::Inexact> casts) const {
  if (options_ == nullptr) return {};
  kernel::LossyCasts lossy;
  for (const kernel::Inexact& i : casts)
    if (const std::string& name = names_[places_[i.job].tensor.value]; !plan::cast_allowed(*options_, name))
      lossy.add(name);
  if (lossy.empty()) return {};
  return lossy.error("the cast from the trainer's storage to what travels").at_stage("seal");
}

Result<Seal> Sealer::seal(bool groups) {
  REFIT_TRY(scan(groups ? places_.size() : needed_, last_));
  Seal out;
  for (std::size_t i = 0; i < plan_.seal.size(); ++i) {
    const plan::SealBox& b = plan_.seal[i];
    if (seal_place_[i] >= last_.size()) continue;
    if (b.counted) out.counted += last_[seal_place_[i]];
    if (groups && b.group != 0) out.groups[b.group] += last_[seal_place_[i]];
  }
  for (std::size_t i = 0; groups && i < plan_.seal.size(); ++i) {
    const plan::SealBox& b = plan_.seal[i];
    if (b.twin != plan::kNoTwin && last_[seal_place_[i]] != last_[seal_place_[b.twin]])
      return Error(Code::kMismatch,
                   "two storages of one logical box on this rank hold different bytes (a tie, or a box held twice)")
          .at_tensor(names_[b.tensor.value]);
  }
  for (const plan::Bucket& b : plan_.buckets) {
    SealedBucket sealed{.bucket = b.id, .tensors = {}};
    for (std::uint32_t p = b.first_piece; p < b.first_piece + b.pieces; ++p) {
      const TensorId tensor = plan_.pieces[p].tensor;
      // Pieces of one tensor stand together in a bucket, so the last entry is the only one to compare with.
      if (sealed.tensors.empty() || sealed.tensors.back().first != tensor)
        sealed.tensors.emplace_back(tensor, kernel::Digest{});
      sealed.tensors.back().second += last_[piece_place_[p]];
    }
    out.buckets.push_back(std::move(sealed));
  }
  return out;
}

bool Sealer::packed_as_sealed(std::size_t bucket, const std::byte* packed,
                              std::span<const install::TensorDigest> sealed) {
  const plan::Bucket& b = plan_.buckets[bucket];
  const PackedLayout layout = packed_layout(plan_, b, Pack::kWire);
  std::vector<Dims> strides(b.pieces);
  jobs_.clear();
  for (std::uint32_t i = 0; i < b.pieces; ++i) {
    const plan::Piece& p = plan_.pieces[b.first_piece + i];
    const plan::Geometry& g = plan_.geometries[p.geometry];
    strides[i] = packed_strides(g.extents, item_size(g.wire_dtype));
    kernel::Job j;
    j.src = packed + layout.starts[i];
    j.extents = g.extents;
    j.src_strides = strides[i];
    j.axis = g.axis;
    j.steps = g.steps;
    j.origin = plan_.origins[p.origin];
    j.src_dtype = j.wire_dtype = j.dst_dtype = g.wire_dtype;
    j.keys = &keys_[key_of_tensor_[p.tensor.value]];
    jobs_.push_back(j);
  }
  std::vector<kernel::Digest> digests(jobs_.size());
  kernel::run(exec_, jobs_, digests);
  std::map<std::uint32_t, kernel::Digest> sums;
  for (std::uint32_t i = 0; i < b.pieces; ++i) sums[plan_.pieces[b.first_piece + i].tensor.value] += digests[i];
  return sums.size() == sealed.size() && std::all_of(sealed.begin(), sealed.end(), [&](const install::TensorDigest& d) {
           const auto sum = sums.find(d.tensor);
           return sum != sums.end() && sum->second == d.digest;
         });
}

Status Sealer::rescan() {
  std::vector<kernel::Digest> now;
  REFIT_TRY(scan(last_.size(), now));
  for (std::size_t i = 0; i < now.size(); ++i)
    if (now[i] != last_[i])
      return Error(Code::kCorrupt, "the trainer changed bytes that were sealed and lent")
          .at_tensor(names_[places_[i].tensor.value]);
  return {};
}

}  // namespace refit::agent
