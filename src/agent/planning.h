// Making a rank's plan from what Configure carries.
#pragma once
#include <memory>
#include <vector>

#include "agent/bridge.h"
#include "agent/lower.h"
#include "model/model.h"
#include "plan/plan.h"
#include "transport/transport.h"
#include "wire/wire.h"

namespace refit::agent {

struct Planned {
  LayoutEpoch epoch;
  std::shared_ptr<const model::Layout> source, target;
  plan::Options options;
  Encode encode = Encode::kRaw;
  plan::RankPlan plan;
  // Of a source rank's lent regions: the buffers of its layout, the value buffer where stages run, and that of codes.
  std::size_t lent_buffers(const model::RankLayout& rank) const {
    return rank.buffers.size() + (plan.transforms.empty() ? 0 : 1) + (plan.quantised.empty() ? 0 : 1);
  }
  std::vector<wire::RosterEntry> roster;
  std::vector<transport::Peer> peers;         // the other side's members
  std::vector<std::uint32_t> member_of_rank;  // of the other side's layout ranks
  std::vector<std::string> tensors;           // names by TensorId of this side's catalogue
  std::string name_of(std::uint32_t member) const;
  bool deltas() const { return encode != Encode::kRaw; }
  Pack pack() const { return deltas() ? Pack::kWire : Pack::kStorage; }
};

// Rank of a member in its side's layout: instances are groups of consecutive ranks.
Result<Rank> layout_rank(const model::Layout& layout, const MemberName& name);

// The rank that a member's name means must be the one whose memory it lends: two equal-sized ranks that swap their
// names would otherwise swap their shards under perfect digests.
Status check_rank(const model::Layout& layout, const MemberName& name, Rank shard);

// Errors name what disagrees; layouts come from peers and are checked like any outside input.
Result<Planned> make_planned(const wire::Configure& configure, const MemberName& self);

}  // namespace refit::agent
