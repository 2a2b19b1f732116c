// Exports: what a source lends. Registered shared files (one descriptor each), and lends, each with a slot of the
// control page that every reader maps.
#pragma once
#include <map>
#include <mutex>
#include <set>

#include "transport/shm/card.h"

namespace refit::transport::shm {

// *thread-safe*.
class Exports {
 public:
  static Result<std::unique_ptr<Exports>> make(Env& env);

  struct Lend {
    std::uint32_t slot = 0;
    MemoryEpoch epoch;
    std::set<std::uint64_t> files;
  };
  // Registers the regions' files (a known one keeps its number) and opens a lend over them. Files that neither this nor
  // another open lend uses are dropped, so that memory which its owner gave up does not live on here.
  Result<std::pair<Lend, std::vector<LentRegion>>> lend(std::span<const memory::RegionRef> regions);
  // Ends it: its slot gets a fresh memory epoch first, so that a re-check which still
  // sees the old one has read before the memory could change.
  void revoke(const Lend& lend);
  void revoke_all();

  // A duplicate of the control page's or of a file's descriptor, with its length.
  struct Shared {
    Fd fd;
    std::int64_t bytes = 0;
  };
  Result<Shared> control() const;
  Result<Shared> file(std::uint64_t number) const;

 private:
  struct File {
    std::uint64_t device = 0, inode = 0;  // of the memfd: who it is
    Fd fd;
    std::int64_t bytes = 0;
  };
  Result<std::uint64_t> number_of(const memory::SharedRegion& region);
  Result<LentRegion> describe(const memory::RegionRef& region, std::size_t index);
  void drop_unused();
  void revoke_slot(std::uint32_t slot);

  mutable std::mutex mutex_;
  memory::SharedRegion page_;
  std::map<std::uint64_t, File> files_;
  std::map<std::uint32_t, std::set<std::uint64_t>> lends_;  // by slot
  std::uint64_t next_file_ = 1, next_epoch_ = 1;
};

}  // namespace refit::transport::shm
