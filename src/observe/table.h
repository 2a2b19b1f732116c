// The table of metrics: every name that a process may export, once. docs/metrics.md is printed from it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace refit::observe {

enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };
std::string_view to_string(Type type);

enum class Metric : std::uint8_t {
  kVersion,
  kStep,
  kStale,
  kReplicaVersion,
  kReplicaFenced,
  kMemberConnected,
  kRounds,
  kRoundSeconds,
  kRoundPhaseSeconds,
  kRoundPauseSeconds,
  kRetries,
  kMemberLosses,
  kEvictions,
  kControlDropped,
  kControlRefused,
  kCoordinatorQueue,
  kMemberVersion,
  kMemberFenced,
  kMemberBusy,
  kPhaseSeconds,
  kBytesNeeded,
  kBytesMoved,
  kBytesWire,
  kBytesInstalled,
  kBuckets,
  kBitsPerChanged,
  kMemoryUsed,
  kMemoryPeak,
  kMemoryLimit,
  kMemberQueue,
  kReconnects,
  kFramesForeign,
  kFramesBad,
  kFramesDuplicate,
  kConnectionsRefused,
  kTransportThreads,
  kBuild,
};
inline constexpr int kMetricCount = 37;

struct Description {
  Metric metric;
  std::string_view name;
  Type type;
  std::string_view unit;    // as in the name's ending; "" where it counts things
  std::string_view labels;  // names, comma-separated
  bool coordinator;         // else an agent's
  std::string_view help;
};
std::span<const Description> table();
const Description& describe(Metric metric);
// The upper bounds of every histogram, in seconds.
std::span<const double> second_bounds();
// docs/metrics.md.
std::string metrics_page();

}  // namespace refit::observe
