// A source's matrices in the codes that its targets install, block by block, before anything is sealed.
#pragma once
#include <map>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "kernel/kernel.h"
#include "memory/memory.h"
#include "plan/plan.h"

namespace refit::agent {

// *thread-compatible*. The plan and the options must outlive it.
class Quantising {
 public:
  static Result<Quantising> make(const plan::RankPlan& plan, const plan::Options& options);
  // Largest magnitudes of this rank's parts of the blocks that it shares, in the order of plan.quant.shared.
  Result<std::vector<float>> shared_amax(std::span<const memory::RegionRef> stored, const kernel::Exec& exec);
  // Writes codes and scales into the buffer of codes. `amax`: those of the whole blocks, in the same order. Errors:
  // kMismatch listing the tensors that hold NaN or an infinity, where no cast of theirs is allowed.
  Status run(std::span<const memory::RegionRef> stored, std::span<const float> amax, std::byte* codes,
             const kernel::Exec& exec);

 private:
  // Largest magnitudes of the blocks that the rank's parts of one tensor touch.
  struct Grid {
    codec::Cells cells;
    std::vector<float> amax;
    float& at(std::int64_t row, std::int64_t col) {
      return amax[static_cast<std::size_t>((row - cells.row) * cells.cols + col - cells.col)];
    }
  };
  Quantising(const plan::RankPlan& plan, const plan::Options& options) : plan_(plan), options_(options) {}
  bool alone(const plan::QuantPart& part) const;
  Status measure(std::uint32_t tensor, std::span<const plan::QuantPart> parts,
                 std::span<const memory::RegionRef> stored, const kernel::Exec& exec, Grid& grid);
  Status encode(const plan::QuantPart& part, std::span<const memory::RegionRef> stored, Grid* grid, std::byte* codes,
                const kernel::Exec& exec);
  // The part's values, slab after slab of rows, in memory that the codec reads.
  template <typename Fn>
  Status for_slabs(const plan::QuantPart& part, std::span<const memory::RegionRef> stored, const kernel::Exec& exec,
                   const Fn& fn);

  const plan::RankPlan& plan_;
  const plan::Options& options_;
  std::vector<codec::Quant> quants_;     // by tensor of the plan's list
  std::map<std::uint32_t, Grid> grids_;  // of tensors with blocks that are not one part's alone
  std::map<std::uint32_t, codec::Findings> findings_;
  std::vector<std::byte> scratch_, scales_;
};

}  // namespace refit::agent
