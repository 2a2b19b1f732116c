#include "facade/member.h"

#include <algorithm>
#include <map>

namespace refit::api {
namespace {
constexpr double kSliceS = 0.02;  // how often a wait for admission looks at what was heard

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::int64_t bytes_of(const model::RankLayout& rank) {
  std::int64_t bytes = 0;
  for (const model::BufferSpec& b : rank.buffers) bytes += b.bytes;
  return bytes;
}

}  // namespace

Result<std::vector<memory::RegionRef>> RankMemory::find(const model::RankLayout& rank,
                                                        const std::vector<Memory>& given) {
  const auto invalid = [](const std::string& buffer, const std::string& what) {
    return InnerError(InnerCode::kInvalid, "memory['" + buffer + "'] " + what);
  };
  for (const Memory& m : given)
    if (std::ranges::none_of(rank.buffers, [&](const model::BufferSpec& b) { return b.name == m.buffer; }))
      return invalid(m.buffer, "is no buffer of the layout's rank " + std::to_string(rank.rank.value));
  std::map<std::string_view, const Memory*> by_name;
  for (const Memory& m : given)
    if (!by_name.emplace(m.buffer, &m).second) return invalid(m.buffer, "is given twice");
  std::vector<memory::RegionRef> out;
  for (const model::BufferSpec& b : rank.buffers) {
    const auto at = by_name.find(b.name);
    if (at == by_name.end()) return invalid(b.name, "is missing: give memory for every buffer, or for none");
    const Memory& m = *at->second;
    if (m.bytes < b.bytes || (m.data == nullptr && b.bytes > 0))
      return invalid(b.name, "is too small").amounts(b.bytes, m.bytes);
    out.push_back({static_cast<std::byte*>(m.data), b.bytes, memory::Kind::kHost, nullptr});
  }
  return out;
}

Result<RankMemory> RankMemory::make(const model::RankLayout& rank, const std::vector<Memory>& given, bool shared,
                                    memory::Budget& budget) {
  RankMemory out;
  if (!given.empty()) {
    REFIT_ASSIGN(out.regions_, find(rank, given));
    return out;
  }
  for (const model::BufferSpec& b : rank.buffers) {
    if (shared) {
      REFIT_ASSIGN(memory::SharedRegion region,
                   memory::SharedRegion::make(system_env(), b.bytes, &budget, "buffer " + b.name));
      out.shared_.push_back(std::move(region));
    } else {
      REFIT_ASSIGN(memory::Arena arena, memory::Arena::make(b.bytes, &budget, "buffer " + b.name));
      out.arenas_.push_back(std::move(arena));
    }
  }
  // After the last one: the regions do not move any more.
  for (const memory::SharedRegion& r : out.shared_)
    out.regions_.push_back({r.data(), r.bytes(), memory::Kind::kHostShared, &r});
  for (const memory::Arena& a : out.arenas_)
    out.regions_.push_back({a.data(), a.bytes(), memory::Kind::kHost, nullptr});
  return out;
}

std::vector<Memory> RankMemory::describe(const model::RankLayout& rank, std::span<const memory::RegionRef> regions) {
  std::vector<Memory> out;
  for (std::size_t i = 0; i < regions.size(); ++i)
    out.push_back({rank.buffers[i].name, regions[i].data, regions[i].bytes});
  return out;
}

Result<Post> take_post(const Layout& layout, const MemberOptions& options, Role role) {
  Post post;
  post.layout = Inside::of(layout);
  post.join_timeout_s = checked_s("join_timeout_s", options.join_timeout_s);
  REFIT_ASSIGN(post.rank, post.layout->expand(Rank(options.rank)));
  const std::int64_t per = post.layout->world() / post.layout->instances();
  const MemberName name{role, static_cast<std::uint32_t>(options.rank / per),
                        static_cast<std::uint32_t>(options.rank % per)};
  REFIT_ASSIGN(const sync::JobCard card, sync::read_card(options.address));
  REFIT_ASSIGN(agent::SeatOptions seat, sync::seat_options(card, options.address, name));
  seat.threads = options.threads;
  // The shard, one copy of it (shadow or snapshot) and staging; never more.
  seat.budget_bytes = 2 * bytes_of(post.rank) + card.staging_bytes;
  REFIT_ASSIGN(post.seat, agent::Seat::make(std::move(seat)));
  REFIT_ASSIGN(post.memory, RankMemory::make(post.rank, options.memory, role == Role::kSource, post.seat->budget()));
  return post;
}

Status join(agent::Agent& agent, const Post& post) {
  const Deadline deadline = Deadline::after_s(post.join_timeout_s);
  const std::string who = post.seat->options().name.to_string();
  while (true) {
    REFIT_TRY(agent.run(Deadline::after_s(kSliceS).sooner(deadline)));
    const agent::AgentReport r = agent.report();
    if (r.welcomed) return {};
    if (r.refused && (r.rejected || deadline.over())) return InnerError(*r.refused).at_peer(who).at_stage("join");
    if (deadline.over())
      return InnerError(InnerCode::kTimeout, "the coordinator did not answer within the join timeout")
          .at_peer("coordinator")
          .at_stage("join");
  }
}

MemberReport report_of(const agent::Agent& agent, const Post& post) {
  const agent::AgentReport r = agent.report();
  MemberReport out;
  out.state = r.state;
  out.version = to_public(r.version);
  out.seal_s = seconds(r.seal_ns);
  out.stage_s = seconds(r.stage_ns);
  out.verify_s = seconds(r.verify_ns);
  out.copy_s = seconds(r.copy_ns);
  out.plan_s = seconds(r.plan_ns);
  out.bytes_sealed = r.bytes_sealed;
  out.bytes_staged = r.bytes_staged;
  out.snapshot_bytes = r.snapshot_bytes;
  out.buckets_unchanged = r.encoded.unchanged;
  out.buckets_delta = r.encoded.delta;
  out.buckets_raw = r.encoded.raw;
  out.bytes_wire = r.encoded.bytes_wire;
  out.shadow_bytes = r.shadow_bytes;
  out.buckets = r.buckets;
  out.memory_used = post.seat->budget().used();
  out.memory_peak = post.seat->budget().peak();
  return out;
}

}  // namespace refit::api
