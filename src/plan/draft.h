// Inside plan: the pieces of a class before bucket sizes are known: which owner sends what to whom.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/frame.h"

namespace refit::plan {

inline constexpr std::int64_t kRotateBelowBytes = 64 << 10;  // smaller pieces go whole, from owners in turn

struct DraftPiece {
  Box box;
  std::uint32_t overlap = 0;     // into Frame::overlaps
  std::uint32_t owners = 0;      // into Draft::owners
  std::int32_t turn = 0;         // which owner sends; -1: the tensor ordinal decides
  std::uint32_t recipients = 0;  // a group of the frame, or a set of `sets` when that is filled
};

using DraftPieces = std::vector<DraftPiece>;  // in order of origin

struct Draft {
  std::vector<std::vector<Owner>> owners;
  std::shared_ptr<const DraftPieces> shared;  // between drafts of one frame whose atoms have as many owners each
  std::vector<Ranks> sets;  // filled when hosts or overlapping cells decide who receives together
  const DraftPieces& pieces() const { return *shared; }
  // The owner that sends a piece of the tensor with this ordinal.
  const Owner& sender(const DraftPiece& p, std::uint32_t ordinal) const {
    const auto& list = owners[p.owners];
    return list[p.turn >= 0 ? static_cast<std::size_t>(p.turn) : ordinal % list.size()];
  }
};

struct DraftInput {
  const Frame& frame;
  const OwnerTable& source;
  const OwnerTable& target;
  const Hosts& hosts;
  std::int64_t item = 0;      // bytes of a wire element
  std::int64_t instance = 0;  // target ranks per instance
};

// True when a draft depends on who the recipients are, not only on the frame and the source's owners.
bool needs_targets(const Frame& frame, const Hosts& hosts);
Draft make_draft(const DraftInput& in);
// Owners alone, as a draft that does not need the targets has them: one list for each atom that is wanted.
std::vector<std::vector<Owner>> draft_owners(const Frame& frame, const OwnerTable& source);

// A piece cut so that each part fits a bucket of `limit` bytes; parts are boxes, in row-major order.
std::int64_t split_count(const Box& box, std::int64_t item, std::int64_t limit);
std::vector<Box> split_box(const Box& box, std::int64_t item, std::int64_t limit);

}  // namespace refit::plan
