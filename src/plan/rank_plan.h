// Inside plan: one rank's own part, class by class and then tensor by tensor.
#pragma once
#include <unordered_map>

#include "plan/planner.h"

namespace refit::plan {

// Where a rank's shards lie: for one tensor of a tie, per class tensor, one place per shard that the rank owns.
struct Slots {
  std::vector<model::Place> places;
  std::vector<std::uint32_t> holdings;  // index into RankLayout::holdings; own rank only
  std::size_t width = 0;                // shards that the rank owns
};

// A landing or a sending place of a piece, up to the tensor's own offset.
struct Spot {
  std::uint32_t slots = 0;  // index into ClassView::slots
  std::uint32_t slot = 0;
  std::uint32_t geometry = 0;
  std::int64_t offset = 0;
  bool counted = false;
};

struct LocalPiece {
  std::uint32_t position = 0;  // of the piece among all of its tensor
  std::uint32_t stream = 0;
  std::uint32_t turn = 0, turns = 1;  // moves when ordinal % turns == turn
  std::uint32_t origin = 0;
  std::int64_t bytes = 0;
  std::uint64_t content = 0;  // hash of what it is
  Spot from;
  std::vector<Spot> landings;
};

struct LocalSeal {
  Spot at;
  std::uint32_t origin = 0;
  std::uint64_t group = 0;
  std::vector<Rank> owners;
  std::int32_t twin_back = 0;  // how many seal boxes earlier its first storage stands; 0: none
};

// One class as one rank sees it.
struct ClassView {
  const TensorClass* c = nullptr;
  std::vector<Slots> slots;
  std::vector<LocalPiece> pieces;
  std::vector<LocalSeal> seals;
  std::int64_t needed = 0;  // bytes per tensor
};

// Same words, same hash on every machine.
Hash128 hash_words(std::vector<std::uint64_t> words);

// Shards of a pattern that a rank owns: their numbers, ascending.
std::vector<std::uint32_t> owned_shards(const model::Pattern& pattern, std::uint32_t rank);

// Geometry of a box between two shards; dst strides may be null.
Geometry make_geometry(const Coords& coords, const Box& box, const Dims& src, const Dims* dst);
// Bytes from a shard's first element to a box's first element.
std::int64_t offset_in(const Flat& flat, const Dims& strides, const Box& box);

Result<RankPlan> build_rank_plan(const Planner& planner, Side side, std::uint32_t rank);

}  // namespace refit::plan
