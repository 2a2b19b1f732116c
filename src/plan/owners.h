// Inside plan: rank lists of one layout's patterns, and sets of recipients by number.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/cells.h"

namespace refit::plan {

using Ranks = std::vector<std::uint32_t>;  // ascending

// A rank and the flat from which it reads (or into which it writes) a cell.
struct Owner {
  std::uint32_t rank = 0, part = 0;
};

// Who holds each shard of a composite.
class OwnerTable {
 public:
  explicit OwnerTable(const Composite& composite);
  const Ranks& of(const Flat& flat) const { return ranks_[flat.member][flat.shard]; }
  // Ascending ranks that hold any part of the cell, each with its first part.
  std::vector<Owner> of(const Cell& cell, const std::vector<Flat>& flats) const;

 private:
  std::vector<std::vector<Ranks>> ranks_;
};

// Rank sets as small numbers. *thread-compatible*.
class RankSets {
 public:
  std::uint32_t intern(const Ranks& ranks);
  const Ranks& operator[](std::uint32_t id) const { return sets_[id]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(sets_.size()); }
  bool contains(std::uint32_t id, std::uint32_t rank) const;

 private:
  std::unordered_multimap<std::uint64_t, std::uint32_t> known_;
  std::vector<Ranks> sets_;
};

// Hosts that have ranks on both sides; -1 for all others.
struct Hosts {
  std::vector<std::int32_t> source, target;
  bool shared = false;
  static Hosts of(const model::Layout& source, const model::Layout& target);
};

}  // namespace refit::plan
