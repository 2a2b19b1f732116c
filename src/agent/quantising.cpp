#include "agent/quantising.h"

#include <algorithm>
#include <cstring>

namespace refit::agent {
namespace {

using plan::QuantPart;

constexpr std::int64_t kSlabElements = 1 << 20;  // brought into rows at a time

codec::Part part_of(const QuantPart& p, DType dtype, std::int64_t stride) {
  return {p.rows.lo, p.cols.lo, p.rows.size(), p.cols.size(), stride, dtype};
}

// All parts of one tensor.
std::span<const QuantPart> parts_of(const plan::RankPlan& plan, std::uint32_t tensor) {
  const auto range = std::ranges::equal_range(plan.quant.parts, tensor, {}, &QuantPart::tensor);
  return {range.begin(), range.end()};
}

std::int64_t across(const plan::QuantTensor& t) {
  const Dims grid = t.format->scales(t.shape);
  return grid.size() == 1 ? 1 : grid[1];
}

// A long round of them must not look like a stall.
void tell(const kernel::Exec& exec, const QuantPart& p) {
  if (exec.progress != nullptr) exec.progress->done(p.rows.size() * p.cols.size());
}

// Does the codec read the part where it is stored?
bool in_place(const QuantPart& p, const plan::QuantTensor& t) {
  const std::int64_t item = item_size(t.logical), cols = p.cols.size();
  const bool rows = p.rows.size() == 1 || (p.row_stride >= cols * item && p.row_stride % item == 0);
  return p.stored == t.logical && (p.col_stride == item || cols == 1) && rows;
}

}  // namespace

Result<Quantising> Quantising::make(const plan::RankPlan& plan, const plan::Options& options) {
  Quantising out(plan, options);
  for (const plan::QuantTensor& t : plan.quantised) {
    const auto quant = codec::quant_named(t.format->name);
    const bool agrees = quant && quant->block_rows == t.format->rows && quant->block_cols == t.format->cols &&
                        quant->scale_bytes() == item_size(t.format->scale);
    if (!agrees)
      return Error(Code::kInternal, "no codec writes the format " + std::string(t.format->name))
          .at_tensor(plan.catalogue->tensors[t.codes.value].name);
    out.quants_.push_back(*quant);
  }
  return out;
}

// No other part, here or on another rank, has a share of its blocks.
bool Quantising::alone(const QuantPart& p) const {
  const plan::QuantTensor& t = plan_.quantised[p.tensor];
  const auto whole = [](Interval at, std::int64_t block, std::int64_t extent) {
    if (block == 0) return at == Interval{0, extent};
    return at.lo % block == 0 && (at.hi % block == 0 || at.hi == extent);
  };
  return whole(p.rows, t.format->rows, t.shape[0]) && whole(p.cols, t.format->cols, t.shape[1]);
}

template <typename Fn>
Status Quantising::for_slabs(const QuantPart& p, std::span<const memory::RegionRef> stored, const kernel::Exec& exec,
                             const Fn& fn) {
  const plan::QuantTensor& t = plan_.quantised[p.tensor];
  const std::byte* from = stored[p.buffer].data + p.offset;
  const std::int64_t item = item_size(t.logical), cols = p.cols.size();
  if (in_place(p, t)) {
    const codec::Part part = part_of(p, t.logical, p.rows.size() == 1 ? cols : p.row_stride / item);
    const std::int64_t bytes = ((part.rows - 1) * part.stride + cols) * item;
    return fn(part, std::span(from, static_cast<std::size_t>(bytes)), std::int64_t{0});
  }
  const std::int64_t step = std::max<std::int64_t>(1, kSlabElements / cols);
  for (std::int64_t lo = 0; lo < p.rows.size(); lo += step) {
    codec::Part part = part_of(p, t.logical, cols);
    part.row += lo;
    part.rows = std::min(step, p.rows.size() - lo);
    scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(part.rows * cols * item)));
    const Dims extents{part.rows, cols}, strides{p.row_stride, p.col_stride}, packed{cols * item, item};
    kernel::Job j;
    j.src = from + lo * p.row_stride;
    j.dst = scratch_.data();
    j.extents = extents;
    j.src_strides = strides;
    j.dst_strides = packed;
    j.src_dtype = p.stored;
    j.wire_dtype = j.dst_dtype = t.logical;
    const std::string& name = plan_.catalogue->tensors[t.codes.value].name;
    if (!kernel::run(exec, {&j, 1}, {}).empty() && !plan::cast_allowed(options_, name))
      return Error(Code::kMismatch,
                   "the trainer's stored values have more digits than the tensor's dtype; allow it with --allow-cast")
          .at_stage("seal")
          .at_tensor(name);
    REFIT_TRY(fn(part, std::span<const std::byte>(scratch_.data(), static_cast<std::size_t>(part.rows * cols * item)), lo));
  }
  return {};
}

Status Quantising::measure(std::uint32_t tensor, std::span<const QuantPart> parts,
                           std::span<const memory::RegionRef> stored, const kernel::Exec& exec, Grid& grid) {
  const codec::Quant& q = quants_[tensor];
  codec::Cells& all = grid.cells;
  for (const QuantPart& p : parts) {
    const codec::Cells c = cells_of(q, part_of(p, DType::kBF16, p.cols.size()));
    if (all.count() == 0) {
      all = c;
      continue;
    }
    const std::int64_t row = std::min(all.row, c.row), col = std::min(all.col, c.col);
    all.rows = std::max(all.row + all.rows, c.row + c.rows) - row;
    all.cols = std::max(all.col + all.cols, c.col + c.cols) - col;
    all.row = row, all.col = col;
  }
  grid.amax.assign(static_cast<std::size_t>(all.count()), 0);
  std::vector<float> amax;
  for (const QuantPart& p : parts) {
    REFIT_TRY(for_slabs(p, stored, exec, [&](const codec::Part& part, std::span<const std::byte> in, std::int64_t) -> Status {
      const codec::Cells c = cells_of(q, part);
      amax.assign(static_cast<std::size_t>(c.count()), 0);
      REFIT_ASSIGN(const codec::Findings found, codec::block_amax(q, part, in, amax));
      findings_[tensor].add(found);
      for (std::int64_t r = 0; r < c.rows; ++r)
        for (std::int64_t k = 0; k < c.cols; ++k) {
          float& most = grid.at(c.row + r, c.col + k);
          most = std::max(most, amax[static_cast<std::size_t>(r * c.cols + k)]);
        }
      return {};
    }));
    tell(exec, p);
  }
  return {};
}

Result<std::vector<float>> Quantising::shared_amax(std::span<const memory::RegionRef> stored,
                                                   const kernel::Exec& exec) {
  grids_.clear();
  findings_.clear();
  for (std::uint32_t t = 0; t < plan_.quantised.size(); ++t) {
    const std::span<const QuantPart> parts = parts_of(plan_, t);
    if (std::ranges::all_of(parts, [&](const QuantPart& p) { return alone(p); })) continue;
    REFIT_TRY(measure(t, parts, stored, exec, grids_[t]));
  }
  std::vector<float> out;
  for (const plan::SharedBlock& b : plan_.quant.shared) {
    const std::int64_t wide = across(plan_.quantised[b.tensor]);
    out.push_back(grids_.at(b.tensor).at(b.block / wide, b.block % wide));
  }
  return out;
}

// With a grid the scales of the blocks are known; without one they are this part's own.
Status Quantising::encode(const QuantPart& p, std::span<const memory::RegionRef> stored, Grid* grid, std::byte* codes,
                          const kernel::Exec& exec) {
  const codec::Quant& q = quants_[p.tensor];
  const std::int64_t item = q.scale_bytes(), cols = p.cols.size();
  const auto out = [&](std::int64_t from_row, std::int64_t rows) {
    return std::span(codes + p.codes + from_row * cols, static_cast<std::size_t>(rows * cols));
  };
  const auto own_scales = [&] {
    return std::span(codes + p.scales, static_cast<std::size_t>(p.block_rows.size() * p.block_cols.size() * item));
  };
  std::vector<float> amax;
  return for_slabs(p, stored, exec, [&](const codec::Part& part, std::span<const std::byte> in, std::int64_t lo) -> Status {
    const codec::Cells c = cells_of(q, part);
    if (grid == nullptr && part.rows == p.rows.size()) {
      REFIT_ASSIGN(const codec::Findings found, codec::quantise(q, part, in, own_scales(), out(0, part.rows)));
      findings_[p.tensor].add(found);
      return {};
    }
    amax.resize(static_cast<std::size_t>(c.count()));
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t k = 0; k < c.cols; ++k)
        amax[static_cast<std::size_t>(r * c.cols + k)] = grid->at(c.row + r, c.col + k);
    scales_.resize(static_cast<std::size_t>(c.count() * item));
    REFIT_TRY(codec::scales_of(q, amax, scales_));
    REFIT_TRY(codec::quantise_with(q, part, in, scales_, out(lo, part.rows)));
    for (std::int64_t r = std::max(c.row, p.block_rows.lo); r < std::min(c.row + c.rows, p.block_rows.hi); ++r)
      for (std::int64_t k = p.block_cols.lo; k < p.block_cols.hi; ++k)
        std::memcpy(own_scales().data() + ((r - p.block_rows.lo) * p.block_cols.size() + k - p.block_cols.lo) * item,
                    scales_.data() + ((r - c.row) * c.cols + k - c.col) * item, static_cast<std::size_t>(item));
    return {};
  });
}

Status Quantising::run(std::span<const memory::RegionRef> stored, std::span<const float> amax, std::byte* codes,
                       const kernel::Exec& exec) {
  if (amax.size() != plan_.quant.shared.size())
    return Error(Code::kInternal, "the exchange of largest magnitudes brought another number of blocks")
        .amounts(static_cast<std::int64_t>(plan_.quant.shared.size()), static_cast<std::int64_t>(amax.size()));
  for (std::size_t i = 0; i < amax.size(); ++i) {
    const plan::SharedBlock& b = plan_.quant.shared[i];
    const std::int64_t wide = across(plan_.quantised[b.tensor]);
    grids_.at(b.tensor).at(b.block / wide, b.block % wide) = amax[i];
  }
  for (const QuantPart& p : plan_.quant.parts) {
    auto grid = grids_.find(p.tensor);
    // Too large to be brought into rows at once: its blocks are measured first.
    const bool slabs = p.rows.size() * p.cols.size() > kSlabElements && !in_place(p, plan_.quantised[p.tensor]);
    if (grid == grids_.end() && slabs) {
      grid = grids_.try_emplace(p.tensor).first;
      REFIT_TRY(measure(p.tensor, parts_of(plan_, p.tensor), stored, exec, grid->second));
    }
    if (Status done = encode(p, stored, grid == grids_.end() ? nullptr : &grid->second, codes, exec); !done.ok())
      return std::move(done).error().at_tensor(plan_.catalogue->tensors[plan_.quantised[p.tensor].codes.value].name);
    tell(exec, p);
  }
  kernel::LossyCasts lossy;
  for (const auto& [tensor, found] : findings_) {
    const std::string& name = plan_.catalogue->tensors[plan_.quantised[tensor].codes.value].name;
    if (found.nans + found.infinities > 0 && !plan::cast_allowed(options_, name)) lossy.add(name);
  }
  if (lossy.empty()) return {};
  return lossy.error("quantising NaN and infinities").at_stage("seal");
}

}  // namespace refit::agent
