// Inside plan: turns a class into the pieces, landings and seal boxes of one rank.
#pragma once
#include <map>
#include <optional>

#include "plan/rank_plan.h"

namespace refit::plan {

// Shared tables of one rank plan while its classes are viewed. *thread-compatible*.
class ViewBuilder {
 public:
  ViewBuilder(const Planner& planner, Side side, std::uint32_t rank, RankPlan& plan)
      : planner_(planner), side_(side), rank_(rank), plan_(plan) {}

  // Empty when the rank has no part in the class. Errors: kExhausted when a tensor has more pieces than bucket ids.
  Result<std::optional<ClassView>> view(const TensorClass& c);
  struct Stream {
    std::uint32_t sender, set;
  };
  const std::vector<Stream>& streams() const { return streams_; }
  // Which ranks' places each class needs: (rank, member) of ClassView::slots, in order.
  struct SlotKey {
    std::uint32_t rank, member;
    bool own_target;
  };
  const std::vector<SlotKey>& slot_keys() const { return keys_; }  // of the last view

 private:
  bool takes(const DraftPiece& p);
  void add_piece(const DraftPiece& p, const Box& box, std::uint32_t position);
  void add_from(const DraftPiece& p, const Box& box, std::uint32_t position, std::uint32_t turn, std::uint32_t turns,
                const Owner& owner);
  std::vector<Spot> landings(const DraftPiece& p, const Box& box, const Flat& from, const Dims& from_strides);
  bool counts(const DraftPiece& p, const Box& box);
  Status add_seals();
  void add_seal(const Box& box, const std::vector<Owner>& owners, const std::vector<std::uint32_t>& parts);
  Spot spot(const Flat& flat, const Flats& side, std::uint32_t rank, bool target, const Box& box);
  std::uint32_t geometry(Geometry g, DType src, DType dst);
  std::uint32_t origin(const Box& box);
  std::uint32_t stream(std::uint32_t sender, std::uint32_t set);
  const Ranks& owners_of(std::uint32_t cell);
  bool receives(std::uint32_t set);
  DType storage(const Composite& side, const Flat& f) const { return side[f.member]->shards[f.shard].dtype; }

  const Planner& planner_;
  Side side_;
  std::uint32_t rank_;
  RankPlan& plan_;
  std::map<std::vector<std::int64_t>, std::uint32_t> geometries_;
  std::map<Dims, std::uint32_t> origins_;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_of_;
  std::vector<Stream> streams_;
  std::vector<std::int8_t> receives_;  // by set: -1 unknown

  // Of the class in work.
  const TensorClass* c_ = nullptr;
  ClassView out_;
  std::vector<SlotKey> keys_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::uint32_t> slots_of_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool, std::uint32_t>, std::uint32_t> slot_of_;

  // Classes share frames and owners of targets, so what follows from these two is kept from class to class.
  struct Cells {
    std::vector<Ranks> owners;  // by cell
    std::vector<bool> known;
    std::int64_t held = -1;  // elements of this rank's own cells; -1: not counted yet
  };
  std::map<std::pair<const Frame*, const OwnerTable*>, Cells> all_cells_;
  Cells* cells_ = nullptr;  // of the class in work
};

}  // namespace refit::plan
