#include "plan/cost.h"

#include <algorithm>
#include <charconv>

#include "plan/plan.h"

namespace refit::plan {
namespace {

// Where one end of a matrix entry lies.
struct End {
  std::string rank;  // "source:3"; empty where the entry stands for a whole host
  std::string host;
};

End end_of(const World& w, std::uint32_t number, const char* side, std::int64_t ranks_per_host) {
  std::string name = w.by_host ? w.hosts[number] : std::string(side) + ":" + std::to_string(number);
  if (!w.by_host && !w.rank_hosts.empty()) {
    const auto named = w.rank_hosts.find(name);
    if (named != w.rank_hosts.end()) return {std::move(name), named->second};
  }
  const std::string prefix = std::string(side) + ":";
  std::int64_t rank = -1;
  if (name.starts_with(prefix)) {
    const char* digits = name.data() + prefix.size();
    const auto [stop, error] = std::from_chars(digits, name.data() + name.size(), rank);
    if (error != std::errc() || stop != name.data() + name.size()) rank = -1;
  }
  if (rank < 0) return {{}, std::move(name)};
  return {std::move(name), std::string(side) + "-host:" + std::to_string(rank / ranks_per_host)};
}

class Ports {
 public:
  void add(const std::string& name, bool out, bool local, double rate, std::int64_t bytes) {
    if (rate <= 0) return;
    Port& p = ports_[{name, out, local}];
    p.name = name, p.out = out, p.local = local, p.rate = rate;
    p.bytes += bytes;
  }
  std::vector<Port> busiest_first() {
    std::vector<Port> all;
    for (auto& [key, p] : ports_) {
      p.seconds = static_cast<double>(p.bytes) / p.rate;
      all.push_back(std::move(p));
    }
    std::ranges::stable_sort(all, [](const Port& a, const Port& b) { return a.seconds > b.seconds; });
    return all;
  }

 private:
  std::map<std::tuple<std::string, bool, bool>, Port> ports_;
};

}  // namespace

Status check_links(const LinkTable& t) {
  const auto bad = [](const char* key, const char* why) { return Error(Code::kInvalid, std::string("--links: ") + key + " " + why); };
  if (t.ranks_per_host < 1) return bad("ranks_per_host", "must be at least 1");
  for (const auto& [key, v] : {std::pair{"nic_gbps_per_rank", t.nic_rank}, {"nic_gbps_per_host", t.nic_host}, {"local_gbps_per_rank", t.local}})
    if (!(v >= 0)) return bad(key, "must not be negative");
  for (const auto& [host, v] : t.nic_of_host)
    if (!(v > 0)) return bad(("hosts." + host).c_str(), "must be positive");
  if (t.nic_rank == 0 && t.nic_host == 0 && t.nic_of_host.empty()) return bad("nic_gbps_per_rank, nic_gbps_per_host", "are both missing");
  if (!(t.efficiency > 0 && t.efficiency <= 1)) return bad("efficiency", "must lie in (0, 1]");
  if (!(t.latency_s >= 0)) return bad("latency_us", "must not be negative");
  return {};
}

Result<Cost> cost_of(const World& w, const LinkTable& t) {
  REFIT_TRY(check_links(t));
  Cost out;
  Ports ports;
  std::map<std::string, std::int64_t> senders;
  bool by_rank = true;
  for (const Link& l : w.links) {
    const End from = end_of(w, l.from, "source", t.ranks_per_host), to = end_of(w, l.to, "target", t.ranks_per_host);
    const bool local = from.host == to.host;
    (local ? out.bytes_local : out.bytes_network) += l.bytes;
    for (const End* e : {&from, &to}) {
      const bool sends = e == &from;
      by_rank = by_rank && !e->rank.empty();
      if (local) {
        ports.add(e->rank.empty() ? e->host : e->rank, sends, true, t.local, l.bytes);
        continue;
      }
      if (!e->rank.empty()) ports.add(e->rank, sends, false, t.nic_rank, l.bytes);
      const auto own = t.nic_of_host.find(e->host);
      ports.add(e->host, sends, false, own != t.nic_of_host.end() ? own->second : t.nic_host, l.bytes);
    }
    senders[from.rank.empty() ? from.host : from.rank] += l.bytes;
  }
  // By hosts the matrix does not show ranks; the plan knows what its busiest one must send or receive.
  if (!by_rank && out.bytes_local == 0) ports.add("the busiest rank", true, false, t.nic_rank, w.bound_bytes);
  out.ports = ports.busiest_first();
  if (!out.ports.empty()) out.bound_s = out.ports.front().seconds;
  std::int64_t most = 0;
  for (const auto& [name, bytes] : senders) most = std::max(most, bytes);
  const double buckets = w.bucket_limit > 0 ? static_cast<double>((most + w.bucket_limit - 1) / w.bucket_limit) : 0;
  out.expected_s = out.bound_s / t.efficiency + buckets * t.latency_s;
  return out;
}

}  // namespace refit::plan
