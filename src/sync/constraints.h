// Which synchronizer and transport a configuration gets, or why it is refused: one table, read by the decision and by
// the page that documents it. *pure*.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sync/config.h"

namespace refit::sync {

// The rows of the menu. `kNixlSharded` and `kReload` are their own rows: other constraints hold there.
enum class Route : std::uint8_t {
  kIpc,
  kHttp,
  kIpcMegatron,
  kWakeReshard,
  kCollective,
  kReload,
  kSglangGroup,
  kNativeRefit,
  kNcclReshard,
  kZmqSparse,
  kS3Sparse,
  kNixl,
  kNixlSharded,
  kPlugin,
};
inline constexpr int kRoutes = 14;

enum class Backend : std::uint8_t { kVllm, kSglang, kMegatron };
enum class Policy : std::uint8_t { kDtensor, kMegatron };
enum class Algorithm : std::uint8_t { kGrpo, kPpo, kDistillation };

struct RouteRow {
  Route route;
  std::string_view id;            // "collective"
  std::string_view colocated;     // "true" or "false"
  std::string_view selector;      // as written in refit_transport
  std::string_view synchronizer;  // the preset's name
  std::string_view transport;     // "packed collective (NCCL)"
  std::string_view path;          // senders -> receivers
  std::string_view use_when;
  std::string_view mover;  // its name in the registry of movers
  bool kv_scales;          // carries them
  // The mover that goes the same way where the weights lie in host memory; empty: there is none.
  std::string_view host_mover = {};
};
std::span<const RouteRow> route_rows();

// What a rule looks at beside route, backend, policy and algorithm. Unknown is a value: a rule that hangs on one is not
// judged, and that is said.
enum class Trait : std::uint8_t {
  kColocated,
  kModelopt,
  kDraft,
  kOffloadPolicy,
  kReloadApi,
  kRolloutBf16,
  kRolloutFp8,
  kRolloutMxfp8,
  kTrainBf16,
  kTrainFp8,
  kTrainNotBlockwise,
  kPrecisionOther,
  kFp8Kv,
  kEplb,
  kRedundantExperts,
  kNotTritonMoe,
  kGroupedSlabs,
  kNoBucket,
  kNvshmem,
  kCopyServiceOther,
  kBothPolicies,
  kSmallNixlBucket,
};
inline constexpr int kTraits = 22;
using Tri = std::optional<bool>;

struct Facts {
  Route route = Route::kCollective;
  Backend backend = Backend::kVllm;
  std::optional<Policy> policy;
  std::optional<Algorithm> algorithm;
  Tri traits[kTraits] = {};
  Tri& operator[](Trait t) { return traits[static_cast<int>(t)]; }
  Tri operator[](Trait t) const { return traits[static_cast<int>(t)]; }
};

// Refuses when everything that it names holds. An empty set means "whatever it is".
struct Rule {
  std::string_view id = {};
  std::vector<Route> routes = {};
  std::vector<Backend> backends = {};
  std::vector<Policy> policies = {};
  std::vector<Algorithm> algorithms = {};
  std::vector<Trait> traits = {};  // all of them
  bool lifted = false;             // by `refit.compat: extended`
  std::vector<std::string_view> paths = {};
  std::string_view reason = {};
  std::string_view way_out = {};
};
std::span<const Rule> constraint_rules();

// nullopt: hangs on something unknown, named in `unknown`.
Tri judge(const Rule& rule, const Facts& facts, std::string* unknown = nullptr);

// Said at the command line or by the factory; none is in the configuration.
struct Declared {
  std::optional<std::string> algorithm;                            // else from the top-level sections
  std::optional<std::int64_t> device_free_bytes, host_free_bytes;  // of a target rank, beside weights and caches
  std::optional<std::int64_t> shard_bytes;                         // of a target rank
  std::optional<std::int64_t> max_colocated_worker_groups;
  Tri redundant_experts, not_triton_moe, grouped_slabs;  // what the engine and the model tell
};

struct Refusal {
  std::string row;
  std::vector<std::string> paths;  // with their place: "policy.generation.backend (a.yaml:3)"
  std::string reason, way_out;
};
struct Remark {
  std::string row, text;
};

struct Decision {
  bool allowed = false;  // by the matrix and the values
  std::string row;       // "collective"
  std::string synchronizer, transport, path;
  std::string backend, policy, algorithm;  // as judged; "unknown" where nothing tells
  bool available = false;                  // can this build run it?
  std::string mover;                       // with which mover; empty when it cannot
  std::string memory;                      // "any", or "host": weights in device memory wait for the row's own mover
  std::string available_reason;
  std::string shadow, shadow_why;
  bool kv_scales = false;           // carried by the transport
  std::optional<double> gpu_share;  // of a generation worker; null: needs max_colocated_worker_groups
  std::string gpu_share_rule;
  std::vector<std::string> phases;  // of a sync, in order; "always: …" is the clean-up half
  std::vector<std::string> needs;   // arguments of the factory
  std::vector<Refusal> refusals;
  std::vector<Refusal> lifted;  // rows that `extended` lifts here
  std::vector<Remark> warnings, not_judged;
  bool refused_by(std::string_view row_id) const;
};

// `movers`: the names in the registry of movers; `presets`: synchronizers that this build can drive on an engine.
Decision decide(const Config& config, const Declared& declared, std::span<const std::string> movers,
                std::span<const std::string> presets);
// The synchronizers that can be made today: the Python package drives engines with them
// (refit.create_weight_synchronizer).
std::vector<std::string> built_presets();

// What happens to kv_scales that a call brings, decided before any phase: none are always fine.
enum class KvScales : std::uint8_t { kNone, kCarried, kIgnored, kRefused };
KvScales judge_kv_scales(const Config& config, const Decision& decision, bool any);

// min(0.2, 1/groups) of a GPU for a generation worker that shares it, a whole one for a dedicated worker.
double gpu_share(bool colocated, std::int64_t max_colocated_worker_groups);

// docs/choose-a-transport.md, from the tables above and decide() over the whole grid.
std::string matrix_page();

std::string_view to_string(Backend backend);
std::string_view to_string(Policy policy);
std::string_view to_string(Algorithm algorithm);
std::string_view to_string(Trait trait);

}  // namespace refit::sync
