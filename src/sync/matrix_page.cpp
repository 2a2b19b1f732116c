// docs/choose-a-transport.md, written from the tables and from decide() over the grid, so that it cannot drift.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "sync/constraints.h"
#include "sync/lifecycle.h"

namespace refit::sync {
namespace {

constexpr Backend kAllBackends[] = {Backend::kVllm, Backend::kSglang, Backend::kMegatron};
constexpr Policy kAllPolicies[] = {Policy::kDtensor, Policy::kMegatron};
constexpr Algorithm kAllAlgorithms[] = {Algorithm::kGrpo, Algorithm::kPpo, Algorithm::kDistillation};
constexpr std::string_view kCompats[] = {"strict", "extended"};

// One line of the menu as a user writes it.
struct MenuLine {
  bool colocated;
  std::string_view selector;
  bool reload = false, experts = false;
  Backend home = Backend::kVllm;  // for questions that do not turn on the backend
};
constexpr MenuLine kMenu[] = {
    {true, "null"},
    {true, "mcore", false, false, Backend::kMegatron},
    {false, "null"},
    {false, "null", true},
    {false, "mcore", false, false, Backend::kMegatron},
    {false, "nccl_reshard"},
    {false, "vllm_zmq_sparse"},
    {false, "vllm_s3_sparse"},
    {false, "nixl"},
    {false, "nixl", false, true},
    {false, "module:Class"},
};

Decision ask(const MenuLine& line, Backend backend, Policy policy, Algorithm algorithm, std::string_view compat) {
  Config c;
  const Origin here{"grid", 1, {}};
  c.backend = {std::string(to_string(backend)), here};
  c.colocated = {line.colocated, here};
  if (line.selector != "null") c.refit_transport = {std::string(line.selector), here};
  c.reload_api = {line.reload, here};
  c.shard_expert_weights = {line.experts, here};
  c.megatron_enabled = {policy == Policy::kMegatron, here};
  c.dtensor_enabled = {policy == Policy::kDtensor, here};
  c.s3_bucket = {"bucket", here};
  c.compat = {std::string(compat), here};
  Declared declared;
  declared.algorithm = std::string(to_string(algorithm));
  return decide(c, declared, {}, {});
}

std::string row_of(std::initializer_list<std::string> cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + cell + " |";
  return out + "\n";
}
std::string code(std::string_view text) { return "`" + std::string(text) + "`"; }
std::string line_name(const MenuLine& l) {
  return code(l.selector) + (l.reload ? " + reload API" : "") + (l.experts ? ", sharded experts" : "");
}
std::string topology(const MenuLine& l) { return l.colocated ? "shared GPUs" : "own GPUs"; }

std::string policies_of(const MenuLine& line, Backend backend, std::string_view compat) {
  std::string out;
  for (const Policy p : kAllPolicies)
    if (ask(line, backend, p, line.colocated ? Algorithm::kPpo : Algorithm::kGrpo, compat).allowed)
      out += (out.empty() ? "" : ", ") + std::string(p == Policy::kDtensor ? "DTensor" : "Megatron");
  return out.empty() ? "–" : out;
}

std::string menu_table() {
  std::string out = row_of({"`colocated.enabled`", "`refit_transport`", "row", "synchronizer", "transport",
                            "senders → receivers", "carries `kv_scales`", "between host memories", "use when"}) +
                    "|---|---|---|---|---|---|---|---|---|\n";
  for (const RouteRow& r : route_rows())
    out += row_of({code(r.colocated), code(r.selector), code(r.id), code(r.synchronizer), std::string(r.transport),
                   std::string(r.path), r.kv_scales ? "yes" : "no", r.host_mover.empty() ? "–" : code(r.host_mover),
                   std::string(r.use_when)});
  return out;
}

std::string backend_table() {
  std::string out = row_of({"generation on", "`refit_transport`", "vLLM strict", "vLLM extended", "SGLang strict",
                            "SGLang extended", "Megatron strict", "Megatron extended"}) +
                    "|---|---|---|---|---|---|---|---|\n";
  for (const MenuLine& line : kMenu) {
    std::string cells = "| " + topology(line) + " | " + line_name(line) + " |";
    for (const Backend b : kAllBackends)
      for (const std::string_view compat : kCompats) cells += " " + policies_of(line, b, compat) + " |";
    out += cells + "\n";
  }
  return out;
}

std::string algorithm_table() {
  std::string out = row_of({"generation on", "`refit_transport`", "GRPO strict", "GRPO extended", "PPO strict",
                            "PPO extended", "distillation strict", "distillation extended"}) +
                    "|---|---|---|---|---|---|---|---|\n";
  for (const MenuLine& line : kMenu) {
    std::string cells = "| " + topology(line) + " | " + line_name(line) + " |";
    for (const Algorithm a : kAllAlgorithms)
      for (const std::string_view compat : kCompats)
        cells += ask(line, line.home, Policy::kMegatron, a, compat).allowed ? " yes |" : " – |";
    out += cells + "\n";
  }
  return out;
}

template <typename V, typename F>
void say(std::string& out, const std::vector<V>& set, F name) {
  if (set.empty()) return;
  out += out.empty() ? "" : "; ";
  for (std::size_t i = 0; i < set.size(); ++i) out += (i ? ", " : "") + std::string(name(set[i]));
}
std::string condition(const Rule& rule) {
  std::string out;
  say(out, rule.routes, [](Route r) { return code(route_rows()[static_cast<std::size_t>(r)].id); });
  say(out, rule.backends, [](Backend b) { return std::string(to_string(b)) + " generation"; });
  say(out, rule.policies, [](Policy p) { return std::string(to_string(p)) + " policy"; });
  say(out, rule.algorithms, [](Algorithm a) { return std::string(to_string(a)); });
  for (const Trait t : rule.traits) out += (out.empty() ? "" : "; ") + std::string(to_string(t));
  return out;
}

std::string rule_table() {
  std::string out =
      row_of({"row", "holds where", "strict", "extended", "reason", "way out"}) + "|---|---|---|---|---|---|\n";
  for (const Rule& rule : constraint_rules())
    out += row_of({code(rule.id), condition(rule), "refused", rule.lifted ? "**lifted**" : "refused",
                   std::string(rule.reason), std::string(rule.way_out)});
  return out;
}

// Of the rows and engines that the matrix permits, by their lifecycle; with the memory saver and the offload keys on.
std::string phases_table() {
  std::string out = row_of({"rows", "generation", "phases", "always, also after a failure"}) + "|---|---|---|---|\n";
  std::vector<std::pair<std::string, std::string>> groups;  // what is alike -> the rows
  for (const Backend b : kAllBackends)
    for (const MenuLine& line : kMenu) {
      const Decision d = ask(line, b, Policy::kMegatron, line.colocated ? Algorithm::kPpo : Algorithm::kGrpo, "strict");
      if (!d.allowed) continue;
      const auto row = std::ranges::find(route_rows(), std::string_view(d.row), &RouteRow::id);
      std::string work, always;
      for (const PhaseRow& p : lifecycle({row->route, b, true, true})) {
        std::string& half = p.half == Half::kCleanUp ? always : work;
        half += (half.empty() ? "" : " → ") + code(to_string(p.phase));
      }
      const std::string alike = std::string(to_string(b)) + " | " + work + " | " + always;
      const auto group = std::ranges::find(groups, alike, &std::pair<std::string, std::string>::first);
      if (group == groups.end())
        groups.emplace_back(alike, code(d.row));
      else
        group->second += ", " + code(d.row);
    }
  for (const auto& [alike, rows] : groups) out += row_of({rows, alike});
  return out;
}

std::string key_table() {
  std::string out = row_of({"key", "default", "value"}) + "|---|---|---|\n";
  for (const KeyRow& row : config_rows(Config{})) {
    const bool unset = row.value == "null" || row.value.empty();
    out += row_of({code(row.path), unset ? "–" : code(row.value), row.needs});
  }
  return out;
}

}  // namespace

std::string matrix_page() {
  return "<!-- Generated: refit check --print-matrix > docs/choose-a-transport.md -->\n"
         "# Choose a transport\n\n"
         "`refit check CONFIG.yaml` reads a training configuration and says which synchronizer and transport it gets, "
         "and "
         "why, or why it is refused and what to change. This page is printed from the same table.\n\n"
         "It says what is *permitted*. Whether this build has the mover for a row is another question: `refit check` "
         "answers it (`available`), and [not-done.md](not-done.md) lists what is missing. Where a row's own mover "
         "needs device "
         "memory, the column \"between host memories\" names the one that goes the same way for an engine on a CPU; "
         "the decision "
         "says so.\n\n"
         "## The menu\n"
         "`policy.generation.refit_transport`, default `null`. Generation on GPUs of its own also needs "
         "`train_cluster` and "
         "`inference_world_size` (or `inference_cluster`) from the caller.\n\n" +
         menu_table() +
         "\n## Who may use it\n"
         "Cells name the policies (trainer backends) that are permitted. `refit.compat: strict` is the published "
         "matrix; "
         "`extended` lifts the rows marked below, and each decision lists the rows that it lifted.\n\n" +
         backend_table() +
         "\n## Algorithms\n"
         "With a Megatron policy. The algorithm is the factory's `algorithm=`, `--algorithm`, or the configuration's "
         "top-level section; where none tells, these rows are not judged and the decision says so.\n\n" +
         algorithm_table() +
         "\n## Every constraint\n"
         "A row refuses where all that stands in \"holds where\" is true (commas: any of these). What the "
         "configuration "
         "cannot tell (grouped expert slabs, redundant experts, MoE kernels, device memory) is judged once the engine "
         "has "
         "declared it, and listed as not judged until then.\n\n" +
         rule_table() +
         "\n## Rules beside the table\n"
         "- `kv_scales` empty or absent are always accepted. A transport that does not carry them refuses an FP8 KV "
         "cache "
         "at set-up (`kv-scales.transport`); scales that arrive all the same are refused, or ignored and counted, as "
         "`refit.kv_scales_unsupported` says, before any phase begins.\n"
         "- A generation worker that shares its GPU asks for min(0.2, 1/max_colocated_worker_groups) of it; a "
         "dedicated "
         "worker for a whole one.\n"
         "- The shadow (the next version's bytes beside the live ones) lies in the first place with room for a rank's "
         "shard, from the declared free bytes: device, pinned host memory, else the encoded delta (sparse) or none "
         "(in place, under the gate).\n"
         "- Reload API: measured upstream (not here) faster for Llama 8B and Qwen3 32B, about 44 % slower for "
         "Qwen3 30B-A3B, with MXFP8 about 2 times slower and with a higher peak.\n"
         "- `policy.generation.backend` not set: judged for vllm, with a warning. `colocated.enabled` not set: taken "
         "from a "
         "transport that allows one answer only, with a warning; else refused.\n"
         "\n## Order of a sync\n"
         "With the memory saver and the offload keys on; without them their phases fall away.\n\n" +
         phases_table() +
         "\n## Keys that are read\n"
         "Inside `policy.generation.refit_cfg` and `refit` every key must be known. Elsewhere only these are read, a "
         "name "
         "one or two letters away from one of them is refused, and all others are left alone. `${a.b}`, `${.x}`, "
         "`${oc.env:NAME,default}`, `defaults:`, anchors and merge keys are resolved where these keys need them.\n\n" +
         key_table();
}

}  // namespace refit::sync
