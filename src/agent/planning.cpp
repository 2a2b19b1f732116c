#include "agent/planning.h"

namespace refit::agent {

Result<Rank> layout_rank(const model::Layout& layout, const MemberName& name) {
  const std::int64_t per = layout.world() / layout.instances();
  if (name.instance >= static_cast<std::uint64_t>(layout.instances()) || name.rank >= static_cast<std::uint64_t>(per))
    return Error(Code::kMismatch, "the layout has " + std::to_string(layout.instances()) + " instances of " +
                                      std::to_string(per) + " ranks")
        .at_peer(name.to_string());
  return Rank(static_cast<std::uint32_t>(static_cast<std::int64_t>(name.instance) * per + name.rank));
}

Status check_rank(const model::Layout& layout, const MemberName& name, Rank shard) {
  REFIT_ASSIGN(const Rank named, layout_rank(layout, name));
  if (named == shard) return {};
  return Error(Code::kMismatch, "the shard is layout rank " + std::to_string(shard.value) +
                                    ", the member's name means rank " + std::to_string(named.value))
      .at_peer(name.to_string());
}

Result<Planned> make_planned(const wire::Configure& configure, const MemberName& self) {
  Planned out;
  out.epoch = configure.layout_epoch;
  out.roster = configure.roster;
  REFIT_ASSIGN(out.source, model::read_layout(to_text(configure.source_layout)));
  REFIT_ASSIGN(out.target, model::read_layout(to_text(configure.target_layout)));
  REFIT_ASSIGN(JobOptions options, options_from_json(configure.options_json));
  out.options = std::move(options.plan);
  out.options.values = plan::Values::kStages;
  out.encode = options.encode;
  out.options.staging_bytes = std::min(
      out.options.staging_bytes, configure.staging_bytes > 0 ? configure.staging_bytes : out.options.staging_bytes);

  const bool source = self.role == Role::kSource;
  const model::Layout& mine = source ? *out.source : *out.target;
  const model::Layout& theirs = source ? *out.target : *out.source;
  REFIT_ASSIGN(const Rank rank, layout_rank(mine, self));
  out.member_of_rank.assign(static_cast<std::size_t>(theirs.world()), wire::kNoMember);
  for (const wire::RosterEntry& e : configure.roster) {
    if (e.name.role == self.role) continue;
    REFIT_ASSIGN(const Rank their_rank, layout_rank(theirs, e.name));
    out.member_of_rank[their_rank.value] = e.member;
    out.peers.push_back({.member = e.member, .incarnation = e.incarnation, .card = e.card, .name = e.name.to_string()});
  }
  REFIT_ASSIGN(out.plan, plan::make_plan(*out.source, *out.target, out.options,
                                         source ? plan::Side::kSource : plan::Side::kTarget, rank));
  for (const plan::Bucket& b : out.plan.buckets)
    if (!source && out.member_of_rank[b.sender.value] == wire::kNoMember)
      return Error(Code::kMismatch, "source rank " + std::to_string(b.sender.value) +
                                        " is planned as a sender but is not in the roster");
  for (const model::LogicalTensor& t : mine.catalogue().tensors) out.tensors.push_back(t.name);
  return out;
}

std::string Planned::name_of(std::uint32_t member) const {
  for (const wire::RosterEntry& e : roster)
    if (e.member == member) return e.name.to_string();
  return "member " + std::to_string(member);
}

}  // namespace refit::agent
