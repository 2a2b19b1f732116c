// Inside of the facade: what Publisher and Receiver have in common.
#pragma once
#include <span>
#include <vector>

#include "agent/agent.h"
#include "facade/inside.h"
#include "sync/sync.h"

namespace refit::api {

// One rank's memory, its own or the caller's, in the order of the layout's buffers. *thread-compatible*.
class RankMemory {
 public:
  // kInvalid naming the buffer: unknown, missing, named twice, null or too small. Memory of our own is shareable where
  // `shared` says so.
  static Result<RankMemory> make(const model::RankLayout& rank, const std::vector<Memory>& given, bool shared,
                                 memory::Budget& budget);
  // The caller's memory in the order of the layout's buffers. kInvalid as for make().
  static Result<std::vector<memory::RegionRef>> find(const model::RankLayout& rank, const std::vector<Memory>& given);
  bool owned() const { return !shared_.empty() || !arenas_.empty(); }
  std::span<const memory::RegionRef> regions() const { return regions_; }
  static std::vector<Memory> describe(const model::RankLayout& rank, std::span<const memory::RegionRef> regions);

 private:
  std::vector<memory::SharedRegion> shared_;
  std::vector<memory::Arena> arenas_;
  std::vector<memory::RegionRef> regions_;
};

// A rank's place in its job: layout, seat and memory. Members before it in a class are destroyed after it.
struct Post {
  std::shared_ptr<const model::Layout> layout;
  model::RankLayout rank;
  std::unique_ptr<agent::Seat> seat;
  RankMemory memory;
  double join_timeout_s = 60;
};
Result<Post> take_post(const Layout& layout, const MemberOptions& options, Role role);

// Runs the agent until the coordinator has admitted it. Its refusal; kTimeout when nobody answers.
Status join(agent::Agent& agent, const Post& post);
MemberReport report_of(const agent::Agent& agent, const Post& post);

}  // namespace refit::api
