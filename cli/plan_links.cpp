#include "cli/plan_links.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace refit::cli {
namespace {

constexpr double kBytesPerGbit = 1e9 / 8;

plan::LinkTable hgx_400g() {
  return {.ranks_per_host = 8, .nic_rank = 400 * kBytesPerGbit, .nic_host = 8 * 400 * kBytesPerGbit, .local = 3600 * kBytesPerGbit,
          .nic_of_host = {}};
}

}  // namespace

Result<plan::LinkTable> read_links(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error(Code::kInvalid, "--links " + path + ": " + std::strerror(errno));
  const nlohmann::json j = nlohmann::json::parse(in, nullptr, false);
  const auto bad = [&](const std::string& why) { return Error(Code::kInvalid, "--links " + path + ": " + why); };
  if (!j.is_object()) return bad("is no JSON object");
  plan::LinkTable t;
  for (const auto& [key, v] : j.items()) {
    if (key == "hosts") {
      if (!v.is_object()) return bad("hosts must be an object of host: Gb/s");
      for (const auto& [host, rate] : v.items()) {
        if (!rate.is_number()) return bad("hosts." + host + " must be a number (Gb/s)");
        t.nic_of_host[host] = rate.get<double>() * kBytesPerGbit;
      }
      continue;
    }
    if (!v.is_number()) return bad(key + " must be a number");
    const auto value = v.get<double>();
    if (key == "ranks_per_host" && v.is_number_integer()) t.ranks_per_host = v.get<std::int64_t>();
    else if (key == "nic_gbps_per_rank") t.nic_rank = value * kBytesPerGbit;
    else if (key == "nic_gbps_per_host") t.nic_host = value * kBytesPerGbit;
    else if (key == "local_gbps_per_rank") t.local = value * kBytesPerGbit;
    else if (key == "efficiency") t.efficiency = value;
    else if (key == "latency_us") t.latency_s = value * 1e-6;
    else
      return bad("unknown key '" + key + "' (known: ranks_per_host (an integer), nic_gbps_per_rank, nic_gbps_per_host, "
                 "local_gbps_per_rank, efficiency, latency_us, hosts)");
  }
  REFIT_TRY(plan::check_links(t));
  return t;
}

const std::vector<PublishedCase>& published_cases() {
  static const std::vector<PublishedCase> cases = {
      {"deepseek-v3", "deepseek-v3", "megatron:pp=16,ep=16,first=4,last=1", "vllm:tp=32,dp=8,draft=skip", hgx_400g(),
       "2.39 to 2.83", "NeMo-RL, docs/design-docs/nccl-reshard-refit.md: nccl_reshard on H100, bf16, PP16 EP16 to TP32 DP8",
       "400 Gb/s a GPU; the uneven pipeline stages; draft layer left out"},
      {"qwen3-235b", "qwen3-235b-a22b", "megatron:tp=4,pp=2,ep=8", "vllm:tp=1,dp=16,ep=16", hgx_400g(),
       "3.49 (NCCL before: 64.72; best engine bench 2.70 to 3.10)",
       "vLLM blog, 2026-08-22: sharded_rdt V3 of vLLM and SkyRL, 2 + 2 nodes of 8 H100, TP4 PP2 EP8 to DP16 EP16", "400 Gb/s a GPU"},
      {"kimi-k2", "kimi-k2", "megatron:pp=8,ep=32,first=5", "vllm:tp=1,dp=128,ep=128", hgx_400g(),
       "7.53 (the author's own limit: 1.25; 5 with pipeline stages one after the other)",
       "vLLM blog, 2026-08-22: sharded_rdt, bf16, 32 trainer and 16 engine nodes of 8 H100",
       "both layouts (the source gives the numbers of nodes only) and 400 Gb/s a GPU"}};
  return cases;
}

Result<PublishedCase> published_case(const std::string& name) {
  std::string known;
  for (const PublishedCase& c : published_cases()) {
    if (c.name == name) return c;
    known += (known.empty() ? "" : ", ") + c.name;
  }
  return Error(Code::kInvalid, "--case '" + name + "': known are " + known);
}

}  // namespace refit::cli
